"""The keys and values under which queues are stored, packed by hand as they are written often.

Three kinds of record, each last wins: a queue, the head of one of its partitions, and a chunk of 256
messages. A kind of a later version is passed over; a value that cannot be read is CorruptState.
docs/internals/queues.md describes the format.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from alpacamq.model.errors import CorruptState
from alpacamq.model.ids import NO_PRODUCER
from alpacamq.model.lanes import Lane

from .chunks import CHUNK_SIZE, NO_DEADLINE, Chunk, LeaseGroup, PendingMove, State
from .messages import QueueId

QUEUE = b"q"
HEAD = b"h"
CHUNK = b"c"
VERSION = 0

_QUEUE = struct.Struct(">Bq")
_HEAD = struct.Struct(">Bqqqq")
_TAIL = struct.Struct(">BIqqq")
_LENGTH = struct.Struct(">H")
_LONG_LENGTH = struct.Struct(">I")
_PARTITION = struct.Struct(">I")
_INDEX = struct.Struct(">Q")
_SEQUENCE = struct.Struct(">q")
_MASK_BYTES = CHUNK_SIZE // 8
# How the messages of a hold are written: a range, or a mask.
_RANGE = 0
_MASK = 1


class StoredKey(NamedTuple):
    """What a record is about."""

    kind: bytes
    queue: QueueId
    partition: int = 0
    chunk: int = 0


class StoredQueue(NamedTuple):
    """A group on a topic."""

    generation: int
    overrides: Mapping[str, str]


class StoredHead(NamedTuple):
    """A partition of a queue. Its moves have a producer id of their own, NO_PRODUCER until the first."""

    generation: int
    start_offset: int
    next_sequence: int = 0
    producer_id: int = NO_PRODUCER


def queue_key(queue: QueueId) -> bytes:
    return QUEUE + _names(queue)


def head_key(queue: QueueId, partition: int) -> bytes:
    return HEAD + _names(queue) + _PARTITION.pack(partition)


def chunk_key(queue: QueueId, partition: int, index: int) -> bytes:
    return CHUNK + _names(queue) + _PARTITION.pack(partition) + _INDEX.pack(index)


def parse_key(key: bytes) -> StoredKey | None:
    """What a record is about; None for a kind that is not known here."""
    kind = key[:1]
    if kind not in (QUEUE, HEAD, CHUNK):
        return None
    reader = _Reader(key, 1)
    queue = QueueId(reader.text(_LENGTH), reader.text(_LENGTH))
    partition = index = 0
    if kind != QUEUE:
        (partition,) = reader.unpack(_PARTITION)
    if kind == CHUNK:
        (index,) = reader.unpack(_INDEX)
    reader.end()
    return StoredKey(kind, queue, partition, index)


def pack_queue(stored: StoredQueue) -> bytes:
    parts = [_QUEUE.pack(VERSION, stored.generation), _LENGTH.pack(len(stored.overrides))]
    for name, text in stored.overrides.items():
        parts += _sized(_LENGTH, name), _sized(_LONG_LENGTH, text)
    return b"".join(parts)


def unpack_queue(value: bytes) -> StoredQueue:
    reader = _Reader(value)
    version, generation = reader.unpack(_QUEUE)
    _check_version(version)
    (count,) = reader.unpack(_LENGTH)
    overrides = {}
    for _ in range(count):
        name = reader.text(_LENGTH)
        overrides[name] = reader.text(_LONG_LENGTH)
    reader.end()
    return StoredQueue(generation, overrides)


def pack_head(stored: StoredHead) -> bytes:
    return _HEAD.pack(VERSION, *stored)


def unpack_head(value: bytes) -> StoredHead:
    reader = _Reader(value)
    version, generation, start_offset, next_sequence, producer_id = reader.unpack(_HEAD)
    _check_version(version)
    reader.end()
    if start_offset < 0 or next_sequence < 0:
        raise CorruptState(f"queue head with start offset {start_offset}, sequence {next_sequence}")
    return StoredHead(generation, start_offset, next_sequence, producer_id)


def pack_chunk(chunk: Chunk) -> bytes:
    done = _mask_bytes(chunk.done)
    holds = chunk.distinct_holds()
    parts = [bytes((VERSION, len(done))), done, _LENGTH.pack(len(holds))]
    parts += [hold.packed or _pack_hold(hold) for hold in holds]
    return b"".join(parts)


def unpack_chunk(value: bytes, chunk: Chunk) -> None:
    """Fill a new chunk with what is stored of it."""
    reader = _Reader(value)
    version, length = reader.take(2)
    _check_version(version)
    chunk.done = reader.mask(length)
    (count,) = reader.unpack(_LENGTH)
    taken = chunk.done
    for _ in range(count):
        hold = _unpack_hold(reader, chunk)
        if not hold.mask or hold.mask & taken:
            raise CorruptState(f"queue chunk {chunk.index} tells two stories of a message")
        taken |= hold.mask
        chunk.holds.update(dict.fromkeys(hold.offsets(), hold))
    reader.end()


def _pack_hold(hold: LeaseGroup) -> bytes:
    mask = hold.mask
    first, last = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
    if mask.bit_count() == last - first + 1:
        messages = bytes((_RANGE, first, last))
    else:
        trimmed = _mask_bytes(mask)
        messages = bytes((_MASK, len(trimmed))) + trimmed
    due_ms, acquired_ms, first_ms = hold.due_ms, hold.acquired_ms, hold.first_ms
    tail = _TAIL.pack(hold.state << 4 | hold.lane, hold.count, due_ms, acquired_ms, first_ms)
    owner = hold.owner.encode()
    packed = messages + tail + bytes((len(owner),)) + owner
    if hold.move is not None:
        sequence, target, reason = hold.move
        packed += _SEQUENCE.pack(sequence) + _sized(_LENGTH, target) + _sized(_LENGTH, reason)
    hold.packed = packed
    return packed


def _unpack_hold(reader: "_Reader", chunk: Chunk) -> LeaseGroup:
    form, first = reader.take(2)
    if form == _RANGE:
        (last,) = reader.take(1)
        mask = ((1 << (last - first + 1)) - 1) << first if last >= first else 0
    elif form == _MASK:
        mask = reader.mask(first)
    else:
        raise CorruptState(f"queue chunk {chunk.index} writes messages in form {form}")
    kind, count, due_ms, acquired_ms, first_ms = reader.unpack(_TAIL)
    try:
        state, lane = State(kind >> 4), Lane(kind & 15)
    except ValueError:
        raise CorruptState(f"queue chunk {chunk.index} has messages of kind {kind}") from None
    if (due_ms == NO_DEADLINE) != (state in (State.AVAILABLE, State.MOVING)) or due_ms < NO_DEADLINE:
        raise CorruptState(f"queue chunk {chunk.index} has {state.name} messages due at {due_ms}")
    (length,) = reader.take(1)
    owner = reader.decoded(length)
    move = None
    if state is State.MOVING:
        if mask.bit_count() > 1:
            raise CorruptState(f"queue chunk {chunk.index} moves several messages as one")
        (sequence,) = reader.unpack(_SEQUENCE)
        move = PendingMove(sequence, reader.text(_LENGTH), reader.text(_LENGTH))
    return LeaseGroup(chunk, mask, state, lane, count, due_ms, acquired_ms, first_ms, owner, move)


def _names(queue: QueueId) -> bytes:
    return _sized(_LENGTH, queue.group) + _sized(_LENGTH, queue.topic)


def _sized(length: struct.Struct, text: str) -> bytes:
    encoded = text.encode()
    return length.pack(len(encoded)) + encoded


def _mask_bytes(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _check_version(version: int) -> None:
    if version != VERSION:
        raise CorruptState(f"queue state of version {version}, which this broker does not know")


class _Reader:
    """Reads a stored record from front to back."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    def take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise CorruptState(f"queue state ends at byte {len(self._data)} within a field")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def mask(self, length: int) -> int:
        if length > _MASK_BYTES:
            raise CorruptState(f"queue state has a mask of {length} bytes")
        return int.from_bytes(self.take(length), "little")

    def text(self, length: struct.Struct) -> str:
        return self.decoded(*self.unpack(length))

    def decoded(self, length: int) -> str:
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise CorruptState(f"queue state holds a name that is no text: {error}") from None

    def end(self) -> None:
        if self._position != len(self._data):
            raise CorruptState(f"queue state has {len(self._data) - self._position} bytes too many")
