"""The keys and values under which classic groups and offsets are stored.

Keys are msgpack arrays whose first entry says what follows: names may hold any character, so no
separator would do. Values are msgpack arrays too; fields are only ever added at their end.
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
    """A generation as it became stable; without members, that the group became empty."""

    generation: int
    protocol_type: str
    protocol_name: str = ""
    leader: str = ""
    members: tuple[StoredMember, ...] = ()


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """Where a group goes on reading a partition."""

    offset: int
    committed_at_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


class PendingOffset(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """An offset that waits for its transaction; of two for one partition, the higher `order` came later."""

    producer_epoch: int
    order: int
    committed: CommittedOffset


def key(*parts: str | int) -> bytes:
    """The key of these parts, the first being one of the words above."""
    return msgspec.msgpack.encode(parts)


def parts_of(stored_key: bytes) -> tuple[Any, ...]:
    """The parts a key was made of."""
    return _key_decoder.decode(stored_key)
