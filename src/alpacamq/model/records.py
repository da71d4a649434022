"""The records inside a batch: packing a list of them into one, and reading them back.

Only cold paths come here (compaction, search by time, checks of compacted topics, internal
topics): producing and fetching handle whole batches.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .batch import (
    CHECKED_FROM,
    COMPRESSION_MASK,
    CRC_AT,
    FRAME_BYTES,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    Codec,
    checksum,
    read_header,
)
from .compression import compress, decompress
from .errors import CorruptBatch
from .ports import Buffer

# What one batch may unpack to where nobody says otherwise.
UNPACKED_LIMIT_BYTES = 128 << 20


class Header(NamedTuple):
    """One name and value that travels with a record."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record of a batch; the offset is absolute."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def read_records(batch: Buffer, limit: int = UNPACKED_LIMIT_BYTES) -> Iterator[Record]:
    """The records of one whole batch in order; CorruptBatch where they are not what the header says."""
    header = read_header(batch)
    body = memoryview(batch)[HEADER_BYTES : header.size]
    if header.attributes & COMPRESSION_MASK:
        body = memoryview(decompress(header.codec, body, limit))
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    at = 0
    try:
        for _ in range(header.record_count):
            record, at = _read_record(body, at, header, append_time)
            yield record
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatch(
            f"a record at byte {at} of the batch at {header.base_offset} is cut off"
        ) from error
    if at != len(body):
        raise CorruptBatch(
            f"{len(body) - at} bytes follow the last record of the batch at {header.base_offset}"
        )


def write_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = 0,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """One batch of `records`, whose offsets ascend.

    What is not given follows from the records. A batch without records (a gap that compaction
    left) needs its base and last offset told.
    """
    first = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    if base_timestamp is None:
        base_timestamp = records[0].timestamp_ms if records else -1
    if max_timestamp is None:
        max_timestamp = max((record.timestamp_ms for record in records), default=-1)
    body = bytearray()
    for record in records:
        _write_record(body, record, first, base_timestamp)
    packed = compress(codec, body) if codec is not Codec.NONE else body
    batch = bytearray(HEADER_BYTES + len(packed))
    batch[HEADER_BYTES:] = packed
    HEADER.pack_into(
        batch, 0,
        first, len(batch) - FRAME_BYTES, leader_epoch, MAGIC, 0, (attributes & ~COMPRESSION_MASK) | codec,
        last - first, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    batch[CRC_AT:CHECKED_FROM] = checksum(batch).to_bytes(4, "big")
    return batch


def _read_record(
    body: memoryview, at: int, header: BatchHeader, append_time: int | None
) -> tuple[Record, int]:
    length, at = _read_varint(body, at)
    end = at + length
    if not at < end <= len(body):
        raise CorruptBatch(f"a record claims {length} bytes where {len(body) - at} are left")
    timestamp_delta, at = _read_varint(body, at + 1)  # one byte of attributes, unused
    offset_delta, at = _read_varint(body, at)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise CorruptBatch(f"offset delta {offset_delta} lies outside the batch at {header.base_offset}")
    key, at = _read_bytes(body, at, end)
    value, at = _read_bytes(body, at, end)
    count, at = _read_varint(body, at)
    # A header takes two bytes at least: check before making room for them.
    if not 0 <= count <= (end - at) // 2:
        raise CorruptBatch(f"a record claims {count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(body, at, end)
        content, at = _read_bytes(body, at, end)
        if name is None:
            raise CorruptBatch("a record header has no name")
        headers.append(Header(name.decode(), content))
    if at != end:
        raise CorruptBatch(f"a record claims {length} bytes but uses {length - (end - at)}")
    timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), end


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


def _read_varint(body: memoryview, at: int) -> tuple[int, int]:
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


def _write_varint(out: bytearray, value: int) -> None:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)


def _read_bytes(body: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(body, at)
    if length < 0:
        return None, at
    if length > end - at:
        raise CorruptBatch(f"a field claims {length} bytes where {end - at} are left")
    return bytes(body[at : at + length]), at + length


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)  # -1 as a varint
    else:
        _write_varint(out, len(value))
        out += value
