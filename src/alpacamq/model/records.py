"""Encodes and decodes the records of a batch.

For cold paths only (compaction, search by timestamp, checks of compacted topics, internal topics):
producing and fetching handle whole batches.
"""

from collections.abc import Iterable, Iterator, Sequence

from .batch import (
    CHECKED_FROM,
    COMPRESSION_MASK,
    CRC_AT,
    FRAME_BYTES,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MIN_RECORD_BYTES,
    BatchHeader,
    Codec,
    checksum,
    read_header,
)
from .compression import compress, decompress
from .errors import CorruptBatch
from .ids import NO_TIMESTAMP
from .ports import Buffer
from .record import Header, Record

__all__ = [
    "UNPACKED_LIMIT_BYTES",
    "Content",
    "Header",
    "NewRecord",
    "Record",
    "TimedContent",
    "frame_records",
    "read_changes",
    "read_contents",
    "read_record",
    "read_records",
    "read_timed_contents",
    "read_varint",
    "write_batch",
    "write_new_batch",
]
# Default limit of a batch's decompressed size.
UNPACKED_LIMIT_BYTES = 128 << 20
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


# Makes a named tuple of a tuple, without the call of Python that its own constructor is.
_new = tuple.__new__

# Offset from the base offset of a batch, key, value and headers of a record.
Content = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]
# … and the timestamp from the base timestamp of the batch.
TimedContent = tuple[int, bytes | None, bytes | None, tuple[Header, ...], int]
# Key, value, headers and timestamp of a record that is to be written.
NewRecord = tuple[bytes | None, bytes | None, Sequence[Header], int]


def read_records(batch: Buffer, limit: int = UNPACKED_LIMIT_BYTES) -> Iterator[Record]:
    """Yield the records of one whole batch in order. Raises CorruptBatch if they do not match the header."""
    return _each_record(*_unpacked(batch, limit))


def read_changes(
    batch: Buffer, from_offset: int = 0, limit: int = UNPACKED_LIMIT_BYTES
) -> list[tuple[bytes, bytes | None]]:
    """Return key and value of the records from an offset on that have a key. Raises CorruptBatch."""
    header, body = _unpacked(batch, limit)
    first = from_offset - header.base_offset
    return [
        (key, value)
        for delta, key, value, _, _ in _each_content(header, body)
        if key is not None and delta >= first
    ]


def read_contents(batch: Buffer, limit: int = UNPACKED_LIMIT_BYTES) -> Iterator[Content]:
    """Yield offset from the base, key, value and headers of the records of a batch. Raises CorruptBatch.

    Faster than `read_records`, for records without headers above all.
    """
    return (
        (delta, key, value, headers)
        for delta, key, value, headers, _ in _each_content(*_unpacked(batch, limit))
    )


def read_timed_contents(batch: Buffer, limit: int = UNPACKED_LIMIT_BYTES) -> Iterator[TimedContent]:
    """As `read_contents`, with timestamps; decompressed at the first record. Raises CorruptBatch."""
    yield from _each_content(*_unpacked(batch, limit))


def _each_content(header: BatchHeader, body: bytes) -> Iterator[TimedContent]:
    # For millions of records at a time: numbers of one or two bytes are read in place, and most records have
    # no headers. A number is twice the length or offset; an odd one stands for a negative.
    last = header.last_offset - header.base_offset
    size = len(body)
    at = 0
    previous = -1
    try:
        for _ in range(header.record_count):
            begin = at
            if (number := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                number += (high - 1) << 7
                at += 2
            else:
                number, at = _read_zigzag(body, at)
            end = at + (number >> 1 ^ -(number & 1))
            at += 1  # attributes, unused
            if (number := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                number += (high - 1) << 7
                at += 2
            else:
                number, at = _read_zigzag(body, at)
            timestamp = number >> 1 ^ -(number & 1)
            if (number := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                number += (high - 1) << 7
                at += 2
            else:
                number, at = _read_zigzag(body, at)
            delta = number >> 1 ^ -(number & 1)
            if (number := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                number += (high - 1) << 7
                at += 2
            else:
                number, at = _read_zigzag(body, at)
            if number & 1:
                key = None
            else:
                key = body[at : at + (number >> 1)]
                at += number >> 1
            if (number := body[at]) < 0x80:
                at += 1
            elif (high := body[at + 1]) < 0x80:
                number += (high - 1) << 7
                at += 2
            else:
                number, at = _read_zigzag(body, at)
            if number & 1:
                value = None
            else:
                value = body[at : at + (number >> 1)]
                at += number >> 1
            headers: tuple[Header, ...] = ()
            # No headers, and the fields fill the record. Others are few, or corrupt: checked in full.
            if at + 1 != end or body[at] or not previous < delta <= last or end > size:
                record, end = read_record(body, begin, header, None)
                _, _, key, value, headers = record
                delta = record.offset - header.base_offset
                timestamp = record.timestamp_ms - header.base_timestamp
                _check_order(header, record.offset, header.base_offset + previous)
            previous = delta
            at = end
            yield delta, key, value, headers, timestamp
    except (IndexError, UnicodeDecodeError) as error:
        raise _unreadable(header, at, error) from error
    _check_end(header, at, size)


def _unpacked(batch: Buffer, limit: int) -> tuple[BatchHeader, bytes]:
    """Return the header of a batch and its decompressed records."""
    if len(batch) < HEADER_BYTES:
        raise CorruptBatch(f"a batch of {len(batch)} bytes is shorter than its {HEADER_BYTES}-byte header")
    header = read_header(batch)
    if not HEADER_BYTES <= header.size <= len(batch):
        raise CorruptBatch(f"the batch header gives {header.size} bytes, but there are {len(batch)}")
    if header.attributes & COMPRESSION_MASK > Codec.ZSTD:
        raise CorruptBatch(f"no compression has number {header.attributes & COMPRESSION_MASK}")
    body = decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size], limit)
    if not 0 <= header.record_count <= len(body) // MIN_RECORD_BYTES:
        raise CorruptBatch(f"a batch claims {header.record_count} records in {len(body)} bytes")
    return header, body


def _each_record(header: BatchHeader, body: bytes) -> Iterator[Record]:
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    at = 0
    previous = header.base_offset - 1
    try:
        for _ in range(header.record_count):
            record, at = read_record(body, at, header, append_time)
            _check_order(header, record.offset, previous)
            previous = record.offset
            yield record
    except (IndexError, UnicodeDecodeError) as error:
        raise _unreadable(header, at, error) from error
    _check_end(header, at, len(body))


def _check_order(header: BatchHeader, offset: int, previous: int) -> None:
    if not previous < offset <= header.last_offset:
        raise CorruptBatch(f"offset {offset} follows {previous} in a batch that ends at {header.last_offset}")


def _check_end(header: BatchHeader, at: int, size: int) -> None:
    if at != size:
        raise CorruptBatch(f"{size - at} bytes follow the last record of the batch at {header.base_offset}")


def _unreadable(header: BatchHeader, at: int, error: Exception) -> CorruptBatch:
    return CorruptBatch(
        f"the record at byte {at} of the batch at {header.base_offset} cannot be read: {error}"
    )


def write_batch(
    records: Iterable[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    attributes: int = 0,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Build a batch of `records`, whose offsets ascend.

    Arguments not given are derived from the records. A batch without records (a gap left by
    compaction) needs its base and last offset.
    """
    body = bytearray()
    count = 0
    latest = last = None
    for record in records:
        if base_offset is None:
            base_offset = record.offset
        if base_timestamp is None:
            base_timestamp = record.timestamp_ms
        _write_record(body, record, base_offset, base_timestamp)
        latest = record.timestamp_ms if latest is None else max(latest, record.timestamp_ms)
        last = record.offset
        count += 1
    last_offset = last if last_offset is None else last_offset
    max_timestamp = latest if max_timestamp is None else max_timestamp
    if base_offset is None or last_offset is None:
        raise ValueError("a batch without records needs its base and last offset")
    packed = compress(codec, body, level) if codec is not Codec.NONE else body
    batch = bytearray(HEADER_BYTES + len(packed))
    batch[HEADER_BYTES:] = packed
    HEADER.pack_into(
        batch, 0,
        base_offset, len(batch) - FRAME_BYTES, leader_epoch, MAGIC, 0,
        (attributes & ~COMPRESSION_MASK) | codec, last_offset - base_offset,
        NO_TIMESTAMP if base_timestamp is None else base_timestamp,
        NO_TIMESTAMP if max_timestamp is None else max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    batch[CRC_AT:CHECKED_FROM] = checksum(batch).to_bytes(4, "big")
    return batch


def frame_records(
    body: bytes | bytearray,
    count: int,
    timestamps_ms: tuple[int, int],
    *,
    leader_epoch: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Build a batch of encoded records with offsets from 0 on, and their base and highest timestamp."""
    batch = bytearray(HEADER_BYTES + len(body))
    batch[HEADER_BYTES:] = body
    HEADER.pack_into(
        batch, 0,
        0, len(batch) - FRAME_BYTES, leader_epoch, MAGIC, 0, attributes, count - 1, *timestamps_ms,
        producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    batch[CRC_AT:CHECKED_FROM] = checksum(batch).to_bytes(4, "big")
    return batch


def write_new_batch(
    records: Sequence[NewRecord],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Build the batch of a producer; its records have offsets from 0 on. Faster than `write_batch`."""
    base_timestamp = records[0][3]
    newest = base_timestamp if len(records) == 1 else max([record[3] for record in records])
    body: bytes | bytearray
    body = _encoded_alone(records[0]) if len(records) == 1 else b"".join(_encoded(records, base_timestamp))
    if codec is not Codec.NONE:
        body = compress(codec, body, level)
    return frame_records(
        body,
        len(records),
        (base_timestamp, newest),
        leader_epoch=-1,
        attributes=(attributes & ~COMPRESSION_MASK) | codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def _encoded_alone(record: NewRecord) -> bytes:
    """Return the only record of a batch, encoded."""
    key, value, headers, _ = record
    varints, small = _VARINTS, len(_VARINTS)
    if key is None:
        key_bytes, key = b"\1", b""
    else:
        key_bytes = varints[length] if (length := len(key)) < small else _varint(length)
    if value is None:
        value_bytes, value = b"\1", b""
    else:
        value_bytes = varints[length] if (length := len(value)) < small else _varint(length)
    count = b"\0" if not headers else _encoded_headers(headers)
    size = 3 + len(key_bytes) + len(key) + len(value_bytes) + len(value) + len(count)
    # It has no attributes, and is the batch's own age and place.
    return b"%b\0\0\0%b%b%b%b%b" % (
        varints[size] if size < small else _varint(size),
        key_bytes, key, value_bytes, value, count,
    )  # fmt: skip


def _encoded(records: Sequence[NewRecord], base_timestamp: int) -> list[bytes]:
    """Return the parts of encoded records. Most of them have small numbers and no headers."""
    parts: list[bytes] = []
    varints, small = _VARINTS, len(_VARINTS)
    for index, (key, value, headers, timestamp) in enumerate(records):
        delta = timestamp - base_timestamp
        age = varints[delta] if 0 <= delta < small else _varint(delta)
        place = varints[index] if index < small else _varint(index)
        count = b"\0" if not headers else _encoded_headers(headers)
        if value is None:
            value_bytes, value = b"\1", b""
        else:
            value_bytes = varints[length] if (length := len(value)) < small else _varint(length)
        size = 1 + len(age) + len(place) + len(value_bytes) + len(value) + len(count)
        if key is None:
            size += 1
            parts += (
                varints[size] if size < small else _varint(size),
                b"\0", age, place, b"\1", value_bytes, value, count,
            )  # fmt: skip
        else:
            key_bytes = varints[length] if (length := len(key)) < small else _varint(length)
            size += len(key_bytes) + len(key)
            parts += (
                varints[size] if size < small else _varint(size),
                b"\0", age, place, key_bytes, key, value_bytes, value, count,
            )  # fmt: skip
    return parts


def _encoded_headers(headers: Sequence[Header]) -> bytes:
    out = bytearray(_varint(len(headers)))
    for name, value in headers:
        _write_bytes(out, name.encode())
        _write_bytes(out, value)
    return bytes(out)


def read_record(body: bytes, at: int, header: BatchHeader, append_time: int | None) -> tuple[Record, int]:
    """Read the record at `at` of a batch's decompressed records; return it and the next position."""
    begin = at
    # Numbers of one or two bytes are read in place; see `_each_content`.
    if (number := body[at]) < 0x80:
        at += 1
    elif (high := body[at + 1]) < 0x80:
        number += (high - 1) << 7
        at += 2
    else:
        return _read_any_record(body, begin, header, append_time)
    end = at + (number >> 1)
    timestamp = body[at + 1]
    if timestamp < 0x80:
        at += 2
    elif (high := body[at + 2]) < 0x80:
        timestamp += (high - 1) << 7
        at += 3
    else:
        return _read_any_record(body, begin, header, append_time)
    if (delta := body[at]) < 0x80:
        at += 1
    elif (high := body[at + 1]) < 0x80:
        delta += (high - 1) << 7
        at += 2
    else:
        return _read_any_record(body, begin, header, append_time)
    key = value = None
    if (size := body[at]) == 1:
        at += 1
    elif size < 0x80 and not size & 1:
        at += 1 + (size >> 1)
        key = body[at - (size >> 1) : at]
    else:
        return _read_any_record(body, begin, header, append_time)
    if (size := body[at]) < 0x80:
        at += 1
    elif (high := body[at + 1]) < 0x80:
        size += (high - 1) << 7
        at += 2
    else:
        return _read_any_record(body, begin, header, append_time)
    if not size & 1:
        value = body[at : at + (size >> 1)]
        at += size >> 1
    # No headers, and the fields fill the record. Others are few, or corrupt.
    is_odd = (number | timestamp | delta) & 1 or (size & 1 and size != 1)
    if at + 1 != end or end > len(body) or body[at] or is_odd:
        return _read_any_record(body, begin, header, append_time)
    time_ms = header.base_timestamp + (timestamp >> 1) if append_time is None else append_time
    if not _INT64_MIN <= time_ms <= _INT64_MAX:
        raise CorruptBatch(f"timestamp {time_ms} has more than 64 bits")
    return _new(Record, (header.base_offset + (delta >> 1), time_ms, key, value, ())), end


def _read_any_record(
    body: bytes, at: int, header: BatchHeader, append_time: int | None
) -> tuple[Record, int]:
    length, at = read_varint(body, at)
    end = at + length
    if not at < end <= len(body):
        raise CorruptBatch(f"a record claims {length} bytes where {len(body) - at} are left")
    timestamp_delta, at = read_varint(body, at + 1)  # one byte of attributes, unused
    offset_delta, at = read_varint(body, at)
    key, at = _read_bytes(body, at, end)
    value, at = _read_bytes(body, at, end)
    count, at = read_varint(body, at)
    headers: tuple[Header, ...] = ()
    if count:
        headers, at = _read_headers(body, at, end, count)
    if at != end:
        raise CorruptBatch(f"a record claims {length} bytes but uses {length - (end - at)}")
    timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise CorruptBatch(f"timestamp {timestamp} has more than 64 bits")
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), end


def _read_headers(body: bytes, at: int, end: int, count: int) -> tuple[tuple[Header, ...], int]:
    # A header takes at least two bytes: check before allocating.
    if not 0 <= count <= (end - at) // 2:
        raise CorruptBatch(f"a record claims {count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(body, at, end)
        content, at = _read_bytes(body, at, end)
        if name is None:
            raise CorruptBatch("a record header has no name")
        headers.append(Header(name.decode(), content))
    return tuple(headers), at


def _write_record(body: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    inner = bytearray(1)
    _write_varint(inner, record.timestamp_ms - base_timestamp)
    _write_varint(inner, record.offset - base_offset)
    _write_bytes(inner, record.key)
    _write_bytes(inner, record.value)
    _write_varint(inner, len(record.headers))
    for name, value in record.headers:
        _write_bytes(inner, name.encode())
        _write_bytes(inner, value)
    _write_varint(body, len(inner))
    body += inner


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Read the varint at `at`; return it and the next position. Raises IndexError at the end of data."""
    byte = body[at]
    if byte < 0x80:  # most numbers in a record are this small
        return (byte >> 1) ^ -(byte & 1), at + 1
    shift = result = 0
    while True:
        byte = body[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at
        shift += 7
        if shift > 63:
            raise CorruptBatch("a number in a record has more than 64 bits")


def _read_zigzag(body: bytes, at: int) -> tuple[int, int]:
    value, at = read_varint(body, at)
    return _zigzag(value), at


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _write_varint(out: bytearray, value: int) -> None:
    rest = _zigzag(value)
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)


def _varint(value: int) -> bytes:
    out = bytearray()
    _write_varint(out, value)
    return bytes(out)


# Of the numbers that most records have.
_VARINTS = tuple(_varint(value) for value in range(1024))


def _read_bytes(body: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(body, at)
    if length < 0:
        return None, at
    if length > end - at:
        raise CorruptBatch(f"a field claims {length} bytes where {end - at} are left")
    return body[at : at + length], at + length


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1 as a varint
    else:
        _write_varint(out, len(value))
        out += value
