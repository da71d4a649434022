"""How the members of a classic group get from one generation to the next.

First all of them join: those known are given the longest rebalance timeout among them, and a group
that was empty waits a moment for others that start at the same time. Then the leader, told of all,
assigns; the others wait for it. A generation that everyone can work in is stable, and is stored.
"""

from enum import StrEnum

import msgspec

from alpacamq.coordinator.messages import JoinedMember, JoinReply, SyncReply
from alpacamq.coordinator.records import CLASSIC, GENERATION, StoredGroup, StoredMember, key
from alpacamq.model.errors import RebalanceInProgress
from alpacamq.model.state_machine import Change, Outcome, Reply

from .roster import Member, Roster


class ClassicState(StrEnum):
    """Where a classic group stands, in Kafka's words."""

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
    """The state, the generation and the deadlines of one group's rebalances."""

    def __init__(self, group_id: str, roster: Roster, initial_delay_ms: int) -> None:
        self._group_id = group_id
        self._roster = roster
        self._initial_delay_ms = initial_delay_ms
        self.state = ClassicState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name = ""
        # A generation is given out before it is stable and stored, and its number never again.
        self._highest_generation = 0
        self._stored: StoredGroup | None = None
        self._gather_until_ms: int | None = None
        self._join_ends_ms: int | None = None
        self._sync_ends_ms: int | None = None

    @property
    def next_deadline_ms(self) -> int | None:
        ends = (self._gather_until_ms, self._join_ends_ms, self._sync_ends_ms)
        return min((end for end in ends if end is not None), default=None)

    def begin(self, now_ms: int, out: Outcome) -> None:
        """Ask everyone to join the next generation, or go on with doing so."""
        if self.state is not ClassicState.PREPARING_REBALANCE:
            for member in self._roster:
                if member.sync_reply_to is not None:
                    out.replies.append(
                        Reply(member.sync_reply_to, RebalanceInProgress("the group rebalances"))
                    )
                    member.sync_reply_to = None
                    self._roster.extend(member, now_ms)
                member.owes_sync = False
            self._sync_ends_ms = None
            self._join_ends_ms = now_ms + self._roster.rebalance_timeout_ms
            if self.state is ClassicState.EMPTY and self._initial_delay_ms:
                self._gather_until_ms = min(now_ms + self._initial_delay_ms, self._join_ends_ms)
            self._enter(ClassicState.PREPARING_REBALANCE)
        elif self._join_ends_ms is None:
            self._join_ends_ms = now_ms + self._roster.rebalance_timeout_ms
        self.go_on(now_ms, out)

    def welcome(self, now_ms: int, out: Outcome) -> None:
        """A new member came: have it join the next generation, and wait for more where all are new."""
        if self._gather_until_ms is not None:
            assert self._join_ends_ms is not None
            self._gather_until_ms = min(now_ms + self._initial_delay_ms, self._join_ends_ms)
        self.begin(now_ms, out)

    def go_on(self, now_ms: int, out: Outcome) -> None:
        """Close the joining if there is nobody to wait for."""
        preparing = self.state is ClassicState.PREPARING_REBALANCE
        if preparing and self._gather_until_ms is None and self._roster.all_joined:
            self._close_joining(now_ms, out)

    def tick(self, now_ms: int, out: Outcome) -> None:
        """Stop waiting for those who took too long."""
        if self._sync_ends_ms is not None and self._sync_ends_ms <= now_ms:
            self._sync_ends_ms = None
            # They were told of the generation and never asked for their part of it.
            silent = [member for member in self._roster if member.owes_sync]
            for member in silent:
                self._roster.remove(member)
            if silent:
                self.begin(now_ms, out)
        if any(end is not None and end <= now_ms for end in (self._gather_until_ms, self._join_ends_ms)):
            self._close_joining(now_ms, out)

    def _close_joining(self, now_ms: int, out: Outcome) -> None:
        self._gather_until_ms = self._join_ends_ms = None
        for member in self._roster:
            # A static member keeps its place, and what it owns, until its session ends.
            if not member.has_joined and member.instance_id is None:
                self._roster.remove(member)
        if len(self._roster) and not self._roster.elect():
            return  # nobody to lead: the next who joins, or the end of the last session, ends the wait
        self.generation = self._highest_generation = self._highest_generation + 1
        if not len(self._roster):
            self._enter(ClassicState.EMPTY)
            self.protocol_name = ""
            out.changes.append(self.store())
            return
        self._enter(ClassicState.COMPLETING_REBALANCE)
        self.protocol_name = self._roster.elect_protocol()
        out.changes.append(self._highest())
        self._sync_ends_ms = now_ms + self._roster.rebalance_timeout_ms
        for member in self._roster:
            if member.has_joined:
                member.has_joined, member.owes_sync = False, True
                self._roster.extend(member, now_ms)
            if member.join_reply_to is not None:
                out.replies.append(Reply(member.join_reply_to, self.joined(member)))
                member.join_reply_to = None

    def assign(self, assignments: dict[str, bytes], now_ms: int, out: Outcome) -> None:
        """The leader has spoken: everyone gets its part, and the generation is stable."""
        self._enter(ClassicState.STABLE)
        for member in self._roster:
            member.assignment = assignments.get(member.id, b"")
            if member.sync_reply_to is not None:
                out.replies.append(Reply(member.sync_reply_to, self.synced(member)))
                member.sync_reply_to = None
                self._roster.extend(member, now_ms)
        out.changes.append(self.store())

    def joined(self, member: Member) -> JoinReply:
        """The current generation as `member` is told of it."""
        told: tuple[JoinedMember, ...] = ()
        if member.id == self._roster.leader_id:
            told = tuple(
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
            members=told,
        )

    def synced(self, member: Member) -> SyncReply:
        """What `member` has been assigned."""
        return SyncReply(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def end(self) -> list[Change]:
        """The group is no more."""
        self._enter(ClassicState.DEAD)
        if not self._highest_generation:
            return []  # only ever a name for offsets: nothing of it is stored
        return [Change(key(kind, self._group_id), None) for kind in (GENERATION, CLASSIC)]

    def restore_highest(self, generation: int) -> None:
        """Take in the highest generation ever given out, from the log."""
        self._highest_generation = max(self._highest_generation, generation)

    def restore(self, stored: StoredGroup) -> None:
        """Take in a stable generation from the log; members' sessions do not run yet."""
        for member in self._roster:
            self._roster.remove(member)
        for each in stored.members:
            self._roster.add(Member(**msgspec.structs.asdict(each)))
        if stored.members:
            self._roster.lead(stored.leader)
        self.state = ClassicState.STABLE if stored.members else ClassicState.EMPTY
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type
        self.protocol_name = stored.protocol_name
        self.restore_highest(stored.generation)
        self._stored = stored

    def snapshot(self) -> list[Change]:
        """What of the group is on the log: its last stable generation, even while it rebalances."""
        changes = []
        if self._stored is not None:
            changes.append(Change(key(CLASSIC, self._group_id), msgspec.msgpack.encode(self._stored)))
        if self._highest_generation > (self._stored.generation if self._stored is not None else 0):
            changes.append(self._highest())
        return changes

    def store(self) -> Change:
        """The current generation, to be written."""
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

    def _highest(self) -> Change:
        value = msgspec.msgpack.encode(self._highest_generation)
        return Change(key(GENERATION, self._group_id), value)

    def _enter(self, state: ClassicState) -> None:
        assert state in NEXT_STATES[self.state], f"{self.state} cannot become {state}"
        self.state = state
