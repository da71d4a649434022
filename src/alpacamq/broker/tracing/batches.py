"""Finds trace contexts in the batches of Kafka clients, which the broker does not unpack otherwise.

On the event loop only the first record is read, and of a compressed batch only if it lies within the first
bytes. If it carries a trace, a thread searches the whole batch.
"""

from typing import NamedTuple

from alpacamq.model.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from alpacamq.model.compression import decompress_prefix
from alpacamq.model.ports import Buffer
from alpacamq.model.record_index import IndexedBatch
from alpacamq.telemetry.tracing import TraceContext, read_traceparent

TRACEPARENT = b"traceparent"
# Bytes of a compressed batch that are unpacked to read its first record.
_OPENING_BYTES = 4 << 10
_MAX_HEADERS = 32
# In a body up to this size the name of the header is searched for first.
_SEARCHED_BYTES = 1 << 10
# Per batch; further ones are not traced.
MAX_TRACED = 100


class Traced(NamedTuple):
    """A record by its index in a batch, the context its producer gave it, and its key."""

    delta: int
    context: TraceContext
    key: bytes | None


def begins_traced(data: Buffer, header: BatchHeader) -> bool:
    """Return whether the first record carries a sampled trace."""
    if header.attributes & COMPRESSION_MASK:
        packed = memoryview(data)[HEADER_BYTES:]
        value = _first_traceparent(decompress_prefix(header.codec, packed, _OPENING_BYTES), 0)
    else:
        value = _first_traceparent(data, HEADER_BYTES)
    if value is None:
        return False
    context = read_traceparent(value)
    return context is not None and context.is_sampled


def traced_records(data: Buffer, limit_bytes: int) -> list[Traced]:
    """Return the records of a batch that carry a sampled trace. Slow, except for small batches."""
    batch = IndexedBatch(data, limit_bytes)
    values = batch.header_values(TRACEPARENT)
    found: list[Traced] = []
    for place, value in enumerate(values or ()):
        context = read_traceparent(value)
        if context is not None and context.is_sampled:
            delta = batch.offsets[place] - batch.header.base_offset
            found.append(Traced(delta, context, batch.record(place).key))
            if len(found) == MAX_TRACED:
                break
    return found


def _first_traceparent(body: Buffer, at: int) -> bytes | None:
    """Return the header of the record at `at`; None if it has none or is incomplete.

    Runs for every batch, and most have records without headers: so numbers are read in place until
    it is known whether there are any.
    """
    if len(body) <= _SEARCHED_BYTES and TRACEPARENT not in bytes(body):
        return None
    try:
        while body[at] >= 0x80:  # the length of the record
            at += 1
        at += 2  # and one byte of attributes
        while body[at] >= 0x80:  # two deltas
            at += 1
        at += 1
        while body[at] >= 0x80:
            at += 1
        at += 1
        byte = body[at]  # the length of the key, often absent or short
        if byte < 0x80:
            at += 1 if byte & 1 else (byte >> 1) + 1
        else:
            length, at = _varint(body, at)
            at += max(length, 0)
        byte = body[at]  # the length of the value
        if byte < 0x80:
            at += 1 if byte & 1 else (byte >> 1) + 1
        else:
            length, at = _varint(body, at)
            at += max(length, 0)
        return _traceparent(body, at) if body[at] else None
    except IndexError:
        return None


def _traceparent(body: Buffer, at: int) -> bytes | None:
    """Return the header from the count of headers at `at` on; IndexError if they are incomplete."""
    count, at = _varint(body, at)
    for _ in range(min(count, _MAX_HEADERS)):
        length, at = _varint(body, at)
        is_it = length == len(TRACEPARENT) and body[at : at + length] == TRACEPARENT
        length, at = _varint(body, at + max(length, 0))
        if is_it:
            return bytes(body[at : at + length]) if 0 <= length <= len(body) - at else None
        at += max(length, 0)
    return None


def _varint(body: Buffer, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    result, shift = byte & 0x7F, 7
    while shift < 64:
        at += 1
        byte = body[at]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at + 1
        shift += 7
    raise IndexError("varint too long")
