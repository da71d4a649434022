"""Assembles spans from events: all events with the same span id form one span.

A publish span lasts from receipt to durability, a delivery from fetch to settlement, a delay from
scheduling to due time. Instantaneous steps (a move, a read of the log) are spans of zero length.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .events import Step, TraceEvent
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
