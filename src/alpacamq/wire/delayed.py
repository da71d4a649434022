"""Delayed messages, as the HTTP API describes them."""

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
