"""`alpacactl queue receive`: leases messages and prints them."""

import argparse
import sys

from alpacamq.client.http.connection import HttpApi
from alpacamq.client.http.queues import MAX_WAIT_MS, LeasedMessage, QueueName, Settle, settle
from alpacamq.client.http.queues import receive as receive_some

from .output import Output, Table, json_text, print_message, timestamp_text
from .parsing import CommandError
from .record_forms import cell, plain
from .yaml import Plain, yaml

# Leased messages are withheld from other consumers, so lease few unless they are acknowledged at once.
_LEASED_AT_ONCE = 10
_ACKNOWLEDGED_AT_ONCE = 100


def receive(api: HttpApi, queue: QueueName, parsed: argparse.Namespace, output: Output) -> None:
    """Lease and print messages until a limit or Ctrl-C; with --ack acknowledge the printed ones."""
    at_once = _ACKNOWLEDGED_AT_ONCE if parsed.ack else _LEASED_AT_ONCE
    received = 0
    while parsed.max is None or received < parsed.max:
        messages = receive_some(
            api,
            queue,
            max_messages=at_once if parsed.max is None else min(at_once, parsed.max - received),
            wait_ms=0 if parsed.exit else MAX_WAIT_MS,
            visibility_ms=parsed.visibility,
            start=parsed.start,
        )
        if not messages and parsed.exit:
            if not received:
                print_message(f"no messages available in {queue.topic} for group {queue.group}")
            return
        _print(messages, output)
        if parsed.ack and messages:
            _acknowledge(api, messages)
        received += len(messages)


def _acknowledge(api: HttpApi, messages: list[LeasedMessage]) -> None:
    failures = [
        failure for _, failure in settle(api, Settle.ACK, [each.receipt for each in messages]) if failure
    ]
    if failures:
        raise CommandError(f"{len(failures)} messages were printed and not acknowledged: {failures[0]}")


def _print(messages: list[LeasedMessage], output: Output) -> None:
    match output.form:
        case "json":
            for each in messages:
                print(json_text(_plain(each)))
        case "yaml":
            for each in messages:
                print(f"---\n{yaml(_plain(each))}")
        case _:
            columns = ["partition", "offset", "delivery", "priority", "key", "value", "receipt"]
            output.show(None, Table(columns, [_row(each) for each in messages]))
    # Flush before acknowledging: a message that was not printed is not done.
    sys.stdout.flush()


def _plain(message: LeasedMessage) -> dict[str, Plain]:
    return {
        **plain(message.place(message.topic), message.record),
        "priority": message.priority,
        "delivery_count": message.delivery_count,
        "deadline_ms": message.deadline,
        "deadline": timestamp_text(message.deadline),
        "receipt": message.receipt,
    }


def _row(message: LeasedMessage) -> list[object]:
    record = message.record
    return [
        message.partition,
        message.offset,
        message.delivery_count,
        message.priority,
        cell(record.key),
        cell(record.value),
        message.receipt,
    ]
