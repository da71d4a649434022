"""Transactions: records of several partitions and offsets of groups, visible together or not at all.

    async with TransactionalProducer(cluster, "tx-1") as producer:      # fences earlier ones with this id
        async with producer.transaction() as tx:                        # commits, or aborts on an exception
            await tx.put("orders", b"value")
            await tx.send_offsets(consumer)
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from alpacamq.model.ids import TopicPartition
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Header

from .cluster import Cluster
from .consumer import Consumer
from .producer import Delivery, ProducerSettings


class Transaction:
    """One transaction. Records that are sent in it belong to it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        priority: Lane | None = None,
    ) -> Delivery: ...

    async def put(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        priority: Lane | None = None,
    ) -> Delivery: ...

    async def send_offsets(
        self, consumer: Consumer, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit offsets of a consumer with the transaction; None for its positions."""

    async def commit(self) -> None:
        """Flush and commit. Raises TransactionAborted, ProducerFenced."""

    async def abort(self) -> None: ...


class TransactionalProducer:
    """The producer of one transactional id; transactions follow each other."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int = 60_000,
        settings: ProducerSettings | None = None,
    ) -> None: ...

    async def __aenter__(self) -> Self:
        """Claim the transactional id. Open transactions of earlier producers are aborted."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def transaction(self) -> Transaction:
        """Return the next transaction. Raises ProducerFenced, and RuntimeError if one is open."""
        ...
