"""Writes batches to one partition as they are, for those who pack them themselves."""

from enum import IntEnum

from alpacamq.model.ids import TopicPartition
from alpacamq.model.ports import Buffer
from alpacamq.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

from .cluster import Cluster
from .errors import check, only

_TIMEOUT_MS = 20_000


class Acks(IntEnum):
    """Whose acknowledgement is waited for, by its number on the wire."""

    NONE = 0
    LEADER = 1
    ALL = -1


class PartitionWriter:
    """Knows the leader of one partition; one request at a time."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, acks: Acks) -> None:
        self._partition = partition
        self._acks = acks
        [(self._leader, _)] = cluster.by_leader([partition])

    def write(self, batch: Buffer) -> None:
        """Returns once it is acknowledged as asked for; a batch that is refused is not sent again."""
        data = PartitionProduceData(index=self._partition.partition, records=batch)
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._partition.topic, partition_data=[data])],
        )
        if self._acks is Acks.NONE:
            self._leader.tell(request)
            return
        about = f"writing to {self._partition}"
        answer = self._leader.call(request, ProduceResponse)
        result = only(about, only(about, answer.responses).partition_responses)
        check(about, result.error_code, result.error_message)
