"""Encodes Arrow columns as record batches: numpy encodes varints, Arrow joins the pieces."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from alpacamq.client.kafka.transactional import ProducerIdentity
from alpacamq.model.batch import (
    CHECKED_FROM,
    CRC_AT,
    FRAME_BYTES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL,
    Codec,
    checksum,
)
from alpacamq.model.compression import compress
from alpacamq_spark.arrays import binary_scalar

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_EMPTY = binary_scalar(b"")
_NO_LENGTH = 1  # -1, zigzag


class Slot(NamedTuple):
    """The producer of a batch and its sequence in a partition."""

    producer: ProducerIdentity
    base_sequence: int


def pack_batch(rows: pa.RecordBatch, slot: Slot, codec: Codec) -> bytearray:
    """Encode normalised rows as one transactional batch."""
    count = rows.num_rows
    times = rows.column("timestamp_ms").to_numpy(zero_copy_only=False)
    base_time, max_time = int(times[0]), int(times.max())
    body = _records(rows, times - base_time)
    packed = compress(codec, body) if codec is not Codec.NONE else body
    batch = bytearray(HEADER_BYTES + len(packed))
    batch[HEADER_BYTES:] = packed
    HEADER.pack_into(
        batch, 0,
        0, len(batch) - FRAME_BYTES, -1, MAGIC, 0, TRANSACTIONAL | codec, count - 1, base_time, max_time,
        slot.producer.producer_id, slot.producer.epoch, slot.base_sequence, count,
    )  # fmt: skip
    batch[CRC_AT:CHECKED_FROM] = checksum(batch).to_bytes(4, "big")
    return batch


def _records(rows: pa.RecordBatch, time_deltas: Ints) -> memoryview:
    """Encode the records in sequence."""
    key_size, key = _lengths_and_bytes(rows.column("key"))
    value_size, value = _lengths_and_bytes(rows.column("value"))
    tail = rows.column("tail")
    # One byte of attributes, and the varints before the key.
    front = [zigzag(time_deltas), zigzag(np.arange(len(time_deltas))), key_size]
    size = 1 + sum(map(number_sizes, front)) + number_sizes(value_size)
    size += lengths(key) + lengths(value) + lengths(tail)
    attributes = np.zeros(len(time_deltas), dtype=np.uint64)
    head = numbers(zigzag(size), attributes, *front)
    whole = joined(head, key, numbers(value_size), value, tail)
    edges = np.frombuffer(whole.buffers()[1], dtype=np.int32)
    return memoryview(whole.buffers()[2])[edges[whole.offset] : edges[whole.offset + len(whole)]]


def _lengths_and_bytes(column: pa.Array) -> tuple[Words, pa.Array]:
    """Return the length of each value as a zigzag varint, -1 for null, and the bytes."""
    if not column.null_count:
        return zigzag(lengths(column)), column
    filled = column.fill_null(_EMPTY)
    size = zigzag(lengths(filled))
    size[column.is_null().to_numpy(zero_copy_only=False)] = _NO_LENGTH
    return size, filled


def sized(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return lengths and bytes of a column, as two pieces to be joined."""
    size, filled = _lengths_and_bytes(column)
    return numbers(size), filled


def joined(*pieces: pa.Array) -> pa.Array:
    """Join the pieces of each row."""
    return pc.binary_join_element_wise(*pieces, _EMPTY)


def lengths(column: pa.Array) -> Ints:
    """Return the size of each value in bytes, for a column without nulls."""
    sizes: Ints = pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def zigzag(values: Ints) -> Words:
    """Encode signed numbers as unsigned ones that are small near 0."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def number_sizes(words: Words) -> Ints:
    """Return the number of bytes of each varint."""
    sizes = np.ones(len(words), dtype=np.int64)
    largest = int(np.max(words, initial=0))
    shift = 7
    while shift < 64 and largest >> shift:
        sizes += words >= np.uint64(1 << shift)
        shift += 7
    return sizes


def numbers(*columns: Words) -> pa.Array:
    """Encode the numbers of all columns as varints, in sequence for each row."""
    parts = []
    kept = []
    for words in columns:
        sizes = number_sizes(words)
        width = int(np.max(sizes, initial=1))
        place = np.arange(width)
        sevens = (words[:, None] >> (7 * place).astype(np.uint64)) & np.uint64(0x7F)
        parts.append((sevens | ((place < sizes[:, None] - 1) << 7).astype(np.uint64)).astype(np.uint8))
        kept.append(place < sizes[:, None])
    mask = np.hstack(kept)
    data = np.hstack(parts)[mask]
    edges = np.zeros(len(mask) + 1, dtype=np.int32)
    np.cumsum(mask.sum(axis=1), out=edges[1:])
    return pa.Array.from_buffers(pa.binary(), len(mask), [None, pa.py_buffer(edges), pa.py_buffer(data)])
