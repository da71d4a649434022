"""Transactions: which transactional ids there are, and what an open transaction holds up."""

from dataclasses import dataclass

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

from .cluster import Cluster, Coordinates, patient
from .errors import NotFound, check, only


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSummary:
    """A transactional id as a list shows it."""

    id: str
    state: str
    producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and, while a transaction is open, what it writes to."""

    id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_at_ms: int | None
    partitions: tuple[TopicPartition, ...]


@patient
def every_transaction(cluster: Cluster, *states: str) -> list[TransactionSummary]:
    """All transactional ids of all brokers by name, or those in these states."""
    found = []
    for broker in cluster.everyone():
        answer = broker.call(ListTransactionsRequest(state_filters=states), ListTransactionsResponse)
        check(f"listing the transactions of {broker.address}", answer.error_code)
        found += [
            TransactionSummary(
                id=listed.transactional_id, state=listed.transaction_state, producer_id=listed.producer_id
            )
            for listed in answer.transaction_states
        ]
    return sorted(found, key=lambda transaction: transaction.id)


def find_transaction(cluster: Cluster, name: str) -> Transaction:
    """The state of one transactional id, or NotFound."""
    found = transaction(cluster, name)
    if found is None:
        raise NotFound("transactional id", name, [other.id for other in every_transaction(cluster)])
    return found


@patient
def transaction(cluster: Cluster, name: str) -> Transaction | None:
    """The state of one transactional id, if it is known."""
    coordinator = cluster.coordinator(Coordinates.TRANSACTION, name)
    request = DescribeTransactionsRequest(transactional_ids=[name])
    answer = coordinator.call(request, DescribeTransactionsResponse)
    described = only(f"transactional id {name!r}", answer.transaction_states)
    if described.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return None
    check(f"transactional id {name!r}", described.error_code)
    return Transaction(
        id=name,
        state=described.transaction_state,
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        timeout_ms=described.transaction_timeout_ms,
        started_at_ms=described.transaction_start_time_ms
        if described.transaction_start_time_ms > 0
        else None,
        partitions=tuple(
            sorted(
                TopicPartition(TopicName(topic.topic), index)
                for topic in described.topics
                for index in topic.partitions
            )
        ),
    )
