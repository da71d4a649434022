"""The keys and values under which share groups are stored.

Only who is in a group is: what each member fetches from is worked out anew, since nothing depends on
who had it before. Values are msgpack arrays; fields are only ever added at their end.
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
    """What a member says of itself."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()  # sorted


group_decoder = msgspec.msgpack.Decoder(StoredShareGroup)
profile_decoder = msgspec.msgpack.Decoder(ShareProfile)


def group_change(group: str, epoch: int) -> Change:
    """The record of a group as it is now."""
    return Change(key(SHARE, group), msgspec.msgpack.encode(StoredShareGroup(epoch=epoch)))


def group_removal(group: str) -> Change:
    """The record that ends a group without members."""
    return Change(key(SHARE, group), None)


def profile_change(group: str, member_id: str, profile: ShareProfile) -> Change:
    """The record of what a member says of itself."""
    return Change(key(SHARE, group, MEMBER, member_id), msgspec.msgpack.encode(profile))


def profile_removal(group: str, member_id: str) -> Change:
    """The record that ends a member."""
    return Change(key(SHARE, group, MEMBER, member_id), None)
