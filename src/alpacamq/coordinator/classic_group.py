"""One group of the classic protocol: what its members may ask, and who they must be to ask it.

Kafka's rules for ids, generations and static members are here; how a generation comes about is the
rebalance's. What is refused is refused before anything changes.
"""

from collections.abc import Callable, Iterator

import msgspec

from alpacamq.model.errors import (
    AlpacaError,
    IllegalGeneration,
    InconsistentGroupProtocol,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMember,
)
from alpacamq.model.outcome import Change, Outcome, Reply

from .classic_joining import Joining, supersede
from .classic_rebalance import ClassicState, Rebalance
from .classic_roster import Roster
from .group_messages import (
    Accepted,
    CommitRequest,
    GroupDescription,
    GroupSettings,
    HeartbeatRequest,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeaveResult,
    LeavingMember,
    MemberDescription,
    SyncRequest,
    TxnCommitRequest,
)
from .group_records import GENERATION, StoredGroup
from .subscription import CONSUMER_PROTOCOL, subscribed_topics

_stored_group = msgspec.msgpack.Decoder(StoredGroup)
_stored_generation = msgspec.msgpack.Decoder(int)


class ClassicGroup:
    """One group. A call may answer tickets of earlier ones; `next_deadline_ms` says when to `tick`."""

    def __init__(self, group_id: str, settings: GroupSettings, new_id: Callable[[], str]) -> None:
        self.id = group_id
        self._roster = Roster()
        self._rebalance = Rebalance(group_id, self._roster, settings.initial_rebalance_delay_ms)
        self._joining = Joining(self._roster, self._rebalance, settings, new_id)

    @property
    def state(self) -> ClassicState:
        return self._rebalance.state

    @property
    def generation(self) -> int:
        return self._rebalance.generation

    @property
    def member_count(self) -> int:
        return len(self._roster)

    @property
    def protocol_type(self) -> str:
        """What its members are, "" if it never had any."""
        return self._rebalance.protocol_type

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Whether nobody is in the group or about to be."""
        return self.is_empty and not self._roster.promised_count

    @property
    def next_deadline_ms(self) -> int | None:
        """May be early, never late."""
        ends = (self._roster.next_end_ms, self._rebalance.next_deadline_ms)
        return min((end for end in ends if end is not None), default=None)

    def join(self, request: JoinRequest, ticket: object, now_ms: int) -> Outcome:
        """Answered by a JoinReply, at once or when the rebalance that this leads to completes."""
        return self._joining.join(request, ticket, now_ms)

    def sync(self, request: SyncRequest, ticket: object, now_ms: int) -> Outcome:
        """Answered by a SyncReply, at once or when the leader brings the assignments."""
        member = self._roster.known(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        ours = (self._rebalance.protocol_type, self._rebalance.protocol_name)
        for named, own in zip((request.protocol_type, request.protocol_name), ours, strict=True):
            if named is not None and named != own:
                raise InconsistentGroupProtocol(f"the generation's protocol is {own!r}, not {named!r}")
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgress("the group rebalances; join again")
        out = Outcome()
        self._roster.extend(member, now_ms)
        member.owes_sync = False
        if self.state is ClassicState.STABLE:
            out.replies.append(Reply(ticket, self._rebalance.synced(member)))
            return out
        supersede(member.sync_ticket, out)
        member.sync_ticket = ticket
        if member.id == self._roster.leader_id:
            assignments = {each.member_id: each.assignment for each in request.assignments}
            self._rebalance.assign(assignments, now_ms, out)
        return out

    def heartbeat(self, request: HeartbeatRequest, ticket: object, now_ms: int) -> Outcome:
        """Answered by Accepted, or by RebalanceInProgress if the member should join again."""
        member = self._roster.known(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        self._roster.extend(member, now_ms)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgress("the group rebalances; join again")
        return Outcome(replies=[Reply(ticket, Accepted())])

    def leave(self, request: LeaveRequest, ticket: object, now_ms: int) -> Outcome:
        """Answered by a LeaveReply at once."""
        out = Outcome()
        results = []
        size = len(self._roster)
        for leaving in request.members:
            error = None
            try:
                self._let_go(leaving, out)
            except AlpacaError as refused:
                error = refused
            results.append(
                LeaveResult(member_id=leaving.member_id, instance_id=leaving.instance_id, error=error)
            )
        out.replies.append(Reply(ticket, LeaveReply(members=tuple(results))))
        if len(self._roster) < size:
            self._rebalance.begin(now_ms, out)
        else:
            self._rebalance.go_on(now_ms, out)
        return out

    def tick(self, now_ms: int) -> Outcome:
        """Remove members that have not been heard of, and stop waiting where that has been too long."""
        out = Outcome()
        over = self._roster.end_sessions(now_ms)
        for member in over:
            self._roster.remove(member)
        if over:
            self._rebalance.begin(now_ms, out)
        else:
            self._rebalance.go_on(now_ms, out)
        self._rebalance.tick(now_ms, out)
        return out

    def gone(self, ticket: object) -> None:
        """Nobody waits for the reply to this ticket any more."""
        self._roster.forget_ticket(ticket)

    def check_commit(self, request: CommitRequest | TxnCommitRequest, now_ms: int) -> None:
        """Whether offsets may be committed so; that also shows that the member is alive."""
        in_transaction = isinstance(request, TxnCommitRequest)
        if request.generation < 0 and self.is_empty:
            return  # one who assigns partitions itself, or an administrator
        if request.generation >= 0 or request.member_id or request.instance_id is not None:
            member = self._roster.known(request.member_id, request.instance_id)
            self._check_generation(request.generation)
            self._roster.extend(member, now_ms)
        elif not in_transaction:  # the transactions of older clients do not say who they are
            raise UnknownMember(f"group {self.id!r} has members, and only they may commit")
        if self.state is ClassicState.COMPLETING_REBALANCE and not in_transaction:
            raise RebalanceInProgress("the generation is not assigned yet")

    def check_delete_offsets(self) -> None:
        """Whether any offsets may be deleted; NonEmptyGroup where we cannot know what members read."""
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL:
            raise NonEmptyGroup(f"group {self.id!r} has members")

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads this topic; in doubt it does."""
        for member in self._roster:
            topics = subscribed_topics(member.metadata(self._rebalance.protocol_name))
            if topics is None or topic in topics:
                return True
        return False

    def delete(self) -> list[Change]:
        """End the group; NonEmptyGroup if it has members."""
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.id!r} has members")
        return self._rebalance.end()

    def describe(self) -> GroupDescription:
        stable = self.state is ClassicState.STABLE
        protocol_name = self._rebalance.protocol_name if stable else ""
        return GroupDescription(
            group=self.id,
            state=self.state,
            protocol_type=self.protocol_type,
            protocol_name=protocol_name,
            members=tuple(
                MemberDescription(
                    member_id=member.id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(protocol_name) if stable else b"",
                    assignment=member.assignment if stable else b"",
                )
                for member in self._roster
            ),
        )

    def replay(self, kind: str, value: bytes) -> None:
        """Take in a stored record of the group."""
        if kind == GENERATION:
            self._rebalance.restore_highest(_stored_generation.decode(value))
        else:
            self._rebalance.restore(_stored_group.decode(value))

    def loaded(self, now_ms: int) -> list[Change]:
        """Give every restored member a full session in which to be heard of."""
        for member in self._roster:
            self._roster.extend(member, now_ms)
        return []

    def snapshot(self) -> Iterator[Change]:
        yield from self._rebalance.snapshot()

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(f"the group is in generation {self.generation}, not {generation}")

    def _let_go(self, leaving: LeavingMember, out: Outcome) -> None:
        if leaving.instance_id is None and self._roster.is_promised(leaving.member_id):
            self._roster.break_promise(leaving.member_id)
            return
        by_instance = leaving.instance_id is not None and not leaving.member_id
        member = self._roster.of_instance(leaving.instance_id or "") if by_instance else None
        if member is None:
            member = self._roster.known(leaving.member_id, leaving.instance_id)
        for waiting in (member.join_ticket, member.sync_ticket):
            if waiting is not None:
                out.replies.append(Reply(waiting, UnknownMember(f"{member.id!r} left the group")))
        self._roster.remove(member)
