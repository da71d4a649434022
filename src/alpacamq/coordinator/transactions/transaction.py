"""A transactional id: its producer identity and the state of its transaction; and requests about it.

A Transaction is an immutable value that is stored unchanged: every transition returns a new one. The
coordinator decides which transition a request causes, and whether it is allowed.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from alpacamq.model.errors import InvalidProducerIdMapping, InvalidRecord, ProducerFenced
from alpacamq.model.ids import TopicPartition
from alpacamq.model.state_machine import Request

# The last epoch given to clients. The next one is used for fencing: in markers, never in batches.
LAST_EPOCH = 2**15 - 2

R = TypeVar("R")


class TransactionState(Enum):
    """The state of the transaction of a transactional id."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare-commit"
    PREPARE_ABORT = "prepare-abort"
    COMPLETE_COMMIT = "complete-commit"
    COMPLETE_ABORT = "complete-abort"
    DEAD = "dead"


# Without an open transaction, a producer may begin one, a new instance may take over the id, or the id may
# expire. Clients of the current protocol request a new epoch by an abort without a transaction. Dead is never
# stored: it is the absence of a record.
_FROM_IDLE = frozenset(
    {
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.DEAD,
    }
)
NEXT_STATES: Mapping[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: _FROM_IDLE,
    TransactionState.ONGOING: frozenset(
        {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: _FROM_IDLE,
    TransactionState.COMPLETE_ABORT: _FROM_IDLE,
    TransactionState.DEAD: frozenset(),
}

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMMITTING = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


class ProducerIdentity(NamedTuple):
    """Identifies one instance of a producer."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} epoch {self.epoch}"

    @property
    def is_exhausted(self) -> bool:
        """Return whether no epoch is left for clients with this producer id."""
        return self.epoch >= LAST_EPOCH

    def bumped(self) -> "ProducerIdentity":
        assert self.epoch <= LAST_EPOCH
        return ProducerIdentity(self.producer_id, self.epoch + 1)


class WriteMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """Effect: write the markers of a decided transaction to all of its partitions."""

    transactional_id: str
    number: int
    producer: ProducerIdentity
    committed: bool
    partitions: tuple[TopicPartition, ...]


class Transaction(msgspec.Struct, frozen=True, kw_only=True, tag="transaction"):
    """One transactional id and its current or last transaction.

    `previous` is the identity that was exchanged for the current one, as long as the reply may have been
    lost: its client may repeat the request. `number` counts transactions.
    """

    transactional_id: str
    producer: ProducerIdentity
    previous: ProducerIdentity | None = None
    next_producer_id: int | None = None
    state: TransactionState = TransactionState.EMPTY
    number: int = 0
    timeout_ms: int
    started_ms: int | None = None
    updated_ms: int
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def may_expire(self) -> bool:
        return TransactionState.DEAD in NEXT_STATES[self.state]

    @property
    def is_committing(self) -> bool:
        """Return whether the last decision was to commit."""
        return self.state in COMMITTING

    @property
    def markers(self) -> WriteMarkers:
        """Return the effect that completes a prepared transaction."""
        assert self.state in PREPARED
        return WriteMarkers(
            transactional_id=self.transactional_id,
            number=self.number,
            producer=self.producer,
            committed=self.is_committing,
            partitions=self.partitions,
        )

    def check(self, producer: ProducerIdentity) -> None:
        """Raise unless this is the current producer instance."""
        if producer.producer_id != self.producer.producer_id:
            raise InvalidProducerIdMapping(
                f"transactional id {self.transactional_id!r} belongs to producer "
                f"{self.producer.producer_id}, not {producer.producer_id}"
            )
        if producer.epoch != self.producer.epoch or producer.epoch > LAST_EPOCH:
            raise ProducerFenced(
                f"transactional id {self.transactional_id!r} is at epoch {self.producer.epoch}: "
                f"epoch {producer.epoch} is fenced"
            )

    def claimed(
        self,
        by: ProducerIdentity | None,
        timeout_ms: int,
        new_producer_id: Callable[[], int],
        now_ms: int,
    ) -> "Transaction":
        """Assign the id to a new instance, or to `by` again, and fence all others."""
        if by is not None and by == self.previous and self.producer.epoch <= LAST_EPOCH:
            producer = self.producer  # its reply may have been lost
        elif self.producer.is_exhausted:
            producer = ProducerIdentity(new_producer_id(), 0)
        else:
            producer = self.producer.bumped()
        return self._transition(
            TransactionState.EMPTY, now_ms, producer=producer, previous=by, timeout_ms=timeout_ms
        )

    def with_partitions(self, partitions: tuple[TopicPartition, ...], now_ms: int) -> "Transaction":
        """Add partitions; begin a transaction if none is ongoing."""
        if self.state is TransactionState.ONGOING:
            partitions = tuple(dict.fromkeys((*self.partitions, *partitions)))
            return self._transition(TransactionState.ONGOING, now_ms, partitions=partitions)
        return self._transition(
            TransactionState.ONGOING,
            now_ms,
            previous=None,  # a producer that begins a transaction knows its identity
            number=self.number + 1,
            started_ms=now_ms,
            partitions=tuple(dict.fromkeys(partitions)),
        )

    def fenced(self, by: ProducerIdentity | None, now_ms: int) -> "Transaction":
        """Abort with an epoch that no client has; `by` may request it."""
        return self._transition(
            TransactionState.PREPARE_ABORT, now_ms, producer=self.producer.bumped(), previous=by
        )

    def decided(self, *, committed: bool, now_ms: int) -> "Transaction":
        """Commit or abort; keep the epoch."""
        return self._transition(_prepare(committed), now_ms)

    def decided_with_new_epoch(
        self, *, committed: bool, new_producer_id: Callable[[], int], now_ms: int
    ) -> "Transaction":
        """Commit or abort, with a new epoch for the next transaction."""
        fresh = {} if self.started_ms is not None else {"number": self.number + 1, "started_ms": now_ms}
        return self._transition(
            _prepare(committed),
            now_ms,
            producer=self.producer.bumped(),
            previous=self.producer,
            next_producer_id=new_producer_id() if self.producer.is_exhausted else None,
            **fresh,
        )

    def completed(self, now_ms: int) -> "Transaction":
        """Complete a transaction whose markers are written."""
        producer = self.producer
        if self.next_producer_id is not None:
            producer = ProducerIdentity(self.next_producer_id, 0)
        return self._transition(
            TransactionState.COMPLETE_COMMIT if self.is_committing else TransactionState.COMPLETE_ABORT,
            now_ms,
            producer=producer,
            next_producer_id=None,
            started_ms=None,
            partitions=(),
        )

    def _transition(self, state: TransactionState, now_ms: int, **changes: Any) -> "Transaction":
        assert state in NEXT_STATES[self.state], f"no transition from {self.state} to {state}"
        return msgspec.structs.replace(self, state=state, updated_ms=now_ms, **changes)


def _prepare(committed: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT


def encode_key(transactional_id: str) -> bytes:
    return msgspec.msgpack.encode(("transaction", transactional_id))


def decode_key(key: bytes) -> str:
    """Return the transactional id; raise InvalidRecord if this is not the key of a transaction."""
    try:
        kind, transactional_id = msgspec.msgpack.decode(key, type=tuple[str, str])
    except msgspec.DecodeError as error:
        raise InvalidRecord(f"{key!r} is not the key of a transaction: {error}") from error
    if kind != "transaction":
        raise InvalidRecord(f"{key!r} is not the key of a transaction but of a {kind}")
    return transactional_id


def encode_value(transaction: Transaction) -> bytes:
    return msgspec.msgpack.encode(transaction)


def decode_value(value: bytes) -> Transaction:
    """Decode a stored transaction; raise InvalidRecord."""
    try:
        return msgspec.msgpack.decode(value, type=Transaction)
    except msgspec.DecodeError as error:
        raise InvalidRecord(f"invalid stored transaction: {error}") from error


class EndProtocol(Enum):
    """The protocol by which a client ends a transaction.

    Classic clients keep their epoch and get the reply once the decision is durable. Current clients (KIP-890)
    get a new epoch with every transaction, and the reply once it is complete.
    """

    CLASSIC = "classic"
    NEW_EPOCH = "new-epoch"


class TransactionRequest(Request[R], Generic[R], frozen=True, kw_only=True):
    """A request about one transactional id.

    All may be repeated: a transaction is ended once, and an identity whose reply was lost is given again, or
    is fenced by the next.
    """

    IS_IDEMPOTENT: ClassVar[bool] = True

    transactional_id: str

    @property
    def routing_key(self) -> str:
        return self.transactional_id


class InitProducer(TransactionRequest[ProducerIdentity], frozen=True, kw_only=True):
    """Start a new instance of a producer, or give one that recovers from an error a new epoch."""

    timeout_ms: int = 60_000
    recovering: ProducerIdentity | None = None


class PartitionsAdded(msgspec.Struct, frozen=True):
    """All partitions are part of the ongoing transaction, which has this number."""

    number: int


class AddPartitions(TransactionRequest[PartitionsAdded], frozen=True, kw_only=True):
    """Add partitions to the transaction of a producer; committed offsets count as their partition."""

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


class PartitionsVerified(msgspec.Struct, frozen=True):
    """The producer may write, except to the partitions that are `absent` from its transaction."""

    absent: tuple[TopicPartition, ...]
    number: int


class VerifyPartitions(TransactionRequest[PartitionsVerified], frozen=True, kw_only=True):
    """Check that partitions are part of the transaction of a producer."""

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


class EndTransaction(TransactionRequest[ProducerIdentity], frozen=True, kw_only=True):
    """Commit or abort; the reply is the identity for the next transaction."""

    producer: ProducerIdentity
    committed: bool
    protocol: EndProtocol


class DescribeTransaction(TransactionRequest[Transaction], frozen=True, kw_only=True):
    """Describe one transactional id; TransactionalIdNotFound."""


class ListTransactions(Request[tuple[Transaction, ...]], frozen=True, kw_only=True):
    """List the transactions that match; a filter that is empty or None matches all."""

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    running_longer_than_ms: int | None = None
    transactional_ids: frozenset[str] = frozenset()


class OpenTransactions(msgspec.Struct, frozen=True):
    """Producer id and partition of transactions that are open, or lack markers."""

    known: frozenset[tuple[int, TopicPartition]]


class FindOpen(Request[OpenTransactions], frozen=True, kw_only=True):
    """Return the open transactions of some producers."""

    producer_ids: frozenset[int]


class Aborted(msgspec.Struct, frozen=True):
    """The number of transactions that were aborted."""

    count: int


class AbortIn(Request[Aborted], frozen=True, kw_only=True):
    """Abort the open transactions of partitions that have lost records; the reply follows the decision."""

    partitions: frozenset[TopicPartition]


class MarkersWritten(TransactionRequest[None], frozen=True, kw_only=True):
    """Event: all partitions of a WriteMarkers have their marker. May be late or repeated."""

    markers: WriteMarkers
