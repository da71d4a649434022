"""Keys and values of stored streams groups.

Records are as those of consumer groups, with one more for the topology. Values are msgpack arrays; new fields
are added at the end only.
"""

import msgspec

from alpacamq.coordinator.records import key
from alpacamq.model.state_machine import Change

from .messages import Endpoint, Tasks, Topology

STREAMS = "streams-group"
TOPOLOGY = "topology"
MEMBER = "member"
TARGET = "target"
CURRENT = "current"


class StoredGroup(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The epoch of the group, and that of its target assignment."""

    epoch: int
    target_epoch: int
    digest: bytes  # of the topology on its topics, to detect changes during a restart
    is_ready: bool


class Profile(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The data that a member sends about itself."""

    instance_id: str | None
    rebalance_timeout_ms: int
    topology_epoch: int
    process_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()


class Current(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The tasks that a member was assigned, and those that it was told to revoke."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Tasks = Tasks()
    revoking: Tasks = Tasks()


group_decoder = msgspec.msgpack.Decoder(StoredGroup)
topology_decoder = msgspec.msgpack.Decoder(Topology)
profile_decoder = msgspec.msgpack.Decoder(Profile)
current_decoder = msgspec.msgpack.Decoder(Current)
target_decoder = msgspec.msgpack.Decoder(Tasks)


def group_change(group: str, stored: StoredGroup) -> Change:
    """Return the record of a group."""
    return Change(key(STREAMS, group), msgspec.msgpack.encode(stored))


def topology_change(group: str, topology: Topology) -> Change:
    """Return the record of a group's topology."""
    return Change(key(STREAMS, group, TOPOLOGY), msgspec.msgpack.encode(topology))


def profile_change(group: str, member_id: str, profile: Profile) -> Change:
    """Return the record of a member's profile."""
    return Change(key(STREAMS, group, MEMBER, member_id), msgspec.msgpack.encode(profile))


def target_change(group: str, member_id: str, target: Tasks) -> Change:
    """Return the record of a member's target assignment."""
    return Change(key(STREAMS, group, TARGET, member_id), msgspec.msgpack.encode(target))


def current_change(group: str, member_id: str, current: Current) -> Change:
    """Return the record of a member's current assignment."""
    return Change(key(STREAMS, group, CURRENT, member_id), msgspec.msgpack.encode(current))


def removal(group: str, kind: str, member_id: str) -> Change:
    """Return the tombstone of one of the three records of a member."""
    return Change(key(STREAMS, group, kind, member_id), None)


def group_removal(group: str) -> list[Change]:
    """Return the tombstones of a group without members."""
    return [Change(key(STREAMS, group, TOPOLOGY), None), Change(key(STREAMS, group), None)]
