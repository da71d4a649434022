"""Values of stored consumer groups: msgpack arrays; new fields are added at the end only."""

import msgspec

from alpacamq.coordinator.members import MemberRecords

from .messages import Partitions

CONSUMER = "consumer-group"


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


_target_decoder = msgspec.msgpack.Decoder(_StoredTarget)
decode_group = msgspec.msgpack.Decoder(StoredGroup).decode
records: MemberRecords[Profile, Current, Partitions] = MemberRecords(
    CONSUMER,
    Profile,
    Current,
    stored_target=_StoredTarget,
    decode_target=lambda value: _target_decoder.decode(value).partitions,
)
