"""What clients ask of the groups of a shard, and what they are answered.

Field meanings are Kafka's. An answer is one of the replies below or an AlpacaError; where a request
names several things, each has its own result, with `error` None where all is well.
"""

from typing import Generic, TypeVar

import msgspec

from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicPartition
from alpacamq.model.state_machine import Request

NO_GENERATION = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1

R = TypeVar("R")


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and delays of the groups of a shard."""

    initial_rebalance_delay_ms: int = 200
    min_session_timeout_ms: int = 1_000
    max_session_timeout_ms: int = 1_800_000
    max_members: int = 10_000
    max_groups: int = 10_000
    max_metadata_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3_600_000


class GroupRequest(Request[R], Generic[R], frozen=True, kw_only=True):
    """A request about one group."""

    group: str

    @property
    def routing_key(self) -> str:
        return self.group


class Accepted(msgspec.Struct, frozen=True):
    """Done, and nothing more to say."""


class Protocol(msgspec.Struct, frozen=True, array_like=True):
    """A way of assigning that a member knows, with what it has to say to the leader."""

    name: str
    metadata: bytes


class JoinedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """The generation a member is in; `members` is empty for all but the leader."""

    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class JoinRequest(GroupRequest[JoinReply], frozen=True, kw_only=True):
    """Become a member, or take part in the rebalance under way."""

    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    require_known_member_id: bool = False
    knows_skip_assignment: bool = False


class MemberAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader gives one member."""

    member_id: str
    assignment: bytes


class SyncReply(msgspec.Struct, frozen=True, kw_only=True):
    """A member's assignment."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


class SyncRequest(GroupRequest[SyncReply], frozen=True, kw_only=True):
    """Ask for one's assignment; the leader brings everyone's."""

    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()


class HeartbeatRequest(GroupRequest[Accepted], frozen=True, kw_only=True):
    """A member of a classic group is alive. Answered by Accepted."""

    generation: int
    member_id: str
    instance_id: str | None = None


class LeavingMember(msgspec.Struct, frozen=True, kw_only=True):
    """One to be removed, by its id or, where that is empty, by its instance id."""

    member_id: str = ""
    instance_id: str | None = None


class LeaveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one of them."""

    member_id: str
    instance_id: str | None
    error: AlpacaError | None = None


class LeaveReply(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each of the leaving, in their order."""

    members: tuple[LeaveResult, ...]


class LeaveRequest(GroupRequest[LeaveReply], frozen=True, kw_only=True):
    """Members that go, or that an administrator removes."""

    members: tuple[LeavingMember, ...]


class OffsetToCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is to go on reading a partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one partition of a request."""

    topic: str
    partition: int
    error: AlpacaError | None = None


class PartitionResults(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each partition of a commit, reset or deletion, in the request's order."""

    partitions: tuple[PartitionResult, ...]


class CommitRequest(GroupRequest[PartitionResults], frozen=True, kw_only=True):
    """Commit offsets, as a member or (without generation) as one who assigns itself.

    `generation` is the member epoch in the groups of KIP-848.
    """

    offsets: tuple[OffsetToCommit, ...]
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


class TxnCommitRequest(GroupRequest[PartitionResults], frozen=True, kw_only=True):
    """Commit offsets as part of a producer's open transaction."""

    producer_id: int
    producer_epoch: int
    offsets: tuple[OffsetToCommit, ...]
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None


class CompleteTransactionRequest(Request[Accepted], frozen=True, kw_only=True):
    """A producer's transaction has ended: its offsets take effect or are dropped."""

    producer_id: int
    producer_epoch: int
    committed: bool


class ResetOffsetsRequest(GroupRequest[PartitionResults], frozen=True, kw_only=True):
    """Set the offsets of a group that has no members."""

    offsets: tuple[OffsetToCommit, ...]


class DeleteOffsetsRequest(GroupRequest[PartitionResults], frozen=True, kw_only=True):
    """Forget the offsets of these partitions."""

    partitions: tuple[TopicPartition, ...]


class FetchedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's committed offset, NO_OFFSET where there is none."""

    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    error: AlpacaError | None = None


class FetchOffsetsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets asked for."""

    offsets: tuple[FetchedOffset, ...]


class FetchOffsetsRequest(GroupRequest[FetchOffsetsReply], frozen=True, kw_only=True):
    """Read the offsets of these partitions, or of all that have one."""

    partitions: tuple[TopicPartition, ...] | None = None
    member_id: str = ""
    member_epoch: int = NO_GENERATION
    require_stable: bool = False


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a classic group; metadata and assignment are empty unless the group is stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A classic group."""

    group: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list."""

    group: str
    protocol_type: str
    state: str
    type: str


class ListReply(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that match."""

    groups: tuple[ListedGroup, ...]


class ListRequest(Request[ListReply], frozen=True, kw_only=True):
    """The groups of the shard in any of these states and of any of these types; empty means all.

    Of all that the shard has, or of those named in `groups`.
    """

    groups: tuple[str, ...] | None = None
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def matches(self, group: "ListedGroup") -> bool:
        """Whether a group is one of those asked for; case does not matter."""
        return _is_among(group.state, self.states) and _is_among(group.type, self.types)


def _is_among(word: str, words: frozenset[str]) -> bool:
    return not words or word.casefold() in {each.casefold() for each in words}


class DeleteGroupRequest(GroupRequest[Accepted], frozen=True, kw_only=True):
    """Remove a group without members, and its offsets. Answered by Accepted."""
