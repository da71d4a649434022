"""What the transaction coordinator is asked and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from alpacamq.model.ids import TopicPartition
from alpacamq.model.outcome import Outcome

from .transaction import ProducerIdentity, TransactionState, WriteMarkers


class EndProtocol(Enum):
    """What a client expects of the end of a transaction.

    Classic clients keep their epoch and are answered once the decision is durable. Current ones
    (KIP-890) get a new epoch with every end, and are answered once the transaction is complete.
    """

    CLASSIC = "classic"
    NEW_EPOCH = "new-epoch"


class InitProducer(msgspec.Struct, frozen=True, kw_only=True):
    """A new instance begins; or one that has lost its way (`recovering`) asks for a new epoch."""

    transactional_id: str
    timeout_ms: int = 60_000
    recovering: ProducerIdentity | None = None


class TransactionPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions a producer wants in its transaction, or says are there. Offsets count as their partition."""

    transactional_id: str
    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


class EndTransaction(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer: ProducerIdentity
    committed: bool
    protocol: EndProtocol


class ListTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """Which transactions to list; what is empty or None lets all pass."""

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    running_longer_than_ms: int | None = None
    id_matches: Callable[[str], bool] | None = None


class PartitionsAdded(msgspec.Struct, frozen=True):
    """All partitions are part of the ongoing transaction."""


class PartitionsVerified(msgspec.Struct, frozen=True):
    """The producer may write, except to the partitions that are `absent` from its transaction."""

    absent: tuple[TopicPartition, ...]


@dataclass(slots=True)
class TransactionOutcome(Outcome):
    """Effects, like replies, wait until the changes are durable."""

    effects: list[WriteMarkers] = field(default_factory=list)
