"""Export over OTLP/HTTP: a thread that turns events into spans and sends them in batches.

The queue and the number of retries are bounded: an unavailable collector loses spans, which are counted,
and has no other effect.

All events with the same span id form one span. A publish span lasts from receipt to durability, a delivery
from fetch to settlement, a delay from scheduling to due time. Instantaneous steps (a move, a read of the log)
are spans of zero length.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from urllib.parse import urlsplit

import msgspec

from alpacamq.telemetry.logs import get_logger

from .events import DELIVERY_COUNT, Attribute, Step, TraceEvent
from .trace_context import derived_span_id

MAX_OPEN = 10_000

_OPENING = frozenset({Step.RECEIVED, Step.SCHEDULED})
_WITHIN = frozenset({Step.PARTITIONED, Step.EXTENDED})
_MOMENTS = frozenset({Step.DEAD_LETTERED, Step.REDRIVEN, Step.EXPIRED})


@dataclass(slots=True)
class Span:
    """A span to export: its events in order."""

    trace_id: str
    span_id: str
    parent_span_id: str
    events: list[TraceEvent] = field(default_factory=list)

    @property
    def first(self) -> TraceEvent:
        return self.events[0]

    @property
    def last(self) -> TraceEvent:
        return self.events[-1]


class SpanAssembler:
    """Collects events until their spans are complete; emits the oldest incomplete if too many are open."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: OrderedDict[str, Span] = OrderedDict()

    def add(self, event: TraceEvent) -> Iterator[Span]:
        """Add an event; yield spans that are now complete."""
        name = event.name
        if name in _MOMENTS or (name == Step.FETCHED and not event.is_leased):
            yield _instant(event)
        elif name in _OPENING or name == Step.FETCHED:
            yield from self._opened(event)
        elif name in _WITHIN:
            if (span := self._open.get(event.span_id)) is not None:
                span.events.append(event)
        elif (span := self._open.pop(event.span_id, None)) is not None:
            span.events.append(event)
            yield span
        else:
            # If a delivery is settled after its span has ended, the event becomes a child span.
            yield _instant(event, after=event.span_id if event.is_leased else "")

    def _opened(self, event: TraceEvent) -> Iterator[Span]:
        if (span := self._open.get(event.span_id)) is not None:
            span.events.append(event)
            return
        self._open[event.span_id] = Span(event.trace_id, event.span_id, event.parent_span_id, [event])
        if len(self._open) > self._max_open:
            yield self._open.popitem(last=False)[1]


def _instant(event: TraceEvent, after: str = "") -> Span:
    if after:
        span_id = derived_span_id(event.trace_id, after, event.name, event.at_us)
        return Span(event.trace_id, span_id, after, [event])
    return Span(event.trace_id, event.span_id, event.parent_span_id, [event])


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
    Step.REPLICATED: ("send", "publish"),
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


log = get_logger(__name__)

PATH = "/v1/traces"
MAX_WAITING = 20_000
BATCH_SPANS = 512
GATHER_SECONDS = 0.5
TIMEOUT_SECONDS = 10.0
ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
# Status codes that OTLP declares retriable.
_PASSING = frozenset({429, 502, 503, 504})
_CLOSE_SECONDS = 5.0
_MAX_ANSWER_BYTES = 64 << 10


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Endpoint, headers and resource attributes."""

    endpoint: str  # http:// or https://, without /v1/traces
    headers: Mapping[str, str] = {}
    resource: Mapping[str, Attribute] = {}


class OtlpExporter:
    """Sends spans. `open` starts its thread and `close` ends it."""

    def __init__(self, settings: ExportSettings) -> None:
        self._settings = settings
        self._waiting: deque[TraceEvent] = deque()
        self._assembler = SpanAssembler()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trace-export", daemon=True)
        self._is_failing = False
        self.exported = 0
        self.failed = 0  # spans given up
        self.dropped = 0  # events dropped because the queue was full

    def restore(self, events: Iterable[TraceEvent]) -> None:
        """Restore open spans after a restart. Ended spans were exported before."""
        for event in events:
            for _ in self._assembler.add(event):
                pass

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send the rest, without retries, and stop the thread. Blocking."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)

    def put(self, event: TraceEvent) -> None:
        """Queue an event for export once its span is complete."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append(event)
        if not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        while not self._closing.is_set() or self._waiting:
            self._wake.wait()
            self._closing.wait(GATHER_SECONDS)
            self._wake.clear()
            spans: list[Span] = []
            for _ in range(len(self._waiting)):
                spans += self._assembler.add(self._waiting.popleft())
                if len(spans) >= BATCH_SPANS:
                    self._send(spans)
                    spans = []
            if spans:
                self._send(spans)

    def _send(self, spans: list[Span]) -> None:
        from http.client import HTTPException  # slow to import, and few brokers export

        body = export_request(spans, self._settings.resource)
        pause_seconds = FIRST_PAUSE_SECONDS
        reason = ""
        for attempt in range(ATTEMPTS):
            try:
                status, retry_after = self._post(body)
            except (OSError, HTTPException) as error:
                reason, retry_after = f"{type(error).__name__}: {error}", None
            else:
                if 200 <= status < 300:
                    self.exported += len(spans)
                    self._is_failing = False
                    return
                reason = f"the collector responded with {status}"
                if status not in _PASSING:
                    break
            if attempt == ATTEMPTS - 1 or self._closing.wait(_pause(retry_after, pause_seconds)):
                break
            pause_seconds = min(pause_seconds * 2, MAX_PAUSE_SECONDS)
        self.failed += len(spans)
        if not self._is_failing:  # logged once, not for every batch
            log.warning("spans_not_exported", endpoint=self._settings.endpoint, reason=reason)
        self._is_failing = True

    def _post(self, body: bytes) -> tuple[int, str | None]:
        from http.client import HTTPConnection, HTTPSConnection

        url = urlsplit(self._settings.endpoint)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=TIMEOUT_SECONDS)
        try:
            headers = {**self._settings.headers, "Content-Type": "application/x-protobuf"}
            connection.request("POST", url.path.rstrip("/") + PATH, body, headers)
            response = connection.getresponse()
            response.read(_MAX_ANSWER_BYTES)
            return response.status, response.getheader("Retry-After")
        finally:
            connection.close()


def _pause(retry_after: str | None, otherwise: float) -> float:
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        return min(float(retry_after[:9]), MAX_PAUSE_SECONDS)
    return otherwise
