"""Finding traces: in memory and in the log, page by page, each once."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.telemetry.tracing import Place, Status, Step, TraceEvent, TraceFilter, TraceStore
from alpacamq.telemetry.tracing.events import summarize
from alpacamq.telemetry.tracing.log_files import LogFile
from alpacamq.telemetry.tracing.recorder import LogSettings, TraceLog
from alpacamq.telemetry.tracing.store import RecentTraces

from .traces import event, trace_id


def journey(number: int, began_us: int, *, acked_us: int | None = None) -> list[TraceEvent]:
    """A message that was published, fetched and perhaps acknowledged."""
    steps = [
        event(Step.RECEIVED, trace=number, at_us=began_us, offset=number, key=f"k{number}"),
        event(Step.PERSISTED, trace=number, at_us=began_us + 1, offset=number),
        event(Step.FETCHED, trace=number, at_us=began_us + 2, offset=number, span=2, delivery_count=1),
    ]
    if acked_us is not None:
        steps.append(event(Step.ACKED, trace=number, at_us=acked_us, offset=number, span=2, delivery_count=1))
    return steps


def stored_in(directory: Path, events: list[TraceEvent], file_bytes: int) -> Callable[[], list[LogFile]]:
    log = TraceLog(
        LogSettings(directory=directory, max_bytes=1 << 30, retention_ms=1 << 40, file_bytes=file_bytes)
    )
    log.open()
    for each in events:
        log.put(each)
    log.close()
    return lambda: log.files


def store(directory: Path, events: list[TraceEvent], *, in_memory: int, file_bytes: int = 2000) -> TraceStore:
    """A store that has all of the events in its log, and the last so many in memory, too."""
    recent = RecentTraces()
    recent.restore(events[-in_memory:] if in_memory else [])
    return TraceStore(recent, stored_in(directory, events, file_bytes))


def all_pages(of: TraceStore, wanted: TraceFilter, limit: int) -> list[str]:
    found: list[str] = []
    cursor = None
    for _ in range(1000):
        page = of.find(wanted, limit, cursor)
        assert len(page.traces) <= limit
        found += [each.trace_id for each in page.traces]
        if (cursor := page.cursor) is None:
            return found
    raise AssertionError("the pages have no end")


@pytest.mark.parametrize("in_memory", [0, 7, 40, 10_000])
def test_a_trace_is_complete_across_memory_and_log(tmp_path: Path, in_memory: int) -> None:
    events = [each for number in range(30) for each in journey(number, number * 10)]
    late = event(Step.ACKED, trace=0, at_us=10_000, span=2, delivery_count=1)
    found = store(tmp_path, [*events, late], in_memory=in_memory).events(trace_id(0))
    assert [each.name for each in found] == [
        "publish.received", "publish.persisted", "consume.fetched", "consume.acked",
    ]  # fmt: skip


def test_events_that_are_not_in_the_log_yet_are_found_in_memory(tmp_path: Path) -> None:
    first, *later = journey(0, 10)
    recent = RecentTraces()
    recent.restore([first])
    for each in later:
        recent.add(each)
    found = TraceStore(recent, stored_in(tmp_path, [first], 2000)).events(trace_id(0))
    assert found == [first, *later]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(0, 200),
    st.integers(1, 20),
    st.sampled_from([600, 2000, 1 << 20]),
)
def test_pages_hold_every_trace_once(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    in_memory: int,
    limit: int,
    file_bytes: int,
) -> None:
    events = [each for number in range(count) for each in journey(number, 1_000_000 + number * 10)]
    events += [event(Step.ACKED, trace=number, at_us=2_000_000 + number) for number in range(0, count, 3)]
    directory = tmp_path_factory.mktemp("log")
    found = all_pages(
        store(directory, events, in_memory=in_memory, file_bytes=file_bytes), TraceFilter(), limit
    )
    assert sorted(found) == [trace_id(number) for number in range(count)]


@pytest.mark.parametrize("in_memory", [0, 10_000])
@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (TraceFilter(topic="orders", partition=0, offset=7), [7]),
        (TraceFilter(topic="returns"), []),
        (TraceFilter(key="k3"), [3]),
        (TraceFilter(status=Status.ACKED), [4, 2, 0]),
        (TraceFilter(status=Status.IN_FLIGHT, from_us=1_000_060), [9, 8, 7, 6]),
        (TraceFilter(from_us=1_000_040, to_us=1_000_060), [5, 4, 2, 0]),
        (TraceFilter(trace_id=trace_id(1)), [1]),
    ],
    ids=["a message", "another topic", "a key", "a status", "status and time", "a range", "an id"],
)
def test_traces_are_found_by_their_attributes(
    tmp_path: Path, in_memory: int, wanted: TraceFilter, numbers: list[int]
) -> None:
    events = [each for number in range(10) for each in journey(number, 1_000_000 + number * 10)]
    events += [
        event(Step.ACKED, trace=number, at_us=2_000_000, span=2, delivery_count=1) for number in (0, 2, 4)
    ]
    found = all_pages(store(tmp_path, events, in_memory=in_memory), wanted, 4)
    assert found == [trace_id(number) for number in numbers]


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ([Step.RECEIVED, Step.PERSISTED], Status.PUBLISHED),
        ([Step.RECEIVED, Step.SCHEDULED], Status.DELAYED),
        ([Step.SCHEDULED, Step.CANCELLED], Status.CANCELLED),
        ([Step.SCHEDULED, Step.DELAY_EXPIRED], Status.EXPIRED),
        ([Step.SCHEDULED, Step.READY, Step.PERSISTED], Status.PUBLISHED),
        ([Step.PERSISTED, Step.FETCHED], Status.IN_FLIGHT),
        ([Step.PERSISTED, Step.FETCHED, Step.EXTENDED], Status.IN_FLIGHT),
        ([Step.PERSISTED, Step.FETCHED, Step.TIMED_OUT], Status.PUBLISHED),
        ([Step.PERSISTED, Step.FETCHED, Step.NACKED], Status.PUBLISHED),
        ([Step.PERSISTED, Step.FETCHED, Step.ACKED], Status.ACKED),
        ([Step.PERSISTED, Step.FETCHED, Step.REJECTED, Step.DEAD_LETTERED], Status.DEAD_LETTERED),
        ([Step.DEAD_LETTERED, Step.REDRIVEN], Status.PUBLISHED),
        ([Step.PERSISTED, Step.EXPIRED], Status.EXPIRED),
    ],
)
def test_the_last_step_determines_the_status(steps: list[Step], status: Status) -> None:
    (summary,) = summarize(event(step, delivery_count=1) for step in steps)
    assert summary.status is status


def test_reading_the_log_does_not_change_the_status() -> None:
    (summary,) = summarize([event(Step.PERSISTED), event(Step.FETCHED)])
    assert summary.status is Status.PUBLISHED


def test_a_read_without_a_group_does_not_prolong_a_trace() -> None:
    stored, read = event(Step.PERSISTED), event(Step.FETCHED)
    late = msgspec.structs.replace(read, at_us=stored.at_us + 1000)
    (summary,) = summarize([stored, late])
    assert (summary.events, summary.ended_us) == (2, stored.at_us)
    (summary,) = summarize([stored, msgspec.structs.replace(late, group="kitchen")])
    assert summary.ended_us == late.at_us


def test_memory_is_bounded() -> None:
    recent = RecentTraces(max_events=10, max_traces=5)
    for number in range(100):
        recent.add(event(trace=number))
    assert (len(recent), recent.traces) == (10, 5)
    (summary,) = summarize(event(offset=number, key=f"k{number}") for number in range(100))
    assert (len(summary.places), len(summary.keys)) == (16, 16)
    assert summary.place == Place("orders", 0, 0)
