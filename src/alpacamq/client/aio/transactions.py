"""Transactions: records of several partitions and offsets of groups, visible together or not at all.

async with TransactionalProducer(cluster, "tx-1") as producer:      # fences earlier ones with this id
    async with producer.transaction() as tx:                        # commits, or aborts on an exception
        await tx.put("orders", b"value")
        await tx.send_offsets(consumer)
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from types import TracebackType
from typing import Self, TypeVar

from alpacamq.client.errors import (
    ClientError,
    Closed,
    ErrorCode,
    ProducerFenced,
    TransactionAborted,
    refusal,
)
from alpacamq.model.ids import TopicPartition
from alpacamq.model.lanes import Lane
from alpacamq.model.records import Header
from alpacamq.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionTopic,
)
from alpacamq.protocol.notation import Message

from .batching import Identity
from .cluster import MOVED_COORDINATOR, Cluster, Coordinates
from .consumer import Consumer
from .producer import Delivery, Producer, ProducerSettings

R = TypeVar("R", bound=Message)
T = TypeVar("T")

# The markers of the transaction before are being written.
_ENDING = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})


class State(Enum):
    """The state of a transaction."""

    OPEN = auto()
    # A record was not written: it can only be aborted.
    FAILED = auto()
    COMMITTED = auto()
    ABORTED = auto()
    # The coordinator did not answer the end of the transaction.
    UNKNOWN = auto()


class Transaction:
    """One transaction. Records that are sent in it belong to it."""

    def __init__(self, owner: "TransactionalProducer") -> None:
        self._owner = owner
        self.state = State.OPEN
        self._error: Exception | None = None
        self._added: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._adding: asyncio.Task[None] | None = None
        self._groups: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception."""
        if self.state not in (State.OPEN, State.FAILED):
            return
        if error is None:
            await self.commit()
        else:
            await self._abort_after(error)

    async def _abort_after(self, error: BaseException) -> None:
        try:
            await self.abort()
        except ClientError as failure:
            # The coordinator aborts it after the timeout of the transaction.
            error.add_note(f"the transaction was not aborted: {failure}")

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
    ) -> Delivery:
        """Buffer a record for a prepared topic, as `Producer.send`. Delayed records cannot be part of it."""
        self._check_open()
        return self._owner.producer.send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            priority=priority,
        )

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
    ) -> Delivery:
        """As `send`, but prepares the topic and waits for room."""
        self._check_open()
        return await self._owner.producer.put(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            priority=priority,
        )

    async def send_offsets(
        self, consumer: Consumer, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commit offsets of a consumer with the transaction; None for its positions."""
        self._check_open()
        wanted = consumer.positions() if offsets is None else offsets
        if not wanted:
            return
        owner, identity = self._owner, self._owner.identity
        if consumer.group not in self._groups:
            request = AddOffsetsToTxnRequest(
                transactional_id=owner.transactional_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                group_id=consumer.group,
            )

            async def add() -> None:
                answer = await owner.call(request, AddOffsetsToTxnResponse)
                owner.check(f"adding group {consumer.group!r} to the transaction", answer.error_code)

            await self._failing(owner.retry(add))
            self._groups.add(consumer.group)
        await self._failing(consumer.commit_in(owner.transactional_id, identity, wanted))

    async def commit(self) -> None:
        """Flush and commit. Raises TransactionAborted, ProducerFenced."""
        if self.state is not State.FAILED:
            self._check_open()
            try:
                await self._owner.producer.flush()
            except ClientError as error:
                self.failed(error)
            except BaseException as error:
                await self._abort_after(error)
                raise
        if self._error is not None:
            await self.abort()
            raise TransactionAborted(f"the transaction was aborted: {self._error}") from self._error
        await self._end(committed=True)

    async def abort(self) -> None:
        """End the transaction without its records and offsets. Raises ProducerFenced."""
        if self.state not in (State.OPEN, State.FAILED):
            return
        producer = self._owner.producer
        producer.abandon(TransactionAborted("the transaction was aborted"))
        await self._end(committed=False)

    async def _end(self, *, committed: bool) -> None:
        producer = self._owner.producer
        try:
            if not committed:
                await producer.settled()
                producer.forget_errors()
            if self._adding is not None:
                await asyncio.wait([self._adding])
            if self._added or self._wanted or self._groups:
                await self._owner.end(committed=committed)
            self.state = State.COMMITTED if committed else State.ABORTED
        except BaseException:
            self.state = State.UNKNOWN
            raise
        finally:
            self._owner.ended(self)
        if not committed:
            await self._owner.renew()

    def _check_open(self) -> None:
        if self.state is State.FAILED:
            raise TransactionAborted(f"the transaction can only be aborted: {self._error}") from self._error
        if self.state is not State.OPEN:
            raise RuntimeError(f"the transaction has ended: {self.state.name.lower()}")

    async def _failing(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except ClientError as error:
            self.failed(error)
            raise

    # For the producer.

    def enlist(self, partition: TopicPartition) -> bool:
        """Return whether a partition is part of the transaction; if it is not, it will be added."""
        if partition in self._added:
            return True
        if self.state is State.OPEN:
            self._wanted.add(partition)
            if self._adding is None:
                self._adding = self._owner.cluster.spawn(self._add())
        return False

    async def _add(self) -> None:
        try:
            while wanted := self._wanted - self._added:
                await self._owner.add_partitions(wanted)
                self._added |= wanted
        except ClientError as error:
            self.failed(error)
            self._owner.producer.abandon(error)
        finally:
            self._adding = None
            self._owner.producer.pump_soon()

    def failed(self, error: Exception) -> None:
        """Take note that a batch was not written, so that the transaction cannot be committed."""
        if self.state is State.OPEN and not isinstance(error, TransactionAborted):
            self.state = State.FAILED
            self._error = error
        if isinstance(error, ProducerFenced):
            self._owner.fence(error)


class TransactionalProducer:
    """The producer of one transactional id; transactions follow each other."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int = 60_000,
        settings: ProducerSettings | None = None,
    ) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self.producer = Producer(cluster, settings, transactional_id=transactional_id)
        self._current: Transaction | None = None
        self._fenced: ProducerFenced | None = None
        # After an end whose outcome is not known, the id has to be claimed again.
        self._is_in_doubt = False

    @property
    def has_ended(self) -> bool:
        """Whether no transaction can begin any more: another one has the id, or an outcome is unknown."""
        return self._fenced is not None or self._is_in_doubt

    @property
    def identity(self) -> Identity:
        assert self.producer.identity is not None, "the producer is used outside `async with`"
        return self.producer.identity

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """Claim the transactional id. Open transactions of earlier producers are aborted."""
        await self.producer.__aenter__()
        self.producer.take_identity(await self._claim(None), restart=False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._current is not None:
            await self._current.__aexit__(kind, error or Closed("the producer is closed"), trace)
        await self.close()

    async def close(self) -> None:
        """Abort a transaction that is open, and end. Idempotent."""
        if self._current is not None:
            await self._current.__aexit__(None, Closed("the producer is closed"), None)
        self.producer.abandon(Closed("the producer is closed"))
        await self.producer.close()

    async def prepare(self, *topics: str) -> None:
        """Request the metadata of topics, which `Transaction.send` needs."""
        await self.producer.prepare(*topics)

    def transaction(self) -> Transaction:
        """Return the next transaction. Raises ProducerFenced, and RuntimeError if one is open."""
        if self._fenced is not None:
            raise self._fenced
        if self._current is not None:
            raise RuntimeError("a transaction is open; end it before the next one")
        if self._is_in_doubt:
            raise RuntimeError("the outcome of a transaction is unknown; make a new TransactionalProducer")
        self._current = self.producer.transaction = Transaction(self)
        return self._current

    # For transactions.

    def fence(self, error: ProducerFenced) -> None:
        """Refuse everything from now on."""
        self._fenced = error

    def ended(self, transaction: Transaction) -> None:
        """Let another transaction begin."""
        self._current = self.producer.transaction = None
        self._is_in_doubt = transaction.state is State.UNKNOWN

    async def renew(self) -> None:
        """Get another epoch, in which records are numbered from 0: some of the last one may be missing."""
        identity = await self._claim(self.identity)
        self.producer.take_identity(identity, restart=True)

    async def _claim(self, current: Identity | None) -> Identity:
        producer_id, epoch = current or (-1, -1)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

        async def attempt() -> Identity:
            answer = await self.call(request, InitProducerIdResponse)
            self.check(f"claiming the transactional id {self.transactional_id!r}", answer.error_code)
            return Identity(answer.producer_id, answer.producer_epoch)

        return await self.retry(attempt)

    async def add_partitions(self, partitions: set[TopicPartition]) -> None:
        """Add partitions to the transaction."""
        by_topic: dict[str, list[int]] = defaultdict(list)
        for place in sorted(partitions):
            by_topic[place.topic].append(place.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=[
                TransactionTopic(name=name, partitions=numbers) for name, numbers in by_topic.items()
            ],
        )

        async def attempt() -> None:
            answer = await self.call(request, AddPartitionsToTxnResponse)
            for topic in answer.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    self.check(
                        f"adding {topic.name}-{result.partition_index} to the transaction",
                        result.partition_error_code,
                        topic.name,
                        result.partition_index,
                    )

        await self.retry(attempt)

    async def end(self, *, committed: bool) -> None:
        """Commit or abort; repeated if the answer is lost."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=committed,
        )

        async def attempt() -> None:
            answer = await self.call(request, EndTxnResponse)
            verb = "committing" if committed else "aborting"
            self.check(f"{verb} the transaction of {self.transactional_id!r}", answer.error_code)

        await self.retry(attempt)

    async def call(self, request: Message, answer: type[R]) -> R:
        """Send a request to the coordinator of this transactional id."""
        return await self.cluster.call_coordinator(
            Coordinates.TRANSACTION, self.transactional_id, request, answer
        )

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request for a while, also as long as the transaction before is ending."""
        return await self.cluster.retry(attempt, also=_ENDING)

    def check(self, about: str, code: int, topic: str | None = None, partition: int | None = None) -> None:
        """Raise the error of a response."""
        if code in MOVED_COORDINATOR:
            self.cluster.forget_coordinator(Coordinates.TRANSACTION, self.transactional_id)
        if code:
            error = refusal(about, code, topic=topic, partition=partition)
            if isinstance(error, ProducerFenced):
                self.fence(error)
            raise error
