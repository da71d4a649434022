"""Values of stored streams groups: msgpack arrays; new fields are added at the end only.

Beside the records of all groups with member epochs, there is one of the topology.
"""

import msgspec

from alpacamq.coordinator.members import MemberRecords

from .messages import Endpoint, Tasks, Topology

STREAMS = "streams-group"
TOPOLOGY = "topology"


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


decode_group = msgspec.msgpack.Decoder(StoredGroup).decode
decode_topology = msgspec.msgpack.Decoder(Topology).decode
records: MemberRecords[Profile, Current, Tasks] = MemberRecords(
    STREAMS,
    Profile,
    Current,
    stored_target=lambda tasks: tasks,
    decode_target=msgspec.msgpack.Decoder(Tasks).decode,
)
