"""Keys and values of stored classic groups and offsets.

Keys are msgpack arrays, as names may contain any separator; the first entry is the kind. Values are msgpack
arrays too; new fields are added at the end only.
"""

from typing import Any

import msgspec

from .messages import NO_LEADER_EPOCH, Protocol

CLASSIC = "classic-group"
GENERATION = "generation"
OFFSET = "offset"
PENDING = "pending-offset"
IDLE = "idle"

_key_decoder = msgspec.msgpack.Decoder(tuple[Any, ...])


class StoredMember(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One member of a stable generation."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes


class StoredGroup(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A stable generation, or an empty group."""

    generation: int
    protocol_type: str
    protocol_name: str = ""
    leader: str = ""
    members: tuple[StoredMember, ...] = ()


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A committed offset of a group."""

    offset: int
    committed_at_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


class PendingOffset(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """An offset of an open transaction. Of two for one partition, the one with higher `order` is later."""

    producer_epoch: int
    order: int
    committed: CommittedOffset


def key(*parts: str | int) -> bytes:
    """Encode a key; the first part is its kind."""
    return msgspec.msgpack.encode(parts)


def parts_of(stored_key: bytes) -> tuple[Any, ...]:
    """Decode a key."""
    return _key_decoder.decode(stored_key)
