"""Reads one offset range in a task: fetches batches from the leader and decodes them into Arrow.

Fields are decoded by numpy, all records of all batches at once: the only loop over records in Python walks
from one record length to the next.
"""

import array as typed_array
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from alpacamq.client.connect import Tls
from alpacamq.client.errors import ErrorCode, NotFound, Refused
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login
from alpacamq.client.kafka.fetch import Fetched, FetchedBatch, PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.model.address import Address
from alpacamq.model.batch import COMPRESSION_MASK, HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, Codec
from alpacamq.model.compression import decompress
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.ports import Buffer
from alpacamq.model.records import UNPACKED_LIMIT_BYTES
from alpacamq_spark.arrays import array, binary_scalar, flags
from alpacamq_spark.errors import DataLost, ReadStalled
from alpacamq_spark.options import DECODED
from alpacamq_spark.retry import RETRY_TIMEOUT_S, retry
from alpacamq_spark.worker import connected, skip_modules_in_collections

from .ranges import OffsetRange

if TYPE_CHECKING:
    from alpacamq_spark.decoding.values import Decoding, PartDecoder

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Decoding may run past the last record by one varint of maximum length before that is noticed.
PADDING_BYTES = 10
_MIN_RECORD_BYTES = 7
_MAX_SHIFT = 63
# Records of equal size that are located at once; fewer are not worth it.
_MIN_RUN = 16
# The values of all varints of up to two bytes.
_SHORT = (np.arange(1 << 14) >> 1) ^ -(np.arange(1 << 14) & 1)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A batch with decompressed records; those before the offset `start` do not count."""

    header: BatchHeader
    body: Buffer
    start: int


def unpack(batch: FetchedBatch, start: int) -> Unpacked:
    """Decompress the records of one batch, which was fetched from the offset `start`. Raises CorruptBatch."""
    header = batch.header
    if header.attributes & COMPRESSION_MASK > Codec.ZSTD:
        raise CorruptBatch(f"no compression has number {header.attributes & COMPRESSION_MASK}")
    body: Buffer = batch.data[HEADER_BYTES:]
    if header.codec is not Codec.NONE:
        body = decompress(header.codec, body, UNPACKED_LIMIT_BYTES)
    if not 0 <= header.record_count <= len(body) // _MIN_RECORD_BYTES:
        raise CorruptBatch(f"a batch claims {header.record_count} records in {len(body)} bytes")
    return Unpacked(header, body, start)


@dataclass(frozen=True, slots=True)
class Spans:
    """One field of every record: its positions in the data, and whether it is null."""

    start: Ints
    end: Ints
    is_null: Flags

    def only(self, kept: Flags | Ints) -> "Spans":
        return Spans(self.start[kept], self.end[kept], self.is_null[kept])


@dataclass(frozen=True, slots=True)
class Fields:
    """All records of some batches; `headers_at` are the positions of their headers."""

    offset: Ints
    timestamp_ms: Ints
    is_append_time: Flags
    key: Spans
    value: Spans
    header_count: Ints
    headers_at: Ints
    end: Ints

    def only(self, kept: Flags) -> "Fields":
        return Fields(
            self.offset[kept],
            self.timestamp_ms[kept],
            self.is_append_time[kept],
            self.key.only(kept),
            self.value.only(kept),
            self.header_count[kept],
            self.headers_at[kept],
            self.end[kept],
        )


@dataclass(frozen=True, slots=True)
class HeaderFields:
    """The headers of all records in sequence: names and values."""

    key: Spans
    value: Spans


def find_fields(raw: bytes, batches: Sequence[Unpacked]) -> Fields:
    """Locate the fields in `raw`, which is the bodies of `batches` and padding. Raises CorruptBatch."""
    data = np.frombuffer(raw, dtype=np.uint8)
    starts, ends = _record_edges(raw, batches)
    counts = np.array([batch.header.record_count for batch in batches], dtype=np.int64)
    timestamp_delta, at = _numbers(data, starts + 1)  # one byte of attributes, unused
    offset_delta, at = _numbers(data, at)
    key, at = _blobs(data, at, ends)
    value, at = _blobs(data, at, ends)
    header_count, at = _numbers(data, at)
    # A header takes at least two bytes.
    if np.any((header_count < 0) | (header_count > (ends - at) // 2) | ((header_count == 0) & (at != ends))):
        raise CorruptBatch("a record's headers do not fit its length")
    headers = [batch.header for batch in batches]
    is_append_time = np.repeat([_is_append_time(each) for each in headers], counts)
    base = np.repeat([_base_timestamp(each) for each in headers], counts)
    return Fields(
        offset=_offsets(headers, counts, offset_delta),
        timestamp_ms=np.where(is_append_time, base, _sum(base, timestamp_delta)),
        is_append_time=is_append_time,
        key=key,
        value=value,
        header_count=header_count,
        headers_at=at,
        end=ends,
    )


def find_headers(raw: bytes, fields: Fields) -> HeaderFields:
    """Locate the headers of these records, in order. Raises CorruptBatch."""
    data = np.frombuffer(raw, dtype=np.uint8)
    total = int(fields.header_count.sum())
    # The index of each record's first header among all headers.
    first = np.cumsum(fields.header_count) - fields.header_count
    key, value = _room(total), _room(total)
    at = fields.headers_at.copy()
    having = np.flatnonzero(fields.header_count)
    round_ = 0
    while having.size:
        ends = fields.end[having]
        keys, after = _blobs(data, at[having], ends)
        values, after = _blobs(data, after, ends)
        slots = first[having] + round_
        _put(key, slots, keys)
        _put(value, slots, values)
        at[having] = after
        round_ += 1
        having = having[fields.header_count[having] > round_]
    if np.any(at != fields.end):
        raise CorruptBatch("a record's headers do not fit its length")
    if np.any(key.is_null):
        raise CorruptBatch("a record header has no name")
    return HeaderFields(key, value)


def _room(count: int) -> Spans:
    return Spans(np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_))


def _put(room: Spans, slots: Ints, spans: Spans) -> None:
    room.start[slots] = spans.start
    room.end[slots] = spans.end
    room.is_null[slots] = spans.is_null


def _record_edges(raw: bytes, batches: Sequence[Unpacked]) -> tuple[Ints, Ints]:
    """Return the start of each record, behind its length, and its end."""
    data = np.frombuffer(raw, dtype=np.uint8)
    places = typed_array.array("q")
    at = 0
    for batch in batches:
        end = at + len(batch.body)
        try:
            at = _walk(raw, data, at, batch.header.record_count, places)
        except IndexError:
            raise CorruptBatch(f"a record of the batch at {batch.header.base_offset} is cut off") from None
        # The lengths are checked below; here the walk must have reached the end.
        if at != end:
            raise CorruptBatch(f"the records of the batch at {batch.header.base_offset} do not fill it")
    lengths, starts = _numbers(data, np.frombuffer(places, dtype=np.int64))
    if np.any(lengths <= 0):
        raise CorruptBatch("a record claims to have no bytes")
    return starts, starts + lengths


def _walk(raw: bytes, data: Bytes, at: int, count: int, places: "typed_array.array[int]") -> int:
    """Append the positions of `count` record lengths, and return the end of the last record.

    Looks for records of equal size, and less often while there are none.
    """
    pause = _MIN_RUN
    while count >= _MIN_RUN:
        run, size = _run(raw, data, at, count)
        if run < _MIN_RUN:
            run = min(pause, count)
            at = _walk_one_by_one(raw, at, run, places)
            pause *= 2
        else:
            places.frombytes(np.arange(at, at + run * size, size, dtype=np.int64).tobytes())
            at += run * size
            pause = _MIN_RUN
        count -= run
    return _walk_one_by_one(raw, at, count, places)


def _run(raw: bytes, data: Bytes, at: int, count: int) -> tuple[int, int]:
    """Return how many records from here have the same size, up to `count`, and that size with its varint."""
    first, second = raw[at], raw[at + 1]
    if first < 0x80:
        size = (first >> 1) + 1
    elif second < 0x80:
        size = (first >> 1) - 0x40 + (second << 6) + 2
    else:
        return 0, 0
    # A few records first, because a look at all of them would be in vain for records of many sizes.
    for limit in (_MIN_RUN, count):
        firsts = data[at:-1:size][:limit]
        differs = firsts != first
        if first >= 0x80:
            differs |= data[at + 1 :: size][: len(firsts)] != second
        run = int(np.argmax(differs)) if differs.any() else len(firsts)
        if run < limit:
            break
    return run, size


def _walk_one_by_one(raw: bytes, at: int, count: int, places: "typed_array.array[int]") -> int:
    found: list[int] = []
    add = found.append
    for _ in range(count):
        add(at)
        byte = raw[at]
        if byte < 0x80:
            at += (byte >> 1) + 1
        elif (following := raw[at + 1]) < 0x80:
            # Two bytes, as for most records: seven bits each, the lowest is the sign.
            at += (byte >> 1) - 0x40 + (following << 6) + 2
        else:
            at = _after_long(raw, at)
    places.extend(found)
    return at


def _after_long(raw: bytes, at: int) -> int:
    """Return the end of a record whose length takes three bytes or more."""
    bits = shift = 0
    while True:
        byte = raw[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at + (bits >> 1)
        shift += 7
        if shift > _MAX_SHIFT:
            raise CorruptBatch("a number in a record has more than 64 bits")


def _numbers(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Decode the varint at each position; return the values and the next positions."""
    if at.size and int(np.max(at)) > data.size - PADDING_BYTES:
        raise CorruptBatch("a record is cut off")
    first = data[at]
    is_longer = first >= 0x80
    if not is_longer.any():
        return _SHORT[first], at + 1
    second = data[at + 1]
    high = np.where(is_longer, second & 0x7F, 0).astype(np.uint16)
    values = _SHORT[(first & 0x7F) | high << 7]
    following = at + 1 + is_longer
    if (more := np.flatnonzero(is_longer & (second >= 0x80))).size:
        values[more], following[more] = _long_numbers(data, at[more])
    return values, following


def _long_numbers(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Decode varints of any length."""
    byte = data[at]
    bits = (byte & 0x7F).astype(np.uint64)
    at = at + 1
    longer = np.flatnonzero(byte >= 0x80)
    shift = 7
    while longer.size:
        if shift > _MAX_SHIFT:
            raise CorruptBatch("a number in a record has more than 64 bits")
        byte = data[at[longer]]
        if shift == _MAX_SHIFT and np.any(byte > 1):
            raise CorruptBatch("a number in a record has more than 64 bits")
        bits[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[longer] += 1
        longer = longer[byte >= 0x80]
        shift += 7
    return (bits >> np.uint64(1)).astype(np.int64) ^ -(bits & np.uint64(1)).astype(np.int64), at


def _blobs(data: Bytes, at: Ints, ends: Ints) -> tuple[Spans, Ints]:
    """Decode the length and locate the bytes at each position; return them and the next positions."""
    length, start = _numbers(data, at)
    is_null = length < 0
    if np.any(length > ends - start):
        raise CorruptBatch("a field of a record is longer than the record")
    end = np.where(is_null, start, start + length)
    return Spans(start, end, is_null), end


def _offsets(headers: Sequence[BatchHeader], counts: Ints, deltas: Ints) -> Ints:
    bases = np.repeat([each.base_offset for each in headers], counts)
    limits = np.repeat([each.last_offset_delta for each in headers], counts)
    # Offsets ascend within a batch from its first to its last.
    steps = np.diff(deltas, prepend=-1)
    firsts = (np.cumsum(counts) - counts)[counts > 0]
    steps[firsts] = deltas[firsts] + 1
    if np.any(steps <= 0) or np.any(deltas > limits):
        raise CorruptBatch("the offsets of a batch's records do not ascend to its last")
    offsets: Ints = bases + deltas
    return offsets


def _sum(base: Ints, delta: Ints) -> Ints:
    total: Ints = base + delta
    # Overflow: both have the same sign and their sum has the other.
    if np.any((base ^ total) & (delta ^ total) < 0):
        raise CorruptBatch("a timestamp has more than 64 bits")
    return total


def _is_append_time(header: BatchHeader) -> bool:
    return header.attributes & LOG_APPEND_TIME != 0


def _base_timestamp(header: BatchHeader) -> int:
    return header.max_timestamp if _is_append_time(header) else header.base_timestamp


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
        self,
        wanted: OffsetRange,
        columns: Sequence[str],
        parts: "Mapping[str, PartDecoder] | None" = None,
    ) -> None:
        self._wanted = wanted
        self._columns = columns
        # The decoders of columns that are decoded by the schema registry.
        self._parts = parts or {}

    def decode(self, batches: Sequence[Unpacked]) -> pa.RecordBatch:
        """Decode the records in the requested range, in order. Raises CorruptBatch."""
        raw = b"".join([*(batch.body for batch in batches), bytes(PADDING_BYTES)])
        fields = find_fields(raw, batches)
        # A fetched batch can begin before the offset it was fetched from, even with deleted records.
        starts = np.repeat([each.start for each in batches], [each.header.record_count for each in batches])
        kept = (fields.offset >= starts) & (fields.offset < self._wanted.end)
        if not kept.all():
            fields = fields.only(kept)
        arrays = [
            _decoded(raw, fields, self._parts[name])
            if name in self._parts
            else _BUILDERS[name](raw, fields, self._wanted)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._columns))


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


def _decoded(raw: bytes, fields: Fields, decoder: "PartDecoder") -> pa.Array:
    """Decode a part of every record, by the schema that its prefix or its header names."""
    headers: list[bytes | None] | None = None
    if fields.header_count.any():
        found = find_headers(raw, fields)
        is_name = pc.equal(_copied(raw, found.key), binary_scalar(decoder.part.header.encode()))
        named = np.flatnonzero(is_name.to_numpy(zero_copy_only=False))
        if named.size:
            records = np.repeat(np.arange(len(fields.header_count)), fields.header_count)[named]
            headers = [None] * len(fields.header_count)
            # The last header of a name is the one that counts.
            for record, name in zip(records, _copied(raw, found.value.only(named)).to_pylist(), strict=True):
                headers[record] = name
    return decoder.decode(_copied(raw, getattr(fields, decoder.part)), headers)


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
# Arrays of as many numbers stay in the processor's cache, from one step of decoding to the next.
_DECODED_RECORDS = 32_000


def read_range(
    servers: Sequence[Address],
    wanted: OffsetRange,
    columns: Sequence[str],
    isolation: Isolation,
    *,
    fail_on_data_loss: bool,
    login: Login | None,
    tls: Tls | None = None,
    decoding: "Decoding | None" = None,
) -> Iterator[pa.RecordBatch]:
    """Read everything in the range that is visible with this isolation, as Arrow batches."""
    skip_modules_in_collections()
    waiting: list[Unpacked] = []
    size = records = 0
    with connected(servers, login, tls) as cluster, ExitStack() as stack:
        parts: dict[str, PartDecoder] = {}
        if decoding is not None:
            from alpacamq_spark.decoding.registry import Registry
            from alpacamq_spark.decoding.values import part_decoders

            registry = stack.enter_context(Registry(decoding.access))
            found = part_decoders(decoding, registry, wanted.partition.topic)
            parts = {DECODED[part]: decoder for part, decoder in found.items()}
        decoder = Decoder(wanted, columns, parts)
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
        """Yield all visible batches, fetching one request ahead; a range of one request needs no thread."""
        found = self._next()
        with ExitStack() as stack:
            ahead: ThreadPoolExecutor | None = None
            while True:
                following: Future[list[tuple[FetchedBatch, int]]] | None = None
                if self._position < self._wanted.end:
                    ahead = ahead or stack.enter_context(ThreadPoolExecutor(1, "fetch"))
                    following = ahead.submit(self._next)
                for batch, start in found:
                    yield unpack(batch, start)
                if following is None:
                    return
                found = following.result()

    def _next(self) -> list[tuple[FetchedBatch, int]]:
        """Return the batches of one more request, with its offset, and move the position behind them."""
        if self._position >= self._wanted.end or (fetched := self._fetch()) is None:
            return []
        before = self._position
        found = []
        for batch in fetched.batches:
            if batch.header.base_offset >= self._wanted.end:
                self._position = self._wanted.end
                break
            if batch.is_visible and batch.header.record_count and batch.header.next_offset > before:
                found.append((batch, before))
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
