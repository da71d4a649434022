"""Keys and values of stored classic groups and offsets.

Keys are msgpack arrays, as names may contain any separator; the first entry is the kind. Values are msgpack
arrays too; new fields are added at the end only.
"""

from typing import Any

import msgspec

from alpacamq.model.control import NO_NUMBER
from alpacamq.model.ids import NO_TOPIC_ID, TopicId

from .messages import NO_LEADER_EPOCH, Protocol

CLASSIC = "classic-group"
GENERATION = "generation"
OFFSET = "offset"
PENDING = "pending-offset"
IDLE = "idle"

# Topic ids as 16 bytes rather than 36 characters.
encode = msgspec.msgpack.Encoder(uuid_format="bytes").encode
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
    """A committed offset of a group.

    Version 0.1 stored no topic id; such an offset gets the id of the topic that exists when it is loaded.
    """

    offset: int
    committed_at_ms: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    topic_id: TopicId = NO_TOPIC_ID

    def is_of(self, topic_id: TopicId) -> bool:
        """Return whether the offset is one of this topic, and not of a deleted one with the same name."""
        return self.topic_id == topic_id


class PendingOffset(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """An offset of an open transaction. Of two for one partition, the one with higher `order` is later.

    Version 0.1 stored no number of the transaction.
    """

    producer_epoch: int
    order: int
    committed: CommittedOffset
    number: int = NO_NUMBER

    def is_of_later_than(self, producer_epoch: int, number: int) -> bool:
        """Return whether the offset is of a later transaction than the one that has ended."""
        return self.producer_epoch > producer_epoch or NO_NUMBER < number < self.number

    def is_left_over(self, number: int) -> bool:
        """Return whether the offset is of an earlier transaction than the one that has ended.

        Its producer had given up the request that brought it.
        """
        return NO_NUMBER < self.number < number


def key(*parts: str | int) -> bytes:
    """Encode a key; the first part is its kind."""
    return msgspec.msgpack.encode(parts)


def parts_of(stored_key: bytes) -> tuple[Any, ...]:
    """Decode a key."""
    return _key_decoder.decode(stored_key)
