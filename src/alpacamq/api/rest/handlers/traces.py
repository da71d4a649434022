"""Traces: what happened to a message, from being published to being done with."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import ConflictingInput, UnknownTrace
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.api.rest.timestamps import TimestampText, parse_epoch_us
from alpacamq.telemetry.tracing import (
    Attribute,
    Page,
    RecorderStats,
    Status,
    TraceEvent,
    TraceFilter,
    TraceStore,
    TraceSummary,
)

from .names import OffsetNumber, PartitionIndex, TopicText

T = TypeVar("T")

_EPOCH_TEXT = "1970-01-01T00:00:00.000000Z"
TraceId = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{32}$",
        description="32 hexadecimal digits",
        examples=["0af7651916cd43dd8448eb211c80319c"],
    ),
]
Cursor = Annotated[
    str,
    Meta(
        pattern=r"^[lm][0-9]{0,17}\.([0-9]{1,17}\.[0-9a-f]{32}|\.)$",
        description="the cursor of the last answer",
    ),
]
Limit = Annotated[int, Meta(ge=1, le=1000, description="traces at most")]
From = Annotated[TimestampText, Meta(description="traces of which something happened then or later")]
To = Annotated[TimestampText, Meta(description="traces that began before then")]


class TracesWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which traces to list, newest first."""

    limit: Limit = 50
    topic: TopicText | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    since: From | UnsetType = msgspec.field(name="from", default=UNSET)
    until: To | UnsetType = msgspec.field(name="to", default=UNSET)
    cursor: Cursor | UnsetType = UNSET


class TraceSearch(TracesWanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which traces to find: those that everything given here is true of."""

    partition: PartitionIndex | UnsetType = UNSET
    offset: OffsetNumber | UnsetType = UNSET
    key: Annotated[str, Meta(max_length=1024, description="the key of the message")] | UnsetType = UNSET
    trace_id: TraceId | UnsetType = UNSET


class OfTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace."""

    trace_id: TraceId


class TraceOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in short. The place is the message's first; one that waits for its time has no offset yet."""

    trace_id: str
    topic: str
    partition: int | None
    offset: int | None
    started_at: str
    ended_at: str
    duration_ms: float
    events: int
    status: Status


class TraceList(msgspec.Struct, frozen=True, kw_only=True):
    """Traces, newest first; `cursor` is what to go on with where there may be more."""

    traces: list[TraceOverview]
    cursor: str | None


class TraceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened, and when."""

    at: str
    name: str
    span_id: str
    parent_span_id: str | None
    topic: str
    partition: int | None
    offset: int | None
    group: str | None
    consumer: str | None
    api: str = msgspec.field(name="door")
    attributes: dict[str, Attribute]


class TraceTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A trace from its first step to its last; `status` is where the message is now."""

    trace_id: str
    status: Status
    events: list[TraceStep]


class TraceStats(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of traces. Totals count since the broker started."""

    enabled: bool
    ring_size: int = 0
    ring_events: int = 0
    traces: int = 0
    traces_total: int = 0
    events_total: int = 0
    dropped_total: int = 0
    passed_over_total: int = 0
    log_files: int = 0
    log_bytes: int = 0
    log_written_total: int = 0
    exported_spans_total: int = 0
    export_failed_spans_total: int = 0
    export_dropped_events_total: int = 0


async def list_traces(call: Call[TracesWanted, Nothing]) -> TraceList:
    wanted = call.parameters
    return await _found(call.backend, wanted, _filter(wanted))


async def search_traces(call: Call[TraceSearch, Nothing]) -> TraceList:
    wanted = call.parameters
    found = _filter(wanted)
    if wanted.offset is not UNSET and (wanted.partition is UNSET or wanted.topic is UNSET):
        raise ConflictingInput("offset: needs topic and partition beside it", "offset")
    found = msgspec.structs.replace(
        found,
        partition=_or_none(wanted.partition),
        offset=_or_none(wanted.offset),
        key=_or_none(wanted.key),
        trace_id=_or_none(wanted.trace_id),
    )
    return await _found(call.backend, wanted, found)


async def show_trace(call: Call[OfTrace, Nothing]) -> TraceTimeline:
    trace_id = call.parameters.trace_id
    events = await _asked(call.backend, lambda store: store.events(trace_id))
    if not events:
        raise UnknownTrace(f"no trace {trace_id} is known; it may be older than what is kept of traces")
    summary = TraceSummary(events[0])
    for event in events[1:]:
        summary.add(event)
    return TraceTimeline(trace_id=trace_id, status=summary.status, events=[_step(each) for each in events])


async def trace_stats(call: Call[Nothing, Nothing]) -> TraceStats:
    tracing = call.backend.broker.tracing
    if tracing is None:
        return TraceStats(enabled=False)
    loop = asyncio.get_running_loop()
    stats: RecorderStats = await loop.run_in_executor(call.backend.broker.work_threads, tracing.stats)
    return TraceStats(enabled=True, passed_over_total=tracing.passed_over, **msgspec.structs.asdict(stats))


async def _found(backend: Backend, wanted: TracesWanted, found: TraceFilter) -> TraceList:
    page: Page = await _asked(
        backend, lambda store: store.find(found, wanted.limit, _or_none(wanted.cursor))
    ) or Page(traces=[])
    return TraceList(traces=[_overview(each) for each in page.traces], cursor=page.cursor)


async def _asked(backend: Backend, question: Callable[[TraceStore], T]) -> T | None:
    """The answer of the store, found in a thread; None where tracing is switched off."""
    tracing = backend.broker.tracing
    return None if tracing is None else await tracing.ask(question)


def _filter(wanted: TracesWanted) -> TraceFilter:
    return TraceFilter(
        topic=_or_none(wanted.topic),
        status=_or_none(wanted.status),
        from_us=None if wanted.since is UNSET else _epoch_us(wanted.since, "from"),
        to_us=None if wanted.until is UNSET else _epoch_us(wanted.until, "to"),
    )


def _epoch_us(moment: str, field: str) -> int:
    try:
        return parse_epoch_us(moment)
    except ValueError:
        raise ConflictingInput(f"{field}: there is no {moment}", field) from None


def _or_none(value: T | UnsetType) -> T | None:
    return None if value is UNSET else value


def _overview(summary: TraceSummary) -> TraceOverview:
    place = summary.place
    return TraceOverview(
        trace_id=summary.trace_id,
        topic=summary.topic,
        partition=None if place is None else place.partition,
        offset=None if place is None else place.offset,
        started_at=_moment(summary.started_us),
        ended_at=_moment(summary.ended_us),
        duration_ms=(summary.ended_us - summary.started_us) / 1000,
        events=summary.events,
        status=summary.status,
    )


def _step(event: TraceEvent) -> TraceStep:
    return TraceStep(
        at=_moment(event.at_us),
        name=event.name,
        span_id=event.span_id,
        parent_span_id=event.parent_span_id or None,
        topic=event.topic,
        partition=event.partition if event.partition >= 0 else None,
        offset=event.offset if event.has_place else None,
        group=event.group or None,
        consumer=event.consumer or None,
        api=event.api,
        attributes=dict(event.attributes),
    )


def _moment(at_us: int) -> str:
    """RFC 3339, to the microsecond."""
    try:
        moment = datetime.fromtimestamp(at_us // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return _EPOCH_TEXT
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06}Z"


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/traces",
        summary="List traces of messages, newest first",
        handler=list_traces,
        parameters=TracesWanted,
        body=Nothing,
        answers=(TraceList,),
    ),
    Route(
        method="GET",
        path="/traces/search",
        summary="Find traces by message, key, status or time",
        handler=search_traces,
        parameters=TraceSearch,
        body=Nothing,
        answers=(TraceList,),
    ),
    Route(
        method="GET",
        path="/traces/stats",
        summary="AnalyticsResults of tracing",
        handler=trace_stats,
        parameters=Nothing,
        body=Nothing,
        answers=(TraceStats,),
    ),
    Route(
        method="GET",
        path="/traces/{trace_id}",
        summary="Show what happened to a message",
        handler=show_trace,
        parameters=OfTrace,
        body=Nothing,
        answers=(TraceTimeline,),
        errors=(UnknownTrace,),
    ),
)
