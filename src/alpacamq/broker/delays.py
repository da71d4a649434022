"""Messages that wait for their time: durable at once in an internal log, in their partition when due."""

from collections.abc import Sequence
from dataclasses import dataclass

from alpacamq.model.records import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessage:
    """A message and the moment it is for."""

    topic: str
    partition: int
    due_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One message that waits, as listed: `id` is unique within (topic, partition)."""

    topic: str
    partition: int
    id: int
    due_ms: int
    scheduled_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayFigures:
    """Totals count since the broker started."""

    pending: int
    next_due_ms: int | None
    scheduled_total: int
    fired_total: int
    cancelled_total: int
    late_ms_p99: float  # of recent firings, how late after their due time


class Delays:
    """Every delayed message of this broker."""

    async def schedule(self, messages: Sequence[DelayedMessage]) -> list[int]:
        """Ids in order, once all are durable. InvalidDelay, TooManyDelayed, UnknownTopic."""
        raise NotImplementedError

    async def cancel(self, topic: str, partition: int, delayed_id: int) -> Waiting:
        """The message will not appear. UnknownDelayed if it is not waiting (any more)."""
        raise NotImplementedError

    async def waiting(
        self, topic: str, *, partition: int | None = None, after_id: int = -1, limit: int = 100
    ) -> list[Waiting]:
        """Messages of a topic that wait, by id."""
        raise NotImplementedError

    async def figures(self, topic: str | None = None) -> DelayFigures:
        """Of one topic (pending and next only) or of all."""
        raise NotImplementedError
