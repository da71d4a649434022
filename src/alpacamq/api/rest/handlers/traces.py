"""Traces: the events of a message from publishing to acknowledgement."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import ConflictingInput, UnknownTrace
from alpacamq.api.rest.parameters import (
    OffsetNumber,
    PartitionIndex,
    TimestampText,
    TopicText,
    parse_epoch_us,
)
from alpacamq.api.rest.rights import check_trace
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.model.names import topic_of
from alpacamq.security.acls import Operation
from alpacamq.telemetry.tracing import (
    Page,
    RecorderStats,
    Status,
    TraceEvent,
    TraceFilter,
    TraceStore,
    TraceSummary,
)
from alpacamq.wire import messages as wire
from alpacamq.wire.messages import TraceStep

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
        description="the cursor of the last response",
    ),
]
Limit = Annotated[int, Meta(ge=1, le=1000, description="traces at most")]
From = Annotated[TimestampText, Meta(description="traces with events at this time or later")]
To = Annotated[TimestampText, Meta(description="traces that began before this time")]


class TracesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which traces to list, newest first."""

    limit: Limit = 50
    topic: TopicText | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    since: From | UnsetType = msgspec.field(name="from", default=UNSET)
    until: To | UnsetType = msgspec.field(name="to", default=UNSET)
    cursor: Cursor | UnsetType = UNSET


class TraceSearch(TracesQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which traces to find: those that match all given fields."""

    partition: PartitionIndex | UnsetType = UNSET
    offset: OffsetNumber | UnsetType = UNSET
    key: Annotated[str, Meta(max_length=1024, description="the key of the message")] | UnsetType = UNSET
    trace_id: TraceId | UnsetType = UNSET


class OfTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace."""

    trace_id: TraceId


class TraceOverview(wire.TraceOverview, frozen=True, kw_only=True):
    """A trace in short, with the first position of its message. A delayed message has no offset yet."""

    status: Status


class TraceList(msgspec.Struct, frozen=True, kw_only=True):
    """Traces, newest first. If there may be more, `cursor` is the cursor to continue with."""

    traces: list[TraceOverview]
    cursor: str | None


class TraceTimeline(wire.TraceTimeline, frozen=True, kw_only=True):
    """A trace from its first event to its last; `status` is the current state of the message.

    Every node has the events of what it leads. `missing_nodes` are those that did not answer, if any.
    """

    status: Status
    missing_nodes: list[int] | UnsetType = UNSET


class TraceStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of tracing. Totals count since the broker started."""

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


async def list_traces(call: Call[TracesQuery, Nothing]) -> TraceList:
    query = call.parameters
    return await _found(call, query, _filter(call, query))


async def search_traces(call: Call[TraceSearch, Nothing]) -> TraceList:
    query = call.parameters
    found = _filter(call, query)
    if query.offset is not UNSET and (query.partition is UNSET or query.topic is UNSET):
        raise ConflictingInput("offset: requires topic and partition", "offset")
    found = msgspec.structs.replace(
        found,
        partition=_or_none(query.partition),
        offset=_or_none(query.offset),
        key=_or_none(query.key),
        trace_id=_or_none(query.trace_id),
    )
    traces = call.backend.broker.traces
    if found.is_for_one and not traces.is_alone:
        of_message = [_summary(each.events) for each in await traces.of_message(found) if each.events]
        fitting = [each for each in of_message if found.fits(each) and _is_visible(call, each)]
        return TraceList(traces=[_overview(each) for each in fitting[: query.limit]], cursor=None)
    return await _found(call, query, found)


async def show_trace(call: Call[OfTrace, Nothing]) -> TraceTimeline:
    trace_id = call.parameters.trace_id
    scope = _scope(call)
    events, missing = await call.backend.broker.traces.events(trace_id, scope)
    if scope is not None:
        events = [each for each in events if each.topic and call.sees_topic(each.topic, Operation.READ)]
    if not events:
        unasked = f"; nodes {', '.join(map(str, missing))} did not answer" if missing else ""
        raise UnknownTrace(f"unknown trace {trace_id}; it may have been deleted by retention{unasked}")
    check_trace(call.backend.broker.access, call.caller, {each.topic for each in events if each.topic})
    return TraceTimeline(
        trace_id=trace_id,
        status=_summary(events).status,
        events=[_step(each) for each in events],
        missing_nodes=[int(each) for each in missing] or UNSET,
    )


def _summary(events: Sequence[TraceEvent]) -> TraceSummary:
    summary = TraceSummary(events[0])
    for event in events[1:]:
        summary.add(event)
    return summary


async def trace_stats(call: Call[Nothing, Nothing]) -> TraceStats:
    tracing = call.backend.broker.tracing
    if tracing is None:
        return TraceStats(enabled=False)
    loop = asyncio.get_running_loop()
    stats: RecorderStats = await loop.run_in_executor(call.backend.broker.work_threads, tracing.stats)
    return TraceStats(enabled=True, passed_over_total=tracing.skipped, **msgspec.structs.asdict(stats))


def _is_visible(call: Call[Any, Any], summary: TraceSummary) -> bool:
    topics = {summary.topic, *(place.topic for place in summary.places)}
    return call.sees_all or all(call.sees_topic(topic, Operation.READ) for topic in topics)


async def _found(call: Call[Any, Any], query: TracesQuery, found: TraceFilter) -> TraceList:
    page: Page = await _asked(
        call.backend, lambda store: store.find(found, query.limit, _or_none(query.cursor))
    ) or Page(traces=[])
    visible = [each for each in page.traces if _is_visible(call, each)]
    return TraceList(traces=[_overview(each) for each in visible], cursor=page.cursor)


async def _asked(backend: Backend, question: Callable[[TraceStore], T]) -> T | None:
    """Query the store in a thread; None if tracing is disabled."""
    tracing = backend.broker.tracing
    return None if tracing is None else await tracing.ask(question)


def _scope(call: Call[Any, Any]) -> str | None:
    """Return the scope of the traces of a tenant's client; None if traces of all topics may be its."""
    tenant = call.backend.broker.access.tenant_of(call.caller)
    return None if tenant is None else topic_of(tenant, "")


def _filter(call: Call[Any, Any], query: TracesQuery) -> TraceFilter:
    return TraceFilter(
        scope=_scope(call),
        topic=_or_none(query.topic),
        status=_or_none(query.status),
        from_us=None if query.since is UNSET else _epoch_us(query.since, "from"),
        to_us=None if query.until is UNSET else _epoch_us(query.until, "to"),
    )


def _epoch_us(timestamp: str, field: str) -> int:
    try:
        return parse_epoch_us(timestamp)
    except ValueError:
        raise ConflictingInput(f"{field}: invalid date {timestamp}", field) from None


def _or_none(value: T | UnsetType) -> T | None:
    return None if value is UNSET else value


def _overview(summary: TraceSummary) -> TraceOverview:
    place = summary.place
    return TraceOverview(
        trace_id=summary.trace_id,
        topic=summary.topic,
        partition=None if place is None else place.partition,
        offset=None if place is None else place.offset,
        started_at=_timestamp(summary.started_us),
        ended_at=_timestamp(summary.ended_us),
        duration_ms=(summary.ended_us - summary.started_us) / 1000,
        events=summary.events,
        status=summary.status,
    )


def _step(event: TraceEvent) -> TraceStep:
    return TraceStep(
        at=_timestamp(event.at_us),
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


def _timestamp(at_us: int) -> str:
    """Format a timestamp as RFC 3339 with microseconds."""
    try:
        timestamp = datetime.fromtimestamp(at_us // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return _EPOCH_TEXT
    return f"{timestamp:%Y-%m-%dT%H:%M:%S}.{at_us % 1_000_000:06}Z"


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/traces",
        summary="List traces of messages, newest first",
        handler=list_traces,
        parameters=TracesQuery,
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
        summary="Stats of tracing",
        handler=trace_stats,
        parameters=Nothing,
        body=Nothing,
        answers=(TraceStats,),
    ),
    Route(
        method="GET",
        path="/traces/{trace_id}",
        summary="Show the events of a trace",
        handler=show_trace,
        parameters=OfTrace,
        body=Nothing,
        answers=(TraceTimeline,),
        errors=(UnknownTrace,),
    ),
)
