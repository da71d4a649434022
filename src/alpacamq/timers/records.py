"""What the delay log holds: the keys and values of its records, and of a snapshot of its state.

m   a message: its id and word in the key, the message itself as the value
t   a target: a partition that messages are for, and how far its sequence of batches has come
i   an intent: these messages go into that target as this batch, whatever happens
f   a block of messages of the far future
s   what an idempotent producer had scheduled last
p   the producer ids under which this log's messages are delivered, one for each lane
"""

import struct
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from alpacamq.model.records import Header
from alpacamq.model.state_machine import Change

from .blocks import Block
from .wheel import Slot, pack, unpack

if TYPE_CHECKING:
    from array import array

MESSAGE, TARGET, INTENT, BLOCK, SOURCE, PRODUCER = b"m", b"t", b"i", b"f", b"s", b"p"
# In snapshots only.
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
    """A message as its consumer will see it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class DeliveryPath(IntEnum):
    """How a message gets to its target: in an orderly line, or past it because it came at short notice."""

    PLANNED = 0
    SHORT_NOTICE = 1


class TargetState(msgspec.Struct, frozen=True, array_like=True):
    """A partition that messages are for, and the sequences that the next batch of each lane begins with."""

    topic_id: bytes
    topic: str
    partition: int
    next_sequences: tuple[int, ...]


class IntentId(NamedTuple):
    """A batch on its way into a target."""

    target: int
    path: DeliveryPath
    sequence: int


class SourceBatch(msgspec.Struct, frozen=True, array_like=True):
    """A producer's batch, when it was parted into now and later, and how many portions were taken in."""

    first_sequence: int
    last_sequence: int
    first_seen_ms: int
    portions: int


class SourceState(msgspec.Struct, frozen=True, array_like=True):
    """The batches of one producer for one target whose delayed messages were taken in last."""

    epoch: int
    batches: tuple[SourceBatch, ...]
    updated_ms: int


_encode = msgspec.msgpack.encode
_envelopes = msgspec.msgpack.Decoder(Envelope)


def encode_envelope(key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> bytes:
    return _encode(Envelope(key, value, headers))


def decode_envelope(data: bytes) -> Envelope:
    return _envelopes.decode(data)


def message_key(id_: int, word: int) -> bytes:
    return _MESSAGE_KEY.pack(MESSAGE, id_, word)


def read_message_key(key: bytes) -> tuple[int, int] | None:
    """Id and word, if this is the key of a message."""
    if len(key) != _MESSAGE_KEY.size or key[:1] != MESSAGE:
        return None
    _, id_, word = _MESSAGE_KEY.unpack(key)
    return id_, word


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
    """`content` is the offset this record will have and the messages."""
    value = None
    if content is not None:
        offset, slot = content
        value = _NUMBER.pack(offset) + slot.pack()
    return Change(_BLOCK_KEY.pack(BLOCK, day, number), value)


def read_block_key(key: bytes) -> tuple[int, int]:
    _, day, number = _unpack(_BLOCK_KEY, key)
    return day, number


def decode_block(value: bytes) -> tuple[int, Slot]:
    """Its offset and what it holds."""
    return _NUMBER.unpack_from(value)[0], Slot(*unpack(memoryview(value)[_NUMBER.size :]))


def source_change(target: int, producer_id: int, state: SourceState | None) -> Change:
    key = _SOURCE_KEY.pack(SOURCE, target, producer_id)
    return Change(key, None if state is None else _encode(state))


def read_source_key(key: bytes) -> tuple[int, int]:
    _, target, producer_id = _unpack(_SOURCE_KEY, key)
    return target, producer_id


def decode_source(value: bytes) -> SourceState:
    return msgspec.msgpack.decode(value, type=SourceState)


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


def block_place_change(block: Block) -> Change:
    return Change(_BLOCK_KEY.pack(BLOCK_PLACE, block.day, block.number), _encode(block))


def decode_block_place(value: bytes) -> Block:
    return msgspec.msgpack.decode(value, type=Block)


def _unpack(layout: Struct, key: bytes) -> tuple[Any, ...]:
    try:
        return layout.unpack(key)
    except struct.error as error:
        raise ValueError(f"a record of the delay log has the key {key.hex()}: {error}") from None
