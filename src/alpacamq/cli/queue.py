"""`alpacactl queue`: a topic as a queue, message by message, and looking after queues."""

import argparse
from typing import TYPE_CHECKING

from . import cells
from .asking import (
    add_confirmation,
    add_verb,
    confirm,
    count,
    duration,
    group_name,
    index,
    pair,
    reach_http,
    topic_name,
    verbs_of,
)
from .output import Output, Table, say
from .parsing import WrongUsage
from .position import HELP, AtOffset, AtTime, Earliest, Latest, Position, parse_position
from .settling import add_settling

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.client.http.queues import QueueDescription, QueueName

# That of consumers of SQS, too.
DEFAULT_GROUP = "queue"


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    receive = _of_queue(
        add_verb(
            verbs, common, "receive", "lease messages and print them with their receipts", _receive,
            ["alpacactl queue receive orders --max 1", "alpacactl queue receive orders --ack --exit -o json"],
        )
    )  # fmt: skip
    receive.description = (
        "Lease messages of a topic to ourselves and print them. Each is leased until its visibility timeout: "
        "settle it before that by its receipt, or another consumer gets it."
    )
    receive.add_argument("--max", type=count, metavar="N", help="stop after this many messages")
    receive.add_argument("--exit", action="store_true", help="stop when there is no message to be had")
    receive.add_argument("--ack", action="store_true", help="acknowledge messages once they are printed")
    receive.add_argument(
        "--visibility", type=duration, metavar="TIME", help="how long they are ours (default: the queue's)"
    )
    receive.add_argument(
        "--start", choices=("earliest", "latest"), default="earliest",
        help="where a group begins that has never used the topic (default: earliest)",
    )  # fmt: skip

    add_settling(verbs, common)

    peek = _of_queue(
        add_verb(
            verbs, common, "peek", "show messages that are not done, without leasing them", _peek,
            ["alpacactl queue peek orders --max 3"],
        )
    )  # fmt: skip
    peek.add_argument("--max", type=count, default=10, metavar="N", help="messages at most (default: 10)")

    lists = add_verb(
        verbs, common, "list", "list queues: groups that use topics as such", _list,
        ["alpacactl queue list", "alpacactl queue list --topic orders -o json"],
    )  # fmt: skip
    lists.add_argument("--group", type=group_name, metavar="NAME", help="only queues of this group")
    lists.add_argument("--topic", type=topic_name, metavar="NAME", help="only queues on this topic")

    _of_queue(
        add_verb(
            verbs, common, "describe", "show what a queue holds, its lanes and its own settings", _describe,
            ["alpacactl queue describe orders --group billing"],
        )
    )  # fmt: skip

    configure = _of_queue(
        add_verb(
            verbs, common, "configure", "give a group settings of its own on a topic", _configure,
            ["alpacactl queue configure orders --group billing --set queue.max.deliveries=10"],
        )
    )  # fmt: skip
    configure.add_argument(
        "--set", type=pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    configure.add_argument(
        "--unset", action="append", default=[], metavar="NAME", help="back to the topic's; may be repeated"
    )

    purge = _of_queue(
        add_verb(
            verbs, common, "purge", "have everything there is now count as done", _purge,
            ["alpacactl queue purge orders --yes"],
        )
    )  # fmt: skip
    add_confirmation(purge)

    reset = _of_queue(
        add_verb(
            verbs, common, "reset", "let a queue begin again elsewhere", _reset,
            [
                "alpacactl queue reset orders --to 1h",
                "alpacactl queue reset orders --to earliest --execute",
            ],
        )
    )  # fmt: skip
    reset.description = (
        "Let a queue begin again: what lies behind the place is delivered, whether it was done or not, and "
        "what lies before it counts as done. Until --execute is given, only show the places before and after."
    )
    reset.add_argument("--to", type=parse_position, required=True, metavar="WHERE", help=HELP)
    reset.add_argument("--partition", type=index, metavar="N", help="only this partition")
    reset.add_argument("--execute", action="store_true", help="do it")


def _of_queue(verb: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """A verb about one queue."""
    verb.add_argument("topic", type=topic_name)
    verb.add_argument(
        "--group", type=group_name, default=DEFAULT_GROUP, metavar="NAME",
        help=f"default: {DEFAULT_GROUP}, that of SQS too",
    )  # fmt: skip
    return verb


def _name(parsed: argparse.Namespace) -> "QueueName":
    from alpacamq.client.http.queues import QueueName

    if not parsed.group:
        raise WrongUsage("--group: a group needs a name")
    return QueueName(parsed.group, parsed.topic)


def _receive(parsed: argparse.Namespace, output: Output) -> None:
    from .receiving import receive

    with reach_http(parsed) as api:
        receive(api, _name(parsed), parsed, output)


def _peek(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import MAX_MESSAGES, peek

    from .record_forms import cell, plain

    with reach_http(parsed) as api:
        found = peek(api, _name(parsed), min(parsed.max, MAX_MESSAGES))
    records = [(each.place(parsed.topic), each.record) for each in found]
    forms = [plain(place, record) for place, record in records]
    output.show(
        forms,
        Table(
            ["partition", "offset", "written", "key", "value"],
            [
                [
                    place.partition,
                    record.offset,
                    cells.age(record.timestamp_ms),
                    cell(record.key),
                    cell(record.value),
                ]
                for place, record in records
            ],
        ),
    )


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import every_queue

    with reach_http(parsed) as api:
        found = every_queue(api)
    listed = [
        {
            "group": queue.group,
            "topic": queue.topic,
            "ready": None if totals is None else totals.ready,
            "in_flight": None if totals is None else totals.in_flight,
            "resting": None if totals is None else totals.resting,
        }
        for queue, totals in found
        if parsed.group in (None, queue.group) and parsed.topic in (None, queue.topic)
    ]
    columns = ["group", "topic", "ready", "in flight", "resting"]
    output.show(listed, Table(columns, [list(each.values()) for each in listed]))


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import describe

    with reach_http(parsed) as api:
        _show(describe(api, _name(parsed)), output)


def _configure(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import configure

    changes: dict[str, str | None] = {**dict.fromkeys(parsed.unset), **dict(parsed.set)}
    if not changes:
        raise WrongUsage("nothing to change: give --set NAME=VALUE or --unset NAME")
    with reach_http(parsed) as api:
        changed = configure(api, _name(parsed), changes)
    output.done(
        {"group": changed.group, "topic": changed.topic, "settings": changed.settings},
        f"settings of group {changed.group} on topic {changed.topic}: "
        + (", ".join(f"{name}={value}" for name, value in sorted(changed.settings.items())) or "none"),
    )


def _purge(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import describe, purge

    with reach_http(parsed) as api:
        queue = _name(parsed)
        totals = describe(api, queue).totals
        held = totals.ready + totals.in_flight + totals.resting
        what = f"{held} {'message' if held == 1 else 'messages'} of {queue.topic}"
        confirm(parsed, f"have {what} count as done for group {queue.group}")
        purge(api, queue)
    output.done(
        {"group": queue.group, "topic": queue.topic, "purged": held},
        f"purged {what} for group {queue.group}",
    )


def _reset(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import describe, reset

    with reach_http(parsed) as api:
        queue = _name(parsed)
        before = {each.partition: each.start_offset for each in describe(api, queue).partitions}
        after = _located(api, queue.topic, parsed.to, parsed.partition)
        if parsed.execute:
            reset(api, queue, after)
    changes = [
        {"partition": partition, "before": before.get(partition), "after": offset}
        for partition, offset in sorted(after.items())
    ]
    output.show(
        {"group": queue.group, "topic": queue.topic, "executed": parsed.execute, "partitions": changes},
        Table(
            ["topic", "partition", "before", "", "after"],
            [[queue.topic, each["partition"], each["before"], "→", each["after"]] for each in changes],
        ),
    )
    say(
        f"group {queue.group} begins there again"
        if parsed.execute
        else "nothing was changed; add --execute to do this"
    )


def _located(api: "HttpApi", topic: str, position: Position, partition: int | None) -> dict[int, int]:
    from alpacamq.client.http.queues import places

    match position:
        case Earliest():
            return places(api, topic, {"to": "earliest"}, partition)
        case Latest():
            return places(api, topic, {"to": "latest"}, partition)
        case AtTime(timestamp_ms):
            return places(api, topic, {"timestamp": max(0, timestamp_ms)}, partition)
        case AtOffset(offset):
            starts = places(api, topic, {"to": "earliest"}, partition)
            ends = places(api, topic, {"to": "latest"}, partition)
            return {each: min(max(offset, starts[each]), end) for each, end in ends.items()}


def _show(queue: "QueueDescription", output: Output) -> None:
    import msgspec

    totals = queue.totals
    output.show(
        {**msgspec.to_builtins(queue), "lanes": msgspec.to_builtins(queue.lanes())},
        Table(
            ["group", "topic", "ready", "in flight", "resting", "to dead letters"],
            [
                [
                    queue.group,
                    queue.topic,
                    totals.ready,
                    totals.in_flight,
                    totals.resting,
                    totals.dead_lettering,
                ]
            ],
        ),
        Table(
            ["received", "acked", "nacked", "rejected", "expired", "redelivered", "dead letters"],
            [
                [
                    totals.received_total,
                    totals.acked_total,
                    totals.nacked_total,
                    totals.rejected_total,
                    totals.expired_leases_total,
                    totals.redelivered_total,
                    totals.dead_lettered_total,
                ]
            ],
            title="since the broker started",
        ),
        Table(
            ["lane", "ready", "in flight", "resting", "enqueued", "delivered"],
            [
                [
                    name,
                    each.ready,
                    each.in_flight,
                    each.resting,
                    each.enqueued_total,
                    each.delivered_total,
                ]
                for name, each in queue.lanes().items()
            ],
            title="lanes",
        ),
        Table(
            ["partition", "done before", "end", "ready", "in flight", "resting"],
            [
                [
                    each.partition,
                    each.start_offset,
                    each.end_offset,
                    each.ready,
                    each.in_flight,
                    each.resting,
                ]
                for each in queue.partitions
            ],
            title="partitions",
        ),
        Table(["setting", "value"], list(queue.settings.items()), title="settings of its own"),
    )
