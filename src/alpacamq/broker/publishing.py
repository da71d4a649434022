"""Publishing for the doors that bring messages rather than batches: choice of partition, batching, delays."""

from collections.abc import Sequence
from dataclasses import dataclass

from alpacamq.model.errors import AlpacaError
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message on its way into a topic."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None  # None: by key as Kafka's clients do, in turn where there is no key
    timestamp_ms: int | None = None  # None: now
    lane: Lane | None = None
    deliver_at_ms: int | None = None  # None, or a time that has passed: now


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a message went. A delayed one has an id among the delayed of that partition, not an offset."""

    topic: str
    partition: int
    offset: int | None
    timestamp_ms: int
    delayed_id: int | None = None
    deliver_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalProducer:
    """Who writes inside a transaction."""

    producer_id: int
    producer_epoch: int


class Publisher:
    """Appends messages to topics, as durable as each topic promises when `publish` returns."""

    async def publish(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        producer: TransactionalProducer | None = None,
    ) -> list[Published | AlpacaError]:
        """One result per message, in order. UnknownTopic if there is none and none is made by itself.

        Everything for one partition goes in as one batch (or as few as max.message.bytes allows).
        """
        raise NotImplementedError
