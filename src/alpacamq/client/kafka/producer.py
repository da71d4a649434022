"""Sends records to one topic in batches.

A failed batch is not sent again, so nothing is written twice; the error tells the caller which records
are in doubt.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from alpacamq.client.errors import NotFound, check, only
from alpacamq.client.options import Acks as Acks
from alpacamq.model.ids import TopicPartition
from alpacamq.model.murmur2 import partition_for_key
from alpacamq.model.ports import Buffer
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

from .cluster import Cluster
from .topics import find_topic

MAX_BATCH_RECORDS = 1000
MAX_BATCH_BYTES = 512 << 10
_ALL_IN_SYNC = -1
_TIMEOUT_MS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A range of acknowledged records."""

    partition: int
    first_offset: int
    count: int


class Producer:
    """Collects records by partition and sends a partition's batch when it is full."""

    def __init__(self, cluster: Cluster, topic: str, *, partition: int | None = None) -> None:
        self._cluster = cluster
        found = find_topic(cluster, topic, may_create=True)
        self._topic = found.name
        self._count = len(found.partitions)
        if partition is not None and not 0 <= partition < self._count:
            raise NotFound("partition", str(TopicPartition(self._topic, partition)))
        self._partition = partition
        # Records without a key fill the batch of one partition after another.
        self._keyless = 0
        self._waiting: dict[int, list[Record]] = {}
        self._bytes: dict[int, int] = {}

    def add(self, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> list[Written]:
        """Add one record; return what was written if a batch was full."""
        partition = self._place(key)
        size = (
            len(key or b"") + len(value or b"") + sum(len(name) + len(word or b"") for name, word in headers)
        )
        written = []
        # Checked before adding: a record that fits a batch of its own must not make this one too large.
        if self._is_full(partition, size):
            written.append(self._send(partition))
            partition = self._place(key)
        waiting = self._waiting.setdefault(partition, [])
        waiting.append(Record(len(waiting), time.time_ns() // 1_000_000, key, value, tuple(headers)))
        self._bytes[partition] = self._bytes.get(partition, 0) + size
        return written

    def _is_full(self, partition: int, further_bytes: int) -> bool:
        waiting = self._waiting.get(partition, ())
        return len(waiting) >= MAX_BATCH_RECORDS or (
            len(waiting) > 0 and self._bytes[partition] + further_bytes > MAX_BATCH_BYTES
        )

    def flush(self) -> list[Written]:
        """Send all buffered records."""
        return [self._send(partition) for partition in sorted(self._waiting)]

    def _place(self, key: bytes | None) -> int:
        if self._partition is not None:
            return self._partition
        return self._keyless if key is None else partition_for_key(key, self._count)

    def _send(self, partition: int) -> Written:
        records = self._waiting.pop(partition)
        del self._bytes[partition]
        if partition == self._keyless:
            self._keyless = (self._keyless + 1) % self._count
        place = TopicPartition(self._topic, partition)
        [(leader, _)] = self._cluster.by_leader([place])
        data = PartitionProduceData(index=partition, records=write_batch(records))
        request = ProduceRequest(
            acks=_ALL_IN_SYNC,
            timeout_ms=_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._topic, partition_data=[data])],
        )
        about = f"writing {len(records)} records to {place}"
        result = only(about, only(about, leader.call(request, ProduceResponse).responses).partition_responses)
        check(about, result.error_code, result.error_message)
        return Written(partition=partition, first_offset=result.base_offset, count=len(records))


class PartitionWriter:
    """Writes batches to the leader of one partition, one request at a time."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, acks: Acks) -> None:
        self._partition = partition
        self._acks = acks
        [(self._leader, _)] = cluster.by_leader([partition])

    def write(self, batch: Buffer) -> None:
        """Write a batch and wait for the acknowledgement; a rejected batch is not sent again."""
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
