"""The group coordinator: every group of a shard, of every protocol, and their committed offsets.

Each event takes a request, the ticket under which it is answered, and the time. An AlpacaError raised
within means that nothing changed, and becomes the answer. A ticket is any hashable object but None.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from typing import NamedTuple, TypeVar

from alpacamq.model.errors import (
    AlpacaError,
    IllegalGeneration,
    NonEmptyGroup,
    UnknownMember,
)
from alpacamq.model.ids import TopicPartition
from alpacamq.model.outcome import Change, Outcome, Reply

from .classic.group import ClassicGroup
from .classic.roster import CONSUMER_PROTOCOL
from .consumer.group import ConsumerGroup
from .consumer.messages import ConsumerGroupSettings, ConsumerHeartbeatRequest, TopicsView
from .directory import Group, GroupDirectory
from .messages import (
    NO_GENERATION,
    Accepted,
    CommitRequest,
    CompleteTransactionRequest,
    DeleteGroupRequest,
    DeleteOffsetsRequest,
    DescribeRequest,
    FetchOffsetsRequest,
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
from .offsets import Answered, Offsets, deleted, fetched, stored
from .records import IDLE, OFFSET, PENDING, CommittedOffset, parts_of
from .share.config import GROUP_CONFIG, ConfigureGroupRequest, DescribeGroupConfigRequest, GroupConfigs
from .share.group import ShareGroup
from .share.messages import SHARE_PROTOCOL, ShareHeartbeatRequest, ShareTermsRequest


class GroupStats(NamedTuple):
    """A group as it is. `rebalances` is how often its members have changed since it was made."""

    group: ListedGroup
    members: int
    rebalances: int
    committed: Mapping[TopicPartition, CommittedOffset]


_Request = TypeVar("_Request")
_Event = Callable[["GroupCoordinator", _Request, object, int], Outcome]
_TimelessEvent = Callable[["GroupCoordinator", _Request], Answered]


def _answering(event: _Event[_Request]) -> _Event[_Request]:
    """Make what the event raises its answer."""

    @wraps(event)
    def answered(self: "GroupCoordinator", request: _Request, ticket: object, now_ms: int) -> Outcome:
        try:
            return event(self, request, ticket, now_ms)
        except AlpacaError as error:
            return Outcome(replies=[Reply(ticket, error)])

    return answered


def _at_once(event: _TimelessEvent[_Request]) -> _Event[_Request]:
    """Give an event that waits for nobody, and does not depend on the time, the shape of the others."""

    @wraps(event)
    def shaped(self: "GroupCoordinator", request: _Request, ticket: object, _now_ms: int) -> Outcome:
        changes, answer = event(self, request)
        return Outcome(changes=changes, replies=[Reply(ticket, answer)])

    return _answering(shaped)


class GroupCoordinator:
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

    @_answering
    def join(self, request: JoinRequest, ticket: object, now_ms: int) -> Outcome:
        """JoinReply when the generation is complete; MemberIdRequired, with the id, for a newcomer."""
        group = self._groups.open_classic(request.group)
        out = self._groups.settle(request.group, group, group.join(request, ticket, now_ms), now_ms)
        self._groups.wait(request.group, ticket, out)
        return out

    @_answering
    def sync(self, request: SyncRequest, ticket: object, now_ms: int) -> Outcome:
        """SyncReply when the leader has assigned."""
        group = self._groups.classic(request.group)
        out = self._groups.settle(request.group, group, group.sync(request, ticket, now_ms), now_ms)
        self._groups.wait(request.group, ticket, out)
        return out

    @_answering
    def heartbeat(self, request: HeartbeatRequest, ticket: object, now_ms: int) -> Outcome:
        """Accepted."""
        group = self._groups.classic(request.group)
        return self._groups.settle(request.group, group, group.heartbeat(request, ticket, now_ms), now_ms)

    @_answering
    def leave(self, request: LeaveRequest, ticket: object, now_ms: int) -> Outcome:
        """LeaveReply."""
        group = self._groups.find(request.group)
        if isinstance(group, ClassicGroup):
            out = group.leave(request, ticket, now_ms)
        elif isinstance(group, ConsumerGroup):
            out = _removed(group, request, ticket)
        else:
            raise UnknownMember(f"there is no group {request.group!r} that members leave by request")
        return self._groups.settle(request.group, group, out, now_ms)

    @_answering
    def consumer_heartbeat(self, request: ConsumerHeartbeatRequest, ticket: object, now_ms: int) -> Outcome:
        """ConsumerHeartbeatReply."""
        group = self._groups.open_consumer(request.group)
        changes, reply = group.heartbeat(request, now_ms, self._topics)
        out = Outcome(changes=changes, replies=[Reply(ticket, reply)])
        return self._groups.settle(request.group, group, out, now_ms)

    @_answering
    def share_heartbeat(self, request: ShareHeartbeatRequest, ticket: object, now_ms: int) -> Outcome:
        """ShareHeartbeatReply."""
        group = self._groups.open_share(request.group)
        changes, reply = group.heartbeat(request, now_ms, self._topics)
        out = Outcome(changes=changes, replies=[Reply(ticket, reply)])
        return self._groups.settle(request.group, group, out, now_ms)

    @_at_once
    def share_terms(self, request: ShareTermsRequest) -> Answered:
        """ShareConfig; UnknownMember unless a member of the share group asks."""
        self._groups.share(request.group).check_member(request.member_id)
        return [], self._configs.share(request.group)

    @_at_once
    def configure(self, request: ConfigureGroupRequest) -> Answered:
        """GroupConfigReply."""
        return self._configs.configure(request)

    @_at_once
    def describe_config(self, request: DescribeGroupConfigRequest) -> Answered:
        """GroupConfigReply."""
        return [], self._configs.describe(request)

    @_answering
    def commit(self, request: CommitRequest, ticket: object, now_ms: int) -> Outcome:
        """PartitionResults."""
        group = self._check_commit(request, now_ms)
        return self._commit(group, request, ticket, now_ms)

    @_answering
    def reset_offsets(self, request: ResetOffsetsRequest, ticket: object, now_ms: int) -> Outcome:
        """PartitionResults; NonEmptyGroup while the group has members."""
        group = self._groups.open_offsets(request.group)
        if not group.is_empty:
            raise NonEmptyGroup(f"group {request.group!r} has members; stop them first")
        return self._commit(group, request, ticket, now_ms)

    @_answering
    def txn_commit(self, request: TxnCommitRequest, ticket: object, now_ms: int) -> Outcome:
        """PartitionResults; the offsets take effect with their transaction."""
        group = self._check_commit(request, now_ms)
        self._offsets.check_producer(request.producer_id, request.producer_epoch)
        hold = partial(self._offsets.hold, request.producer_id, request.producer_epoch, request.group)
        changes, results = stored(request.offsets, hold, self._settings.max_metadata_bytes, now_ms)
        out = Outcome(changes=changes, replies=[Reply(ticket, results)])
        return self._groups.settle(request.group, group, out, now_ms)

    @_at_once
    def complete_transaction(self, request: CompleteTransactionRequest) -> Answered:
        """Accepted, also when there is nothing (more) to complete."""
        producer = (request.producer_id, request.producer_epoch)
        return self._offsets.complete(*producer, committed=request.committed), Accepted()

    @_at_once
    def fetch_offsets(self, request: FetchOffsetsRequest) -> Answered:
        """FetchOffsetsReply; a group that is not there has committed nothing."""
        group = self._groups.find(request.group)
        if isinstance(group, ConsumerGroup) and (request.member_id or request.member_epoch >= 0):
            group.validate_commit(request.member_id, request.member_epoch)
        return [], fetched(self._offsets, request)

    @_at_once
    def delete_offsets(self, request: DeleteOffsetsRequest) -> Answered:
        """PartitionResults."""
        group = self._groups.get(request.group)
        if isinstance(group, ClassicGroup):
            group.check_delete_offsets()
        return deleted(self._offsets, request, is_read=group.subscribes)

    @_at_once
    def describe(self, request: DescribeRequest) -> Answered:
        """A description of the group's own kind."""
        return [], self._groups.get(request.group).describe()

    @_at_once
    def list_groups(self, request: ListRequest) -> Answered:
        """ListReply."""
        names = self._groups.ids() if request.groups is None else request.groups
        found = ((group_id, self._groups.find(group_id)) for group_id in names)
        listed = (_listed(group_id, group) for group_id, group in found if group is not None)
        return [], ListReply(groups=tuple(line for line in listed if request.matches(line)))

    @_at_once
    def delete_group(self, request: DeleteGroupRequest) -> Answered:
        """Accepted."""
        return self._groups.remove(request.group), Accepted()

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

    def topic_deleted(self, topic: str) -> Outcome:
        """A topic is no more: no group is anywhere in it."""
        return Outcome(changes=self._offsets.delete_topic(topic))

    def groups_with_offsets(self) -> Iterator[tuple[str, int]]:
        """Every group that has offsets, perhaps twice, and how many; they may change meanwhile."""
        return ((group, self._offsets.count(group)) for group in self._offsets.groups_now())

    def partitions_in(self, group: str, topic: str) -> list[TopicPartition]:
        """The partitions of a topic for which a group has offsets, committed or pending."""
        return self._offsets.partitions_in(group, topic)

    def forget_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> Outcome:
        """Drop a group's offsets of some partitions, whoever may be a member."""
        return Outcome(changes=[each for one in partitions for each in self._offsets.delete(group, one)])

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

    def gone(self, ticket: object) -> None:
        """Nobody waits for the reply to this ticket any more; a member stays until its session ends."""
        self._groups.gone(ticket)

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
        self, group: Group, request: CommitRequest | ResetOffsetsRequest, ticket: object, now_ms: int
    ) -> Outcome:
        commit = partial(self._offsets.commit, request.group)
        changes, results = stored(request.offsets, commit, self._settings.max_metadata_bytes, now_ms)
        out = Outcome(changes=changes, replies=[Reply(ticket, results)])
        return self._groups.settle(request.group, group, out, now_ms)


def _removed(group: ConsumerGroup, request: LeaveRequest, ticket: object) -> Outcome:
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
    out.replies.append(Reply(ticket, LeaveReply(members=tuple(results))))
    return out


def _listed(group_id: str, group: Group) -> ListedGroup:
    if isinstance(group, ClassicGroup):
        kind, protocol_type = "classic", group.protocol_type
    elif isinstance(group, ShareGroup):
        kind = protocol_type = SHARE_PROTOCOL
    else:
        kind, protocol_type = "consumer", CONSUMER_PROTOCOL
    return ListedGroup(group=group_id, protocol_type=protocol_type, state=group.state, type=kind)
