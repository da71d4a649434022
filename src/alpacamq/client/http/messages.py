"""Delayed messages and traces of messages, over HTTP."""

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from alpacamq.client.errors import NotFound
from alpacamq.model.errors import AlpacaError
from alpacamq.model.records import Header
from alpacamq.wire.messages import DelayedMessage, DelayedMessages, TraceList, TraceOverview, TraceTimeline

from .connection import HttpApi, Outcome, Problem
from .names import naming

_UNKNOWN_TRACE = "unknown-trace"

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
    """Return the events of a trace."""
    try:
        return api.get(["traces", trace_id], TraceTimeline)
    except Problem as problem:
        if problem.kind != _UNKNOWN_TRACE:
            raise
        raise NotFound("trace", trace_id) from None


MAX_BATCH_MESSAGES = 1000
# A third more in base64, which is below the broker's limit of a request.
MAX_BATCH_BYTES = 4 << 20
_PAGE = 1000
_UNKNOWN_DELAYED = "unknown-delayed"


class Sent(Outcome, frozen=True, kw_only=True):
    """Result of sending a message; one that was already due has an offset and no id."""

    partition: int = -1
    offset: int | None = None
    delayed_id: int | None = None
    deliver_at: int | None = None


class _Results(msgspec.Struct, frozen=True, kw_only=True):
    results: list[Sent]


def delayed_messages(api: HttpApi, topic: str, partition: int | None = None) -> Iterator[DelayedMessage]:
    """Yield the delayed messages of a topic, by partition and id."""
    after: str | None = None
    while True:
        query = {"partition": partition, "after": after, "limit": _PAGE}
        with naming(api, topic=topic, partition=partition):
            page = api.get(("topics", topic, "delayed"), DelayedMessages, query=query)
        yield from page.messages
        if page.next is None:
            return
        after = page.next


class _DelayTopic(msgspec.Struct, frozen=True, kw_only=True):
    topic: str


class _DelayTopics(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[_DelayTopic]
    next: str | None


def all_delayed_messages(api: HttpApi) -> Iterator[DelayedMessage]:
    """Yield the delayed messages of all topics, by topic, partition and id."""
    after: str | None = ""
    while after is not None:
        page = api.get(("delay", "topics"), _DelayTopics, query={"after": after, "limit": _PAGE})
        for each in page.topics:
            with suppress(NotFound):  # deleted meanwhile
                yield from delayed_messages(api, each.topic)
        after = page.next


class DelayedContent(DelayedMessage, frozen=True, kw_only=True):
    """A delayed message with key and value, in base64 as far as they are not null."""

    key_base64: bytes | None = None
    value_base64: bytes | None = None


def delayed_message(api: HttpApi, topic: str, partition: int, message_id: int) -> DelayedContent:
    """Return a delayed message."""
    path = ("topics", topic, "delayed", str(message_id))
    try:
        with naming(api, topic=topic, partition=partition):
            found = api.get(path, DelayedContent, query={"values": "base64"})
    except Problem as problem:
        if problem.kind != _UNKNOWN_DELAYED:
            raise
    else:
        if found.partition == partition:
            return found
    raise NotFound(f"delayed message of {topic!r} with the id", f"{partition}:{message_id}")


def cancel(api: HttpApi, topic: str, partition: int, message_id: int) -> DelayedMessage:
    """Cancel a delayed message."""
    path = ("topics", topic, "delayed", str(partition), str(message_id))
    try:
        with naming(api, topic=topic, partition=partition):
            return api.send("DELETE", path, DelayedMessage)
    except Problem as problem:
        if problem.kind != _UNKNOWN_DELAYED:
            raise
        raise NotFound(f"delayed message of {topic!r} with the id", f"{partition}:{message_id}") from None


class DelayedProducer:
    """Sends messages to one topic in batches, all with the same delay or due time."""

    def __init__(
        self,
        api: HttpApi,
        topic: str,
        *,
        due: dict[str, int],
        partition: int | None = None,
        lane: str | None = None,
        headers: Sequence[Header] = (),
    ) -> None:
        self._api = api
        self._topic = topic
        self._partition = partition
        self._common: dict[str, object] = dict(due)
        if partition is not None:
            self._common["partition"] = partition
        if lane is not None:
            self._common["priority"] = lane
        self._headers = headers
        self._waiting: list[dict[str, object]] = []
        self._bytes = 0

    def add(self, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> list[Sent]:
        """Add one message; return the results of a batch if one was full."""
        headers = [*self._headers, *headers]
        size = len(key or b"") + len(value or b"") + sum(len(name) + len(of or b"") for name, of in headers)
        is_full = len(self._waiting) >= MAX_BATCH_MESSAGES or self._bytes + size > MAX_BATCH_BYTES
        sent = self.flush() if is_full else []
        message = {**self._common, **({"value": None} if value is None else {"value_base64": _text(value)})}
        if key is not None:
            message["key_base64"] = _text(key)
        if headers:
            message["headers"] = [
                (name, None if of is None else {"base64": _text(of)}) for name, of in headers
            ]
        self._waiting.append(message)
        self._bytes += size
        return sent

    def flush(self) -> list[Sent]:
        """Send all buffered messages; return their results in order."""
        if not self._waiting:
            return []
        messages, self._waiting, self._bytes = self._waiting, [], 0
        with naming(self._api, topic=self._topic, partition=self._partition):
            path = ("topics", self._topic, "messages")
            return self._api.send("POST", path, _Results, {"messages": messages}).results


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
