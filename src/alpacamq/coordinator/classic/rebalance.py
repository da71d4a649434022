"""Rebalances of a classic group.

First all members join, within the longest of their rebalance timeouts; a group that was empty waits for a
short delay for members that start at the same time. Then the leader gets the list of members and sends the
assignments, while the other members wait. The generation is then stable, and is stored.
"""

from enum import StrEnum

import msgspec

from alpacamq.coordinator.messages import JoinedMember, JoinReply, SyncReply
from alpacamq.coordinator.records import CLASSIC, GENERATION, StoredGroup, StoredMember, key
from alpacamq.model.errors import RebalanceInProgress
from alpacamq.model.state_machine import Change, Outcome, Reply

from .roster import Member, Roster


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

    @property
    def next_deadline_ms(self) -> int | None:
        ends = (self._initial_delay_ends_ms, self._join_ends_ms, self._sync_ends_ms)
        return min((end for end in ends if end is not None), default=None)

    def begin(self, now_ms: int, out: Outcome) -> None:
        """Start a rebalance, or continue the current one."""
        if self.state is not ClassicState.PREPARING_REBALANCE:
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

    def member_joined(self, now_ms: int, out: Outcome) -> None:
        """Start or continue a rebalance for a new member; restart the initial delay."""
        if self._initial_delay_ends_ms is not None:
            assert self._join_ends_ms is not None
            self._initial_delay_ends_ms = min(now_ms + self._initial_delay_ms, self._join_ends_ms)
        self.begin(now_ms, out)

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
                self.begin(now_ms, out)
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
            return
        self._enter(ClassicState.COMPLETING_REBALANCE)
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
