"""Moving a group's offsets: what would change, and the change."""

import argparse
from typing import TYPE_CHECKING

from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.groups import SHARE, Group, find_group
from alpacamq.client.kafka.offsets import (
    commit_offsets,
    committed_offsets,
    extents,
    move_shared,
    shared_places,
)
from alpacamq.client.kafka.topics import every_topic, find_topic
from alpacamq.model.ids import TopicPartition

from .output import Output, Table, say
from .parsing import Declined
from .position import Selection, locate

if TYPE_CHECKING:
    from .yaml import Plain


def reset(cluster: Cluster, parsed: argparse.Namespace, output: Output) -> None:
    """Show the group's offsets before and after, and move them if told to."""
    group = find_group(cluster, parsed.group)
    if parsed.execute and group.members:
        raise Declined(_busy(group))
    is_shared = group.kind == SHARE
    before = (
        {place: found.start for place, found in shared_places(cluster, group.name).items()}
        if is_shared
        else committed_offsets(cluster, group.name)
    )
    places = _chosen(cluster, parsed.topic) if parsed.topic else _existing(cluster, before)
    if not places:
        raise Declined(f"group {group.name!r} has committed no offsets yet; name what to set with --topic")
    after = locate(cluster, parsed.to, extents(cluster, places))
    if parsed.execute:
        (move_shared if is_shared else commit_offsets)(cluster, group.name, after)
    changes: list[dict[str, Plain]] = [
        {"topic": place.topic, "partition": place.partition, "before": before.get(place), "after": offset}
        for place, offset in sorted(after.items())
    ]
    output.show(
        {"group": group.name, "executed": parsed.execute, "offsets": changes},
        Table(
            ["topic", "partition", "before", "", "after"],
            [
                [change["topic"], change["partition"], change["before"], "→", change["after"]]
                for change in changes
            ],
        ),
    )
    if parsed.execute:
        say(f"moved group {group.name}")
    elif group.members:
        say(f"nothing was changed, and cannot be: {_busy(group)}")
    else:
        say("nothing was changed; add --execute to do this")


def _busy(group: Group) -> str:
    members = ", ".join(f"{member.client or member.id} at {member.host}" for member in group.members)
    return (
        f"group {group.name!r} is in use ({members}); stop its consumers first, "
        "or they would go on from where they are and overwrite the new offsets"
    )


def _existing(cluster: Cluster, committed: dict[TopicPartition, int]) -> list[TopicPartition]:
    there = {place for topic in every_topic(cluster) for place in topic.all_partitions()}
    return [place for place in committed if place in there]


def _chosen(cluster: Cluster, selections: list[Selection]) -> list[TopicPartition]:
    places = []
    for selection in selections:
        topic = find_topic(cluster, selection.topic)
        there = topic.all_partitions()
        wanted = [TopicPartition(topic.name, index) for index in selection.partitions] or there
        for place in wanted:
            if place not in there:
                raise NotFound("partition", str(place))
        places += wanted
    return places
