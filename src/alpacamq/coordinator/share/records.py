"""Keys and values of stored share groups.

Only members are stored; assignments are computed again after a restart, as partitions are shared anyway.
Values are msgpack arrays; new fields are added at the end only.
"""

import msgspec

from alpacamq.coordinator.records import key
from alpacamq.model.state_machine import Change

SHARE = "share-group"
MEMBER = "member"


class StoredShareGroup(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The epoch of the group."""

    epoch: int


class ShareProfile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The data that a member sends about itself."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()  # sorted


group_decoder = msgspec.msgpack.Decoder(StoredShareGroup)
profile_decoder = msgspec.msgpack.Decoder(ShareProfile)


def group_change(group: str, epoch: int) -> Change:
    """Return the record of a group."""
    return Change(key(SHARE, group), msgspec.msgpack.encode(StoredShareGroup(epoch=epoch)))


def group_removal(group: str) -> Change:
    """Return the tombstone of a group."""
    return Change(key(SHARE, group), None)


def profile_change(group: str, member_id: str, profile: ShareProfile) -> Change:
    """Return the record of a member's profile."""
    return Change(key(SHARE, group, MEMBER, member_id), msgspec.msgpack.encode(profile))


def profile_removal(group: str, member_id: str) -> Change:
    """Return the tombstone of a member."""
    return Change(key(SHARE, group, MEMBER, member_id), None)
