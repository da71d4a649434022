"""Locates the fields of many records: numpy decodes all records of all batches at once.

The only loop over records in Python walks from one record length to the next. Varints are decoded for
all records together, byte by byte.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from alpacamq.client.kafka.fetch import FetchedBatch
from alpacamq.model.batch import COMPRESSION_MASK, HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, Codec
from alpacamq.model.compression import decompress
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.ports import Buffer
from alpacamq.model.records import UNPACKED_LIMIT_BYTES

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Decoding may run past the last record by one varint of maximum length before that is noticed.
PADDING_BYTES = 10
_MIN_RECORD_BYTES = 7
_MAX_SHIFT = 63


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A batch with decompressed records."""

    header: BatchHeader
    body: Buffer


def unpack(batch: FetchedBatch) -> Unpacked:
    """Decompress the records of one batch. Raises CorruptBatch."""
    header = batch.header
    if header.attributes & COMPRESSION_MASK > Codec.ZSTD:
        raise CorruptBatch(f"no compression has number {header.attributes & COMPRESSION_MASK}")
    body: Buffer = batch.data[HEADER_BYTES:]
    if header.codec is not Codec.NONE:
        body = decompress(header.codec, body, UNPACKED_LIMIT_BYTES)
    if not 0 <= header.record_count <= len(body) // _MIN_RECORD_BYTES:
        raise CorruptBatch(f"a batch claims {header.record_count} records in {len(body)} bytes")
    return Unpacked(header, body)


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
    places: list[int] = []
    at = 0
    for batch in batches:
        end = at + len(batch.body)
        try:
            places += _walk(raw, at, batch.header.record_count)
        except IndexError:
            raise CorruptBatch(f"a record of the batch at {batch.header.base_offset} is cut off") from None
        # The lengths are checked below; here the walk must have reached the end.
        at = places.pop()
        if at != end:
            raise CorruptBatch(f"the records of the batch at {batch.header.base_offset} do not fill it")
    lengths, starts = _numbers(np.frombuffer(raw, dtype=np.uint8), np.array(places, dtype=np.int64))
    if np.any(lengths <= 0):
        raise CorruptBatch("a record claims to have no bytes")
    return starts, starts + lengths


def _walk(raw: bytes, at: int, count: int) -> list[int]:
    """Return the positions of `count` record lengths, and the end of the last record."""
    places = [at]
    add = places.append
    for _ in range(count):
        byte = raw[at]
        if byte < 0x80:
            at += (byte >> 1) + 1
        elif (following := raw[at + 1]) < 0x80:
            # Two bytes, as for most records: seven bits each, the lowest is the sign.
            at += (byte >> 1) - 0x40 + (following << 6) + 2
        else:
            at = _after_long(raw, at)
        add(at)
    return places


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
