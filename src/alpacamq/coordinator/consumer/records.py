"""Keys and values of stored consumer groups.

Each member has three records, because they change at different times: its profile, its target assignment and
its current assignment. Values are msgpack arrays; new fields are added at the end only.
"""

import msgspec

from alpacamq.coordinator.records import key
from alpacamq.model.state_machine import Change

from .messages import Partitions

CONSUMER = "consumer-group"
MEMBER = "member"
TARGET = "target"
CURRENT = "current"


class StoredGroup(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The epoch of the group, and the epoch of its target assignment."""

    epoch: int
    target_epoch: int
    topics_digest: bytes  # of the subscribed topics, to detect changes during a restart


class Profile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The data that a member sends about itself."""

    instance_id: str | None
    rebalance_timeout_ms: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()  # sorted
    regex: str = ""
    assignor: str | None = None


class Current(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The partitions that a member was assigned, and those that it was told to revoke."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = {}
    revoking: Partitions = {}
    # The member reported that it does not own `revoking` before it was told to revoke it, so it may have
    # taken it in the meantime. Its next heartbeat confirms the revocation.
    is_disowned: bool = False


class _StoredTarget(msgspec.Struct, frozen=True, array_like=True):
    partitions: Partitions


# Topic ids as 16 bytes rather than 36 characters.
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_target_decoder = msgspec.msgpack.Decoder(_StoredTarget)
group_decoder = msgspec.msgpack.Decoder(StoredGroup)
profile_decoder = msgspec.msgpack.Decoder(Profile)
current_decoder = msgspec.msgpack.Decoder(Current)


def decode_target(value: bytes) -> Partitions:
    """Decode the target assignment of a member."""
    return _target_decoder.decode(value).partitions


def group_change(group: str, stored: StoredGroup) -> Change:
    """Return the record of a group."""
    return Change(key(CONSUMER, group), _encoder.encode(stored))


def profile_change(group: str, member_id: str, profile: Profile) -> Change:
    """Return the record of a member's profile."""
    return Change(key(CONSUMER, group, MEMBER, member_id), _encoder.encode(profile))


def target_change(group: str, member_id: str, target: Partitions) -> Change:
    """Return the record of a member's target assignment."""
    return Change(key(CONSUMER, group, TARGET, member_id), _encoder.encode(_StoredTarget(target)))


def current_change(group: str, member_id: str, current: Current) -> Change:
    """Return the record of a member's current assignment."""
    return Change(key(CONSUMER, group, CURRENT, member_id), _encoder.encode(current))


def removal(group: str, kind: str, member_id: str) -> Change:
    """Return the tombstone of one of the three records of a member."""
    return Change(key(CONSUMER, group, kind, member_id), None)


def group_removal(group: str) -> Change:
    """Return the tombstone of a group."""
    return Change(key(CONSUMER, group), None)
