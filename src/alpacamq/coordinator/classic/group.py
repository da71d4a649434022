"""One group of the classic protocol: what its members may ask, and who they must be to ask it.

Kafka's rules for ids, generations and static members are here; how a generation comes about is the
rebalance's. What is refused is refused before anything changes.
"""

from collections.abc import Callable, Iterator

import msgspec

from alpacamq.coordinator.messages import (
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
from alpacamq.coordinator.records import GENERATION, StoredGroup
from alpacamq.model.errors import (
    AlpacaError,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMember,
)
from alpacamq.model.state_machine import Change, Outcome, Reply

from .rebalance import ClassicState, Rebalance
from .roster import CONSUMER_PROTOCOL, Member, Roster, subscribed_topics


class Joining:
    """The API of one group."""

    def __init__(
        self, roster: Roster, rebalance: Rebalance, settings: GroupSettings, new_id: Callable[[], str]
    ) -> None:
        self._roster = roster
        self._rebalance = rebalance
        self._settings = settings
        self._new_id = new_id

    def join(self, request: JoinRequest, reply_to: object, now_ms: int) -> Outcome:
        """Let in whoever may come in, and see that there is a rebalance where there must be."""
        least, most = self._settings.min_session_timeout_ms, self._settings.max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            raise InvalidSessionTimeout(
                f"a session timeout is between {least} and {most} ms, not {request.session_timeout_ms}"
            )
        member = self._identify(request)
        self._check_protocols(request, member)
        out = Outcome()
        if member is None:
            self._admit(request, reply_to, now_ms, out)
        elif request.member_id:
            self._rejoin(member, request, reply_to, now_ms, out)
        else:
            self._replace(member, request, reply_to, now_ms, out)
        return out

    def _identify(self, request: JoinRequest) -> Member | None:
        """The member that joins: one that is there, or None for one that may come in."""
        seats = self._settings.max_members - len(self._roster)
        if request.member_id:
            if request.instance_id is not None or not self._roster.is_promised(request.member_id):
                return self._roster.known(request.member_id, request.instance_id)
        elif request.instance_id is not None:
            if (member := self._roster.of_instance(request.instance_id)) is not None:
                return member
        else:
            seats -= self._roster.promised_count
        if seats <= 0:
            raise GroupMaxSizeReached(f"a group has at most {self._settings.max_members} members")
        return None

    def _check_protocols(self, request: JoinRequest, member: Member | None) -> None:
        if not request.protocol_type or not request.protocols:
            raise InconsistentGroupProtocol("a member needs a protocol type and at least one protocol")
        if not len(self._roster):
            return
        if request.protocol_type != (ours := self._rebalance.protocol_type):
            raise InconsistentGroupProtocol(
                f"the members are of type {ours!r}, not {request.protocol_type!r}"
            )
        if not self._roster.shares_protocol(request.protocols, besides=member):
            offered = ", ".join(each.name for each in request.protocols)
            raise InconsistentGroupProtocol(f"not every member of the group knows one of {offered}")

    def _admit(self, request: JoinRequest, reply_to: object, now_ms: int, out: Outcome) -> None:
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{self._new_id()}"
        if not request.member_id and request.instance_id is None and request.require_known_member_id:
            self._roster.promise(member_id, now_ms + request.session_timeout_ms)
            out.replies.append(Reply(reply_to, MemberIdRequired(member_id)))
            return
        if not len(self._roster):
            self._rebalance.protocol_type = request.protocol_type
        member = Member.of(member_id, request)
        self._roster.add(member)
        self._wait(member, reply_to, now_ms, out)
        self._rebalance.welcome(now_ms, out)

    def _rejoin(
        self, member: Member, request: JoinRequest, reply_to: object, now_ms: int, out: Outcome
    ) -> None:
        unchanged = member.protocols == request.protocols
        leads = member.id == self._roster.leader_id
        self._update(member, request)
        if unchanged and (
            self._rebalance.state is ClassicState.COMPLETING_REBALANCE
            or (self._rebalance.state is ClassicState.STABLE and not leads)
        ):
            # It missed our reply, or has nothing new to say. A leader that rejoins has something to say:
            # it asks for a rebalance when the topics it knows of have changed.
            self._roster.extend(member, now_ms)
            out.replies.append(Reply(reply_to, self._rebalance.joined(member)))
            return
        self._wait(member, reply_to, now_ms, out)
        self._rebalance.begin(now_ms, out)

    def _replace(
        self, member: Member, request: JoinRequest, reply_to: object, now_ms: int, out: Outcome
    ) -> None:
        """A static member's new process takes its place; the old one is fenced."""
        for waiting in (member.join_reply_to, member.sync_reply_to):
            if waiting is not None:
                out.replies.append(Reply(waiting, FencedInstanceId(f"{member.instance_id!r} was taken over")))
        member.join_reply_to = member.sync_reply_to = None
        former_leader = self._roster.leader_id
        same = self._rebalance.state is ClassicState.STABLE and self._says_the_same(member, request)
        self._roster.rename(member, f"{request.instance_id}-{self._new_id()}")
        self._update(member, request)
        self._roster.extend(member, now_ms)
        if not same or self._roster.elect_protocol() != self._rebalance.protocol_name:
            self._wait(member, reply_to, now_ms, out)
            self._rebalance.begin(now_ms, out)
            return
        out.changes.append(self._rebalance.store())
        reply = self._rebalance.joined(member)
        if member.id == reply.leader:
            # It must not assign anew. A client too old to be told so is told that another leads.
            reply = (
                msgspec.structs.replace(reply, skip_assignment=True)
                if request.knows_skip_assignment
                else msgspec.structs.replace(reply, leader=former_leader, members=())
            )
        out.replies.append(Reply(reply_to, reply))

    def _says_the_same(self, member: Member, request: JoinRequest) -> bool:
        """Whether a restarted member wants what it has: what it once owned, it cannot know any more."""
        name = self._rebalance.protocol_name
        before = member.metadata(name)
        now = next((each.metadata for each in request.protocols if each.name == name), b"")
        topics = subscribed_topics(before) if self._rebalance.protocol_type == CONSUMER_PROTOCOL else None
        return before == now if topics is None else topics == subscribed_topics(now)

    def _update(self, member: Member, request: JoinRequest) -> None:
        self._roster.set_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id = request.client_id
        member.client_host = request.client_host

    def _wait(self, member: Member, reply_to: object, now_ms: int, out: Outcome) -> None:
        """Park the member's join until the rebalance completes."""
        supersede(member.join_reply_to, out)
        member.join_reply_to = reply_to
        member.has_joined = True
        self._roster.extend(member, now_ms)


def supersede(reply_to: object | None, out: Outcome) -> None:
    """Answer a request that its member has sent again."""
    if reply_to is not None:
        out.replies.append(Reply(reply_to, RebalanceInProgress("the member asked again")))


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

    def join(self, request: JoinRequest, reply_to: object, now_ms: int) -> Outcome:
        """Answered by a JoinReply, at once or when the rebalance that this leads to completes."""
        return self._joining.join(request, reply_to, now_ms)

    def sync(self, request: SyncRequest, reply_to: object, now_ms: int) -> Outcome:
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
            out.replies.append(Reply(reply_to, self._rebalance.synced(member)))
            return out
        supersede(member.sync_reply_to, out)
        member.sync_reply_to = reply_to
        if member.id == self._roster.leader_id:
            assignments = {each.member_id: each.assignment for each in request.assignments}
            self._rebalance.assign(assignments, now_ms, out)
        return out

    def heartbeat(self, request: HeartbeatRequest, reply_to: object, now_ms: int) -> Outcome:
        """Answered by Accepted, or by RebalanceInProgress if the member should join again."""
        member = self._roster.known(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        self._roster.extend(member, now_ms)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgress("the group rebalances; join again")
        return Outcome(replies=[Reply(reply_to, Accepted())])

    def leave(self, request: LeaveRequest, reply_to: object, now_ms: int) -> Outcome:
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
        out.replies.append(Reply(reply_to, LeaveReply(members=tuple(results))))
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

    def cancel(self, reply_to: object) -> None:
        """Nobody waits for the reply to this ticket any more."""
        self._roster.forget_request(reply_to)

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
        for waiting in (member.join_reply_to, member.sync_reply_to):
            if waiting is not None:
                out.replies.append(Reply(waiting, UnknownMember(f"{member.id!r} left the group")))
        self._roster.remove(member)
