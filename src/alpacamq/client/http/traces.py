"""Traces of messages over HTTP."""

from alpacamq.client.errors import NotFound
from alpacamq.model.errors import AlpacaError
from alpacamq.wire.traces import TraceList, TraceOverview, TraceTimeline

from .connection import HttpApi, Problem

_UNKNOWN = "unknown-trace"

Attribute = str | int | float | bool


class NotTraced(NotFound):
    """A message has no trace."""

    def __init__(self, message: str, topic: str) -> None:
        AlpacaError.__init__(
            self,
            f"message {message} was not traced, or its trace has expired; "
            f"`alpacactl topics alter {topic} --set trace.sample=1` traces every message from now on, "
            "`alpacactl produce --trace` a single one",
        )


def recent_traces(
    api: HttpApi,
    limit: int,
    *,
    topic: str | None = None,
    status: str | None = None,
    since_ms: int | None = None,
) -> list[TraceOverview]:
    """Return traces, newest first."""
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
        page = api.get(["traces"], TraceList, query=query)
        found += page.traces
        if (cursor := page.cursor) is None:
            break
    return found


def trace_ids_of(api: HttpApi, topic: str, partition: int, offset: int) -> list[str]:
    """Return the trace ids of a message: one, or none if it was not traced."""
    query: dict[str, str | int | None] = {"topic": topic, "partition": partition, "offset": offset}
    while True:
        page = api.get(["traces", "search"], TraceList, query=query)
        if page.traces or page.cursor is None:
            return [each.trace_id for each in page.traces]
        query["cursor"] = page.cursor


def trace(api: HttpApi, trace_id: str) -> TraceTimeline:
    """What happened in a trace."""
    try:
        return api.get(["traces", trace_id], TraceTimeline)
    except Problem as problem:
        if problem.kind != _UNKNOWN:
            raise
        raise NotFound("trace", trace_id) from None
