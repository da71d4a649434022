"""Trace contexts in the batches that Kafka clients send, which nobody else looks into.

On the event loop only the first record is looked at, and of a packed batch only if it lies within the
first bytes. Who finds a trace there has the whole batch looked through in a thread.
"""

from typing import NamedTuple

from alpacamq.model.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from alpacamq.model.compression import decompress_prefix
from alpacamq.model.ports import Buffer
from alpacamq.model.record_index import IndexedBatch
from alpacamq.telemetry.tracing import TraceContext, read_traceparent

TRACEPARENT = b"traceparent"
# What of a packed batch is unpacked to see its first record.
_OPENING_BYTES = 4 << 10
_MAX_HEADERS = 32
# Of one batch; more are not followed.
MAX_TRACED = 100


class Traced(NamedTuple):
    """A record of a batch by its place in it, the context its producer gave it, and its key."""

    delta: int
    context: TraceContext
    key: bytes | None


def begins_traced(data: Buffer, header: BatchHeader) -> bool:
    """Whether the first record carries a trace to be continued."""
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
    """The records of a batch that carry a trace to be continued. For a thread, save for small batches."""
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
    """The header of the record that begins at `at`; None if it has none, or is not all there.

    Every batch comes by here, and most have records without headers: so numbers are read in place until
    it is known whether there are any.
    """
    try:
        while body[at] >= 0x80:  # the length of the record
            at += 1
        at += 2  # and a byte of attributes
        while body[at] >= 0x80:  # two deltas
            at += 1
        at += 1
        while body[at] >= 0x80:
            at += 1
        at += 1
        byte = body[at]  # the length of the key, which is often absent or short
        if byte < 0x80:
            at += 1 if byte & 1 else (byte >> 1) + 1
        else:
            length, at = _varint(body, at)
            at += max(length, 0)
        byte = body[at]  # that of the value
        if byte < 0x80:
            at += 1 if byte & 1 else (byte >> 1) + 1
        else:
            length, at = _varint(body, at)
            at += max(length, 0)
        return _traceparent(body, at) if body[at] else None
    except IndexError:
        return None


def _traceparent(body: Buffer, at: int) -> bytes | None:
    """The header among those that begin at `at` with their number; IndexError if they are not all there."""
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
    raise IndexError("a number without an end")
