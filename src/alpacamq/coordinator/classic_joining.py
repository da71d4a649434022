"""How one comes into a classic group: as a new member, as one that is asked to join again, or in the
place of an earlier process with the same group instance id.
"""

from collections.abc import Callable

import msgspec

from alpacamq.model.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    RebalanceInProgress,
)
from alpacamq.model.outcome import Outcome, Reply

from .classic_rebalance import ClassicState, Rebalance
from .classic_roster import Member, Roster
from .group_messages import GroupSettings, JoinRequest
from .subscription import CONSUMER_PROTOCOL, subscribed_topics


class Joining:
    """The door of one group."""

    def __init__(
        self, roster: Roster, rebalance: Rebalance, settings: GroupSettings, new_id: Callable[[], str]
    ) -> None:
        self._roster = roster
        self._rebalance = rebalance
        self._settings = settings
        self._new_id = new_id

    def join(self, request: JoinRequest, ticket: object, now_ms: int) -> Outcome:
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
            self._admit(request, ticket, now_ms, out)
        elif request.member_id:
            self._rejoin(member, request, ticket, now_ms, out)
        else:
            self._replace(member, request, ticket, now_ms, out)
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

    def _admit(self, request: JoinRequest, ticket: object, now_ms: int, out: Outcome) -> None:
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{self._new_id()}"
        if not request.member_id and request.instance_id is None and request.require_known_member_id:
            self._roster.promise(member_id, now_ms + request.session_timeout_ms)
            out.replies.append(Reply(ticket, MemberIdRequired(member_id)))
            return
        if not len(self._roster):
            self._rebalance.protocol_type = request.protocol_type
        member = Member.of(member_id, request)
        self._roster.add(member)
        self._wait(member, ticket, now_ms, out)
        self._rebalance.welcome(now_ms, out)

    def _rejoin(
        self, member: Member, request: JoinRequest, ticket: object, now_ms: int, out: Outcome
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
            out.replies.append(Reply(ticket, self._rebalance.joined(member)))
            return
        self._wait(member, ticket, now_ms, out)
        self._rebalance.begin(now_ms, out)

    def _replace(
        self, member: Member, request: JoinRequest, ticket: object, now_ms: int, out: Outcome
    ) -> None:
        """A static member's new process takes its place; the old one is fenced."""
        for waiting in (member.join_ticket, member.sync_ticket):
            if waiting is not None:
                out.replies.append(Reply(waiting, FencedInstanceId(f"{member.instance_id!r} was taken over")))
        member.join_ticket = member.sync_ticket = None
        former_leader = self._roster.leader_id
        same = self._rebalance.state is ClassicState.STABLE and self._says_the_same(member, request)
        self._roster.rename(member, f"{request.instance_id}-{self._new_id()}")
        self._update(member, request)
        self._roster.extend(member, now_ms)
        if not same or self._roster.elect_protocol() != self._rebalance.protocol_name:
            self._wait(member, ticket, now_ms, out)
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
        out.replies.append(Reply(ticket, reply))

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

    def _wait(self, member: Member, ticket: object, now_ms: int, out: Outcome) -> None:
        """Park the member's join until the rebalance completes."""
        supersede(member.join_ticket, out)
        member.join_ticket = ticket
        member.has_joined = True
        self._roster.extend(member, now_ms)


def supersede(ticket: object | None, out: Outcome) -> None:
    """Answer a request that its member has sent again."""
    if ticket is not None:
        out.replies.append(Reply(ticket, RebalanceInProgress("the member asked again")))
