"""Fetches record batches from the leader of one partition."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpacamq.client.errors import Refused, check, only

# Re-exported as part of Fetched.
from alpacamq.client.fetched import FetchedBatch as FetchedBatch
from alpacamq.client.fetched import fetched_batches
from alpacamq.model.ids import TopicPartition
from alpacamq.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

from .cluster import Cluster, retry_transient
from .offsets import Isolation, log_edge

if TYPE_CHECKING:
    from .connection import Connection


MAX_BYTES = 8 << 20
WAIT_MS = 500
_WAIT_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Result of one request: batches, possibly none, and the end for this isolation level."""

    batches: Iterator[FetchedBatch]
    readable_end: int


class PartitionFetcher:
    """Fetches from the leader of one partition, and finds it again when it changes."""

    def __init__(self, cluster: Cluster, partition: TopicPartition, isolation: Isolation) -> None:
        self.partition = partition
        self._cluster = cluster
        self._isolation = isolation
        self._leader: Connection | None = None

    @retry_transient
    def fetch(self, offset: int) -> Fetched:
        """Fetch batches from the one that contains `offset`; empty on timeout."""
        leader = self._known_leader()
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=self._isolation,
            topics=[
                FetchTopic(
                    topic=self.partition.topic,
                    partitions=[
                        FetchPartition(
                            partition=self.partition.partition,
                            fetch_offset=offset,
                            partition_max_bytes=MAX_BYTES,
                        )
                    ],
                )
            ],
        )
        about = f"reading {self.partition} at {offset}"
        answer = leader.call(request, FetchResponse, timeout_s=WAIT_MS / 1000 + _WAIT_MARGIN_S)
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

    @retry_transient
    def edge(self, *, is_end: bool) -> int:
        """Return the start or the end of the log."""
        try:
            return log_edge(self._known_leader(), self.partition, is_end=is_end)
        except Refused:
            self._leader = None
            raise

    def _known_leader(self) -> "Connection":
        if self._leader is None or not self._leader.is_open:
            [(self._leader, _)] = self._cluster.by_leader([self.partition])
        return self._leader
