"""`alpacactl groups`: who consumes what, how far behind, and moving a group."""

import argparse

from .asking import add_verb, compact, reach, verbs_of
from .output import Output, Table
from .position import HELP, Selection, parse_position
from .yaml import Plain


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(verbs, common, "list", "list consumer groups", _list)

    describe = add_verb(verbs, common, "describe", "show a group's members, offsets and lag", _describe)
    describe.add_argument("group")

    delete = add_verb(verbs, common, "delete", "delete groups without members, and their offsets", _delete)
    delete.add_argument("groups", nargs="+", metavar="group")

    reset = add_verb(verbs, common, "reset", "move the offsets of a group without members", _reset)
    reset.description = (
        "Move the offsets of a group. Until --execute is given, only show them before and after."
    )
    reset.add_argument("group")
    reset.add_argument("--to", type=parse_position, required=True, metavar="WHERE", help=HELP)
    reset.add_argument(
        "--topic",
        type=Selection.parse,
        action="append",
        default=[],
        metavar="TOPIC[:0,3]",
        help="only this topic or these partitions of it; may be repeated (default: all the group has read)",
    )
    reset.add_argument("--execute", action="store_true", help="do it")


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.groups import every_group

    with reach(parsed) as cluster:
        groups: list[dict[str, Plain]] = [
            {"name": group.name, "protocol": group.kind, "state": group.state}
            for group in every_group(cluster)
        ]
    output.show(groups, Table(["group", "protocol", "state"], [list(group.values()) for group in groups]))


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.groups import find_group

    from .lag import progress

    with reach(parsed) as cluster:
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
            [[group.name, group.kind, group.state, total]],
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
                [each.place.topic, each.place.partition, each.committed, each.end, each.lag, each.client]
                for each in partitions
            ],
            title="offsets",
        ),
    )


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.groups import delete_group, find_group

    with reach(parsed) as cluster:
        # A misspelt name must not leave half of the others deleted.
        for name in parsed.groups:
            find_group(cluster, name)
        for name in parsed.groups:
            delete_group(cluster, name)
    output.done({"deleted": parsed.groups}, f"deleted {', '.join(parsed.groups)}")


def _reset(parsed: argparse.Namespace, output: Output) -> None:
    from .reset import reset

    with reach(parsed) as cluster:
        reset(cluster, parsed, output)
