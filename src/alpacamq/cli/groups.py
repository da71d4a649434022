"""`alpacactl groups`: shows consumer groups and their lag, and resets their offsets."""

import argparse
from typing import TYPE_CHECKING

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
from .output import Output, Table, timestamp_text
from .position import HELP, Selection, parse_position

if TYPE_CHECKING:
    from .yaml import Plain


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

    from .group_offsets import progress

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
    from alpacamq.client.kafka.groups import find_groups_with_members

    from .group_offsets import lag_by_topic

    with connect(parsed) as cluster:
        groups = find_groups_with_members(cluster, list(dict.fromkeys(parsed.groups)))
        found = lag_by_topic(cluster, groups)
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
    from alpacamq.client.kafka.groups import delete_groups, find_groups

    names = list(dict.fromkeys(parsed.groups))
    with connect(parsed) as cluster:
        find_groups(cluster, names)  # what does not exist is not asked about
        confirm(parsed, f"delete {', '.join(names)} and its offsets")
        delete_groups(cluster, names)
    output.done({"deleted": names}, f"deleted {', '.join(names)}")


def _reset(parsed: argparse.Namespace, output: Output) -> None:
    from .group_offsets import reset

    with connect(parsed) as cluster:
        reset(cluster, parsed, output)
