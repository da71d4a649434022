"""Reads one range of offsets in a task: batches from the partition's leader, into Arrow."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from alpacamq.client.batches import FetchedBatch
from alpacamq.client.cluster import Cluster
from alpacamq.client.errors import ErrorCode, NotFound, Refused
from alpacamq.client.offsets import Isolation, extents
from alpacamq.client.partition_fetch import Fetched, PartitionFetcher
from alpacamq.model.address import Address

from .columns import Decoder
from .errors import DataLost, ReadStalled
from .fields import Unpacked, unpack
from .narrowing import EVERY_NUMBER, Interval
from .ranges import OffsetRange
from .reconnecting import PATIENCE_S, persistently

# Unpacked, what is turned into one Arrow batch; compressed batches can hold much more than they weigh.
_DECODED_BYTES = 16 << 20
# The same for tiny records, whose places take more than they do: some 170 bytes each while decoding.
_DECODED_RECORDS = 250_000


def read_range(
    servers: Sequence[Address],
    wanted: OffsetRange,
    columns: Sequence[str],
    isolation: Isolation,
    *,
    fail_on_data_loss: bool,
    timestamp_ms: Interval = EVERY_NUMBER,
) -> Iterator[pa.RecordBatch]:
    """Everything in the range that a reader of this isolation sees, as Arrow batches."""
    decoder = Decoder(wanted, columns, timestamp_ms)
    waiting: list[Unpacked] = []
    size = records = 0
    with Cluster(*servers) as cluster:
        source = _Source(cluster, wanted, isolation, fail_on_data_loss)
        for batch in source.batches():
            waiting.append(batch)
            size += len(batch.body)
            records += batch.header.record_count
            if size >= _DECODED_BYTES or records >= _DECODED_RECORDS:
                yield decoder.decode(waiting)
                waiting, size, records = [], 0, 0
        if waiting:
            yield decoder.decode(waiting)


class _Source:
    """The batches of a range, in order, across whatever the log has lost meanwhile."""

    def __init__(
        self, cluster: Cluster, wanted: OffsetRange, isolation: Isolation, fail_on_data_loss: bool
    ) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._fail_on_data_loss = fail_on_data_loss
        self._fetcher = PartitionFetcher(cluster, wanted.partition, isolation)
        self._position = wanted.start
        self._stalled_since: float | None = None

    def batches(self) -> Iterator[Unpacked]:
        """All there is to see, the next request always one ahead of who reads it."""
        with ThreadPoolExecutor(1, "fetch") as ahead:
            following = ahead.submit(self._next)
            while True:
                batches = following.result()
                is_last = self._position >= self._wanted.end
                if not is_last:
                    following = ahead.submit(self._next)
                yield from map(unpack, batches)
                if is_last:
                    return

    def _next(self) -> list[FetchedBatch]:
        """What one more request brings, with the position moved behind it."""
        if self._position >= self._wanted.end or (fetched := self._fetch()) is None:
            return []
        before = self._position
        found = []
        for batch in fetched.batches:
            if batch.header.base_offset >= self._wanted.end:
                self._position = self._wanted.end
                break
            if batch.is_visible and batch.header.record_count and batch.header.next_offset > before:
                found.append(batch)
            self._position = max(self._position, batch.header.next_offset)
        self._check_progress(before, fetched.readable_end)
        return found

    def _fetch(self) -> Fetched | None:
        """One request's worth; None if the position had to be moved to where the log begins now."""
        partition, end = self._wanted.partition, self._wanted.end
        try:
            return persistently(lambda: self._fetcher.fetch(self._position))
        except NotFound:
            self._skip_to(end, "there is no such partition any more")
        except Refused as refused:
            if refused.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._skip_to(end, "there is no such partition any more")
            elif refused.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                extent = persistently(lambda: extents(self._cluster, [partition]))[partition]
                resumed = min(extent.start, end) if self._position < extent.start else end
                self._skip_to(
                    resumed,
                    f"its log now holds {extent.start} to {extent.end - 1}. Retention was shorter than the "
                    "read, or the topic was made anew",
                )
            else:
                raise
        return None

    def _skip_to(self, resumed: int, why: str) -> None:
        if self._fail_on_data_loss:
            raise DataLost(
                f"the records {self._position} to {resumed - 1} of {self._wanted.partition} are gone: {why}; "
                "failOnDataLoss=false goes on without them"
            )
        self._position = resumed

    def _check_progress(self, before: int, readable_end: int) -> None:
        if self._position > before:
            self._stalled_since = None
            return
        now = time.monotonic()
        self._stalled_since = self._stalled_since or now
        if now - self._stalled_since > PATIENCE_S:
            raise ReadStalled(
                f"{self._wanted} should be readable, but for {PATIENCE_S:.0f} s nothing behind "
                f"{self._position} was; the log is readable to {readable_end}"
            )
