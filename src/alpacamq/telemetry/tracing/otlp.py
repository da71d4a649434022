"""Encodes spans in OpenTelemetry's wire format (OTLP, protobuf), with its semantic conventions.

Encoded field by field without a library, because the format is small.
"""

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct

from .events import DELIVERY_COUNT, Attribute, Step, TraceEvent
from .spans import Span

SCOPE = "alpacamq.tracing"
SYSTEM = "alpacamq"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE = Struct("<d")
_UINT64 = Struct("<Q")
_UINT32 = Struct("<I")
_INTERNAL, _SERVER = 1, 2
_STATUS_ERROR = 2
_FLAG_SAMPLED = 1

# Operation of a span by its first event: type in the semantic conventions, and our name.
_OPERATIONS: Mapping[str, tuple[str, str]] = {
    Step.RECEIVED: ("send", "publish"),
    Step.PARTITIONED: ("send", "publish"),
    Step.PERSISTED: ("send", "publish"),
    Step.FETCHED: ("receive", "receive"),
    Step.ACKED: ("settle", "ack"),
    Step.NACKED: ("settle", "nack"),
    Step.REJECTED: ("settle", "reject"),
    Step.EXPIRED: ("settle", "expire"),
    Step.EXTENDED: ("settle", "extend"),
    Step.TIMED_OUT: ("settle", "timeout"),
    Step.SCHEDULED: ("create", "delay"),
    Step.READY: ("create", "delay"),
    Step.CANCELLED: ("settle", "cancel"),
    Step.DELAY_EXPIRED: ("settle", "expire"),
    Step.DEAD_LETTERED: ("send", "dead_letter"),
    Step.REDRIVEN: ("send", "redrive"),
}
_REMOTE = frozenset({"publish", "receive"})
# Error descriptions of spans that end with these events.
_FAILURES: Mapping[str, str] = {
    Step.NACKED: "not acknowledged",
    Step.REJECTED: "rejected",
    Step.TIMED_OUT: "not settled in time",
    Step.EXPIRED: "expired",
    Step.DELAY_EXPIRED: "expired",
}


def export_request(spans: Iterable[Span], resource: Mapping[str, Attribute]) -> bytes:
    """Encode an ExportTraceServiceRequest."""
    described = _message(1, b"".join(_attribute(1, *pair) for pair in resource.items()))
    scope = _message(1, _text(1, SCOPE))
    scope_spans = _message(2, scope + b"".join(_message(2, _span(span)) for span in spans))
    return _message(1, described + scope_spans)


def _span(span: Span) -> bytes:
    first, last = span.first, span.last
    kind, operation = _OPERATIONS.get(first.name, ("", first.name))
    parts = [
        _field(1, bytes.fromhex(span.trace_id)),
        _field(2, bytes.fromhex(span.span_id)),
        _field(4, bytes.fromhex(span.parent_span_id)) if span.parent_span_id else b"",
        _text(5, f"{operation} {last.topic or first.topic}"),
        _number(6, _SERVER if operation in _REMOTE else _INTERNAL),
        _time(7, first.at_us),
        _time(8, max(last.at_us, first.at_us)),
    ]
    parts += [_attribute(9, *pair) for pair in _attributes(span, kind, operation)]
    parts += [_message(11, _event(event)) for event in span.events]
    if (failure := _FAILURES.get(last.name)) is not None:
        reason = str(last.attributes.get("reason") or failure)
        parts.append(_message(15, _text(2, reason) + _number(3, _STATUS_ERROR)))
    parts.append(_tag(16, _FIXED32) + _UINT32.pack(_FLAG_SAMPLED))
    return b"".join(parts)


def _attributes(span: Span, kind: str, operation: str) -> Iterator[tuple[str, Attribute]]:
    yield "messaging.system", SYSTEM
    yield "messaging.operation.name", operation
    if kind:
        yield "messaging.operation.type", kind
    placed = next((event for event in reversed(span.events) if event.has_place), span.last)
    yield "messaging.destination.name", placed.topic
    if placed.partition >= 0:
        yield "messaging.destination.partition.id", str(placed.partition)
    if placed.has_place:
        yield "messaging.message.id", f"{placed.topic}/{placed.partition}/{placed.offset}"
        yield "messaging.kafka.offset", placed.offset
    first = span.first
    if first.group:
        yield "messaging.consumer.group.name", first.group
    if client := first.consumer or first.attributes.get("client"):
        yield "messaging.client.id", client
    yield "alpacamq.door", first.api
    if (count := first.attributes.get(DELIVERY_COUNT)) is not None:
        yield "alpacamq.delivery_count", count


def _event(event: TraceEvent) -> bytes:
    attributes = b"".join(_attribute(3, f"alpacamq.{key}", value) for key, value in event.attributes.items())
    api = _attribute(3, "alpacamq.door", event.api)
    return _time(1, event.at_us) + _text(2, event.name) + attributes + api


def _attribute(number: int, key: str, value: Attribute) -> bytes:
    return _message(number, _text(1, key) + _message(2, _any_value(value)))


def _any_value(value: Attribute) -> bytes:
    match value:
        case bool():
            return _number(2, int(value))
        case int():
            return _number(3, value & (1 << 64) - 1)
        case float():
            return _tag(4, _FIXED64) + _DOUBLE.pack(value)
        case _:
            return _text(1, value)


def _time(number: int, at_us: int) -> bytes:
    return _tag(number, _FIXED64) + _UINT64.pack(max(at_us, 0) * 1000)


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode(errors="replace"))


def _message(number: int, content: bytes) -> bytes:
    return _field(number, content)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _tag(number, _VARINT) + _varint(value)


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
