"""Finds traces in memory and, if older, in the trace log.

All methods may block and must be called in a thread.

Recent events are written on the event loop only. Other threads may copy them: a copy is one atomic operation
of the interpreter.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from .events import Place, Status, TraceEvent, TraceKey, TraceSummary
from .log_files import LogFile, events_of, lines_of, trace_of

MAX_EVENTS = 10_000
MAX_TRACES = 10_000


class RecentTraces:
    """Ring buffer of the last events."""

    def __init__(self, max_events: int = MAX_EVENTS, max_traces: int = MAX_TRACES) -> None:
        self._events: deque[TraceEvent] = deque(maxlen=max_events)
        self._max_traces = max_traces
        # Ordered by last event.
        self._summaries: dict[TraceKey, TraceSummary] = {}

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
        key = event.key
        summary = self._summaries.pop(key, None)
        if summary is None:
            summary = TraceSummary(event)
            if len(self._summaries) >= self._max_traces:
                del self._summaries[next(iter(self._summaries))]
        else:
            summary.add(event)
        self._summaries[key] = summary

    def events(self) -> list[TraceEvent]:
        """Return all events in the order they were recorded."""
        return list(self._events)

    def events_of(self, trace_id: str, scope: str | None) -> list[TraceEvent]:
        found = (event for event in self.events() if event.trace_id == trace_id)
        return [event for event in found if scope in (None, event.key.scope)]

    def summary(self, key: TraceKey) -> TraceSummary | None:
        return self._summaries.get(key)

    def summaries(self) -> list[TraceSummary]:
        """Return the summaries, most recently changed last."""
        return list(self._summaries.values())


__all__ = ["Page", "Place", "TraceFilter", "TraceStore", "joined_events"]

# Maximum number of events of a trace.
MAX_EVENTS_SHOWN = 10_000
# Maximum number of log files read per query; the cursor continues from there.
MAX_FILES_READ = 3


class TraceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on traces, all of which must hold."""

    trace_id: str | None = None
    # Only traces of these names; None for all.
    scope: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None
    status: Status | None = None
    from_us: int | None = None
    to_us: int | None = None

    @property
    def is_for_one(self) -> bool:
        """Whether it selects one message or one trace."""
        return self.trace_id is not None or self.offset is not None

    def fits(self, summary: TraceSummary) -> bool:
        if self.trace_id is not None and summary.trace_id != self.trace_id:
            return False
        if self.scope is not None and summary.scope != self.scope:
            return False
        if self.status is not None and summary.status is not self.status:
            return False
        if self.from_us is not None and summary.ended_us < self.from_us:
            return False
        if self.to_us is not None and summary.started_us >= self.to_us:
            return False
        if self.key is not None and self.key not in summary.keys:
            return False
        return self._is_there(summary)

    def _is_there(self, summary: TraceSummary) -> bool:
        if self.topic is None and self.partition is None and self.offset is None:
            return True
        if self.partition is None and self.offset is None and summary.topic == self.topic:
            return True  # a delayed message has no position yet
        return any(
            self.topic in (None, topic)
            and self.partition in (None, partition)
            and self.offset in (None, offset)
            for topic, partition, offset in summary.places
        )


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Traces, newest first, and a cursor if there may be more."""

    traces: list[TraceSummary]
    cursor: str | None = None


class TraceStore:
    """All retained traces."""

    def __init__(self, recent: RecentTraces, files: Callable[[], list[LogFile]]) -> None:
        self._recent = recent
        self._files = files

    def events(self, trace_id: str, scope: str | None = None) -> list[TraceEvent]:
        """Return the events of a trace in order, of one scope if it is given; empty if it is unknown."""
        found = self._recent.events_of(trace_id, scope)
        summaries = [self._recent.summary(key) for key in {event.key for event in found}]
        whole = [each.events for each in summaries if each is not None and each.is_whole]
        if whole and len(whole) == len(summaries) and sum(whole) == len(found):
            return _in_order(found)
        wanted = trace_id.encode()
        stored: list[TraceEvent] = []
        for file in self._files():
            of_trace = events_of(file, lambda line: trace_of(line) == wanted)
            stored += [event for event in of_trace if scope in (None, event.key.scope)]
            if len(stored) > MAX_EVENTS_SHOWN:
                break
        return _in_order(_joined(stored, found))[:MAX_EVENTS_SHOWN]

    def find(self, wanted: TraceFilter, limit: int, cursor: str | None = None) -> Page:
        """Return matching traces from the cursor on. ValueError if the cursor is invalid."""
        position = _Position() if cursor is None else _Position.read(cursor)
        known = self._recent.summaries()
        fitting: list[TraceSummary] = []
        if not position.is_in_log:
            fitting = _before(position.rank, [each for each in known if wanted.fits(each)])
            if len(fitting) > limit:
                last = _rank(fitting[limit - 1])
                return Page(traces=fitting[:limit], cursor=_Position(rank=last).text)
            if fitting and wanted.is_for_one:
                return Page(traces=fitting)
            position = _Position(is_in_log=True)
        older, further = self._older(wanted, limit - len(fitting), position, {each.key for each in known})
        return Page(traces=[*fitting, *older], cursor=None if further is None else further.text)

    def _older(
        self, wanted: TraceFilter, room: int, position: "_Position", known: set[TraceKey]
    ) -> tuple[list[TraceSummary], "_Position | None"]:
        """Search some files of the log; return the traces and the next position.

        A trace belongs to the file of its first event and is returned with that file.
        """
        files = self._files()
        candidates = [file for file in files if position.end_us is None or file.begun_us < position.end_us]
        window, left = candidates[-MAX_FILES_READ:], candidates[:-MAX_FILES_READ]
        if not window:
            return [], None
        found = self._begun_in(window, files, known, wanted.scope)
        fitting = _before(position.rank, [each for each in found if wanted.fits(each)])
        if len(fitting) > room:
            # Pinned to these files: new ones may be started before the next page is requested.
            rank = _rank(fitting[room - 1]) if room else position.rank
            return fitting[:room], _Position(is_in_log=True, end_us=window[-1].begun_us + 1, rank=rank)
        return fitting, _Position(is_in_log=True, end_us=window[0].begun_us) if left else None

    def _begun_in(
        self, window: list[LogFile], files: list[LogFile], known: set[TraceKey], scope: str | None
    ) -> list[TraceSummary]:
        """Return the traces that started in these files, with all of their events, except known ones."""
        # What another scope has of an id does not matter to the one that is asked for.
        ids = {key.trace_id.encode() for key in known if scope in (None, key.scope)}
        there = {trace_of(line) for file in window for line in lines_of(file)} - ids
        summaries: dict[TraceKey, TraceSummary] = {}
        earlier = set(known)
        for file in files:
            for event in events_of(file, lambda line: trace_of(line) in there):
                if (summary := summaries.get(event.key)) is not None:
                    summary.add(event)
                elif file < window[0] or file > window[-1]:
                    earlier.add(event.key)
                elif event.key not in earlier:
                    summaries[event.key] = TraceSummary(event)
        return list(summaries.values())


class _Position(NamedTuple):
    """Position of a cursor: among the traces in memory, or in the log before some of its files."""

    is_in_log: bool = False
    end_us: int | None = None
    rank: "Rank | None" = None

    @property
    def text(self) -> str:
        started_us, trace_id = ("", "") if self.rank is None else self.rank
        where = "l" if self.is_in_log else "m"
        return f"{where}{'' if self.end_us is None else self.end_us}.{started_us}.{trace_id}"

    @classmethod
    def read(cls, text: str) -> "_Position":
        end_us, started_us, trace_id = text[1:].split(".")
        rank = (int(started_us), trace_id) if started_us else None
        return cls(text[:1] == "l", int(end_us) if end_us else None, rank)


# Start time of a trace; the id breaks ties.
Rank = tuple[int, str]


def _rank(summary: TraceSummary) -> Rank:
    return summary.started_us, summary.trace_id


def _before(rank: Rank | None, summaries: Iterable[TraceSummary]) -> list[TraceSummary]:
    """Return summaries after this rank, newest first."""
    return sorted((each for each in summaries if rank is None or _rank(each) < rank), key=_rank, reverse=True)


def joined_events(parts: Iterable[list[TraceEvent]]) -> list[TraceEvent]:
    """Merge the events that several stores have of a trace, in order, without duplicates."""
    found: list[TraceEvent] = []
    for part in parts:
        found = _joined(found, part)
    return _in_order(found)[:MAX_EVENTS_SHOWN]


def _joined(stored: list[TraceEvent], recent: list[TraceEvent]) -> list[TraceEvent]:
    """Merge events, without duplicates."""
    seen = {_identity(event) for event in stored}
    return stored + [event for event in recent if _identity(event) not in seen]


def _identity(event: TraceEvent) -> tuple[object, ...]:
    return event.at_us, event.name, event.span_id, event.topic, event.partition, event.offset, event.consumer


def _in_order(events: list[TraceEvent]) -> list[TraceEvent]:
    return sorted(events, key=lambda event: event.at_us)
