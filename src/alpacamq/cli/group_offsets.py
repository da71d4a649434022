"""Offsets of consumer groups: progress and lag in each partition, and reset. Loaded when a verb needs it."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.groups import SHARE, Group, Member, find_group
from alpacamq.client.kafka.offsets import (
    ShareGroupOffset,
    alter_share_group_offsets,
    commit_offsets,
    committed_offsets,
    committed_offsets_of,
    ends,
    extents,
    share_group_offsets,
    share_group_offsets_of,
)
from alpacamq.client.kafka.topics import find_topic, list_topics
from alpacamq.model.ids import TopicPartition

from .output import Output, Table, print_message
from .parsing import CommandError
from .position import Selection, locate
from .yaml import Plain


def reset(cluster: Cluster, parsed: argparse.Namespace, output: Output) -> None:
    """Print the group's offsets before and after, and reset them with --execute."""
    group = find_group(cluster, parsed.group)
    if parsed.execute and group.members:
        raise CommandError(_busy(group))
    is_shared = group.kind == SHARE
    before = (
        {place: found.start for place, found in share_group_offsets(cluster, group.name).items()}
        if is_shared
        else committed_offsets(cluster, group.name)
    )
    places = _chosen(cluster, parsed.topic) if parsed.topic else _existing(cluster, before)
    if not places:
        raise CommandError(f"group {group.name!r} has no committed offsets; select topics with --topic")
    after = locate(cluster, parsed.to, extents(cluster, places))
    if parsed.execute:
        (alter_share_group_offsets if is_shared else commit_offsets)(cluster, group.name, after)
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
        print_message(f"reset the offsets of group {group.name}")
    elif group.members:
        print_message(f"nothing was changed: {_busy(group)}")
    else:
        print_message("nothing was changed; use --execute to apply")


def _busy(group: Group) -> str:
    members = ", ".join(f"{member.client or member.id} at {member.host}" for member in group.members)
    return (
        f"group {group.name!r} has active members ({members}); stop them first, "
        "or they would continue from their position and overwrite the new offsets"
    )


def _existing(cluster: Cluster, committed: dict[TopicPartition, int]) -> list[TopicPartition]:
    there = {place for topic in list_topics(cluster) for place in topic.all_partitions()}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A group in one partition; no end if the topic was deleted, no commit if there is none yet.

    For a share group, the start offset before which everything is done counts as committed.
    """

    place: TopicPartition
    committed: int | None
    end: int | None
    lag: int | None
    member: str | None
    client: str | None

    def plain(self) -> Plain:
        return {
            "topic": self.place.topic,
            "partition": self.place.partition,
            "committed": self.committed,
            "end": self.end,
            "lag": self.lag,
            "member": self.member,
            "client": self.client,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """Lag of a group in a topic: in total, and in the partition with the largest lag."""

    group: Group
    topic: str
    lag: int | None
    largest: int | None

    def plain(self) -> Plain:
        return {
            "group": self.group.name,
            "topic": self.topic,
            "state": self.group.state,
            "members": len(self.group.members),
            "lag": self.lag,
            "largest": self.largest,
        }


def lag_by_topic(cluster: Cluster, groups: Sequence[Group]) -> list[TopicLag]:
    """Return the lag of each group in each topic, with few requests for many groups."""
    found: list[TopicLag] = []
    for group, partitions in zip(groups, _progress(cluster, groups), strict=True):
        by_topic: dict[str, list[int]] = {}
        for each in partitions:
            lags = by_topic.setdefault(each.place.topic, [])
            lags += [] if each.lag is None else [each.lag]
        found += [
            TopicLag(
                group=group, topic=topic, lag=sum(lags) if lags else None, largest=max(lags, default=None)
            )
            for topic, lags in by_topic.items()
        ]
    return found


def progress(cluster: Cluster, group: Group) -> list[Progress]:
    """Return the progress in every partition that is committed or assigned."""
    [found] = _progress(cluster, [group])
    return found


def _progress(cluster: Cluster, groups: Sequence[Group]) -> list[list[Progress]]:
    shared = share_group_offsets_of(cluster, [each.name for each in groups if each.kind == SHARE])
    committed = committed_offsets_of(cluster, [each.name for each in groups if each.kind != SHARE])
    for name, partitions in shared.items():
        committed[name] = {place: found.start for place, found in partitions.items()}
    owners = [_owners(group) for group in groups]
    existing = {place for topic in list_topics(cluster) for place in topic.all_partitions()}
    last = ends(cluster, existing.intersection(chain(*committed.values(), *owners)))
    return [
        [
            _of_partition(
                place,
                committed[group.name].get(place),
                last.get(place),
                owned.get(place, ()),
                shared.get(group.name, {}).get(place),
            )
            for place in sorted(committed[group.name].keys() | owned.keys())
        ]
        for group, owned in zip(groups, owners, strict=True)
    ]


def _owners(group: Group) -> dict[TopicPartition, list[Member]]:
    owners: dict[TopicPartition, list[Member]] = {}
    for member in group.members:
        for place in member.partitions:
            owners.setdefault(place, []).append(member)
    return owners


def _of_partition(
    place: TopicPartition,
    committed: int | None,
    end: int | None,
    owners: Sequence[Member],
    shared: ShareGroupOffset | None,
) -> Progress:
    lag = None if committed is None or end is None else max(0, end - committed)
    return Progress(
        place=place,
        committed=committed,
        end=end,
        lag=lag if shared is None else shared.lag,
        member=",".join(member.id for member in owners) or None,
        client=",".join(sorted({member.client for member in owners})) or None,
    )
