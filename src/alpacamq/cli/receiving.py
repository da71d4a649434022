"""`alpacactl queue receive`: messages as they are leased, on standard output."""

import argparse
import sys

from alpacamq.client.http.connection import HttpApi
from alpacamq.client.http.queues import MAX_WAIT_MS, LeasedMessage, QueueName, Settle, settle
from alpacamq.client.http.queues import receive as receive_some

from .output import Output, Table, json_text, moment, say
from .parsing import Declined
from .record_forms import cell, plain
from .yaml import Plain, yaml

# What is leased and not settled is kept from others, so few at a time unless they are done at once.
_LEASED_AT_ONCE = 10
_ACKNOWLEDGED_AT_ONCE = 100


def receive(api: HttpApi, queue: QueueName, parsed: argparse.Namespace, output: Output) -> None:
    """Lease and print until told to stop, acknowledging what is printed if told to."""
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
                say(f"there is nothing to receive from {queue.topic} for group {queue.group}")
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
        raise Declined(f"{len(failures)} messages were printed and not acknowledged: {failures[0]}")


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
    # Before they are acknowledged: what was not printed is not done.
    sys.stdout.flush()


def _plain(message: LeasedMessage) -> dict[str, Plain]:
    return {
        **plain(message.place(message.topic), message.record),
        "priority": message.priority,
        "delivery_count": message.delivery_count,
        "deadline_ms": message.deadline,
        "deadline": moment(message.deadline),
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
