"""Fetches the batches of one partition as they are, from its leader, for those who unpack them in bulk."""

from collections.abc import Iterator
from dataclasses import dataclass

from alpacamq.model.ids import TopicPartition
from alpacamq.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

from .batches import FetchedBatch, fetched_batches
from .cluster import Cluster, patient
from .connection import Connection
from .errors import Refused, check, only
from .offsets import Isolation

MAX_BYTES = 8 << 20
WAIT_MS = 500
_WAIT_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one request brought: batches, perhaps none, and how far a reader could have come."""

    batches: Iterator[FetchedBatch]
    readable_end: int


class PartitionFetcher:
    """Asks the leader of one partition, and looks for it again when it is another."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, isolation: Isolation) -> None:
        self._cluster = cluster
        self._partition = partition
        self._isolation = isolation
        self._leader: Connection | None = None

    @patient
    def fetch(self, offset: int) -> Fetched:
        """Batches from the one that holds `offset` on; empty if there were none in time."""
        if self._leader is None or not self._leader.is_open:
            [(self._leader, _)] = self._cluster.by_leader([self._partition])
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=self._isolation,
            topics=[
                FetchTopic(
                    topic=self._partition.topic,
                    partitions=[
                        FetchPartition(
                            partition=self._partition.partition,
                            fetch_offset=offset,
                            partition_max_bytes=MAX_BYTES,
                        )
                    ],
                )
            ],
        )
        about = f"reading {self._partition} at {offset}"
        answer = self._leader.call(request, FetchResponse, patience_s=WAIT_MS / 1000 + _WAIT_MARGIN_S)
        check(about, answer.error_code)
        data = only(about, only(about, answer.responses).partitions)
        try:
            check(about, data.error_code)
        except Refused:
            self._leader = None
            raise
        is_committed = self._isolation is Isolation.COMMITTED
        return Fetched(
            batches=fetched_batches(memoryview(data.records or b""), data.aborted_transactions),
            readable_end=data.last_stable_offset if is_committed else data.high_watermark,
        )
