"""Recent events in memory: a ring buffer, and summaries of their traces.

Written on the event loop only. Other threads may copy it: a copy is one atomic operation of the interpreter.
"""

from collections import deque
from collections.abc import Iterable

from .events import TraceEvent
from .summary import TraceSummary

MAX_EVENTS = 10_000
MAX_TRACES = 10_000


class RecentTraces:
    """Ring buffer of the last events."""

    def __init__(self, max_events: int = MAX_EVENTS, max_traces: int = MAX_TRACES) -> None:
        self._events: deque[TraceEvent] = deque(maxlen=max_events)
        self._max_traces = max_traces
        # Ordered by last event.
        self._summaries: dict[str, TraceSummary] = {}

    def __len__(self) -> int:
        return len(self._events)

    @property
    def max_events(self) -> int:
        return self._events.maxlen or 0

    @property
    def traces(self) -> int:
        return len(self._summaries)

    def restore(self, events: Iterable[TraceEvent]) -> None:
        """Start with events recorded before the restart."""
        for event in events:
            self.add(event)
        for summary in self._summaries.values():
            summary.is_whole = False

    def add(self, event: TraceEvent) -> None:
        self._events.append(event)
        summary = self._summaries.pop(event.trace_id, None)
        if summary is None:
            summary = TraceSummary(event)
            if len(self._summaries) >= self._max_traces:
                del self._summaries[next(iter(self._summaries))]
        else:
            summary.add(event)
        self._summaries[event.trace_id] = summary

    def events(self) -> list[TraceEvent]:
        """Return all events in the order they were recorded."""
        return list(self._events)

    def events_of(self, trace_id: str) -> list[TraceEvent]:
        return [event for event in self.events() if event.trace_id == trace_id]

    def summary(self, trace_id: str) -> TraceSummary | None:
        return self._summaries.get(trace_id)

    def summaries(self) -> list[TraceSummary]:
        """Return the summaries, most recently changed last."""
        return list(self._summaries.values())
