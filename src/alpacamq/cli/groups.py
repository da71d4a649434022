"""`alpacactl groups`: shows consumer groups and their lag, and resets their offsets."""

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

from . import cells
from .commands import (
    add_confirmation,
    add_verb,
    compact,
    confirm,
    connect,
    connect_http,
    group_name,
    verbs_of,
)
from .output import Output, Table, print_message, timestamp_text
from .parsing import CommandError
from .position import HELP, Selection, locate, parse_position
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


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(verbs, common, "list", "list consumer groups", _list, ["alpacactl groups list"])

    describe = add_verb(
        verbs, common, "describe", "show a group's members, offsets and lag", _describe,
        ["alpacactl groups describe kitchen"],
    )  # fmt: skip
    describe.add_argument("group", type=group_name)

    lag = add_verb(
        verbs, common, "lag", "show the lag of groups by topic", _lag,
        ["alpacactl groups lag", "alpacactl groups lag kitchen -o json"],
    )  # fmt: skip
    lag.add_argument("groups", nargs="*", metavar="group", type=group_name, help="default: all groups")

    rebalances = add_verb(
        verbs, common, "rebalances", "show the recent rebalances of a group and their causes", _rebalances,
        ["alpacactl groups rebalances kitchen"],
    )  # fmt: skip
    rebalances.add_argument("group", type=group_name)

    reset = add_verb(
        verbs, common, "reset", "reset the offsets of a group without members", _reset,
        [
            "alpacactl groups reset kitchen --to 1h",
            "alpacactl groups reset kitchen --to earliest --topic orders:0,2 --execute",
        ],
    )  # fmt: skip
    reset.description = "Reset the offsets of a group. Without --execute, only print the change."
    reset.add_argument("group", type=group_name)
    reset.add_argument("--to", type=parse_position, required=True, metavar="WHERE", help=HELP)
    reset.add_argument(
        "--topic",
        type=Selection.parse,
        action="append",
        default=[],
        metavar="TOPIC[:0,3]",
        help="only this topic or these partitions of it; may be repeated (default: all topics of the group)",
    )
    reset.add_argument("--execute", action="store_true", help="apply the change")

    delete = add_verb(
        verbs, common, "delete", "delete groups without members, and their offsets", _delete,
        ["alpacactl groups delete kitchen --yes"],
    )  # fmt: skip
    delete.add_argument("groups", nargs="+", metavar="group", type=group_name)
    add_confirmation(delete)


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.groups import list_groups

    with connect(parsed) as cluster:
        groups: list[dict[str, Plain]] = [
            {"name": group.name, "protocol": group.kind, "state": group.state}
            for group in list_groups(cluster)
        ]
    rows = [[group["name"], group["protocol"], cells.state(str(group["state"]))] for group in groups]
    output.show(groups, Table(["group", "protocol", "state"], rows))


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.groups import find_group

    with connect(parsed) as cluster:
        group = find_group(cluster, parsed.group)
        partitions = progress(cluster, group)
    members: list[dict[str, Plain]] = [
        {
            "id": member.id,
            "instance": member.instance,
            "client": member.client,
            "host": member.host,
            "partitions": [
                {"topic": place.topic, "partition": place.partition} for place in member.partitions
            ],
        }
        for member in group.members
    ]
    lags = [each.lag for each in partitions if each.lag is not None]
    total = sum(lags) if lags else None
    output.show(
        {
            "name": group.name,
            "protocol": group.kind,
            "state": group.state,
            "assignor": group.assignor or None,
            "coordinator": group.coordinator,
            "lag": total,
            "members": members,
            "partitions": [each.plain() for each in partitions],
        },
        Table(
            ["group", "protocol", "state", "lag"],
            [[group.name, group.kind, cells.state(group.state), cells.lag(total)]],
        ),
        Table(
            ["member", "client", "host", "partitions"],
            [
                [
                    member.id,
                    member.client,
                    member.host,
                    " ".join(
                        f"{topic}:{compact(p.partition for p in member.partitions if p.topic == topic)}"
                        for topic in sorted({p.topic for p in member.partitions})
                    ),
                ]
                for member in group.members
            ],
            title="members",
        ),
        Table(
            ["topic", "partition", "committed", "end", "lag", "client"],
            [
                [
                    each.place.topic,
                    each.place.partition,
                    each.committed,
                    each.end,
                    cells.lag(each.lag),
                    each.client,
                ]
                for each in partitions
            ],
            title="offsets",
        ),
    )


def _lag(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.groups import find_group, list_groups

    found: list[TopicLag] = []
    with connect(parsed) as cluster:
        names = parsed.groups or [group.name for group in list_groups(cluster)]
        for name in names:
            found += lag_by_topic(cluster, find_group(cluster, name))
    output.show(
        [each.plain() for each in found],
        Table(
            ["group", "topic", "state", "members", "lag", "largest"],
            [
                [
                    each.group.name,
                    each.topic,
                    cells.state(each.group.state),
                    len(each.group.members),
                    cells.lag(each.lag),
                    each.largest,
                ]
                for each in found
            ],
        ),
    )


def _rebalances(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.admin import rebalances

    with connect_http(parsed) as api:
        found = rebalances(api, parsed.group)
    output.show(
        [
            {
                "started": timestamp_text(each.started),
                "duration_ms": each.duration_ms,
                "state": each.state,
                "cause": each.cause,
                "generation": each.generation,
                "member_count": each.member_count,
                "members": list(each.members),
            }
            for each in found
        ],
        Table(
            ["started", "duration", "state", "cause", "generation", "members", "caused by"],
            [
                [
                    cells.age(each.started),
                    None if each.duration_ms is None else f"{each.duration_ms} ms",
                    each.state,
                    each.cause,
                    each.generation,
                    each.member_count,
                    " ".join(each.members),
                ]
                for each in found
            ],
        ),
    )


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.groups import delete_group, find_group

    with connect(parsed) as cluster:
        # A misspelt name must not leave half of the others deleted.
        for name in parsed.groups:
            find_group(cluster, name)
        confirm(parsed, f"delete {', '.join(parsed.groups)} and its offsets")
        for name in parsed.groups:
            delete_group(cluster, name)
    output.done({"deleted": parsed.groups}, f"deleted {', '.join(parsed.groups)}")


def _reset(parsed: argparse.Namespace, output: Output) -> None:

    with connect(parsed) as cluster:
        reset(cluster, parsed, output)
