"""The group coordinator: the groups of one partition of the offsets topic, and their offsets."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

from alpacamq.model.errors import (
    AlpacaError,
    IllegalGeneration,
    NonEmptyGroup,
    UnknownMember,
)
from alpacamq.model.ids import TopicPartition
from alpacamq.model.state_machine import Change, HandlesOneByOne, Outcome, Reply, Request, reply

from .classic.group import ClassicGroup
from .classic.roster import CONSUMER_PROTOCOL
from .consumer.group import ConsumerGroup
from .consumer.messages import (
    ConsumerGroupDescription,
    ConsumerGroupSettings,
    ConsumerHeartbeatRequest,
    TopicsView,
)
from .directory import Group, GroupDirectory
from .messages import (
    NO_GENERATION,
    Accepted,
    CommitRequest,
    CompleteTransactionRequest,
    DeleteGroupRequest,
    DeleteOffsetsRequest,
    FetchOffsetsRequest,
    GroupDescription,
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
    ResetOffsetsRequest,
    SyncRequest,
    TxnCommitRequest,
)
from .offsets import Offsets, deleted, fetched, stored
from .records import IDLE, OFFSET, PENDING, CommittedOffset, parts_of
from .share.config import GROUP_CONFIG, ConfigureGroupRequest, DescribeGroupConfigRequest, GroupConfigs
from .share.group import ShareGroup
from .share.messages import SHARE_PROTOCOL, ShareGroupDescription, ShareHeartbeatRequest, ShareTermsRequest


class GroupStats(NamedTuple):
    """A group as it is. `rebalances` is how often its members have changed since it was made."""

    group: ListedGroup
    members: int
    rebalances: int
    committed: Mapping[TopicPartition, CommittedOffset]


class DescribeRequest(
    GroupRequest[GroupDescription | ConsumerGroupDescription | ShareGroupDescription],
    frozen=True,
    kw_only=True,
):
    """Describe one group."""


class TopicDeleted(Request[None], frozen=True, kw_only=True):
    """Event: a topic was deleted; its offsets are dropped."""

    topic: str


class OffsetsDropped(Request[None], frozen=True, kw_only=True):
    """Event: offsets of deleted partitions are dropped, whether the group has members or not."""

    group: str
    partitions: Sequence[TopicPartition]


class GroupCoordinator(HandlesOneByOne):
    """The state machine behind one partition of the internal topic of groups and offsets."""

    def __init__(
        self,
        settings: GroupSettings,
        consumer_settings: ConsumerGroupSettings,
        topics: TopicsView,
        new_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._offsets = Offsets(settings.offsets_retention_ms)
        self._configs = GroupConfigs()
        self._groups = GroupDirectory(settings, consumer_settings, self._offsets, self._configs, new_id)

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
        elif isinstance(group, ConsumerGroup):
            out = _removed(group, request, reply_to)
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

    def share_terms(self, request: ShareTermsRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the settings of a share group to one of its members; UnknownMember to others."""
        self._groups.share(request.group).check_member(request.member_id)
        return reply(reply_to, self._configs.share(request.group))

    def configure(self, request: ConfigureGroupRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Change settings of a group."""
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
        self._offsets.check_producer(request.producer_id, request.producer_epoch)
        hold = partial(self._offsets.hold, request.producer_id, request.producer_epoch, request.group)
        changes, results = stored(request.offsets, hold, self._settings.max_metadata_bytes, now_ms)
        return self._groups.settle(request.group, group, reply(reply_to, results, changes), now_ms)

    def complete_transaction(
        self, request: CompleteTransactionRequest, reply_to: object, _now_ms: int
    ) -> Outcome:
        """Apply or drop the offsets of a transaction; without effect if there are none."""
        producer = (request.producer_id, request.producer_epoch)
        return reply(reply_to, Accepted(), self._offsets.complete(*producer, committed=request.committed))

    def fetch_offsets(self, request: FetchOffsetsRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with committed offsets; a group that does not exist has none."""
        group = self._groups.find(request.group)
        if isinstance(group, ConsumerGroup) and (request.member_id or request.member_epoch >= 0):
            group.validate_commit(request.member_id, request.member_epoch)
        return reply(reply_to, fetched(self._offsets, request))

    def delete_offsets(self, request: DeleteOffsetsRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Delete offsets of partitions that no member subscribes to."""
        group = self._groups.get(request.group)
        if isinstance(group, ClassicGroup):
            group.check_delete_offsets()
        changes, results = deleted(self._offsets, request, is_read=group.subscribes)
        return reply(reply_to, results, changes)

    def describe(self, request: DescribeRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with a description of the group's type."""
        return reply(reply_to, self._groups.get(request.group).describe())

    def list_groups(self, request: ListRequest, reply_to: object, _now_ms: int) -> Outcome:
        """List groups."""
        names = self._groups.ids() if request.groups is None else request.groups
        found = ((group_id, self._groups.find(group_id)) for group_id in names)
        listed = (_listed(group_id, group) for group_id, group in found if group is not None)
        return reply(reply_to, ListReply(groups=tuple(line for line in listed if request.matches(line))))

    def delete_group(self, request: DeleteGroupRequest, reply_to: object, _now_ms: int) -> Outcome:
        """Delete a group and its offsets."""
        return reply(reply_to, Accepted(), self._groups.remove(request.group))

    def topic_deleted(self, event: TopicDeleted, _reply_to: object, _now_ms: int) -> Outcome:
        """Drop the offsets of a deleted topic."""
        return Outcome(changes=self._offsets.delete_topic(event.topic))

    def drop_offsets(self, event: OffsetsDropped, _reply_to: object, _now_ms: int) -> Outcome:
        """Drop offsets of deleted partitions, whether the group has members or not."""
        changes = [each for one in event.partitions for each in self._offsets.delete(event.group, one)]
        return Outcome(changes=changes)

    HANDLERS: ClassVar = {
        JoinRequest: join,
        SyncRequest: sync,
        HeartbeatRequest: heartbeat,
        LeaveRequest: leave,
        ConsumerHeartbeatRequest: consumer_heartbeat,
        ShareHeartbeatRequest: share_heartbeat,
        ShareTermsRequest: share_terms,
        ConfigureGroupRequest: configure,
        DescribeGroupConfigRequest: describe_config,
        CommitRequest: commit,
        ResetOffsetsRequest: reset_offsets,
        TxnCommitRequest: txn_commit,
        CompleteTransactionRequest: complete_transaction,
        FetchOffsetsRequest: fetch_offsets,
        DeleteOffsetsRequest: delete_offsets,
        DescribeRequest: describe,
        ListRequest: list_groups,
        DeleteGroupRequest: delete_group,
        TopicDeleted: topic_deleted,
        OffsetsDropped: drop_offsets,
    }

    def group_ids(self) -> list[str]:
        """Every group there is now."""
        return [*self._groups.ids()]

    def stats(self, group_ids: Iterable[str]) -> Iterator[GroupStats]:
        """Those of these groups that there are, to be read before the next event."""
        for group_id in group_ids:
            if (group := self._groups.find(group_id)) is not None:
                yield GroupStats(
                    group=_listed(group_id, group),
                    members=group.member_count,
                    rebalances=group.generation if isinstance(group, ClassicGroup) else group.epoch,
                    committed=self._offsets.of(group_id),
                )

    def groups_with_offsets(self) -> Iterator[tuple[str, int]]:
        """Every group that has offsets, perhaps twice, and how many; they may change meanwhile."""
        return ((group, self._offsets.count(group)) for group in self._offsets.groups_now())

    def partitions_in(self, group: str, topic: str) -> list[TopicPartition]:
        """The partitions of a topic for which a group has offsets, committed or pending."""
        return self._offsets.partitions_in(group, topic)

    def trim_offsets(self, last_possible: Callable[[TopicPartition], int | None]) -> Outcome:
        """Drop offsets of partitions that do not exist, and move those beyond the end of a cut log back."""
        return Outcome(changes=self._offsets.trim(last_possible))

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; may be early, never late."""
        return self._groups.next_deadline_ms

    def tick(self, now_ms: int) -> Outcome:
        """Do what is due."""
        return self._groups.tick(now_ms)

    def cancel(self, reply_to: object) -> None:
        """Forget a pending request; its member stays until its session ends."""
        self._groups.cancel(reply_to)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a stored record; kinds of a later version are passed over."""
        parts = parts_of(key)
        if parts[0] in (OFFSET, PENDING, IDLE):
            self._offsets.replay(parts, value)
        elif parts[0] == GROUP_CONFIG:
            self._configs.replay(parts[1], value)
        else:
            self._groups.replay(parts, value)

    def loaded(self, now_ms: int) -> Outcome:
        """Everything stored has been replayed."""
        return self._groups.loaded(now_ms)

    def snapshot(self) -> Iterator[Change]:
        """Changes that lead to the durable state as it is."""
        yield from self._groups.snapshot()
        yield from self._offsets.snapshot()
        yield from self._configs.snapshot()

    def _check_commit(
        self, request: CommitRequest | TxnCommitRequest, now_ms: int
    ) -> ClassicGroup | ConsumerGroup:
        """The group for which this may be committed."""
        if request.generation >= 0 and self._groups.find(request.group) is None:
            raise IllegalGeneration(f"there is no group {request.group!r} in any generation")
        group = self._groups.open_offsets(request.group)
        if isinstance(group, ClassicGroup):
            group.check_commit(request, now_ms)
        elif isinstance(request, CommitRequest) or request.member_id or request.generation != NO_GENERATION:
            # The transactions of older clients do not say who they are.
            group.validate_commit(request.member_id, request.generation)
        return group

    def _commit(
        self, group: Group, request: CommitRequest | ResetOffsetsRequest, reply_to: object, now_ms: int
    ) -> Outcome:
        commit = partial(self._offsets.commit, request.group)
        changes, results = stored(request.offsets, commit, self._settings.max_metadata_bytes, now_ms)
        return self._groups.settle(request.group, group, reply(reply_to, results, changes), now_ms)


def _removed(group: ConsumerGroup, request: LeaveRequest, reply_to: object) -> Outcome:
    """Members that an administrator removes from a consumer group."""
    out = Outcome()
    results = []
    for leaving in request.members:
        error = None
        try:
            out.changes += group.remove(leaving.member_id, leaving.instance_id)
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
    else:
        kind, protocol_type = "consumer", CONSUMER_PROTOCOL
    return ListedGroup(group=group_id, protocol_type=protocol_type, state=group.state, type=kind)
