"""Fetches record batches: splits and verifies them, and marks aborted ones as invisible."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from alpacamq.client.errors import Refused, check, only
from alpacamq.model.batch import FRAME, FRAME_BYTES, HEADER_BYTES, BatchHeader, check_batch
from alpacamq.model.control import CommittedFilter
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.ids import TopicPartition
from alpacamq.protocol.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

from .cluster import Cluster, retry_transient
from .offsets import Isolation

if TYPE_CHECKING:
    from .connection import Connection


class FetchedBatch(NamedTuple):
    """A complete batch with a valid checksum."""

    header: BatchHeader
    data: memoryview
    # False for markers and for batches of aborted transactions.
    is_visible: bool


def fetched_batches(
    records: memoryview, aborted: Iterable[AbortedTransaction] | None
) -> Iterator[FetchedBatch]:
    """Yield the complete batches in order; a fetch may end in the middle of one."""
    committed = CommittedFilter((each.producer_id, each.first_offset) for each in aborted or ())
    for batch in _whole_batches(records):
        header = check_batch(batch)
        yield FetchedBatch(header, batch, committed.shows(header, batch))


def _whole_batches(records: memoryview) -> Iterator[memoryview]:
    at = 0
    while len(records) - at >= HEADER_BYTES:
        _, length = FRAME.unpack_from(records, at)
        end = at + FRAME_BYTES + length
        if end < at + HEADER_BYTES:
            raise CorruptBatch(f"a batch claims {length} bytes")
        if end > len(records):
            return
        yield records[at:end]
        at = end


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
        self._cluster = cluster
        self._partition = partition
        self._isolation = isolation
        self._leader: Connection | None = None

    @retry_transient
    def fetch(self, offset: int) -> Fetched:
        """Fetch batches from the one that contains `offset`; empty on timeout."""
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
        answer = self._leader.call(request, FetchResponse, timeout_s=WAIT_MS / 1000 + _WAIT_MARGIN_S)
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
