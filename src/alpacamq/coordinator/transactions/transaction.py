"""One transactional id: who may use it, what its transaction holds and how far that has come.

A value, stored as it is: every step makes a new one. Which step an event asks for, and whether
it may, is the coordinator's business.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from alpacamq.model.errors import InvalidProducerIdMapping, InvalidRecord, ProducerFenced
from alpacamq.model.ids import TopicPartition
from alpacamq.model.state_machine import Request

# The epoch after the last one a client is given fences it: markers may carry that, batches never.
LAST_EPOCH = 2**15 - 2

R = TypeVar("R")


class TransactionState(Enum):
    """How far the transaction of a transactional id has come."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare-commit"
    PREPARE_ABORT = "prepare-abort"
    COMPLETE_COMMIT = "complete-commit"
    COMPLETE_ABORT = "complete-abort"
    DEAD = "dead"


# Whoever has no transaction open may begin one, give the id to a new instance or let it die. An
# abort without a transaction is how clients of the current protocol ask for a new epoch. Dead is
# never stored: it is the absence of a record.
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
    """What tells one instance of a producer from the next."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} epoch {self.epoch}"

    @property
    def is_exhausted(self) -> bool:
        """No epoch is left that a client could be given under this producer id."""
        return self.epoch >= LAST_EPOCH

    def bumped(self) -> "ProducerIdentity":
        assert self.epoch <= LAST_EPOCH
        return ProducerIdentity(self.producer_id, self.epoch + 1)


class WriteMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """To be done once the decision is durable: end the transaction in each of its partitions."""

    transactional_id: str
    number: int
    producer: ProducerIdentity
    committed: bool
    partitions: tuple[TopicPartition, ...]


class Transaction(msgspec.Struct, frozen=True, kw_only=True, tag="transaction"):
    """One transactional id and its current or last transaction.

    `previous` is whom the current identity was handed to in exchange for that one, as long as the
    answer may have been lost: such a client may ask again. `number` counts transactions.
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
        """The last decision, where one was made."""
        return self.state in COMMITTING

    @property
    def markers(self) -> WriteMarkers:
        """What is left to do for a prepared transaction."""
        assert self.state in PREPARED
        return WriteMarkers(
            transactional_id=self.transactional_id,
            number=self.number,
            producer=self.producer,
            committed=self.is_committing,
            partitions=self.partitions,
        )

    def check(self, producer: ProducerIdentity) -> None:
        """Refuse anybody but the current instance."""
        if producer.producer_id != self.producer.producer_id:
            raise InvalidProducerIdMapping(
                f"transactional id {self.transactional_id!r} belongs to producer "
                f"{self.producer.producer_id}, not to {producer.producer_id}"
            )
        if producer.epoch != self.producer.epoch or producer.epoch > LAST_EPOCH:
            raise ProducerFenced(
                f"transactional id {self.transactional_id!r} has epoch {self.producer.epoch} by now, "
                f"so epoch {producer.epoch} may not use it"
            )

    def claimed(
        self,
        by: ProducerIdentity | None,
        timeout_ms: int,
        new_producer_id: Callable[[], int],
        now_ms: int,
    ) -> "Transaction":
        """In the hands of a new instance, or again in those of `by`; any other is fenced from now on."""
        if by is not None and by == self.previous and self.producer.epoch <= LAST_EPOCH:
            producer = self.producer  # made for it already, but it does not know
        elif self.producer.is_exhausted:
            producer = ProducerIdentity(new_producer_id(), 0)
        else:
            producer = self.producer.bumped()
        return self._moved(
            TransactionState.EMPTY, now_ms, producer=producer, previous=by, timeout_ms=timeout_ms
        )

    def joined_by(self, partitions: tuple[TopicPartition, ...], now_ms: int) -> "Transaction":
        """With more partitions; begins a transaction where none is ongoing."""
        if self.state is TransactionState.ONGOING:
            partitions = tuple(dict.fromkeys((*self.partitions, *partitions)))
            return self._moved(TransactionState.ONGOING, now_ms, partitions=partitions)
        return self._moved(
            TransactionState.ONGOING,
            now_ms,
            previous=None,  # whoever begins a transaction knows its identity
            number=self.number + 1,
            started_ms=now_ms,
            partitions=tuple(dict.fromkeys(partitions)),
        )

    def fenced(self, by: ProducerIdentity | None, now_ms: int) -> "Transaction":
        """Aborted under an epoch that nobody holds, though `by` may ask for it."""
        return self._moved(
            TransactionState.PREPARE_ABORT, now_ms, producer=self.producer.bumped(), previous=by
        )

    def decided(self, *, committed: bool, now_ms: int) -> "Transaction":
        """Ended as its producer says; the epoch stays."""
        return self._moved(_prepare(committed), now_ms)

    def decided_with_new_epoch(
        self, *, committed: bool, new_producer_id: Callable[[], int], now_ms: int
    ) -> "Transaction":
        """Ended as its producer says, with an epoch of its own for whatever comes after."""
        fresh = {} if self.started_ms is not None else {"number": self.number + 1, "started_ms": now_ms}
        return self._moved(
            _prepare(committed),
            now_ms,
            producer=self.producer.bumped(),
            previous=self.producer,
            next_producer_id=new_producer_id() if self.producer.is_exhausted else None,
            **fresh,
        )

    def completed(self, now_ms: int) -> "Transaction":
        """All markers are written."""
        producer = self.producer
        if self.next_producer_id is not None:
            producer = ProducerIdentity(self.next_producer_id, 0)
        return self._moved(
            TransactionState.COMPLETE_COMMIT if self.is_committing else TransactionState.COMPLETE_ABORT,
            now_ms,
            producer=producer,
            next_producer_id=None,
            started_ms=None,
            partitions=(),
        )

    def _moved(self, state: TransactionState, now_ms: int, **changes: Any) -> "Transaction":
        assert state in NEXT_STATES[self.state], f"{self.state} does not lead to {state}"
        return msgspec.structs.replace(self, state=state, updated_ms=now_ms, **changes)


def _prepare(committed: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT


def encode_key(transactional_id: str) -> bytes:
    return msgspec.msgpack.encode(("transaction", transactional_id))


def decode_key(key: bytes) -> str:
    """The transactional id that a record of the internal topic is about, or InvalidRecord."""
    try:
        kind, transactional_id = msgspec.msgpack.decode(key, type=tuple[str, str])
    except msgspec.DecodeError as error:
        raise InvalidRecord(f"{key!r} is not the key of a transaction: {error}") from error
    if kind != "transaction":
        raise InvalidRecord(f"{key!r} is the key of a {kind}, not of a transaction")
    return transactional_id


def encode_value(transaction: Transaction) -> bytes:
    return msgspec.msgpack.encode(transaction)


def decode_value(value: bytes) -> Transaction:
    """The transaction stored in a record of the internal topic, or InvalidRecord."""
    try:
        return msgspec.msgpack.decode(value, type=Transaction)
    except msgspec.DecodeError as error:
        raise InvalidRecord(f"a stored transaction cannot be read: {error}") from error


class EndProtocol(Enum):
    """What a client expects of the end of a transaction.

    Classic clients keep their epoch and are answered once the decision is durable. Current ones
    (KIP-890) get a new epoch with every end, and are answered once the transaction is complete.
    """

    CLASSIC = "classic"
    NEW_EPOCH = "new-epoch"


class TransactionRequest(Request[R], Generic[R], frozen=True, kw_only=True):
    """A request about one transactional id."""

    transactional_id: str

    @property
    def routing_key(self) -> str:
        return self.transactional_id


class InitProducer(TransactionRequest[ProducerIdentity], frozen=True, kw_only=True):
    """Start a new instance of a producer, or give one that recovers from an error a new epoch."""

    timeout_ms: int = 60_000
    recovering: ProducerIdentity | None = None


class PartitionsAdded(msgspec.Struct, frozen=True):
    """All partitions are part of the ongoing transaction."""


class AddPartitions(TransactionRequest[PartitionsAdded], frozen=True, kw_only=True):
    """Add partitions to the transaction of a producer; committed offsets count as their partition."""

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


class PartitionsVerified(msgspec.Struct, frozen=True):
    """The producer may write, except to the partitions that are `absent` from its transaction."""

    absent: tuple[TopicPartition, ...]


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
    id_matches: Callable[[str], bool] | None = None


class MarkersWritten(TransactionRequest[None], frozen=True, kw_only=True):
    """Event: every partition of an earlier WriteMarkers has its marker. May come late or twice."""

    markers: WriteMarkers
