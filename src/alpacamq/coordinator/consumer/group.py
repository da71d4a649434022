"""One consumer group of KIP-848: its epoch, and what each heartbeat does to its members.

The epoch grows whenever the members, their subscriptions or the subscribed topics change. The next
heartbeat makes a target for the new epoch; then each member walks towards its part of it with its own
heartbeats (`reconciliation`). What a member has changes in its own heartbeats alone, so it is told of every
change.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from alpacamq.coordinator.deadlines import Deadlines
from alpacamq.model.errors import (
    GroupMaxSizeReached,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMember,
    UnsupportedAssignor,
)
from alpacamq.model.state_machine import Change

from . import records
from .assignment import ASSIGNORS, TargetAssignment
from .messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupDescription,
    ConsumerGroupSettings,
    ConsumerGroupState,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    Partitions,
    TopicsView,
)
from .reconciliation import MemberState, common, reconcile, state_of
from .records import Current, Profile, StoredGroup
from .roster import ConsumerRoster, described


class MemberDeadlines:
    """The end of each member's session, and of its time to confirm a revocation."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._sessions = Deadlines()
        self._revocations = Deadlines()

    @property
    def next_ms(self) -> int | None:
        """The earliest of all."""
        dues = (due for due in (self._sessions.next_ms, self._revocations.next_ms) if due is not None)
        return min(dues, default=None)

    def heard(self, member_id: str, now_ms: int) -> None:
        """Begin a member's session anew."""
        self._sessions.put(member_id, now_ms + self._session_timeout_ms)

    def watch(self, member_id: str, profile: Profile, current: Current, now_ms: int) -> None:
        """Begin a member's time for giving up what it has newly been told to, if anything."""
        self._revocations.put(member_id, now_ms + profile.rebalance_timeout_ms if current.revoking else None)

    def drop(self, member_id: str) -> None:
        """Wait no longer."""
        self._sessions.put(member_id, None)
        self._revocations.put(member_id, None)

    def take_due(self, now_ms: int) -> set[str]:
        """The members that have been waited for too long."""
        return {*self._sessions.take_due(now_ms), *self._revocations.take_due(now_ms)}


class ConsumerGroup:
    """One group. Returned changes are to be stored; what raises has changed nothing."""

    def __init__(self, group: str, settings: ConsumerGroupSettings, new_id: Callable[[], str]) -> None:
        self.id = group
        self._settings = settings
        self._new_id = new_id
        self._roster = ConsumerRoster(group)
        self._target = TargetAssignment(group, settings.default_assignor)
        self._deadlines = MemberDeadlines(settings.session_timeout_ms)
        self._stored: StoredGroup | None = None
        self.epoch = 0

    @property
    def exists(self) -> bool:
        """Whether anything of the group is stored."""
        return self._stored is not None

    @property
    def is_empty(self) -> bool:
        return not self._roster

    @property
    def member_count(self) -> int:
        return len(self._roster)

    @property
    def state(self) -> ConsumerGroupState:
        if self.is_empty:
            return ConsumerGroupState.EMPTY
        if self.epoch > self._target.epoch:
            return ConsumerGroupState.ASSIGNING
        for member_id, current in self._roster.currents.items():
            if current.epoch != self.epoch or self._state_of(member_id) is not MemberState.STABLE:
                return ConsumerGroupState.RECONCILING
        return ConsumerGroupState.STABLE

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `tick`."""
        return self._deadlines.next_ms

    def heartbeat(
        self, request: ConsumerHeartbeatRequest, now_ms: int, topics: TopicsView
    ) -> tuple[list[Change], ConsumerHeartbeatReply]:
        """Let a member join, stay, confirm or leave, and tell it where it stands."""
        request.check()
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            raise UnsupportedAssignor(
                f"no assignor is named {request.assignor!r}, only {', '.join(sorted(ASSIGNORS))}"
            )
        if request.member_epoch == LEAVE_EPOCH:
            changes = self.remove(request.member_id, request.instance_id)
            return changes, self._farewell(request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            return self._step_away(request, now_ms), self._farewell(request)

        member_id, changes = self._take_in(request)
        changes += self._update_target(topics)
        before = self._roster.currents[member_id]
        after = reconcile(
            before,
            self._target[member_id],
            self._target.epoch,
            request.owned,
            partial(self._roster.open_to, member_id),
        )
        if after != before:
            changes.append(self._roster.put_current(member_id, after))
            self._deadlines.watch(member_id, self._roster.profiles[member_id], after, now_ms)
        self._deadlines.heard(member_id, now_ms)
        changes += self._group_changes()
        return changes, self._reply(member_id, request, before)

    def remove(self, member_id: str, instance_id: str | None) -> list[Change]:
        """Take a member out of the group for good; of a static one, the instance id is enough."""
        return self._remove([self._roster.known(member_id, instance_id)])

    def tick(self, now_ms: int) -> list[Change]:
        """Remove who has not been heard of, or has not given up what it was told to, for too long."""
        due = self._deadlines.take_due(now_ms)
        return self._remove(sorted(due)) if due else []

    def validate_commit(self, member_id: str, member_epoch: int) -> None:
        """Raise unless this member may commit; while the group is empty, so may anyone without epoch."""
        if self.is_empty and member_epoch < 0:
            return
        if (current := self._roster.currents.get(member_id)) is None:
            raise UnknownMember(f"{member_id!r} is not a member of the group")
        if member_epoch != current.epoch:
            raise StaleMemberEpoch(f"member {member_id!r} is at epoch {current.epoch}, not {member_epoch}")

    def subscribes(self, topic: str) -> bool:
        """Whether any member reads this topic."""
        return self._roster.subscribes(topic)

    def describe(self) -> ConsumerGroupDescription:
        """The group and its members as they are now."""
        return ConsumerGroupDescription(
            group=self.id,
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self._target.epoch,
            assignor=self._assignor,
            members=tuple(
                self._roster.describe(member_id, self._target[member_id])
                for member_id in self._roster.profiles
            ),
        )

    def delete(self) -> list[Change]:
        """End a group that has no members."""
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.id!r} has {len(self._roster)} members")
        return [records.group_removal(self.id)]

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Take in a stored record, under the parts of its key."""
        match parts[2:]:
            case ():
                self._stored = records.group_decoder.decode(value) if value is not None else None
            case (records.TARGET, str(member_id)):
                self._target.replay(member_id, value)
            case (str(kind), str(member_id)):
                self._roster.replay(kind, member_id, value)

    def loaded(self, now_ms: int) -> list[Change]:
        """Go on after the last `replay`: everyone has a full session to be heard of again."""
        if self._stored is not None:
            self.epoch = self._stored.epoch
            self._target.epoch = self._stored.target_epoch
            self._target.topics_digest = self._stored.topics_digest
        self._roster.index()
        for member_id, current in self._roster.currents.items():
            self._deadlines.heard(member_id, now_ms)
            self._deadlines.watch(member_id, self._roster.profiles[member_id], current, now_ms)
        return []

    def snapshot(self) -> Iterator[Change]:
        """The changes from which the group can be rebuilt."""
        if self._stored is not None:
            yield records.group_change(self.id, self._stored)
            yield from self._roster.snapshot()
            yield from self._target.snapshot()

    def _take_in(self, request: ConsumerHeartbeatRequest) -> tuple[str, list[Change]]:
        """Find or add the member that speaks, and note what it newly says of itself."""
        if request.member_epoch == JOIN_EPOCH:
            predecessor = self._roster.predecessor(request.member_id, request.instance_id)
            if predecessor is None and len(self._roster) >= self._settings.max_members:
                raise GroupMaxSizeReached(f"group {self.id!r} has {len(self._roster)} members, its maximum")
            member_id = request.member_id or self._new_id()
        else:
            member_id = predecessor = self._roster.known(request.member_id, request.instance_id)
            self._roster.check_epoch(member_id, request)
        before = self._roster.profiles[predecessor] if predecessor is not None else None
        profile = described(before, request)

        changes: list[Change] = []
        if predecessor is not None and self._roster.is_away(predecessor):
            changes += self._roster.replace(predecessor, member_id)
            changes += self._target.move(predecessor, member_id)
            self._deadlines.drop(predecessor)
        if profile != before:
            assignor = self._assignor
            changes.append(self._roster.put(member_id, profile))
            if (
                before is None
                or _subscription(profile) != _subscription(before)
                or self._assignor != assignor
            ):
                self.epoch += 1
        return member_id, changes

    def _update_target(self, topics: TopicsView) -> list[Change]:
        """Make a new target if the group, or its topics, are not what the target was made for."""
        profiles = self._roster.profiles
        if self.epoch == self._target.epoch and self._target.topics_differ(profiles, topics):
            self.epoch += 1
        if self.epoch == self._target.epoch:
            return []
        changes = self._target.make(self.epoch, profiles, topics)
        for member_id, current in self._roster.currents.items():
            # One that is away holds nothing: what is no longer meant for it need not be kept for it.
            if self._roster.is_away(member_id):
                kept = common(current.assigned, self._target[member_id])
                if kept != current.assigned:
                    changes.append(self._roster.put_current(member_id, _away(kept)))
        return changes

    def _step_away(self, request: ConsumerHeartbeatRequest, now_ms: int) -> list[Change]:
        """Keep a static member's place until it comes back or its session ends."""
        member_id = self._roster.known(request.member_id, request.instance_id)
        assigned = self._roster.currents[member_id].assigned
        self._deadlines.drop(member_id)
        self._deadlines.heard(member_id, now_ms)
        return [self._roster.put_current(member_id, _away(assigned))]

    def _remove(self, member_ids: list[str]) -> list[Change]:
        changes: list[Change] = []
        for member_id in member_ids:
            changes += self._roster.remove(member_id)
            changes += self._target.drop(member_id)
            self._deadlines.drop(member_id)
        self.epoch += 1
        return changes + self._group_changes()

    def _group_changes(self) -> list[Change]:
        """The record of the group itself, if it says anything new."""
        stored = StoredGroup(
            epoch=self.epoch, target_epoch=self._target.epoch, topics_digest=self._target.topics_digest
        )
        if stored == self._stored:
            return []
        self._stored = stored
        return [records.group_change(self.id, stored)]

    def _farewell(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatReply:
        return ConsumerHeartbeatReply(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
        )

    @property
    def _assignor(self) -> str:
        return self._target.assignor(self._roster.profiles.values())

    def _state_of(self, member_id: str) -> MemberState:
        return state_of(self._roster.currents[member_id], self._target[member_id])

    def _reply(
        self, member_id: str, request: ConsumerHeartbeatRequest, before: Current
    ) -> ConsumerHeartbeatReply:
        current = self._roster.currents[member_id]
        state = self._state_of(member_id)
        # Told again until confirmed: an answer may have been lost, or gone to a heartbeat that was given up.
        has_confirmed = self._roster.has_confirmed(member_id, request.owned)
        is_told = (
            request.is_full
            or not has_confirmed
            or request.member_epoch != current.epoch
            or before.assigned != current.assigned
            or state is MemberState.UNREVOKED
        )
        settings = self._settings
        return ConsumerHeartbeatReply(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=(
                settings.interval_ms(len(self._roster))
                if state is MemberState.STABLE
                else settings.reconciling_interval_ms
            ),
            assignment=current.assigned if is_told else None,
        )


def _away(kept: Partitions) -> Current:
    return Current(epoch=STATIC_LEAVE_EPOCH, assigned=kept)


def _subscription(profile: Profile) -> tuple[tuple[str, ...], str]:
    return profile.topics, profile.regex
