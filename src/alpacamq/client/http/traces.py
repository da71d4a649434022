"""Traces of messages, over HTTP: finding them, and what happened in one."""

from collections.abc import Mapping

import msgspec

from alpacamq.client.errors import NotFound
from alpacamq.model.errors import AlpacaError

from .connection import HttpApi, Problem

_UNKNOWN = "unknown-trace"

Attribute = str | int | float | bool


class TraceOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in short; moments are RFC 3339."""

    trace_id: str
    topic: str
    partition: int | None
    offset: int | None
    started_at: str
    ended_at: str
    duration_ms: float
    events: int
    status: str


class TraceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a message."""

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
    attributes: Mapping[str, Attribute]

    @property
    def place(self) -> str:
        """Where the message was, as far as that is known."""
        return "/".join(str(part) for part in (self.topic, self.partition, self.offset) if part is not None)


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A message's life as far as it is known; `status` is where it is now."""

    trace_id: str
    status: str
    events: list[TraceStep]


class NotTraced(NotFound):
    """A message may be there, but nobody followed it."""

    def __init__(self, message: str, topic: str) -> None:
        AlpacaError.__init__(
            self,
            f"message {message} was not traced, or so long ago that its trace is no longer kept; "
            f"`alpacactl topics alter {topic} --set trace.sample=1` has every message traced from now on, "
            "`alpacactl produce --trace` a single one",
        )


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    traces: list[TraceOverview]
    cursor: str | None


def recent_traces(
    api: HttpApi,
    limit: int,
    *,
    topic: str | None = None,
    status: str | None = None,
    since_ms: int | None = None,
) -> list[TraceOverview]:
    """Traces, newest first."""
    found: list[TraceOverview] = []
    cursor: str | None = None
    while len(found) < limit:
        query: dict[str, str | int | None] = {
            "limit": min(limit - len(found), 1000),
            "topic": topic,
            "status": status,
            "from": since_ms,
            "cursor": cursor,
        }
        page = api.get(["traces"], _Page, query=query)
        found += page.traces
        if (cursor := page.cursor) is None:
            break
    return found


def trace_ids_of(api: HttpApi, topic: str, partition: int, offset: int) -> list[str]:
    """The traces of a message; one, or none if it was not traced."""
    query: dict[str, str | int | None] = {"topic": topic, "partition": partition, "offset": offset}
    while True:
        page = api.get(["traces", "search"], _Page, query=query)
        if page.traces or page.cursor is None:
            return [each.trace_id for each in page.traces]
        query["cursor"] = page.cursor


def trace(api: HttpApi, trace_id: str) -> Trace:
    """What happened in a trace."""
    try:
        return api.get(["traces", trace_id], Trace)
    except Problem as problem:
        if problem.kind != _UNKNOWN:
            raise
        raise NotFound("trace", trace_id) from None
