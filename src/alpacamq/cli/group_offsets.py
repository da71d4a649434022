"""Offsets of consumer groups: progress and lag in each partition, and reset. Loaded when a verb needs it."""

import argparse
from dataclasses import dataclass

from alpacamq.client.errors import NotFound
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.groups import SHARE, Group, Member, find_group
from alpacamq.client.kafka.offsets import (
    alter_share_group_offsets,
    commit_offsets,
    committed_offsets,
    extents,
    share_group_offsets,
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


def lag_by_topic(cluster: Cluster, group: Group) -> list[TopicLag]:
    by_topic: dict[str, list[int]] = {}
    for each in progress(cluster, group):
        lags = by_topic.setdefault(each.place.topic, [])
        lags += [] if each.lag is None else [each.lag]
    return [
        TopicLag(group=group, topic=topic, lag=sum(lags) if lags else None, largest=max(lags, default=None))
        for topic, lags in by_topic.items()
    ]


def progress(cluster: Cluster, group: Group) -> list[Progress]:
    """Return the progress in every partition that is committed or assigned."""
    shared = share_group_offsets(cluster, group.name) if group.kind == SHARE else {}
    committed = (
        {place: found.start for place, found in shared.items()}
        if group.kind == SHARE
        else committed_offsets(cluster, group.name)
    )
    owners: dict[TopicPartition, list[Member]] = {}
    for member in group.members:
        for place in member.partitions:
            owners.setdefault(place, []).append(member)
    existing = {place for topic in list_topics(cluster) for place in topic.all_partitions()}
    places = sorted(committed.keys() | owners.keys())
    spans = extents(cluster, [place for place in places if place in existing])
    found = []
    for place in places:
        span = spans.get(place)
        end = span.end if span else None
        reached = committed.get(place)
        lag = None if reached is None or end is None else max(0, end - reached)
        found.append(
            Progress(
                place=place,
                committed=reached,
                end=end,
                lag=shared[place].lag if place in shared else lag,
                member=",".join(member.id for member in owners.get(place, ())) or None,
                client=",".join(sorted({member.client for member in owners.get(place, ())})) or None,
            )
        )
    return found
