"""Delayed messages and traces of messages, as the HTTP API describes them. Traces have RFC 3339 times."""

import msgspec


class DelayedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not due yet; `id` is unique within its partition."""

    topic: str
    partition: int
    id: int
    deliver_at: int
    scheduled: int
    size_bytes: int


class DelayedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages by partition and id. If there may be more, `next` is the value of `after` to continue with."""

    messages: list[DelayedMessage]
    next: str | None


Attribute = str | int | float | bool


class TraceOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in short, with the first position of its message. A delayed message has no offset yet."""

    trace_id: str
    topic: str
    partition: int | None
    offset: int | None
    started_at: str
    ended_at: str
    duration_ms: float
    events: int
    status: str


class TraceList(msgspec.Struct, frozen=True, kw_only=True):
    """Traces, newest first. If there may be more, `cursor` is the cursor to continue with."""

    traces: list[TraceOverview]
    cursor: str | None


class TraceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One event in the life of a message."""

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

    @property
    def place(self) -> str:
        """The position of the message, as far as it is known."""
        return "/".join(str(part) for part in (self.topic, self.partition, self.offset) if part is not None)


class TraceTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """A trace from its first event to its last; `status` is the current state of the message."""

    trace_id: str
    status: str
    events: list[TraceStep]
