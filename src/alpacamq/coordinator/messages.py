"""Requests to the group coordinator, and their replies.

Fields have the meaning of Kafka's protocol. Any reply may be an AlpacaError instead. A request for several
members or partitions gets one result for each; its `error` is None on success.
"""

from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

import msgspec

from alpacamq.model.control import NO_NUMBER
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from alpacamq.model.state_machine import Request

NO_GENERATION = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1

R = TypeVar("R")


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and timeouts of groups."""

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
    """An empty reply."""


class Protocol(msgspec.Struct, frozen=True, array_like=True):
    """An assignment protocol that a member supports, with its metadata for the leader."""

    name: str
    metadata: bytes


class JoinedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member in the reply to the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """The new generation. `members` is empty except for the leader."""

    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class JoinRequest(GroupRequest[JoinReply], frozen=True, kw_only=True):
    """Join the group, or rejoin it during a rebalance."""

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
    """The assignment of one member, sent by the leader."""

    member_id: str
    assignment: bytes


class SyncReply(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment of the member."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


class SyncRequest(GroupRequest[SyncReply], frozen=True, kw_only=True):
    """Get the assignment of a member. The leader sends the assignments of all members."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()


class HeartbeatRequest(GroupRequest[Accepted], frozen=True, kw_only=True):
    """Renew the session of a member of a classic group."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    generation: int
    member_id: str
    instance_id: str | None = None


class LeavingMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member to remove, by its id or, if that is empty, by its instance id."""

    member_id: str = ""
    instance_id: str | None = None


class LeaveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one leaving member."""

    member_id: str
    instance_id: str | None
    error: AlpacaError | None = None


class LeaveReply(msgspec.Struct, frozen=True, kw_only=True):
    """One result per leaving member, in order."""

    members: tuple[LeaveResult, ...]


class LeaveRequest(GroupRequest[LeaveReply], frozen=True, kw_only=True):
    """Remove members, on their own request or by an administrator."""

    members: tuple[LeavingMember, ...]


class OffsetToCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The offset at which a group continues to read a partition.

    The topic id tells a topic from a deleted one of the same name, whose offsets mean nothing to it.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    topic_id: TopicId = NO_TOPIC_ID


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one partition."""

    topic: str
    partition: int
    error: AlpacaError | None = None


class PartitionResults(msgspec.Struct, frozen=True, kw_only=True):
    """One result per partition of a commit, reset or deletion, in order."""

    partitions: tuple[PartitionResult, ...]


class CommitRequest(GroupRequest[PartitionResults], frozen=True, kw_only=True):
    """Commit offsets, as a member or, without a generation, as a client that assigns partitions itself.

    In consumer groups (KIP-848) `generation` is the member epoch.
    """

    IS_IDEMPOTENT: ClassVar[bool] = True

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
    # Of the transaction that its coordinator has confirmed.
    number: int = NO_NUMBER


class CompleteTransactionRequest(Request[Accepted], frozen=True, kw_only=True):
    """Apply or drop the offsets of a producer's transaction that has ended. May be repeated, and late."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    producer_id: int
    producer_epoch: int
    committed: bool
    number: int = NO_NUMBER


class ResetOffsetsRequest(GroupRequest[PartitionResults], frozen=True, kw_only=True):
    """Set the offsets of a group that has no members."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    offsets: tuple[OffsetToCommit, ...]


class DeleteOffsetsRequest(GroupRequest[PartitionResults], frozen=True, kw_only=True):
    """Delete the offsets of these partitions."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    partitions: tuple[TopicPartition, ...]


class FetchedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The committed offset of a partition, or NO_OFFSET."""

    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    topic_id: TopicId = NO_TOPIC_ID
    error: AlpacaError | None = None


class FetchOffsetsReply(msgspec.Struct, frozen=True, kw_only=True):
    """The requested offsets."""

    offsets: tuple[FetchedOffset, ...]


class FetchOffsetsRequest(GroupRequest[FetchOffsetsReply], frozen=True, kw_only=True):
    """Return the offsets of these partitions, or all offsets of the group.

    `topic_ids` has the ids of the topics of `partitions`; others have no offsets. All offsets of a group are
    returned with the ids of their topics, which may have been deleted.
    """

    IS_IDEMPOTENT: ClassVar[bool] = True

    partitions: tuple[TopicPartition, ...] | None = None
    topic_ids: Mapping[str, TopicId] = {}
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


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True, tag="classic"):
    """A classic group."""

    group: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a list."""

    group: str
    protocol_type: str
    state: str
    type: str


class ListReply(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that match."""

    groups: tuple[ListedGroup, ...]


class ListRequest(Request[ListReply], frozen=True, kw_only=True):
    """List groups by state and type, ignoring case; an empty set matches all.

    `groups` restricts the list to these names.
    """

    IS_IDEMPOTENT: ClassVar[bool] = True

    groups: tuple[str, ...] | None = None
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def matches(self, group: "ListedGroup") -> bool:
        """Return whether a group matches the filters."""
        return _is_among(group.state, self.states) and _is_among(group.type, self.types)


def _is_among(word: str, words: frozenset[str]) -> bool:
    return not words or word.casefold() in {each.casefold() for each in words}


class GroupIds(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of all groups of a coordinator."""

    groups: tuple[str, ...]


class GroupIdsRequest(Request[GroupIds], frozen=True, kw_only=True):
    """Return the ids of all groups, or of those with settings of their own, which need not exist."""

    IS_IDEMPOTENT: ClassVar[bool] = True

    configured: bool = False
    # The metadata that the broker must have applied before it answers: an index of their log.
    applied: int = 0


class DeleteGroupRequest(GroupRequest[Accepted], frozen=True, kw_only=True):
    """Delete a group without members, and its offsets."""
