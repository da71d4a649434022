"""Keys and values of the records of the delay log and of its snapshots.

m   a message: its id and timer in the key, the message itself as the value
t   a target: a partition with delayed messages, and the sequence numbers of its next batches
i   an intent: a batch of messages that will be appended to a target
f   a spilled block of messages that are due on the same distant day
s   the last batches of an idempotent producer
p   the producer ids with which messages are delivered, one for each delivery path
"""

import struct
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from alpacamq.model.records import Header
from alpacamq.model.state_machine import Change

from .blocks import SpilledBlock
from .wheel import Slot, pack, unpack

if TYPE_CHECKING:
    from array import array

MESSAGE, TARGET, INTENT, BLOCK, SOURCE, PRODUCER = b"m", b"t", b"i", b"f", b"s", b"p"
# Only in snapshots.
BOUNDARIES, SLOT, BLOCK_PLACE, NEXT_TARGET, PENDING = b"W", b"w", b"F", b"T", b"P"

_MESSAGE_KEY = Struct(">cQQ")
_TARGET_KEY = Struct(">cI")
_INTENT_KEY = Struct(">cIBI")
_PRODUCER_KEY = Struct(">cB")
_BLOCK_KEY = Struct(">cII")
_SOURCE_KEY = Struct(">cIq")
_SLOT_KEY = Struct(">cBQ")
_NUMBER = Struct(">Q")


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The key, value and headers of a message."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class DeliveryPath(IntEnum):
    """Planned delivery, or the separate path for messages scheduled shortly before they are due."""

    PLANNED = 0
    SHORT_NOTICE = 1


class TargetState(msgspec.Struct, frozen=True, array_like=True):
    """A target partition, and the first sequence number of the next batch on each delivery path."""

    topic_id: bytes
    topic: str
    partition: int
    next_sequences: tuple[int, ...]


class IntentId(NamedTuple):
    """Identifies a batch in flight to a target."""

    target: int
    path: DeliveryPath
    sequence: int


class SeenBatch(msgspec.Struct, frozen=True, array_like=True):
    """A producer's batch: when it was first seen, and how many portions of it were scheduled.

    `first_id` is the id of the first message of the last portion; the others follow it. -1: not recorded.
    """

    first_sequence: int
    last_sequence: int
    first_seen_ms: int
    portions: int
    first_id: int = -1


class SeenBatches(msgspec.Struct, frozen=True, array_like=True):
    """The last batches of one producer for one target that contained delayed messages."""

    epoch: int
    batches: tuple[SeenBatch, ...]
    updated_ms: int


_encode = msgspec.msgpack.encode
_envelopes = msgspec.msgpack.Decoder(Envelope)


def encode_envelope(key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> bytes:
    return _encode(Envelope(key, value, headers))


def decode_envelope(data: bytes) -> Envelope:
    return _envelopes.decode(data)


def message_key(id_: int, timer: int) -> bytes:
    return _MESSAGE_KEY.pack(MESSAGE, id_, timer)


def read_message_key(key: bytes) -> tuple[int, int] | None:
    """Return the id and the timer, or None if this is not the key of a message."""
    if len(key) != _MESSAGE_KEY.size or key[:1] != MESSAGE:
        return None
    _, id_, timer = _MESSAGE_KEY.unpack(key)
    return id_, timer


def target_change(index: int, state: TargetState | None) -> Change:
    return Change(_TARGET_KEY.pack(TARGET, index), None if state is None else _encode(state))


def read_target_key(key: bytes) -> int:
    index: int = _unpack(_TARGET_KEY, key)[1]
    return index


def decode_target(value: bytes) -> TargetState:
    return msgspec.msgpack.decode(value, type=TargetState)


def pending_change(index: int, pending: int) -> Change:
    return Change(_TARGET_KEY.pack(PENDING, index), _NUMBER.pack(pending))


def intent_change(intent: IntentId, messages: tuple["array[int]", "array[int]"] | None) -> Change:
    return Change(_INTENT_KEY.pack(INTENT, *intent), None if messages is None else pack(*messages))


def read_intent_key(key: bytes) -> IntentId:
    _, target, path, sequence = _unpack(_INTENT_KEY, key)
    return IntentId(target, DeliveryPath(path), sequence)


def block_change(day: int, number: int, content: tuple[int, Slot] | None) -> Change:
    """Return the record of a block. `content` is the record's offset and the messages; None deletes it."""
    value = None
    if content is not None:
        offset, slot = content
        value = _NUMBER.pack(offset) + slot.pack()
    return Change(_BLOCK_KEY.pack(BLOCK, day, number), value)


def read_block_key(key: bytes) -> tuple[int, int]:
    _, day, number = _unpack(_BLOCK_KEY, key)
    return day, number


def decode_block(value: bytes) -> tuple[int, Slot]:
    """Return the offset of a block and its messages."""
    return _NUMBER.unpack_from(value)[0], Slot(*unpack(memoryview(value)[_NUMBER.size :]))


def source_change(target: int, producer_id: int, state: SeenBatches | None) -> Change:
    key = _SOURCE_KEY.pack(SOURCE, target, producer_id)
    return Change(key, None if state is None else _encode(state))


def read_source_key(key: bytes) -> tuple[int, int]:
    _, target, producer_id = _unpack(_SOURCE_KEY, key)
    return target, producer_id


def decode_source(value: bytes) -> SeenBatches:
    return msgspec.msgpack.decode(value, type=SeenBatches)


def producer_change(path: DeliveryPath, producer_id: int) -> Change:
    return Change(_PRODUCER_KEY.pack(PRODUCER, path), _NUMBER.pack(producer_id))


def read_producer_key(key: bytes) -> DeliveryPath:
    return DeliveryPath(_unpack(_PRODUCER_KEY, key)[1])


def number_change(kind: bytes, number: int) -> Change:
    return Change(kind, _NUMBER.pack(number))


def decode_number(value: bytes) -> int:
    number: int = _NUMBER.unpack(value)[0]
    return number


def boundaries_change(boundaries: list[int]) -> Change:
    return Change(BOUNDARIES, _encode(boundaries))


def decode_boundaries(value: bytes) -> list[int]:
    return msgspec.msgpack.decode(value, type=list[int])


def slot_change(level: int, number: int, slot: Slot) -> Change:
    return Change(_SLOT_KEY.pack(SLOT, level, number), slot.pack())


def read_slot_key(key: bytes) -> tuple[int, int]:
    _, level, number = _unpack(_SLOT_KEY, key)
    return level, number


def block_place_change(block: SpilledBlock) -> Change:
    return Change(_BLOCK_KEY.pack(BLOCK_PLACE, block.day, block.number), _encode(block))


def decode_block_place(value: bytes) -> SpilledBlock:
    return msgspec.msgpack.decode(value, type=SpilledBlock)


def _unpack(layout: Struct, key: bytes) -> tuple[Any, ...]:
    try:
        return layout.unpack(key)
    except struct.error as error:
        raise ValueError(f"invalid key in the delay log: {key.hex()}: {error}") from None
