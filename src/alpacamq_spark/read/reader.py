"""Reads one offset range in a task: fetches batches from the leader and decodes them into Arrow."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from alpacamq.client.errors import ErrorCode, NotFound, Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.fetch import Fetched, FetchedBatch, PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.model.address import Address
from alpacamq.model.errors import CorruptBatch
from alpacamq_spark.arrays import array, binary_scalar, flags
from alpacamq_spark.errors import DataLost, ReadStalled
from alpacamq_spark.retry import RETRY_TIMEOUT_S, retry

from .fields import PADDING_BYTES, Fields, Ints, Spans, Unpacked, find_fields, find_headers, unpack
from .predicates import EVERY_NUMBER, Interval
from .ranges import OffsetRange

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
_US_PER_MS = 1000
# Arrow's microseconds have a smaller range than Kafka's milliseconds.
_LAST_MS = (2**63 - 1) // _US_PER_MS


class Decoder:
    """Decodes batches of one partition into Arrow batches of the requested columns."""

    def __init__(
        self, wanted: OffsetRange, columns: Sequence[str], timestamp_ms: Interval = EVERY_NUMBER
    ) -> None:
        self._wanted = wanted
        self._timestamp_ms = timestamp_ms
        self._schema = pa.schema([COLUMNS.field(name) for name in columns])

    def decode(self, batches: Sequence[Unpacked]) -> pa.RecordBatch:
        """Decode the records in the requested range, in order. Raises CorruptBatch."""
        raw = b"".join([*(batch.body for batch in batches), bytes(PADDING_BYTES)])
        fields = find_fields(raw, batches)
        kept = (fields.offset >= self._wanted.start) & (fields.offset < self._wanted.end)
        if self._timestamp_ms != EVERY_NUMBER:
            times = self._timestamp_ms
            kept &= (fields.timestamp_ms >= times.low) & (fields.timestamp_ms < times.high)
        if not kept.all():
            fields = fields.only(kept)
        arrays = [_BUILDERS[name](raw, fields, self._wanted) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _copied(raw: bytes, spans: Spans) -> pa.Array:
    """Copy a field into a column."""
    count = len(spans.start)
    # Every second slot is a field; the slots between are arbitrary bytes.
    edges = np.empty(2 * count + 1, dtype=np.int32)
    edges[0] = 0
    edges[1::2] = spans.start
    edges[2::2] = spans.end
    slots = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(raw)])
    wanted = np.arange(1, 2 * count, 2)
    return slots.take(array(wanted, pa.int64(), spans.is_null))


def _headers(raw: bytes, fields: Fields, _wanted: OffsetRange) -> pa.Array:
    found = find_headers(raw, fields)
    try:
        names = _copied(raw, found.key).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptBatch(f"the name of a record header is not text: {error}") from error
    entries = pa.StructArray.from_arrays([names, _copied(raw, found.value)], fields=list(HEADERS.value_type))
    edges = np.zeros(len(fields.header_count) + 1, dtype=np.int32)
    np.cumsum(fields.header_count, out=edges[1:])
    return pa.ListArray.from_arrays(
        array(edges, pa.int32()), entries, type=HEADERS, mask=flags(fields.header_count == 0)
    )


def _timestamps(timestamps_ms: Ints) -> pa.Array:
    clipped = np.clip(timestamps_ms, -_LAST_MS, _LAST_MS)
    return array(clipped * _US_PER_MS, pa.timestamp("us", tz="UTC"))


_BUILDERS: Mapping[str, Callable[[bytes, Fields, OffsetRange], pa.Array]] = {
    "key": lambda raw, fields, _: _copied(raw, fields.key),
    "value": lambda raw, fields, _: _copied(raw, fields.value),
    "topic": lambda _, fields, wanted: pa.repeat(
        binary_scalar(wanted.partition.topic.encode()), len(fields.offset)
    ).cast(pa.string()),
    "partition": lambda _, fields, wanted: array(
        np.full(len(fields.offset), wanted.partition.partition, dtype=np.int32), pa.int32()
    ),
    "offset": lambda _, fields, __: array(fields.offset, pa.int64()),
    "timestamp": lambda _, fields, __: _timestamps(fields.timestamp_ms),
    "timestampType": lambda _, fields, __: array(fields.is_append_time.astype(np.int32), pa.int32()),
    "headers": _headers,
}


# Decompressed bytes per Arrow batch; compressed batches can contain much more than their size.
_DECODED_BYTES = 16 << 20
# The limit for tiny records, which take some 170 bytes each while decoding.
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
    """Read everything in the range that is visible with this isolation, as Arrow batches."""
    decoder = Decoder(wanted, columns, timestamp_ms)
    waiting: list[Unpacked] = []
    size = records = 0
    with Cluster(*servers) as cluster:
        source = _RangeFetcher(cluster, wanted, isolation, fail_on_data_loss)
        for batch in source.batches():
            waiting.append(batch)
            size += len(batch.body)
            records += batch.header.record_count
            if size >= _DECODED_BYTES or records >= _DECODED_RECORDS:
                yield decoder.decode(waiting)
                waiting, size, records = [], 0, 0
        if waiting:
            yield decoder.decode(waiting)


class _RangeFetcher:
    """Fetches the batches of a range, in order, skipping what the log has lost meanwhile."""

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
        """Yield all visible batches, always fetching one request ahead."""
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
        """Return the batches of one more request, and move the position behind them."""
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
        """Fetch once; None if the position had to move to the new start of the log."""
        partition, end = self._wanted.partition, self._wanted.end
        try:
            return retry(lambda: self._fetcher.fetch(self._position))
        except NotFound:
            self._skip_to(end, "the partition was deleted")
        except Refused as refused:
            if refused.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._skip_to(end, "the partition was deleted")
            elif refused.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                extent = retry(lambda: extents(self._cluster, [partition]))[partition]
                resumed = min(extent.start, end) if self._position < extent.start else end
                self._skip_to(
                    resumed,
                    f"its log now holds {extent.start} to {extent.end - 1}. Retention was shorter than the "
                    "read, or the topic was recreated",
                )
            else:
                raise
        return None

    def _skip_to(self, resumed: int, why: str) -> None:
        if self._fail_on_data_loss:
            raise DataLost(
                f"the records {self._position} to {resumed - 1} of {self._wanted.partition} are gone: {why}; "
                "set failOnDataLoss=false to skip them"
            )
        self._position = resumed

    def _check_progress(self, before: int, readable_end: int) -> None:
        if self._position > before:
            self._stalled_since = None
            return
        now = time.monotonic()
        self._stalled_since = self._stalled_since or now
        if now - self._stalled_since > RETRY_TIMEOUT_S:
            raise ReadStalled(
                f"{self._wanted} should be readable, but for {RETRY_TIMEOUT_S:.0f} s nothing behind "
                f"{self._position} was; the log is readable to {readable_end}"
            )
