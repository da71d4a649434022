"""The group coordinator: the groups and offsets of one partition of the offsets topic."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import ClassVar, NamedTuple

from alpacamq.model.errors import (
    AlpacaError,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidRequest,
    NonEmptyGroup,
    UnknownMember,
)
from alpacamq.model.ids import NO_TOPIC_ID, TopicId, TopicPartition
from alpacamq.model.state_machine import Change, HandlesOneByOne, Outcome, Reply, Request, reply

from .classic.group import ClassicGroup
from .classic.roster import CONSUMER_PROTOCOL
from .consumer.group import ConsumerGroup
from .consumer.messages import (
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerGroupSettings,
    ConsumerHeartbeatRequest,
    TopicsView,
)
from .directory import CheckNewGroup, Group, GroupDirectory, MemberLimit
from .messages import (
    NO_GENERATION,
    Accepted,
    CommitRequest,
    CompleteTransactionRequest,
    DeleteGroupRequest,
    DeleteOffsetsRequest,
    FetchOffsetsRequest,
    GroupDescription,
    GroupIds,
    GroupIdsRequest,
    GroupRequest,
    GroupSettings,
    HeartbeatRequest,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeaveResult,
    ListedGroup,
    ListReply,
    ListRequest,
    OffsetToCommit,
    PartitionResults,
    ResetOffsetsRequest,
    SyncRequest,
    TxnCommitRequest,
)
from .offsets import LimitOf, Offsets, commit_offsets, delete_offsets, fetch_offsets
from .rebalances import RebalancesReply, RebalancesRequest
from .records import IDLE, OFFSET, PENDING, CommittedOffset, parts_of
from .share.config import GROUP_CONFIG, ConfigureGroupRequest, DescribeGroupConfigRequest, GroupConfigs
from .share.group import ShareGroup
from .share.messages import SHARE_PROTOCOL, MemberConfigRequest, ShareGroupDescription, ShareHeartbeatRequest
from .streams.group import StreamsGroup
from .streams.messages import (
    STREAMS_PROTOCOL,
    CreateInternalTopics,
    InternalTopicsFailed,
    StreamsGroupDescription,
    StreamsHeartbeatRequest,
)


class GroupStats(NamedTuple):
    """Statistics of a group. `rebalances` is its generation or epoch."""

    group: ListedGroup
    members: int
    rebalances: int
    committed: Mapping[TopicPartition, CommittedOffset]


class DescribeRequest(
    GroupRequest[
        GroupDescription | ConsumerGroupDescription | ShareGroupDescription | StreamsGroupDescription
    ],
    frozen=True,
    kw_only=True,
):
    """Describe one group."""

    IS_IDEMPOTENT: ClassVar[bool] = True


class TopicDeleted(Request[None], frozen=True, kw_only=True):
    """Event: a topic was deleted; offsets of that name are dropped, except of the current topic."""

    topic: str
    current_id: TopicId


class OffsetsDropped(Request[None], frozen=True, kw_only=True):
    """Event: offsets of these partitions of a deleted topic are dropped, except of the current topic.

    The group may have members.
    """

    group: str
    partitions: Sequence[TopicPartition]
    current_id: TopicId


class GroupCoordinator(HandlesOneByOne):
    """The state machine of one partition of the offsets topic."""

    def __init__(
        self,
        settings: GroupSettings,
        consumer_settings: ConsumerGroupSettings,
        topics: TopicsView,
        new_id: Callable[[], str],
        member_limit: MemberLimit = lambda _group: None,
        check_new: CheckNewGroup = lambda _group: None,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._offsets = Offsets(settings.offsets_retention_ms)
        self._configs = GroupConfigs(consumer_settings)
        self._check_new = check_new
        self._groups = GroupDirectory(
            settings, consumer_settings, self._offsets, self._configs, new_id, member_limit, check_new
        )

    def join(self, request: JoinRequest, reply_to: object, now_ms: int) -> Outcome:
        """Reply when the generation is complete, or at once with MemberIdRequired to a new member."""
        group = self._groups.open_classic(request.group)
        out = self._groups.settle(request.group, group, group.join(request, reply_to, now_ms), now_ms)
        self._groups.wait(request.group, reply_to, out)
        return out

    def sync(self, request: SyncRequest, reply_to: object, now_ms: int) -> Outcome:
        """Reply when the leader has sent the assignment."""
        group = self._groups.classic(request.group)
        out = self._groups.settle(request.group, group, group.sync(request, reply_to, now_ms), now_ms)
        self._groups.wait(request.group, reply_to, out)
        return out

    def heartbeat(self, request: HeartbeatRequest, reply_to: object, now_ms: int) -> Outcome:
        """Renew the session of a member of a classic group."""
        group = self._groups.classic(request.group)
        return self._groups.settle(request.group, group, group.heartbeat(request, reply_to, now_ms), now_ms)

    def leave(self, request: LeaveRequest, reply_to: object, now_ms: int) -> Outcome:
        """Remove members."""
        group = self._groups.find(request.group)
        if isinstance(group, ClassicGroup):
            out = group.leave(request, reply_to, now_ms)
        elif isinstance(group, ConsumerGroup | StreamsGroup):
            out = _removed(group, request, reply_to, now_ms)
        else:
            raise UnknownMember(f"group {request.group!r} has no members that can be removed by request")
        return self._groups.settle(request.group, group, out, now_ms)

    def consumer_heartbeat(self, request: ConsumerHeartbeatRequest, reply_to: object, now_ms: int) -> Outcome:
        """Handle the heartbeat of a member of a consumer group (KIP-848)."""
        group = self._groups.open_consumer(request.group)
        changes, answer = group.heartbeat(request, now_ms, self._topics)
        return self._groups.settle(request.group, group, reply(reply_to, answer, changes), now_ms)

    def share_heartbeat(self, request: ShareHeartbeatRequest, reply_to: object, now_ms: int) -> Outcome:
        """Handle the heartbeat of a member of a share group (KIP-932)."""
        group = self._groups.open_share(request.group)
        changes, answer = group.heartbeat(request, now_ms, self._topics)
        return self._groups.settle(request.group, group, reply(reply_to, answer, changes), now_ms)

    def streams_heartbeat(self, request: StreamsHeartbeatRequest, reply_to: object, now_ms: int) -> Outcome:
        """Handle the heartbeat of a member of a streams group (KIP-1071)."""
        group = self._groups.open_streams(request.group)
        if request.member_epoch != JOIN_EPOCH and not group.exists:
            raise GroupIdNotFound(f"streams group {request.group!r} does not exist")
        changes, answer = group.heartbeat(request, now_ms, self._topics)
        out = reply(reply_to, answer, changes)
        if group.missing_topics and not group.is_empty:
            out.effects.append(CreateInternalTopics(group=request.group, topics=group.missing_topics))
        return self._groups.settle(request.group, group, out, now_ms)

    def internal_topics_failed(self, event: InternalTopicsFailed, _reply_to: object, _now_ms: int) -> Outcome:
        """Report to the members of a streams group that its internal topics could not be created."""
        if isinstance(group := self._groups.find(event.group), StreamsGroup):
            group.creation_failed(event.reason)
        return Outcome()

    def member_config(self, request: MemberConfigRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the settings of a share group to one of its members; UnknownMember to others."""
        self._groups.share(request.group).check_member(request.member_id)
        return reply(reply_to, self._configs.share(request.group))

    def configure(self, request: ConfigureGroupRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Change settings of a group."""
        if not self._configs.has(request.group):
            self._check_new(request.group)
        changes, answer = self._configs.configure(request)
        return reply(reply_to, answer, changes)

    def describe_config(self, request: DescribeGroupConfigRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the settings of a group."""
        return reply(reply_to, self._configs.describe(request))

    def commit(self, request: CommitRequest, reply_to: object, now_ms: int) -> Outcome:
        """Commit offsets."""
        group = self._check_commit(request, now_ms)
        return self._commit(group, request, reply_to, now_ms)

    def reset_offsets(self, request: ResetOffsetsRequest, reply_to: object, now_ms: int) -> Outcome:
        """Set offsets; NonEmptyGroup while the group has members."""
        group = self._groups.open_offsets(request.group)
        if not group.is_empty:
            raise NonEmptyGroup(f"group {request.group!r} has members; stop them first")
        return self._commit(group, request, reply_to, now_ms)

    def txn_commit(self, request: TxnCommitRequest, reply_to: object, now_ms: int) -> Outcome:
        """Store offsets that take effect when their transaction commits."""
        group = self._check_commit(request, now_ms)
        producer = (request.producer_id, request.producer_epoch, request.number)
        self._offsets.check_producer(*producer)
        add_pending = partial(self._offsets.add_pending, *producer, request.group)
        changes, results = self._checked_commits(request.offsets, add_pending, now_ms)
        return self._groups.settle(request.group, group, reply(reply_to, results, changes), now_ms)

    def complete_transaction(
        self, request: CompleteTransactionRequest, reply_to: object, _now_ms: int
    ) -> Outcome:
        """Apply or drop the offsets of a transaction; do nothing if it has none."""
        producer = (request.producer_id, request.producer_epoch, request.number)
        return reply(reply_to, Accepted(), self._offsets.complete(*producer, committed=request.committed))

    def fetch_offsets(self, request: FetchOffsetsRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with committed offsets; a group that does not exist has none."""
        group = self._groups.find(request.group)
        if isinstance(group, ConsumerGroup | StreamsGroup) and (
            request.member_id or request.member_epoch >= 0
        ):
            group.validate_commit(request.member_id, request.member_epoch)
        return reply(reply_to, fetch_offsets(self._offsets, request))

    def delete_offsets(self, request: DeleteOffsetsRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Delete offsets of partitions that no member subscribes to."""
        group = self._groups.get(request.group)
        if isinstance(group, ClassicGroup):
            group.check_delete_offsets()
        changes, results = delete_offsets(self._offsets, request, is_read=group.subscribes)
        return reply(reply_to, results, changes)

    def describe(self, request: DescribeRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with a description of the group's type."""
        return reply(reply_to, self._groups.get(request.group).describe())

    def rebalances(self, request: RebalancesRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the recent rebalances of a group; share groups do not rebalance."""
        group = self._groups.get(request.group)
        if isinstance(group, ShareGroup):
            raise InvalidRequest(f"group {request.group!r} is a share group, which does not rebalance")
        return reply(reply_to, RebalancesReply(rebalances=group.history.newest_first()))

    def list_groups(self, request: ListRequest, reply_to: object, _now_ms: int) -> Outcome:
        """List groups."""
        names = self._groups.ids() if request.groups is None else request.groups
        found = ((group_id, self._groups.find(group_id)) for group_id in names)
        listed = (_listed(group_id, group) for group_id, group in found if group is not None)
        return reply(reply_to, ListReply(groups=tuple(line for line in listed if request.matches(line))))

    def list_ids(self, request: GroupIdsRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the ids of groups."""
        names = self._configs.groups() if request.configured else self._groups.ids()
        return reply(reply_to, GroupIds(groups=tuple(names)))

    def delete_group(self, request: DeleteGroupRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Delete a group and its offsets."""
        return reply(reply_to, Accepted(), self._groups.remove(request.group))

    def topic_deleted(self, event: TopicDeleted, _reply_to: object, _now_ms: int) -> Outcome:
        """Drop the offsets of a deleted topic."""
        return Outcome(changes=self._offsets.delete_topic(event.topic, event.current_id))

    def drop_offsets(self, event: OffsetsDropped, _reply_to: object, _now_ms: int) -> Outcome:
        """Drop offsets of a deleted topic, whether the group has members or not."""
        return Outcome(
            changes=[
                change
                for partition in event.partitions
                for change in self._offsets.delete_stale(event.group, partition, event.current_id)
            ]
        )

    HANDLERS: ClassVar = {
        JoinRequest: join,
        SyncRequest: sync,
        HeartbeatRequest: heartbeat,
        LeaveRequest: leave,
        ConsumerHeartbeatRequest: consumer_heartbeat,
        ShareHeartbeatRequest: share_heartbeat,
        StreamsHeartbeatRequest: streams_heartbeat,
        InternalTopicsFailed: internal_topics_failed,
        MemberConfigRequest: member_config,
        ConfigureGroupRequest: configure,
        DescribeGroupConfigRequest: describe_config,
        CommitRequest: commit,
        ResetOffsetsRequest: reset_offsets,
        TxnCommitRequest: txn_commit,
        CompleteTransactionRequest: complete_transaction,
        FetchOffsetsRequest: fetch_offsets,
        DeleteOffsetsRequest: delete_offsets,
        DescribeRequest: describe,
        RebalancesRequest: rebalances,
        ListRequest: list_groups,
        GroupIdsRequest: list_ids,
        DeleteGroupRequest: delete_group,
        TopicDeleted: topic_deleted,
        OffsetsDropped: drop_offsets,
    }

    def group_ids(self) -> list[str]:
        """Return the ids of all groups."""
        return [*self._groups.ids()]

    def stats(self, group_ids: Iterable[str]) -> Iterator[GroupStats]:
        """Yield statistics of the groups that exist; consume them before the next event."""
        for group_id in group_ids:
            if (group := self._groups.find(group_id)) is not None:
                yield GroupStats(
                    group=_listed(group_id, group),
                    members=group.member_count,
                    rebalances=group.generation if isinstance(group, ClassicGroup) else group.epoch,
                    committed=self._offsets.committed(group_id),
                )

    def groups_with_offsets(self) -> Iterator[tuple[str, int]]:
        """Yield groups with their number of committed offsets; a group may occur twice."""
        return ((group, self._offsets.count(group)) for group in self._offsets.groups_now())

    def partitions_in(self, group: str, topics: AbstractSet[str]) -> dict[str, list[TopicPartition]]:
        """Return the partitions of these topics with committed or pending offsets of a group, by topic."""
        return self._offsets.partitions_in(group, topics)

    def trim_offsets(self, limit_of: LimitOf) -> Outcome:
        """Drop offsets of deleted topics, and move those beyond the end of a cut log back."""
        return Outcome(changes=self._offsets.trim(limit_of))

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`; may be early, never late."""
        return self._groups.next_deadline_ms

    def tick(self, now_ms: int) -> Outcome:
        """Do what is due."""
        return self._groups.tick(now_ms)

    def cancel(self, reply_to: object) -> None:
        """Remove a pending request; its member stays until its session ends."""
        self._groups.cancel(reply_to)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a stored record; ignore unknown kinds."""
        parts = parts_of(key)
        if parts[0] in (OFFSET, PENDING, IDLE):
            self._offsets.replay(parts, value)
        elif parts[0] == GROUP_CONFIG:
            self._configs.replay(parts[1], value)
        else:
            self._groups.replay(parts, value)

    def loaded(self, now_ms: int) -> Outcome:
        """Resume after the last stored record was replayed."""
        self._offsets.loaded()
        return self._groups.loaded(now_ms)

    def snapshot(self) -> Iterator[Change]:
        """Yield changes that lead to the durable state."""
        yield from self._groups.snapshot()
        yield from self._offsets.snapshot()
        yield from self._configs.snapshot()

    def _check_commit(
        self, request: CommitRequest | TxnCommitRequest, now_ms: int
    ) -> ClassicGroup | ConsumerGroup | StreamsGroup:
        """Return the group of a valid commit."""
        if request.generation >= 0 and self._groups.find(request.group) is None:
            raise IllegalGeneration(f"group {request.group!r} does not exist")
        group = self._groups.open_offsets(request.group)
        if isinstance(group, ClassicGroup):
            group.check_commit(request, now_ms)
        elif isinstance(request, CommitRequest) or request.member_id or request.generation != NO_GENERATION:
            # Transactional commits of older clients contain no member id.
            group.validate_commit(request.member_id, request.generation)
        return group

    def _commit(
        self, group: Group, request: CommitRequest | ResetOffsetsRequest, reply_to: object, now_ms: int
    ) -> Outcome:
        commit = partial(self._offsets.commit, request.group)
        changes, results = self._checked_commits(request.offsets, commit, now_ms)
        return self._groups.settle(request.group, group, reply(reply_to, results, changes), now_ms)

    def _checked_commits(
        self,
        offsets: Iterable[OffsetToCommit],
        store: Callable[[TopicPartition, CommittedOffset], list[Change]],
        now_ms: int,
    ) -> tuple[list[Change], PartitionResults]:
        return commit_offsets(offsets, store, self._topic_id, self._settings.max_metadata_bytes, now_ms)

    def _topic_id(self, name: str) -> TopicId:
        topic = self._topics.get(name)
        return NO_TOPIC_ID if topic is None else topic.id


def _removed(
    group: ConsumerGroup | StreamsGroup, request: LeaveRequest, reply_to: object, now_ms: int
) -> Outcome:
    """Remove members from a consumer or streams group on behalf of an administrator."""
    out = Outcome()
    results = []
    for leaving in request.members:
        error = None
        try:
            out.changes += group.remove(leaving.member_id, leaving.instance_id, now_ms)
        except AlpacaError as refused:
            error = refused
        results.append(LeaveResult(member_id=leaving.member_id, instance_id=leaving.instance_id, error=error))
    out.replies.append(Reply(reply_to, LeaveReply(members=tuple(results))))
    return out


def _listed(group_id: str, group: Group) -> ListedGroup:
    if isinstance(group, ClassicGroup):
        kind, protocol_type = "classic", group.protocol_type
    elif isinstance(group, ShareGroup):
        kind = protocol_type = SHARE_PROTOCOL
    elif isinstance(group, StreamsGroup):
        kind = protocol_type = STREAMS_PROTOCOL
    else:
        kind, protocol_type = "consumer", CONSUMER_PROTOCOL
    return ListedGroup(group=group_id, protocol_type=protocol_type, state=group.state, type=kind)
