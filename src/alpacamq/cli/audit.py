"""`alpacactl audit`: the audit log."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .commands import connect, count
from .output import Output, Table, json_text
from .parsing import Parser, UsageError
from .position import AtTime, Earliest, locate, parse_position
from .yaml import yaml

if TYPE_CHECKING:
    from alpacamq.client.kafka.access import AuditEvent

_EXAMPLES = (
    "alpacactl audit --since 1h --denied",
    "alpacactl audit --principal alice --resource orders",
    "alpacactl audit --kind change --since 30d",
    "alpacactl audit --follow",
)
_COLUMNS = ("time", "principal", "address", "request", "operation", "resource", "result")


def add_to(parser: argparse.ArgumentParser, _common: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the audit log: logins, denied requests, and changes by administrators. "
        "The broker writes it with audit.enabled."
    )
    parser.add_argument(
        "--since", type=_since, default="1h", metavar="WHEN",
        help="a time ago (1h), a time (2026-01-31T12:00Z), or earliest (default: 1h)",
    )  # fmt: skip
    parser.add_argument("--follow", action="store_true", help="wait for new events")
    parser.add_argument("--denied", action="store_true", help="only what was denied or failed")
    parser.add_argument(
        "--kind", choices=("authentication", "authorization", "change"), help="only events of this kind"
    )
    parser.add_argument("--principal", type=_principal, metavar="PRINCIPAL", help="user name or TYPE:NAME")
    parser.add_argument("--resource", metavar="NAME", help="the name of a topic, group, user, …")
    parser.add_argument("--max", type=count, metavar="N", help="stop after this many events")
    parser.set_defaults(run=_audit)
    if isinstance(parser, Parser):
        parser.add_examples(_EXAMPLES)


def _since(text: str) -> AtTime | Earliest:
    position = parse_position(text)
    if not isinstance(position, AtTime | Earliest):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, a time or earliest")
    return position


def _principal(text: str) -> str:
    return text if ":" in text else f"User:{text}"


def _audit(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    if not parsed.follow and output.form == "table":
        rows = [_row(event) for event in _events(parsed)]
        output.show(None, Table(_COLUMNS, rows))
        return
    for event in _events(parsed):
        match output.form:
            case "json":
                print(json_text(msgspec.to_builtins(event)))
            case "yaml":
                print(f"---\n{yaml(msgspec.to_builtins(event))}")
            case _:
                from .cells import escape_controls

                print(escape_controls("  ".join(_row(event))))
        sys.stdout.flush()


def _events(parsed: argparse.Namespace) -> Iterator["AuditEvent"]:
    """Yield the wanted events, and with --follow those that come."""
    from alpacamq.client.errors import NotFound
    from alpacamq.client.kafka.access import AUDIT_TOPIC
    from alpacamq.client.kafka.offsets import Isolation, extents
    from alpacamq.client.kafka.reader import Reader
    from alpacamq.client.kafka.topics import find_topic

    with connect(parsed) as cluster:
        try:
            places = find_topic(cluster, AUDIT_TOPIC).all_partitions()
        except NotFound:
            raise UsageError(
                "there is no audit log: no event has been recorded, or audit.enabled = true is not set in "
                "the configuration of the broker"
            ) from None
        spans = extents(cluster, places, Isolation.UNCOMMITTED)
        reader = Reader(cluster, locate(cluster, parsed.since, spans), Isolation.UNCOMMITTED)
        shown = 0
        while True:
            for place, span in spans.items():
                if not parsed.follow and reader.positions.get(place, span.end) >= span.end:
                    reader.drop(place)
            if not reader.positions:
                return
            for delivery in reader.read():
                event = _wanted(parsed, delivery.record.value)
                if event is not None:
                    yield event
                    shown += 1
                    if shown == parsed.max:
                        return


def _wanted(parsed: argparse.Namespace, value: bytes | None) -> "AuditEvent | None":
    from alpacamq.client.kafka.access import decode_event

    if (event := decode_event(value)) is None:
        return None
    is_wanted = (
        not (parsed.denied and event.allowed)
        and parsed.kind in (None, event.kind)
        and parsed.principal in (None, event.principal)
        and parsed.resource in (None, event.resource)
    )
    return event if is_wanted else None


def _row(event: "AuditEvent") -> list[str]:
    result = "allowed" if event.allowed else "DENIED"
    if event.count > 1:
        result += f" ×{event.count}"
    if event.detail:
        result += f" ({event.detail})"
    request = f"{event.api} {event.request}".strip() or event.kind.value
    resource = f"{event.resource_type} {event.resource}".strip()
    return [
        event.time,
        event.principal or "-",
        event.address or "-",
        request,
        event.operation or "-",
        resource or "-",
        result,
    ]
