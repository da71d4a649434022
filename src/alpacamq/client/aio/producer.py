"""Sends records in batches, idempotent and in order.

    async with Producer(cluster) as producer:
        await producer.prepare("orders")              # so that `send` knows the partitions
        delivery = producer.send("orders", b"value", key=b"key")   # no await: buffered
        if producer.is_full:
            await producer.room()                     # or `await producer.put(...)`, which waits by itself
        written = await delivery                      # RecordMetadata: partition, offset, timestamp
    # leaving the block sends what is buffered and waits for it
"""

from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import Any, NamedTuple, Self

from alpacamq.model.batch import Codec
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Header

from .cluster import Cluster


class Acks(IntEnum):
    """Who has to have a record before it is acknowledged."""

    NONE = 0
    LEADER = 1
    ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How records are collected and sent."""

    acks: Acks = Acks.ALL
    compression: Codec = Codec.NONE
    # A batch is sent when it has so many records or bytes, or is so old. One that waits for its turn grows on.
    batch_records: int = 100
    batch_bytes: int = 64 << 10
    linger_ms: float = 5.0
    # From `send` to the acknowledgement, with all retries.
    delivery_s: float = 30.0
    # Of records that are not acknowledged yet.
    buffer_bytes: int = 8 << 20
    max_request_bytes: int = 1 << 20
    # To each broker.
    requests_in_flight: int = 5


class RecordMetadata(NamedTuple):
    """Where a record was written; the offset is -1 with Acks.NONE, and if the record is delayed."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Delivery(Awaitable[RecordMetadata]):
    """The outcome of one record. Await it, or leave it: errors of those that nobody awaits raise in `flush`.

    Awaiting raises DeliveryTimedOut, RecordRejected, NotAuthorized, ProducerFenced, SequenceLost, NotFound,
    Closed or another Refused. Cancelling the task that awaits it does not cancel the record.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...

    @property
    def is_done(self) -> bool: ...

    def cancel(self) -> bool:
        """Take the record back; False if it has been sent, or may have been."""
        ...


class Producer:
    """Collects records by partition and sends them to the leaders."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings | None = None) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close; after an exception, close without waiting longer than needed."""

    async def prepare(self, *topics: str) -> None:
        """Request the metadata of topics, which `send` needs. Raises NotFound."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        priority: Lane | None = None,
    ) -> Delivery:
        """Buffer a record for a prepared topic. Raises BufferFull, RecordTooLarge, DelaysDisabled, NotFound."""
        ...

    async def put(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
        priority: Lane | None = None,
    ) -> Delivery:
        """As `send`, but prepares the topic and waits for room. If it is cancelled, nothing is sent."""
        ...

    @property
    def is_full(self) -> bool: ...

    async def room(self) -> None:
        """Wait until the buffer has room."""

    async def flush(self) -> None:
        """Send everything that is buffered and wait for it. Raises the first error that nobody awaited."""

    async def close(self) -> None:
        """Flush and end. Idempotent."""
