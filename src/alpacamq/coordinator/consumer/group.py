"""One consumer group of KIP-848: its epoch and the heartbeats of its members.

The epoch grows whenever the members, their subscriptions or the subscribed topics change. The next heartbeat
computes a target assignment for the new epoch. Each member then reaches its target with its own heartbeats
(`reconciliation`). The assignment of a member changes only in its own heartbeats, so every change is in a
reply to it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from alpacamq.coordinator.members import EpochGroup, MemberRoster
from alpacamq.coordinator.rebalances import RebalanceCause
from alpacamq.model.errors import GroupMaxSizeReached, UnsupportedAssignor
from alpacamq.model.names import topic_for_pattern
from alpacamq.model.state_machine import Change

from .assignment import (
    ASSIGNORS,
    MemberState,
    PartitionOwners,
    TargetAssignment,
    TopicPattern,
    common,
    minus,
    reconcile,
    state_of,
    union,
)
from .messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_TIMEOUT,
    ConsumerGroupDescription,
    ConsumerGroupSettings,
    ConsumerGroupState,
    ConsumerHeartbeatReply,
    ConsumerHeartbeatRequest,
    ConsumerMemberDescription,
    Partitions,
    TopicsView,
)
from .records import Current, Profile, StoredGroup, decode_group, records


class ConsumerRoster(MemberRoster[Profile, Current, PartitionOwners]):
    """The members of one consumer group, by id."""

    def __init__(self, group: str) -> None:
        super().__init__(group, records, PartitionOwners)
        # Not stored: after a change of the coordinator, members send all fields.
        self._unconfirmed: set[str] = set()

    def common(self, one: Partitions, other: Partitions) -> Partitions:
        """Return the partitions in both."""
        return common(one, other)

    def _may_own(self, current: Current, owned: Partitions) -> bool:
        return not minus(owned, union(current.assigned, current.revoking))

    def available_to(self, member_id: str, wanted: Partitions) -> Partitions:
        """Return the wanted partitions that no other member owns."""
        return self._owners.available_to(member_id, wanted)

    def has_confirmed(self, member_id: str, owned: Partitions | None) -> bool:
        """Return whether a member that reports `owned` (None: unchanged) has confirmed its assignment."""
        if owned is not None:
            assigned = self.currents[member_id].assigned
            if minus(owned, assigned) or minus(assigned, owned):
                self._unconfirmed.add(member_id)
            else:
                self._unconfirmed.discard(member_id)
        return member_id not in self._unconfirmed

    def subscribes(self, topic: str) -> bool:
        """Return whether any member subscribes to this topic."""
        profiles = self.profiles.values()
        if any(topic in profile.topics for profile in profiles):
            return True
        named = topic_for_pattern(self._group, topic)
        return named is not None and any(
            TopicPattern(regex).matches(named) for regex in {profile.regex for profile in profiles} if regex
        )

    def describe(self, member_id: str, target: Partitions) -> ConsumerMemberDescription:
        """Describe a member with this target assignment."""
        profile, current = self.profiles[member_id], self.currents[member_id]
        return ConsumerMemberDescription(
            member_id=member_id,
            instance_id=profile.instance_id,
            rack_id=profile.rack_id,
            member_epoch=current.epoch,
            client_id=profile.client_id,
            client_host=profile.client_host,
            subscribed_topics=profile.topics,
            subscribed_regex=profile.regex,
            assignment=current.assigned,
            target_assignment=target,
        )

    def put_current(self, member_id: str, current: Current) -> Change:
        """Set the current assignment of a member."""
        if current.assigned != self.currents[member_id].assigned:
            self._unconfirmed.add(member_id)
        return super().put_current(member_id, current)

    def remove(self, member_id: str) -> list[Change]:
        """Remove a member and its assignment."""
        self._unconfirmed.discard(member_id)
        return super().remove(member_id)


def updated_profile(before: Profile | None, request: ConsumerHeartbeatRequest) -> Profile:
    """Return the profile of a member with the changes of a request."""
    if before is None or request.member_epoch == JOIN_EPOCH:
        before = Profile(instance_id=request.instance_id, rebalance_timeout_ms=request.rebalance_timeout_ms)
    changes: dict[str, Any] = {"client_id": request.client_id, "client_host": request.client_host}
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != UNCHANGED_TIMEOUT:
        changes["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.subscribed_topics is not None:
        changes["topics"] = tuple(sorted(set(request.subscribed_topics)))
    if request.subscribed_regex is not None:
        if request.subscribed_regex not in ("", before.regex):
            TopicPattern(request.subscribed_regex)  # or InvalidRegularExpression
        changes["regex"] = request.subscribed_regex
    if request.assignor is not None:
        changes["assignor"] = request.assignor
    return msgspec.structs.replace(before, **changes)


class ConsumerGroup(EpochGroup[ConsumerRoster, TargetAssignment]):
    """One group."""

    def __init__(
        self,
        group: str,
        settings: Callable[[], ConsumerGroupSettings],
        max_members: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        """Use the current settings: those of a group can be changed."""
        super().__init__(group, ConsumerRoster(group), TargetAssignment(group, settings().default_assignor))
        self._current_settings = settings
        self._max_members = max_members
        self._new_id = new_id
        self._stored: StoredGroup | None = None

    @property
    def _settings(self) -> ConsumerGroupSettings:
        return self._current_settings()

    @property
    def exists(self) -> bool:
        """Return whether the group is stored."""
        return self._stored is not None

    @property
    def _session_timeout_ms(self) -> int:
        return self._settings.session_timeout_ms

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

    def heartbeat(
        self, request: ConsumerHeartbeatRequest, now_ms: int, topics: TopicsView
    ) -> tuple[list[Change], ConsumerHeartbeatReply]:
        """Handle a heartbeat: join, renew, confirm or leave."""
        request.check()
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            raise UnsupportedAssignor(
                f"unknown assignor {request.assignor!r}: must be one of {', '.join(sorted(ASSIGNORS))}"
            )
        if request.member_epoch == LEAVE_EPOCH:
            changes = self.remove(request.member_id, request.instance_id, now_ms)
            return changes, self._leave_reply(request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            changes = self._leave_static(request.member_id, request.instance_id, now_ms)
            return changes, self._leave_reply(request)

        member_id, changes = self._update_member(request, now_ms)
        changes += self._update_target(topics, now_ms)
        before = self._roster.currents[member_id]
        after = reconcile(
            before,
            self._target[member_id],
            self._target.epoch,
            request.owned,
            partial(self._roster.available_to, member_id),
        )
        changes += self._reconciled(member_id, after, now_ms)
        if self.history.is_running and self.state is ConsumerGroupState.STABLE:
            self.history.end(self.epoch, len(self._roster), now_ms)
        changes += self._group_changes()
        return changes, self._reply(member_id, request, before)

    def subscribes(self, topic: str) -> bool:
        """Return whether any member subscribes to this topic."""
        return self._roster.subscribes(topic)

    def describe(self) -> ConsumerGroupDescription:
        """Describe the group and its members."""
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

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Apply a stored record; `parts` is its decoded key."""
        match parts[2:]:
            case ():
                self._stored = decode_group(value) if value is not None else None
            case (str(kind), str(member_id)):
                self._replay_member(kind, member_id, value)

    def loaded(self, now_ms: int) -> list[Change]:
        """Resume after replay: start a full session for every member."""
        if self._stored is not None:
            self.epoch = self._stored.epoch
            self._target.epoch = self._stored.target_epoch
            self._target.topics_digest = self._stored.topics_digest
        self._resume(now_ms)
        return []

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        if self._stored is not None:
            yield records.group_change(self.id, self._stored)
            yield from self._roster.snapshot()
            yield from self._target.snapshot()

    def _update_member(self, request: ConsumerHeartbeatRequest, now_ms: int) -> tuple[str, list[Change]]:
        """Find or add the member of a request, and update its profile."""
        if request.member_epoch == JOIN_EPOCH:
            predecessor = self._roster.predecessor(request.member_id, request.instance_id)
            if predecessor is None and len(self._roster) >= self._max_members():
                raise GroupMaxSizeReached(
                    f"too many members in group {self.id!r}: the limit is {self._max_members()}"
                )
            member_id = request.member_id or self._new_id()
        else:
            member_id = predecessor = self._roster.identify(request.member_id, request.instance_id)
            self._roster.check_epoch(member_id, request.member_epoch, request.owned)
        before = self._roster.profiles[predecessor] if predecessor is not None else None
        profile = updated_profile(before, request)

        changes = self._return_static(predecessor, member_id)
        if profile != before:
            assignor = self._assignor
            changes.append(self._roster.put(member_id, profile))
            if (
                before is None
                or _subscription(profile) != _subscription(before)
                or self._assignor != assignor
            ):
                is_new = before is None
                cause = RebalanceCause.MEMBER_JOINED if is_new else RebalanceCause.SUBSCRIPTION_CHANGED
                self._begin_epoch(cause, [member_id], now_ms)
        return member_id, changes

    def _update_target(self, topics: TopicsView, now_ms: int) -> list[Change]:
        """Compute a new target assignment if the group or its topics have changed."""
        profiles = self._roster.profiles
        if self.epoch == self._target.epoch and self._target.topics_differ(profiles, topics):
            self._begin_epoch(RebalanceCause.TOPICS_CHANGED, [], now_ms)
        if self.epoch == self._target.epoch:
            return []
        return self._target.compute(self.epoch, profiles, topics) + self._trim_away()

    def _removal(self) -> list[Change]:
        return [records.group_removal(self.id)]

    def _group_changes(self) -> list[Change]:
        """Return the record of the group if it has changed."""
        stored = StoredGroup(
            epoch=self.epoch, target_epoch=self._target.epoch, topics_digest=self._target.topics_digest
        )
        if stored == self._stored:
            return []
        self._stored = stored
        return [records.group_change(self.id, stored)]

    def _leave_reply(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatReply:
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
        # Repeat the assignment until it is confirmed: the reply may have been lost, or the request cancelled.
        has_confirmed = self._roster.has_confirmed(member_id, request.owned)
        sends_assignment = (
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
                else min(settings.reconciling_interval_ms, settings.heartbeat_interval_ms)
            ),
            assignment=current.assigned if sends_assignment else None,
        )


def _subscription(profile: Profile) -> tuple[tuple[str, ...], str]:
    return profile.topics, profile.regex
