"""Writes in a transaction: a producer identity, invisible batches, and commit or abort.

Batches carry sequence numbers, so a batch that is resent after a lost response is written once.
Any client with the identity can end a transaction, not only the one that wrote it.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from alpacamq.client.errors import Refused, check
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.ports import Buffer
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from alpacamq.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionTopic,
)

from .cluster import Cluster, Coordinates, retry_transient

T = TypeVar("T")

_ALL_IN_SYNC = -1
_TIMEOUT_MS = 30_000
# Time to wait for the end of the id's previous transaction.
_COMPLETION_S = 30.0
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """Identity of a transactional producer until the id is claimed again."""

    transactional_id: str
    producer_id: int
    epoch: int


def claim(cluster: Cluster, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
    """Claim a transactional id; the previous producer is fenced and its open transaction aborted."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

    @retry_transient
    def send(cluster: Cluster) -> ProducerIdentity:
        coordinator = cluster.coordinator(Coordinates.TRANSACTION, transactional_id)
        answer = coordinator.call(request, InitProducerIdResponse)
        check(f"claiming the transactional id {transactional_id!r}", answer.error_code)
        return ProducerIdentity(
            transactional_id=transactional_id, producer_id=answer.producer_id, epoch=answer.producer_epoch
        )

    return _once_complete(cluster, send)


def add_partitions(
    cluster: Cluster, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> None:
    """Add partitions to the producer's transaction, which starts if none is open."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            TransactionTopic(name=name, partitions=[each.partition for each in those])
            for name, those in groupby(sorted(partitions), attrgetter("topic"))
        ],
    )

    @retry_transient
    def send(cluster: Cluster) -> None:
        coordinator = cluster.coordinator(Coordinates.TRANSACTION, producer.transactional_id)
        answer = coordinator.call(request, AddPartitionsToTxnResponse)
        for topic in answer.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                check(
                    f"adding {topic.name}-{result.partition_index} to the transaction of "
                    f"{producer.transactional_id!r}",
                    result.partition_error_code,
                )

    _once_complete(cluster, send)


def end_transaction(cluster: Cluster, producer: ProducerIdentity, *, committed: bool) -> None:
    """Commit or abort the transaction; idempotent."""
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=committed,
    )

    @retry_transient
    def send(cluster: Cluster) -> None:
        coordinator = cluster.coordinator(Coordinates.TRANSACTION, producer.transactional_id)
        answer = coordinator.call(request, EndTxnResponse)
        verb = "committing" if committed else "aborting"
        check(f"{verb} the transaction of {producer.transactional_id!r}", answer.error_code)

    _once_complete(cluster, send)


@retry_transient
def send_batches(
    cluster: Cluster, producer: ProducerIdentity, batches: Mapping[TopicPartition, Buffer]
) -> None:
    """Write one batch to each of these partitions, which must be part of the transaction."""
    for leader, theirs in cluster.by_leader(batches):
        request = ProduceRequest(
            transactional_id=producer.transactional_id,
            acks=_ALL_IN_SYNC,
            timeout_ms=_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=name,
                    partition_data=[
                        PartitionProduceData(index=each.partition, records=batches[each]) for each in those
                    ],
                )
                for name, those in groupby(theirs, attrgetter("topic"))
            ],
        )
        for topic in leader.call(request, ProduceResponse).responses:
            for result in topic.partition_responses:
                partition = TopicPartition(TopicName(topic.name), result.index)
                # A duplicate of our own batch, whose acknowledgement was lost.
                if result.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    check(f"writing to {partition}", result.error_code, result.error_message)


def _once_complete(cluster: Cluster, send: Callable[[Cluster], T]) -> T:
    """Retry for a while until the id's previous transaction is complete."""
    deadline = time.monotonic() + _COMPLETION_S
    while True:
        try:
            return send(cluster)
        except Refused as refused:
            if refused.code != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)
