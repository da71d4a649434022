"""The members of a classic group in the order in which they joined, and its rebalances.

The roster owns the sessions of members, their leader and common protocols, and the member ids reserved for
clients that are about to join.

In a rebalance all members join first, within the longest of their rebalance timeouts; a group that was empty
waits for a short delay for members that start at the same time. Then the leader gets the list of members and
sends the assignments, while the other members wait. The generation is then stable, and is stored.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct

import msgspec

from alpacamq.coordinator.messages import JoinedMember, JoinReply, JoinRequest, Protocol, SyncReply
from alpacamq.coordinator.rebalances import RebalanceCause, RebalanceHistory
from alpacamq.coordinator.records import CLASSIC, GENERATION, StoredGroup, StoredMember, key
from alpacamq.model.deadlines import earlier
from alpacamq.model.errors import FencedInstanceId, RebalanceInProgress, UnknownMember
from alpacamq.model.state_machine import Change, Outcome, Reply

CONSUMER_PROTOCOL = "consumer"

_VERSION_AND_COUNT = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Decode the subscribed topics of a consumer; return None if the metadata is something else."""
    if len(metadata) < _VERSION_AND_COUNT.size:
        return None
    version, count = _VERSION_AND_COUNT.unpack_from(metadata)
    at = _VERSION_AND_COUNT.size
    if version < 0 or not 0 <= count <= (len(metadata) - at) // _LENGTH.size:
        return None
    topics = set()
    for _ in range(count):
        if at + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, at)
        at += _LENGTH.size
        if not 0 <= length <= len(metadata) - at:
            return None
        try:
            topics.add(metadata[at : at + length].decode())
        except UnicodeDecodeError:
            return None
        at += length
    return frozenset(topics)


@dataclass(slots=True, kw_only=True)
class Member:
    """One member, and its pending requests."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    session_ends_ms: int = 0
    has_joined: bool = False  # the current rebalance
    owes_sync: bool = False  # got the generation and has not sent a SyncGroup
    join_reply_to: object | None = None
    sync_reply_to: object | None = None

    @classmethod
    def of(cls, member_id: str, request: JoinRequest) -> "Member":
        """Create a member from a request."""
        return cls(
            id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
        )

    @property
    def is_waiting(self) -> bool:
        """Return whether a request of it is pending: it sends no heartbeats then."""
        return self.join_reply_to is not None or self.sync_reply_to is not None

    def metadata(self, protocol_name: str) -> bytes:
        """Return the metadata for a protocol; empty if the member does not support it."""
        return next((each.metadata for each in self.protocols if each.name == protocol_name), b"")


class Roster:
    """The members of one classic group."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._by_instance: dict[str, Member] = {}
        # Number of members that support each protocol.
        self._known_by: Counter[str] = Counter()
        self._leader_id: str | None = None
        self._reserved: dict[str, int] = {}
        # May be early, never late: sessions are only extended, so it is computed again when it is reached.
        self._next_end_ms: int | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        """Iterate over a copy, so that members can be removed in the meantime."""
        return iter(tuple(self._members.values()))

    @property
    def leader_id(self) -> str:
        """Return the id of the leader; empty in an empty group."""
        return self._leader_id or ""

    @property
    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self._members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Return whether all members and reserved ids have joined; an empty group does not wait for those."""
        if not self._members:
            return True
        return not self._reserved and all(member.has_joined for member in self._members.values())

    @property
    def reserved_count(self) -> int:
        """Return the number of reserved member ids."""
        return len(self._reserved)

    @property
    def next_end_ms(self) -> int | None:
        """Return when the next session or reservation ends; may be early, never late."""
        return self._next_end_ms

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def of_instance(self, instance_id: str) -> Member | None:
        return self._by_instance.get(instance_id)

    def identify(self, member_id: str, instance_id: str | None) -> Member:
        """Return a member; raise UnknownMember, or FencedInstanceId if it was replaced."""
        if instance_id is not None:
            if (member := self._by_instance.get(instance_id)) is None:
                raise UnknownMember(f"no member has the group instance id {instance_id!r}")
            if member.id != member_id:
                raise FencedInstanceId(f"{instance_id!r} is now member {member.id!r}, not {member_id!r}")
            return member
        if (found := self._members.get(member_id)) is None:
            raise UnknownMember(f"{member_id!r} is not a member of the group")
        return found

    def add(self, member: Member) -> None:
        """Add a member; the first is the leader."""
        assert member.id not in self._members
        self._reserved.pop(member.id, None)
        self._members[member.id] = member
        self._count(member.protocols, 1)
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member
        if self._leader_id is None:
            self._leader_id = member.id

    def remove(self, member: Member) -> None:
        """Remove a member; if it was the leader, the oldest remaining member becomes the leader."""
        del self._members[member.id]
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if self._leader_id == member.id:
            self._leader_id = next(iter(self._members), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Give a static member the id of its new process; it keeps its position."""
        if self._leader_id == member.id:
            self._leader_id = new_id
        members = [*self._members.values()]
        member.id = new_id
        self._members = {each.id: each for each in members}

    def set_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        self._count(member.protocols, -1)
        self._count(protocols, 1)
        member.protocols = protocols

    def reserve_member_id(self, member_id: str, until_ms: int) -> None:
        """Reserve an id for a client that is expected to join with it."""
        self._reserved[member_id] = until_ms
        self._note_deadline(until_ms)

    def is_reserved(self, member_id: str) -> bool:
        return member_id in self._reserved

    def release_member_id(self, member_id: str) -> None:
        del self._reserved[member_id]

    def renew_session(self, member: Member, now_ms: int) -> None:
        """Restart the session of a member."""
        member.session_ends_ms = now_ms + member.session_timeout_ms
        self._note_deadline(member.session_ends_ms)

    def cancel(self, reply_to: object) -> None:
        """Remove a pending request; the session of its member continues."""
        for member in self._members.values():
            if member.join_reply_to == reply_to:
                member.join_reply_to = None
                self._note_deadline(member.session_ends_ms)
            if member.sync_reply_to == reply_to:
                member.sync_reply_to = None
                self._note_deadline(member.session_ends_ms)

    def expire_sessions(self, now_ms: int) -> list[Member]:
        """Return the members whose session has ended, and drop expired reservations."""
        self._reserved = {name: until for name, until in self._reserved.items() if until > now_ms}
        active = [member for member in self._members.values() if not member.is_waiting]
        expired = [member for member in active if member.session_ends_ms <= now_ms]
        lasting = [member.session_ends_ms for member in active if member.session_ends_ms > now_ms]
        self._next_end_ms = min([*lasting, *self._reserved.values()], default=None)
        return expired

    def set_leader(self, member_id: str) -> None:
        """Set the leader."""
        assert member_id in self._members
        self._leader_id = member_id

    def elect_leader(self) -> bool:
        """Choose a leader that has joined; return False if no member has."""
        if (leader := self.get(self.leader_id)) is not None and leader.has_joined:
            return True
        for member in self._members.values():
            if member.has_joined:
                self._leader_id = member.id
                return True
        return False

    def shares_protocol(self, protocols: tuple[Protocol, ...], besides: Member | None) -> bool:
        """Return whether every member, except `besides`, supports the same one of these protocols."""
        own = {each.name for each in besides.protocols} if besides is not None else set()
        others = len(self._members) - (besides is not None)
        return any(self._known_by[each.name] - (each.name in own) == others for each in protocols)

    def elect_protocol(self) -> str:
        """Return the protocol that most members prefer of those that all support; on a tie, the oldest's."""
        votes: Counter[str] = Counter()
        for member in self._members.values():
            votes[next(each.name for each in member.protocols if self._known_by[each.name] == len(self))] += 1
        return votes.most_common(1)[0][0]

    def _note_deadline(self, end_ms: int) -> None:
        if self._next_end_ms is None or end_ms < self._next_end_ms:
            self._next_end_ms = end_ms

    def _count(self, protocols: tuple[Protocol, ...], step: int) -> None:
        for name in {each.name for each in protocols}:
            self._known_by[name] += step
            if not self._known_by[name]:
                del self._known_by[name]


class ClassicState(StrEnum):
    """The state of a classic group, with Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


NEXT_STATES = {
    ClassicState.EMPTY: {ClassicState.PREPARING_REBALANCE, ClassicState.DEAD},
    ClassicState.PREPARING_REBALANCE: {ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY},
    ClassicState.COMPLETING_REBALANCE: {ClassicState.STABLE, ClassicState.PREPARING_REBALANCE},
    ClassicState.STABLE: {ClassicState.PREPARING_REBALANCE},
    ClassicState.DEAD: set(),
}


class Rebalance:
    """The state, generation and deadlines of one group's rebalances."""

    def __init__(self, group_id: str, roster: Roster, initial_delay_ms: int) -> None:
        self._group_id = group_id
        self._roster = roster
        self._initial_delay_ms = initial_delay_ms
        self.state = ClassicState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name = ""
        # Generations are sent to members before they are stable and stored; numbers are never reused.
        self._highest_generation = 0
        self._stored: StoredGroup | None = None
        self._initial_delay_ends_ms: int | None = None
        self._join_ends_ms: int | None = None
        self._sync_ends_ms: int | None = None
        self.history = RebalanceHistory()

    @property
    def next_deadline_ms(self) -> int | None:
        joined_ms = earlier(self._initial_delay_ends_ms, self._join_ends_ms)
        return earlier(joined_ms, self._sync_ends_ms)

    def begin(self, now_ms: int, out: Outcome, cause: RebalanceCause, members: Sequence[str]) -> None:
        """Start a rebalance, or continue the current one."""
        if self.state is not ClassicState.PREPARING_REBALANCE:
            self.history.begin(cause, members, now_ms)
            for member in self._roster:
                if member.sync_reply_to is not None:
                    out.replies.append(
                        Reply(member.sync_reply_to, RebalanceInProgress("the group is rebalancing"))
                    )
                    member.sync_reply_to = None
                    self._roster.renew_session(member, now_ms)
                member.owes_sync = False
            self._sync_ends_ms = None
            self._join_ends_ms = now_ms + self._roster.rebalance_timeout_ms
            if self.state is ClassicState.EMPTY and self._initial_delay_ms:
                self._initial_delay_ends_ms = min(now_ms + self._initial_delay_ms, self._join_ends_ms)
            self._enter(ClassicState.PREPARING_REBALANCE)
        elif self._join_ends_ms is None:
            self._join_ends_ms = now_ms + self._roster.rebalance_timeout_ms
        self.complete_join_if_ready(now_ms, out)

    def member_joined(self, member: Member, now_ms: int, out: Outcome) -> None:
        """Start or continue a rebalance for a new member; restart the initial delay."""
        if self._initial_delay_ends_ms is not None:
            assert self._join_ends_ms is not None
            self._initial_delay_ends_ms = min(now_ms + self._initial_delay_ms, self._join_ends_ms)
        self.begin(now_ms, out, RebalanceCause.MEMBER_JOINED, [member.id])

    def complete_join_if_ready(self, now_ms: int, out: Outcome) -> None:
        """Complete the join phase if all members have joined."""
        preparing = self.state is ClassicState.PREPARING_REBALANCE
        if preparing and self._initial_delay_ends_ms is None and self._roster.all_joined:
            self._complete_join(now_ms, out)

    def tick(self, now_ms: int, out: Outcome) -> None:
        """Remove members that did not join or sync in time."""
        if self._sync_ends_ms is not None and self._sync_ends_ms <= now_ms:
            self._sync_ends_ms = None
            # They got the new generation and did not sync.
            silent = [member for member in self._roster if member.owes_sync]
            for member in silent:
                self._roster.remove(member)
            if silent:
                self.begin(now_ms, out, RebalanceCause.SYNC_TIMED_OUT, [member.id for member in silent])
        if any(
            end is not None and end <= now_ms for end in (self._initial_delay_ends_ms, self._join_ends_ms)
        ):
            self._complete_join(now_ms, out)

    def _complete_join(self, now_ms: int, out: Outcome) -> None:
        self._initial_delay_ends_ms = self._join_ends_ms = None
        for member in self._roster:
            # A static member keeps its assignment until its session ends.
            if not member.has_joined and member.instance_id is None:
                self._roster.remove(member)
        if len(self._roster) and not self._roster.elect_leader():
            return  # no leader: wait for the next join, or for the end of the last session
        self.generation = self._highest_generation = self._highest_generation + 1
        if not len(self._roster):
            self._enter(ClassicState.EMPTY)
            self.protocol_name = ""
            out.changes.append(self.store())
            self.history.end(self.generation, 0, now_ms)
            return
        self._enter(ClassicState.COMPLETING_REBALANCE)
        self.history.set_generation(self.generation)
        self.protocol_name = self._roster.elect_protocol()
        out.changes.append(self._generation_change())
        self._sync_ends_ms = now_ms + self._roster.rebalance_timeout_ms
        for member in self._roster:
            if member.has_joined:
                member.has_joined, member.owes_sync = False, True
                self._roster.renew_session(member, now_ms)
            if member.join_reply_to is not None:
                out.replies.append(Reply(member.join_reply_to, self.join_reply(member)))
                member.join_reply_to = None

    def assign(self, assignments: dict[str, bytes], now_ms: int, out: Outcome) -> None:
        """Store the assignments of the leader and reply to waiting members; the generation is stable."""
        self._enter(ClassicState.STABLE)
        self.history.end(self.generation, len(self._roster), now_ms)
        for member in self._roster:
            member.assignment = assignments.get(member.id, b"")
            if member.sync_reply_to is not None:
                out.replies.append(Reply(member.sync_reply_to, self.sync_reply(member)))
                member.sync_reply_to = None
                self._roster.renew_session(member, now_ms)
        out.changes.append(self.store())

    def join_reply(self, member: Member) -> JoinReply:
        """Return the reply to a join of `member` in the current generation."""
        members: tuple[JoinedMember, ...] = ()
        if member.id == self._roster.leader_id:
            members = tuple(
                JoinedMember(
                    member_id=each.id,
                    instance_id=each.instance_id,
                    metadata=each.metadata(self.protocol_name),
                )
                for each in self._roster
            )
        return JoinReply(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self._roster.leader_id,
            member_id=member.id,
            members=members,
        )

    def sync_reply(self, member: Member) -> SyncReply:
        """Return the reply to a sync of `member`."""
        return SyncReply(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def delete(self) -> list[Change]:
        """Delete the group."""
        self._enter(ClassicState.DEAD)
        if not self._highest_generation:
            return []  # the group never had members: only its offsets are stored
        return [Change(key(kind, self._group_id), None) for kind in (GENERATION, CLASSIC)]

    def restore_highest(self, generation: int) -> None:
        """Apply the stored highest generation."""
        self._highest_generation = max(self._highest_generation, generation)

    def restore(self, stored: StoredGroup) -> None:
        """Apply a stored stable generation; sessions start later."""
        for member in self._roster:
            self._roster.remove(member)
        for each in stored.members:
            self._roster.add(Member(**msgspec.structs.asdict(each)))
        if stored.members:
            self._roster.set_leader(stored.leader)
        self.state = ClassicState.STABLE if stored.members else ClassicState.EMPTY
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol_name = stored.protocol_name
        self.restore_highest(stored.generation)
        self._stored = stored

    def snapshot(self) -> list[Change]:
        """Return the stored state: the last stable generation, also during a rebalance."""
        changes = []
        if self._stored is not None:
            changes.append(Change(key(CLASSIC, self._group_id), msgspec.msgpack.encode(self._stored)))
        if self._highest_generation > (self._stored.generation if self._stored is not None else 0):
            changes.append(self._generation_change())
        return changes

    def store(self) -> Change:
        """Return the current generation as a record."""
        self._stored = StoredGroup(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self._roster.leader_id,
            members=tuple(
                StoredMember(
                    id=member.id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    session_timeout_ms=member.session_timeout_ms,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    protocols=member.protocols,
                    assignment=member.assignment,
                )
                for member in self._roster
            ),
        )
        return Change(key(CLASSIC, self._group_id), msgspec.msgpack.encode(self._stored))

    def _generation_change(self) -> Change:
        value = msgspec.msgpack.encode(self._highest_generation)
        return Change(key(GENERATION, self._group_id), value)

    def _enter(self, state: ClassicState) -> None:
        assert state in NEXT_STATES[self.state], f"{self.state} cannot become {state}"
        self.state = state
