"""Reads partitions from given offsets, without a group."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from alpacamq.client.errors import check
from alpacamq.client.fetched import fetched_batches
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Record, read_records
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

from .cluster import Cluster, retry_transient
from .offsets import Isolation

MAX_PARTITION_BYTES = 1 << 20
MAX_BYTES = 16 << 20
WAIT_MS = 500
_WAIT_MARGIN_S = 10.0


class Delivery(NamedTuple):
    """A record and its partition."""

    partition: TopicPartition
    record: Record


class Reader:
    """Reads records and advances the positions."""

    def __init__(self, cluster: Cluster, start: Mapping[TopicPartition, int], isolation: Isolation) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self.positions = dict(start)

    def drop(self, partition: TopicPartition) -> None:
        """Stop reading a partition."""
        self.positions.pop(partition, None)

    def read(self, wait_ms: int = WAIT_MS) -> Iterator[Delivery]:
        """Yield the records of one round of fetches; empty on timeout."""
        for partition, data in self._fetch(wait_ms):
            yield from self._records(partition, data)

    @retry_transient
    def _fetch(self, wait_ms: int) -> list[tuple[TopicPartition, PartitionData]]:
        fetched = []
        for leader, theirs in self._cluster.by_leader(self.positions):
            request = FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=MAX_BYTES,
                isolation_level=self._isolation,
                topics=[
                    FetchTopic(
                        topic=name,
                        partitions=[
                            FetchPartition(
                                partition=wanted.partition,
                                fetch_offset=self.positions[wanted],
                                partition_max_bytes=MAX_PARTITION_BYTES,
                            )
                            for wanted in those
                        ],
                    )
                    for name, those in groupby(theirs, attrgetter("topic"))
                ],
            )
            answer = leader.call(request, FetchResponse, timeout_s=wait_ms / 1000 + _WAIT_MARGIN_S)
            check(f"reading from {leader.address}", answer.error_code)
            for topic in answer.responses:
                for data in topic.partitions:
                    partition = TopicPartition(TopicName(topic.topic), data.partition_index)
                    if partition not in self.positions:
                        raise ProtocolError(f"{leader.address} sent {partition}, which was not requested")
                    check(f"reading {partition} at {self.positions[partition]}", data.error_code)
                    fetched.append((partition, data))
        return fetched

    def _records(self, partition: TopicPartition, data: PartitionData) -> Iterator[Delivery]:
        for header, batch, is_visible in fetched_batches(
            memoryview(data.records or b""), data.aborted_transactions
        ):
            if is_visible:
                for record in read_records(batch):
                    if record.offset >= self.positions.get(partition, record.offset + 1):
                        self.positions[partition] = record.offset + 1
                        yield Delivery(partition, record)
            if partition in self.positions:
                # Also past skipped batches and records removed by compaction.
                self.positions[partition] = max(self.positions[partition], header.next_offset)
