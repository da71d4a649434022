"""Requests about delayed messages that the broker with their delay log answers, beside those of the machine.

They need the records of the log, which only that broker is sure to have.
"""

from typing import ClassVar

import msgspec

from alpacamq.model.state_machine import Request
from alpacamq.telemetry.tracing import ClientApi
from alpacamq.timers.messages import CountPending, FirstSeen, PendingCounts, Schedule, routing_key


class DelayedEntry(msgspec.Struct, frozen=True, array_like=True):
    """A pending message, by its offset in the delay log."""

    offset: int
    partition: int
    due_ms: int
    scheduled_ms: int
    size_bytes: int


class StoredEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """The encoded content of a message; None if the message does not exist any more."""

    offset: int
    envelope: bytes | None


class CancelDelayed(Request[DelayedEntry], frozen=True, kw_only=True, tag="delay-cancel"):
    """Cancel a pending message, or fail with UnknownDelayed.

    Not repeated if its outcome is unknown: then a cancelled message could not be told from a delivered one.
    """

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    api: ClientApi

    @property
    def routing_key(self) -> str:
        return routing_key(self.topic, self.partition)


class ListDelayed(Request[list[DelayedEntry]], frozen=True, kw_only=True, tag="delay-list"):
    """Return the pending messages of partitions that share a delay log, by offset, the lowest first."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    topic: str
    topic_id: bytes
    partitions: tuple[int, ...]
    after_offset: int
    limit: int

    @property
    def routing_key(self) -> str:
        return routing_key(self.topic, self.partitions[0])


class CountDelayed(Request[PendingCounts], frozen=True, kw_only=True, tag="delay-count-topic"):
    """Count the pending messages of partitions that share a delay log."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    topic: str
    topic_id: bytes
    partitions: tuple[int, ...]

    @property
    def routing_key(self) -> str:
        return routing_key(self.topic, self.partitions[0])


class ReadDelayed(Request[list[StoredEnvelope]], frozen=True, kw_only=True, tag="delay-read"):
    """Return the contents of messages of a partition: of the first ones, as many as fit into a reply."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    topic: str
    partition: int
    offsets: tuple[int, ...]

    @property
    def routing_key(self) -> str:
        return routing_key(self.topic, self.partition)


# Every request that another broker may send.
DELAY_REQUESTS = (
    Schedule,
    FirstSeen,
    CountPending,
    CancelDelayed,
    ListDelayed,
    CountDelayed,
    ReadDelayed,
)
