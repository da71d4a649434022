"""Lists, describes and aborts transactions, and finds hanging ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from alpacamq.client.errors import NotFound, check, only
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.transactions import (
    DescribedTransaction,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from .cluster import NAMES_PER_REQUEST, Cluster, Coordinates, batched, retry_transient
from .transactional import claim

_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSummary:
    """A transactional id as listed."""

    id: str
    state: str
    producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and the partitions of its open transaction."""

    id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_at_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """An open transaction in a partition."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_written_at_ms: int
    coordinator_epoch: int = -1


@retry_transient
def list_transactions(cluster: Cluster, *states: str) -> list[TransactionSummary]:
    """List transactional ids of all brokers by name, optionally filtered by state."""
    found = []
    for broker in cluster.all_brokers():
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
    """Describe a transactional id; NotFound if it does not exist."""
    found = transaction(cluster, name)
    if found is None:
        raise NotFound("transactional id", name, [other.id for other in list_transactions(cluster)])
    return found


def transaction(cluster: Cluster, name: str) -> Transaction | None:
    """Describe a transactional id; None if it does not exist."""
    return transactions_of(cluster, [name]).get(name)


@retry_transient
def transactions_of(cluster: Cluster, names: Sequence[str]) -> dict[str, Transaction]:
    """Describe transactional ids; those that do not exist are missing."""
    found: dict[str, Transaction] = {}
    for coordinator, theirs in cluster.by_coordinator(Coordinates.TRANSACTION, names):
        for some in batched(theirs, NAMES_PER_REQUEST):
            request = DescribeTransactionsRequest(transactional_ids=list(some))
            answer = coordinator.call(request, DescribeTransactionsResponse)
            described = {each.transactional_id: each for each in answer.transaction_states}
            for name in some:
                about = f"transactional id {name!r}"
                each = only(about, [described[name]] if name in described else [])
                if each.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    check(about, each.error_code)
                    found[name] = _transaction(each)
    return found


def _transaction(described: DescribedTransaction) -> Transaction:
    return Transaction(
        id=described.transactional_id,
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


@retry_transient
def open_transactions(cluster: Cluster, topics: Mapping[str, int]) -> list[OpenTransaction]:
    """Return open transactions in the partitions of topics; values are partition counts."""
    existing = {topic.name for topic in cluster.metadata(list(topics)).topics if not topic.error_code}
    partitions = [
        TopicPartition(TopicName(name), index)
        for name, count in topics.items()
        if name in existing  # else deleted concurrently
        for index in range(count)
    ]
    found = []
    for leader, theirs in cluster.by_leader(partitions):
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersTopic(name=name, partition_indexes=[each.partition for each in those])
                for name, those in groupby(theirs, attrgetter("topic"))
            ]
        )
        answer = leader.call(request, DescribeProducersResponse)
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue  # deleted concurrently
                place = TopicPartition(TopicName(topic.name), partition.partition_index)
                check(f"the producers of {place}", partition.error_code)
                found += [
                    OpenTransaction(
                        partition=place,
                        producer_id=producer.producer_id,
                        producer_epoch=producer.producer_epoch,
                        start_offset=producer.current_txn_start_offset,
                        last_written_at_ms=producer.last_timestamp,
                        coordinator_epoch=producer.coordinator_epoch,
                    )
                    for producer in partition.active_producers
                    if producer.current_txn_start_offset >= 0
                ]
    return sorted(found, key=lambda each: (each.partition, each.start_offset))


def hanging_transactions(cluster: Cluster, topics: Mapping[str, int]) -> list[OpenTransaction]:
    """Return open transactions in the partitions of topics that no coordinator will end."""
    # In this order: a transaction started in between is known to its coordinator.
    opened = open_transactions(cluster, topics)
    if not opened:
        return []
    known: set[tuple[int, TopicPartition]] = set()
    for summary in list_transactions(cluster, *_OPEN_STATES):
        if (found := transaction(cluster, summary.id)) is not None:
            known.update((found.producer_id, partition) for partition in found.partitions)
    suspects = [each for each in opened if (each.producer_id, each.partition) not in known]
    if not suspects:
        return []
    # Transactions that have ended since are not hanging.
    still_open = {(each.partition, each.start_offset) for each in open_transactions(cluster, topics)}
    return [each for each in suspects if (each.partition, each.start_offset) in still_open]


@retry_transient
def abort_in_partition(cluster: Cluster, hanging: OpenTransaction) -> None:
    """Write an abort marker for a transaction that is open in a partition."""
    topic, index = hanging.partition
    marker = WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
        coordinator_epoch=max(hanging.coordinator_epoch, 0),
    )
    [(leader, _)] = cluster.by_leader([hanging.partition])
    answer = leader.call(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
    written = only(f"the marker for {hanging.partition}", answer.markers)
    result = only(f"the marker for {hanging.partition}", only("its topic", written.topics).partitions)
    check(f"writing an abort marker to {hanging.partition}", result.error_code)


def abort_transaction(cluster: Cluster, name: str) -> None:
    """Abort the open transaction of a transactional id and fence its producer."""
    found = find_transaction(cluster, name)
    claim(cluster, name, found.timeout_ms)
