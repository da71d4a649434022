"""The keys and values under which consumer groups are stored.

Of each member three things are kept apart, because they change at different times: what it says of
itself, what it is to have, and what it has. Values are msgpack arrays; fields are only ever added at
their end.
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
    """The epoch of the group, and the one its target was made for."""

    epoch: int
    target_epoch: int
    topics_digest: bytes  # of the subscribed topics, to see after a restart whether they changed


class Profile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a member says of itself."""

    instance_id: str | None
    rebalance_timeout_ms: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()  # sorted
    regex: str = ""
    assignor: str | None = None


class Current(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a member has been told it has, and what it has been told to give up."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = {}
    revoking: Partitions = {}
    # The member said it did not hold `revoking` before it was told to give it up, so it might have taken it
    # since. Its next heartbeat shows that it has been told, and confirms.
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
    """A member's stored target."""
    return _target_decoder.decode(value).partitions


def group_change(group: str, stored: StoredGroup) -> Change:
    """The record of a group as it is now."""
    return Change(key(CONSUMER, group), _encoder.encode(stored))


def profile_change(group: str, member_id: str, profile: Profile) -> Change:
    """The record of what a member says of itself."""
    return Change(key(CONSUMER, group, MEMBER, member_id), _encoder.encode(profile))


def target_change(group: str, member_id: str, target: Partitions) -> Change:
    """The record of what a member is to have."""
    return Change(key(CONSUMER, group, TARGET, member_id), _encoder.encode(_StoredTarget(target)))


def current_change(group: str, member_id: str, current: Current) -> Change:
    """The record of what a member has."""
    return Change(key(CONSUMER, group, CURRENT, member_id), _encoder.encode(current))


def removal(group: str, kind: str, member_id: str) -> Change:
    """The record that ends one of the three things kept of a member."""
    return Change(key(CONSUMER, group, kind, member_id), None)


def group_removal(group: str) -> Change:
    """The record that ends a group without members."""
    return Change(key(CONSUMER, group), None)
