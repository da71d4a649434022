"""`alpacactl queue`: receives and settles messages, and manages queues."""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from . import cells
from .commands import (
    add_confirmation,
    add_verb,
    confirm,
    connect_http,
    count,
    duration,
    group_name,
    index,
    pair,
    topic_name,
    verbs_of,
)
from .output import Output, Table, print_message
from .parsing import CommandError, UsageError
from .position import HELP, AtOffset, AtTime, Earliest, Latest, Position, parse_position

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.client.http.queues import QueueName
    from alpacamq.wire.queues import QueueDescription

    from .yaml import Plain

_FROM_INPUT = "-"
# Also the group of SQS consumers.
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
        "Lease messages of a topic and print them. Each is leased until its visibility timeout: "
        "settle it before that with its receipt, or it is redelivered."
    )
    receive.add_argument("--max", type=count, metavar="N", help="stop after this many messages")
    receive.add_argument("--exit", action="store_true", help="stop when no message is available")
    receive.add_argument("--ack", action="store_true", help="acknowledge messages after printing them")
    receive.add_argument(
        "--visibility", type=duration, metavar="TIME", help="duration of the leases (default: the queue's)"
    )
    receive.add_argument(
        "--start", choices=("earliest", "latest"), default="earliest",
        help="initial position of a new group (default: earliest)",
    )  # fmt: skip

    _add_settling(verbs, common)

    peek = _of_queue(
        add_verb(
            verbs, common, "peek", "show unprocessed messages without leasing them", _peek,
            ["alpacactl queue peek orders --max 3"],
        )
    )  # fmt: skip
    peek.add_argument(
        "--max", type=count, default=10, metavar="N", help="maximum number of messages (default: 10)"
    )

    lists = add_verb(
        verbs, common, "list", "list queues (groups that use topics as queues)", _list,
        ["alpacactl queue list", "alpacactl queue list --topic orders -o json"],
    )  # fmt: skip
    lists.add_argument("--group", type=group_name, metavar="NAME", help="only queues of this group")
    lists.add_argument("--topic", type=topic_name, metavar="NAME", help="only queues on this topic")

    _of_queue(
        add_verb(
            verbs, common, "describe", "show the contents, lanes and own settings of a queue", _describe,
            ["alpacactl queue describe orders --group billing"],
        )
    )  # fmt: skip

    configure = _of_queue(
        add_verb(
            verbs, common, "configure", "set a group's own settings on a topic", _configure,
            ["alpacactl queue configure orders --group billing --set queue.max.deliveries=10"],
        )
    )  # fmt: skip
    configure.add_argument(
        "--set", type=pair, action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    configure.add_argument(
        "--unset",
        action="append",
        default=[],
        metavar="NAME",
        help="reset to the topic's setting; may be repeated",
    )

    purge = _of_queue(
        add_verb(
            verbs, common, "purge", "mark all current messages as processed", _purge,
            ["alpacactl queue purge orders --yes"],
        )
    )  # fmt: skip
    add_confirmation(purge)

    reset = _of_queue(
        add_verb(
            verbs, common, "reset", "move a queue to another position", _reset,
            [
                "alpacactl queue reset orders --to 1h",
                "alpacactl queue reset orders --to earliest --execute",
            ],
        )
    )  # fmt: skip
    reset.description = (
        "Move a queue to another position: messages after it are delivered, processed or not, and "
        "messages before it count as processed. Without --execute, only print the change."
    )
    reset.add_argument("--to", type=parse_position, required=True, metavar="WHERE", help=HELP)
    reset.add_argument("--partition", type=index, metavar="N", help="only this partition")
    reset.add_argument("--execute", action="store_true", help="apply the change")


def _add_settling(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    """Add the verbs that take receipts."""
    ack = add_verb(
        verbs, common, "ack", "acknowledge messages as processed", partial(_settle, "ack", "acknowledged"),
        [
            "alpacactl queue ack RECEIPT",
            "alpacactl queue receive orders --max 1 -o json | jq -r .receipt | alpacactl queue ack -",
        ],
    )  # fmt: skip
    nack = add_verb(
        verbs, common, "nack", "nack messages: redeliver them after a backoff",
        partial(_settle, "nack", "nacked"),
        ["alpacactl queue nack RECEIPT --delay 5m --reason 'till is closed'"],
    )  # fmt: skip
    nack.add_argument(
        "--delay",
        type=duration,
        metavar="TIME",
        help="redeliver after this time (default: the queue's backoff)",
    )
    reject = add_verb(
        verbs, common, "reject",
            "move messages to the dead-letter "
            "topic", partial(_settle, "reject", "rejected"),
        ["alpacactl queue reject RECEIPT --reason 'no such product'"],
    )  # fmt: skip
    for verb in (nack, reject):
        verb.add_argument("--reason", metavar="TEXT", help="stored with the message if it is dead-lettered")
    extend = add_verb(
        verbs, common, "extend", "extend the leases of messages", partial(_settle, "extend", "extended"),
        ["alpacactl queue extend RECEIPT --for 5m"],
    )  # fmt: skip
    extend.add_argument(
        "--for", dest="timeout", type=duration, required=True, metavar="TIME",
        help="from now; 0s releases them immediately",
    )  # fmt: skip
    for verb in (ack, nack, reject, extend):
        verb.add_argument(
            "receipts",
            nargs="+",
            metavar="receipt",
            help="or - to read them from standard input, one per line",
        )


def _of_queue(verb: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the arguments that select one queue."""
    verb.add_argument("topic", type=topic_name)
    verb.add_argument(
        "--group", type=group_name, default=DEFAULT_GROUP, metavar="NAME",
        help=f"default: {DEFAULT_GROUP}, also used by SQS",
    )  # fmt: skip
    return verb


def _name(parsed: argparse.Namespace) -> "QueueName":
    from alpacamq.client.http.queues import QueueName

    if not parsed.group:
        raise UsageError("--group must not be empty")
    return QueueName(parsed.group, parsed.topic)


def _receive(parsed: argparse.Namespace, output: Output) -> None:
    from .queue_receive import receive

    with connect_http(parsed) as api:
        receive(api, _name(parsed), parsed, output)


def _settle(action: str, done: str, parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import Settle, settle

    wanted = {
        "delay_ms": getattr(parsed, "delay", None),
        "reason": getattr(parsed, "reason", None),
        "timeout_ms": getattr(parsed, "timeout", None),
    }
    details = {name: value for name, value in wanted.items() if value is not None}
    settled = 0
    failed: list[dict[str, Plain]] = []
    with connect_http(parsed) as api:
        for receipt, failure in settle(api, Settle[action.upper()], _receipts(parsed), **details):
            if failure is None:
                settled += 1
            else:
                failed.append({"receipt": receipt, "error": str(failure)})
    what = f"{settled} {'message' if settled == 1 else 'messages'}"
    output.done({"settled": settled, "failed": failed}, f"{done}: {what}")
    if failed:
        for each in failed[1:]:
            print_message(f"{each['receipt']}: {each['error']}")
        raise CommandError(f"{failed[0]['receipt']}: {failed[0]['error']}")


def _receipts(parsed: argparse.Namespace) -> Iterator[str]:
    for each in parsed.receipts:
        if each == _FROM_INPUT:
            yield from filter(None, (line.strip() for line in sys.stdin))
        else:
            yield each


def _peek(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.errors import NotFound
    from alpacamq.client.http.names import queue_names
    from alpacamq.client.http.queues import MAX_MESSAGES, peek, peek_at_topic

    from .record_forms import cell, plain

    queue, limit = _name(parsed), min(parsed.max, MAX_MESSAGES)
    with connect_http(parsed) as api:
        try:
            found = peek(api, queue, limit)
        except NotFound:
            # If the topic has queues of other groups, the name may be misspelt.
            if any(topic == parsed.topic for _, topic in queue_names(api)):
                raise
            found = peek_at_topic(api, parsed.topic, limit)
            print_message(f"no group has received from {parsed.topic} yet; its first messages are shown")
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
    from alpacamq.client.http.queues import list_queues

    with connect_http(parsed) as api:
        found = list_queues(api)
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
    columns = ["group", "topic", "ready", "in flight", "in backoff"]
    output.show(listed, Table(columns, [list(each.values()) for each in listed]))


def _describe(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import describe

    with connect_http(parsed) as api:
        _show(describe(api, _name(parsed)), output)


def _configure(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import configure

    changes: dict[str, str | None] = {**dict.fromkeys(parsed.unset), **dict(parsed.set)}
    if not changes:
        raise UsageError("nothing to change: give --set NAME=VALUE or --unset NAME")
    with connect_http(parsed) as api:
        changed = configure(api, _name(parsed), changes)
    output.done(
        {"group": changed.group, "topic": changed.topic, "settings": changed.settings},
        f"settings of group {changed.group} on topic {changed.topic}: "
        + (", ".join(f"{name}={value}" for name, value in sorted(changed.settings.items())) or "none"),
    )


def _purge(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import describe, purge

    with connect_http(parsed) as api:
        queue = _name(parsed)
        totals = describe(api, queue).totals
        held = totals.ready + totals.in_flight + totals.resting
        what = f"{held} {'message' if held == 1 else 'messages'} of {queue.topic}"
        confirm(parsed, f"mark {what} as processed for group {queue.group}")
        purge(api, queue)
    output.done(
        {"group": queue.group, "topic": queue.topic, "purged": held},
        f"purged {what} for group {queue.group}",
    )


def _reset(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import describe, reset

    with connect_http(parsed) as api:
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
    print_message(
        f"moved the queue of group {queue.group}"
        if parsed.execute
        else "nothing was changed; use --execute to apply"
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
            ["group", "topic", "ready", "in flight", "in backoff", "dead-lettering"],
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
            ["lane", "ready", "in flight", "in backoff", "enqueued", "delivered"],
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
            ["partition", "done before", "end", "ready", "in flight", "in backoff"],
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
        Table(["setting", "value"], list(queue.settings.items()), title="own settings"),
    )
