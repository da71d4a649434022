"""Finding traces: in what is remembered of the last ones, and in the trace log for those before.

Everything here may take a while, and is for a thread.
"""

from collections.abc import Callable, Iterable

import msgspec

from .events import Status, TraceEvent
from .log_files import LogFile, events_of, trace_of
from .recent import RecentTraces
from .summary import Place, TraceSummary, summed_up

__all__ = ["Page", "Place", "TraceFilter", "TraceStore"]

# Of one trace that is shown whole.
MAX_EVENTS_SHOWN = 10_000
# One question reads at most so many files of the log; the cursor goes on from there.
MAX_FILES_READ = 3


class TraceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which traces: those of which all that is given here is true."""

    trace_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None
    status: Status | None = None
    from_us: int | None = None
    to_us: int | None = None

    def fits(self, summary: TraceSummary) -> bool:
        if self.trace_id is not None and summary.trace_id != self.trace_id:
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
            return True  # a delayed message has no place yet
        return any(
            self.topic in (None, topic)
            and self.partition in (None, partition)
            and self.offset in (None, offset)
            for topic, partition, offset in summary.places
        )


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Traces, those that began last first; and where to go on, if there may be more."""

    traces: list[TraceSummary]
    cursor: str | None = None


class TraceStore:
    """Every trace that is still known."""

    def __init__(self, recent: RecentTraces, files: Callable[[], list[LogFile]]) -> None:
        self._recent = recent
        self._files = files

    def events(self, trace_id: str) -> list[TraceEvent]:
        """A trace from its first step to its last; empty if it is not known."""
        found = self._recent.events_of(trace_id)
        summary = self._recent.summary(trace_id)
        if summary is not None and summary.is_whole and summary.events == len(found):
            return _in_order(found)
        wanted = trace_id.encode()
        stored: list[TraceEvent] = []
        for file in self._files():
            stored += events_of(file, lambda line: trace_of(line) == wanted)
            if len(stored) > MAX_EVENTS_SHOWN:
                break
        return _in_order(_joined(stored, found))[:MAX_EVENTS_SHOWN]

    def find(self, wanted: TraceFilter, limit: int, cursor: str | None = None) -> Page:
        """Traces that fit, from the cursor on. ValueError if that is none of ours."""
        before = _read_cursor(cursor)
        known = self._recent.summaries()
        fitting = sorted(
            (each for each in known if wanted.fits(each) and (before is None or _rank(each) < before)),
            key=_rank,
            reverse=True,
        )
        if len(fitting) > limit:
            return Page(traces=fitting[:limit], cursor=_write_cursor(*_rank(fitting[limit - 1])))
        return self._further(wanted, limit, fitting, before, {each.trace_id for each in known})

    def _further(
        self,
        wanted: TraceFilter,
        limit: int,
        fitting: list[TraceSummary],
        before: tuple[int, str] | None,
        known: set[str],
    ) -> Page:
        """What the log has beyond that."""
        files = self._files()
        # What began before this moment is in files that were begun before it.
        from_us = before[0] if before is not None else None
        earlier = [file for file in files if from_us is None or file.begun_us <= from_us]
        read, left = earlier[-MAX_FILES_READ:], earlier[:-MAX_FILES_READ]
        found = summed_up(event for file in read for event in events_of(file, _not_of(known)))
        candidates = [each for each in found if before is None or _rank(each) < before]
        candidates = [each for each in candidates if wanted.status is not None or wanted.fits(each)]
        whole = self._whole({each.trace_id for each in candidates}, files) if candidates else []
        older = [each for each in whole if wanted.fits(each)]
        page = sorted([*fitting, *older], key=_rank, reverse=True)
        if len(page) > limit:
            return Page(traces=page[:limit], cursor=_write_cursor(*_rank(page[limit - 1])))
        if not left:
            return Page(traces=page)
        # What began before the files that were read is for the next page.
        bound = (read[0].begun_us, "")
        return Page(traces=[each for each in page if _rank(each) >= bound], cursor=_write_cursor(*bound))

    def _whole(self, trace_ids: set[str], files: Iterable[LogFile]) -> list[TraceSummary]:
        """These traces with all of their events, before and after the files they were found in."""
        wanted = {trace_id.encode() for trace_id in trace_ids}
        stored = (event for file in files for event in events_of(file, lambda line: trace_of(line) in wanted))
        return summed_up(stored)


def _not_of(known: set[str]) -> Callable[[bytes], bool]:
    ids = {trace_id.encode() for trace_id in known}
    return lambda line: trace_of(line) not in ids


def _joined(stored: list[TraceEvent], recent: list[TraceEvent]) -> list[TraceEvent]:
    """Both, without those that are in both."""
    seen = {_identity(event) for event in stored}
    return stored + [event for event in recent if _identity(event) not in seen]


def _identity(event: TraceEvent) -> tuple[object, ...]:
    return event.at_us, event.name, event.span_id, event.topic, event.partition, event.offset, event.consumer


def _in_order(events: list[TraceEvent]) -> list[TraceEvent]:
    return sorted(events, key=lambda event: event.at_us)


def _rank(summary: TraceSummary) -> tuple[int, str]:
    return summary.started_us, summary.trace_id


def _write_cursor(started_us: int, trace_id: str) -> str:
    return f"{started_us}-{trace_id}"


def _read_cursor(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    started, _, trace_id = cursor.partition("-")
    return int(started), trace_id
