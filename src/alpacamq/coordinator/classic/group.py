"""One group of the classic protocol: requests of its members and their validation.

Implements Kafka's rules for member ids, generations and static members; `rebalance` forms generations. A
request that fails has changed nothing.
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
from alpacamq.coordinator.rebalances import RebalanceCause, RebalanceHistory
from alpacamq.coordinator.records import GENERATION, StoredGroup
from alpacamq.model.deadlines import earlier
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
from alpacamq.model.names import topic_in_group
from alpacamq.model.state_machine import Change, Outcome, Reply

from .roster import CONSUMER_PROTOCOL, ClassicState, Member, Rebalance, Roster, subscribed_topics


class JoinHandler:
    """JoinGroup for new, rejoining and static members."""

    def __init__(
        self,
        roster: Roster,
        rebalance: Rebalance,
        settings: GroupSettings,
        max_members: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._roster = roster
        self._rebalance = rebalance
        self._settings = settings
        self._max_members = max_members
        self._new_id = new_id

    def join(self, request: JoinRequest, reply_to: object, now_ms: int) -> Outcome:
        """Add or update a member, and start a rebalance if needed."""
        least, most = self._settings.min_session_timeout_ms, self._settings.max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            raise InvalidSessionTimeout(
                f"session timeout must be {least} to {most} ms, not {request.session_timeout_ms}"
            )
        member = self._identify(request)
        self._check_protocols(request, member)
        out = Outcome()
        if member is None:
            self._add_member(request, reply_to, now_ms, out)
        elif request.member_id:
            self._rejoin(member, request, reply_to, now_ms, out)
        else:
            self._replace_static(member, request, reply_to, now_ms, out)
        return out

    def _identify(self, request: JoinRequest) -> Member | None:
        """Return the member that joins; None if it is new and there is room for it."""
        room = self._max_members() - len(self._roster)
        if request.member_id:
            if request.instance_id is not None or not self._roster.is_reserved(request.member_id):
                return self._roster.identify(request.member_id, request.instance_id)
        elif request.instance_id is not None:
            if (member := self._roster.of_instance(request.instance_id)) is not None:
                return member
        else:
            room -= self._roster.reserved_count
        if room <= 0:
            raise GroupMaxSizeReached(f"too many members: the limit is {self._max_members()}")
        return None

    def _check_protocols(self, request: JoinRequest, member: Member | None) -> None:
        if not request.protocol_type or not request.protocols:
            raise InconsistentGroupProtocol("a member needs a protocol type and at least one protocol")
        if not len(self._roster):
            return
        if request.protocol_type != (ours := self._rebalance.protocol_type):
            raise InconsistentGroupProtocol(
                f"the group has protocol type {ours!r}, not {request.protocol_type!r}"
            )
        if not self._roster.shares_protocol(request.protocols, besides=member):
            offered = ", ".join(each.name for each in request.protocols)
            raise InconsistentGroupProtocol(f"not every member supports one of {offered}")

    def _add_member(self, request: JoinRequest, reply_to: object, now_ms: int, out: Outcome) -> None:
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{self._new_id()}"
        if not request.member_id and request.instance_id is None and request.require_known_member_id:
            self._roster.reserve_member_id(member_id, now_ms + request.session_timeout_ms)
            out.replies.append(Reply(reply_to, MemberIdRequired(member_id)))
            return
        if not len(self._roster):
            self._rebalance.protocol_type = request.protocol_type
        member = Member.of(member_id, request)
        self._roster.add(member)
        self._wait(member, reply_to, now_ms, out)
        self._rebalance.member_joined(member, now_ms, out)

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
            # The member missed the reply, or rejoins without a change. A leader that rejoins requests a
            # rebalance, because its subscribed topics have changed.
            self._roster.renew_session(member, now_ms)
            out.replies.append(Reply(reply_to, self._rebalance.join_reply(member)))
            return
        self._wait(member, reply_to, now_ms, out)
        self._rebalance.begin(now_ms, out, RebalanceCause.MEMBER_REJOINED, [member.id])

    def _replace_static(
        self, member: Member, request: JoinRequest, reply_to: object, now_ms: int, out: Outcome
    ) -> None:
        """Replace a static member by its new process; the old one is fenced."""
        for waiting in (member.join_reply_to, member.sync_reply_to):
            if waiting is not None:
                out.replies.append(Reply(waiting, FencedInstanceId(f"{member.instance_id!r} was replaced")))
        member.join_reply_to = member.sync_reply_to = None
        former_leader = self._roster.leader_id
        same = self._rebalance.state is ClassicState.STABLE and self._has_same_subscription(member, request)
        self._roster.rename(member, f"{request.instance_id}-{self._new_id()}")
        self._update(member, request)
        self._roster.renew_session(member, now_ms)
        if not same or self._roster.elect_protocol() != self._rebalance.protocol_name:
            self._wait(member, reply_to, now_ms, out)
            self._rebalance.begin(now_ms, out, RebalanceCause.MEMBER_REPLACED, [member.id])
            return
        out.changes.append(self._rebalance.store())
        reply = self._rebalance.join_reply(member)
        if member.id == reply.leader:
            # It must not assign again. Clients that do not know `skip_assignment` get another leader id.
            reply = (
                msgspec.structs.replace(reply, skip_assignment=True)
                if request.knows_skip_assignment
                else msgspec.structs.replace(reply, leader=former_leader, members=())
            )
        out.replies.append(Reply(reply_to, reply))

    def _has_same_subscription(self, member: Member, request: JoinRequest) -> bool:
        """Return whether a restarted member has the same subscription; it does not know its partitions."""
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
        """Keep the join pending until the rebalance completes."""
        supersede(member.join_reply_to, out)
        member.join_reply_to = reply_to
        member.has_joined = True
        self._roster.renew_session(member, now_ms)


def supersede(reply_to: object | None, out: Outcome) -> None:
    """Reply to a pending request that its member has sent again."""
    if reply_to is not None:
        out.replies.append(Reply(reply_to, RebalanceInProgress("the member sent a newer request")))


_stored_group = msgspec.msgpack.Decoder(StoredGroup)
_stored_generation = msgspec.msgpack.Decoder(int)


class ClassicGroup:
    """One group. An outcome may contain replies to earlier requests."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        max_members: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self.id = group_id
        self._roster = Roster()
        self._rebalance = Rebalance(group_id, self._roster, settings.initial_rebalance_delay_ms)
        self._joining = JoinHandler(self._roster, self._rebalance, settings, max_members, new_id)

    @property
    def state(self) -> ClassicState:
        return self._rebalance.state

    @property
    def generation(self) -> int:
        return self._rebalance.generation

    @property
    def history(self) -> RebalanceHistory:
        return self._rebalance.history

    @property
    def member_count(self) -> int:
        return len(self._roster)

    @property
    def protocol_type(self) -> str:
        """Return the protocol type of the members; empty if the group never had any."""
        return self._rebalance.protocol_type

    @property
    def is_empty(self) -> bool:
        return self._rebalance.state is ClassicState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Return whether the group has no members and no reserved member ids."""
        return self.is_empty and not self._roster.reserved_count

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`; may be early, never late."""
        return earlier(self._roster.next_end_ms, self._rebalance.next_deadline_ms)

    def join(self, request: JoinRequest, reply_to: object, now_ms: int) -> Outcome:
        """Join a member. The JoinReply is sent at once or when the rebalance completes."""
        return self._joining.join(request, reply_to, now_ms)

    def sync(self, request: SyncRequest, reply_to: object, now_ms: int) -> Outcome:
        """Get an assignment. The SyncReply is sent at once or when the leader has sent the assignments."""
        member = self._roster.identify(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        ours = (self._rebalance.protocol_type, self._rebalance.protocol_name)
        for named, own in zip((request.protocol_type, request.protocol_name), ours, strict=True):
            if named is not None and named != own:
                raise InconsistentGroupProtocol(f"the generation has protocol {own!r}, not {named!r}")
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgress("the group is rebalancing; rejoin")
        out = Outcome()
        self._roster.renew_session(member, now_ms)
        member.owes_sync = False
        if self.state is ClassicState.STABLE:
            out.replies.append(Reply(reply_to, self._rebalance.sync_reply(member)))
            return out
        supersede(member.sync_reply_to, out)
        member.sync_reply_to = reply_to
        if member.id == self._roster.leader_id:
            assignments = {each.member_id: each.assignment for each in request.assignments}
            self._rebalance.assign(assignments, now_ms, out)
        return out

    def heartbeat(self, request: HeartbeatRequest, reply_to: object, now_ms: int) -> Outcome:
        """Renew a session; raise RebalanceInProgress if the member must rejoin."""
        member = self._roster.identify(request.member_id, request.instance_id)
        self._check_generation(request.generation)
        self._roster.renew_session(member, now_ms)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgress("the group is rebalancing; rejoin")
        return Outcome(replies=[Reply(reply_to, Accepted())])

    def leave(self, request: LeaveRequest, reply_to: object, now_ms: int) -> Outcome:
        """Remove members."""
        out = Outcome()
        results = []
        left: list[str] = []
        for leaving in request.members:
            error = None
            try:
                if (member := self._remove_member(leaving, out)) is not None:
                    left.append(member.id)
            except AlpacaError as failure:
                error = failure
            results.append(
                LeaveResult(member_id=leaving.member_id, instance_id=leaving.instance_id, error=error)
            )
        out.replies.append(Reply(reply_to, LeaveReply(members=tuple(results))))
        if left:
            self._rebalance.begin(now_ms, out, RebalanceCause.MEMBER_LEFT, left)
        else:
            self._rebalance.complete_join_if_ready(now_ms, out)
        return out

    def tick(self, now_ms: int) -> Outcome:
        """Remove members whose session has expired, and run the deadlines of the rebalance."""
        out = Outcome()
        expired = self._roster.expire_sessions(now_ms)
        for member in expired:
            self._roster.remove(member)
        if expired:
            members = [member.id for member in expired]
            self._rebalance.begin(now_ms, out, RebalanceCause.SESSION_EXPIRED, members)
        else:
            self._rebalance.complete_join_if_ready(now_ms, out)
        self._rebalance.tick(now_ms, out)
        return out

    def cancel(self, reply_to: object) -> None:
        """Remove a pending request."""
        self._roster.cancel(reply_to)

    def check_commit(self, request: CommitRequest | TxnCommitRequest, now_ms: int) -> None:
        """Raise if this commit is invalid; renew the session of the member."""
        in_transaction = isinstance(request, TxnCommitRequest)
        if request.generation < 0 and self.is_empty:
            return  # a client that assigns partitions itself, or an administrator
        if request.generation >= 0 or request.member_id or request.instance_id is not None:
            member = self._roster.identify(request.member_id, request.instance_id)
            self._check_generation(request.generation)
            self._roster.renew_session(member, now_ms)
        elif not in_transaction:  # transactional commits of older clients contain no member id
            raise UnknownMember(f"group {self.id!r} has members; only they may commit")
        if self.state is ClassicState.COMPLETING_REBALANCE and not in_transaction:
            raise RebalanceInProgress("the generation is not assigned yet")

    def check_delete_offsets(self) -> None:
        """Raise NonEmptyGroup if the subscriptions of the members are unknown."""
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL:
            raise NonEmptyGroup(f"group {self.id!r} has members")

    def subscribes(self, topic: str) -> bool:
        """Return whether a member may read this topic."""
        # Members name topics as their tenant does.
        named = topic_in_group(self.id, topic)
        for member in self._roster:
            topics = subscribed_topics(member.metadata(self._rebalance.protocol_name))
            if topics is None or named in topics:
                return True
        return False

    def delete(self) -> list[Change]:
        """Delete the group; raise NonEmptyGroup if it has members."""
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.id!r} has members")
        return self._rebalance.delete()

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
        """Apply a stored record of the group."""
        if kind == GENERATION:
            self._rebalance.restore_highest(_stored_generation.decode(value))
        else:
            self._rebalance.restore(_stored_group.decode(value))

    def loaded(self, now_ms: int) -> list[Change]:
        """Start a full session for every restored member."""
        for member in self._roster:
            self._roster.renew_session(member, now_ms)
        return []

    def snapshot(self) -> Iterator[Change]:
        yield from self._rebalance.snapshot()

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(f"the group is in generation {self.generation}, not {generation}")

    def _remove_member(self, leaving: LeavingMember, out: Outcome) -> Member | None:
        """Remove a member and return it; None if its id was only reserved."""
        if leaving.instance_id is None and self._roster.is_reserved(leaving.member_id):
            self._roster.release_member_id(leaving.member_id)
            return None
        by_instance = leaving.instance_id is not None and not leaving.member_id
        member = self._roster.of_instance(leaving.instance_id or "") if by_instance else None
        if member is None:
            member = self._roster.identify(leaving.member_id, leaving.instance_id)
        for waiting in (member.join_reply_to, member.sync_reply_to):
            if waiting is not None:
                out.replies.append(Reply(waiting, UnknownMember(f"{member.id!r} left the group")))
        self._roster.remove(member)
        return member
