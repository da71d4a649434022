"""Keys and values of stored queues, packed by hand because they are written often.

There are three kinds of records: a queue, the head of one of its partitions, and a chunk of 256 messages. The
last record of a key wins. Unknown kinds are ignored; a value that cannot be decoded is CorruptState.
docs/internals/queues.md describes the format.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from alpacamq.model.deadlines import NO_DEADLINE
from alpacamq.model.errors import CorruptState
from alpacamq.model.ids import NO_PRODUCER, NO_TOPIC_ID, TopicId
from alpacamq.model.lanes import Lane

from .chunks import CHUNK_SIZE, Chunk, LeaseGroup, PendingMove, State
from .messages import QueueId

QUEUE = b"q"
HEAD = b"h"
CHUNK = b"c"
VERSION = 0
QUEUE_VERSION = 1  # version 0 has no topic id

_QUEUE = struct.Struct(">Bq")
_HEAD = struct.Struct(">Bqqqq")
_TAIL = struct.Struct(">BIqqq")
_LENGTH = struct.Struct(">H")
_LONG_LENGTH = struct.Struct(">I")
_PARTITION = struct.Struct(">I")
_INDEX = struct.Struct(">Q")
_SEQUENCE = struct.Struct(">q")
_MASK_BYTES = CHUNK_SIZE // 8
_ID_BYTES = 16
# Encodings of the messages of a lease group.
_RANGE = 0
_MASK = 1


class StoredKey(NamedTuple):
    """A decoded key."""

    kind: bytes
    queue: QueueId
    partition: int = 0
    chunk: int = 0


class StoredQueue(NamedTuple):
    """The stored state of a queue."""

    generation: int
    overrides: Mapping[str, str]
    topic_id: TopicId = NO_TOPIC_ID  # which version 0.1 did not store


class StoredHead(NamedTuple):
    """The stored state of a partition. `producer_id` is NO_PRODUCER before the first move."""

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
    """Decode a key; return None for an unknown kind."""
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
    head = _QUEUE.pack(QUEUE_VERSION, stored.generation)
    parts = [head, stored.topic_id.bytes, _LENGTH.pack(len(stored.overrides))]
    for name, text in stored.overrides.items():
        parts += _sized(_LENGTH, name), _sized(_LONG_LENGTH, text)
    return b"".join(parts)


def unpack_queue(value: bytes) -> StoredQueue:
    reader = _Reader(value)
    version, generation = reader.unpack(_QUEUE)
    topic_id = NO_TOPIC_ID
    if version == QUEUE_VERSION:
        topic_id = TopicId(bytes=reader.take(_ID_BYTES))
    else:
        _check_version(version)
    (count,) = reader.unpack(_LENGTH)
    overrides = {}
    for _ in range(count):
        name = reader.text(_LENGTH)
        overrides[name] = reader.text(_LONG_LENGTH)
    reader.end()
    return StoredQueue(generation, overrides, topic_id)


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
    groups = chunk.lease_groups()
    parts = [bytes((VERSION, len(done))), done, _LENGTH.pack(len(groups))]
    parts += [group.packed or _pack_leases(group) for group in groups]
    return b"".join(parts)


def unpack_chunk(value: bytes, chunk: Chunk) -> None:
    """Decode a stored chunk into a new one."""
    reader = _Reader(value)
    version, length = reader.take(2)
    _check_version(version)
    chunk.done = reader.mask(length)
    (count,) = reader.unpack(_LENGTH)
    taken = chunk.done
    for _ in range(count):
        leases = _unpack_leases(reader, chunk)
        if not leases.mask or leases.mask & taken:
            raise CorruptState(f"queue chunk {chunk.index} contains a message twice")
        taken |= leases.mask
        chunk.groups.update(dict.fromkeys(leases.offsets(), leases))
    reader.end()


def _pack_leases(leases: LeaseGroup) -> bytes:
    mask = leases.mask
    first, last = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
    if mask.bit_count() == last - first + 1:
        messages = bytes((_RANGE, first, last))
    else:
        trimmed = _mask_bytes(mask)
        messages = bytes((_MASK, len(trimmed))) + trimmed
    due_ms, acquired_ms, first_ms = leases.due_ms, leases.acquired_ms, leases.first_ms
    tail = _TAIL.pack(leases.state << 4 | leases.lane, leases.count, due_ms, acquired_ms, first_ms)
    owner = leases.owner.encode()
    packed = messages + tail + bytes((len(owner),)) + owner
    if leases.move is not None:
        sequence, target, reason = leases.move
        packed += _SEQUENCE.pack(sequence) + _sized(_LENGTH, target) + _sized(_LENGTH, reason)
    leases.packed = packed
    return packed


def _unpack_leases(reader: "_Reader", chunk: Chunk) -> LeaseGroup:
    form, first = reader.take(2)
    if form == _RANGE:
        (last,) = reader.take(1)
        mask = ((1 << (last - first + 1)) - 1) << first if last >= first else 0
    elif form == _MASK:
        mask = reader.mask(first)
    else:
        raise CorruptState(f"queue chunk {chunk.index} encodes messages in unknown form {form}")
    kind, count, due_ms, acquired_ms, first_ms = reader.unpack(_TAIL)
    try:
        state, lane = State(kind >> 4), Lane(kind & 15)
    except ValueError:
        raise CorruptState(
            f"queue chunk {chunk.index} has messages with invalid state and lane {kind}"
        ) from None
    if (due_ms == NO_DEADLINE) != (state in (State.AVAILABLE, State.MOVING)) or due_ms < NO_DEADLINE:
        raise CorruptState(f"queue chunk {chunk.index} has {state.name} messages due at {due_ms}")
    (length,) = reader.take(1)
    owner = reader.decoded(length)
    move = None
    if state is State.MOVING:
        if mask.bit_count() > 1:
            raise CorruptState(f"queue chunk {chunk.index} has a move of several messages")
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
        raise CorruptState(f"unknown version {version} of queue state")


class _Reader:
    """Reads the fields of a stored record in order."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    def take(self, count: int) -> bytes:
        end = self._position + count
        if end > len(self._data):
            raise CorruptState(f"queue state is truncated at byte {len(self._data)}")
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
            raise CorruptState(f"queue state contains a name that is not UTF-8: {error}") from None

    def end(self) -> None:
        if self._position != len(self._data):
            raise CorruptState(f"queue state has {len(self._data) - self._position} bytes too many")
