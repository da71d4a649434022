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

from alpacamq.coordinator.rebalances import RebalanceCause, RebalanceHistory
from alpacamq.model.deadlines import NamedDeadlines
from alpacamq.model.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from alpacamq.model.state_machine import Change

from . import records
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
from .records import Current, Profile, StoredGroup


class ConsumerRoster:
    """The members of one consumer group, by id."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.profiles: dict[str, Profile] = {}
        self.currents: dict[str, Current] = {}
        self._by_instance: dict[str, str] = {}
        self._owners = PartitionOwners()
        # Not stored: after a change of the coordinator, members send all fields.
        self._unconfirmed: set[str] = set()

    def __len__(self) -> int:
        return len(self.profiles)

    def replay(self, kind: str, member_id: str, value: bytes | None) -> None:
        """Apply a stored record; call `index` after the last one."""
        if kind == records.MEMBER:
            if value is None:
                self.profiles.pop(member_id, None)
            else:
                self.profiles[member_id] = records.profile_decoder.decode(value)
        elif kind == records.CURRENT:
            if value is None:
                self.currents.pop(member_id, None)
            else:
                self.currents[member_id] = records.current_decoder.decode(value)

    def index(self) -> None:
        """Rebuild the indexes by instance id and by partition."""
        self._by_instance = {
            profile.instance_id: member_id
            for member_id, profile in self.profiles.items()
            if profile.instance_id is not None
        }
        self._owners = PartitionOwners()
        for member_id, current in self.currents.items():
            self._owners.replace(member_id, None, current)

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        for member_id, profile in self.profiles.items():
            yield records.profile_change(self._group, member_id, profile)
            yield records.current_change(self._group, member_id, self.currents[member_id])

    def identify(self, member_id: str, instance_id: str | None) -> str:
        """Return the id of a member; raise UnknownMember, or FencedInstanceId if it was replaced."""
        if instance_id is not None:
            if (owner := self._by_instance.get(instance_id)) is None:
                raise UnknownMember(f"no member has the group instance id {instance_id!r}")
            if member_id and owner != member_id:
                raise FencedInstanceId(f"{instance_id!r} is now member {owner!r}, not {member_id!r}")
            return owner
        if member_id not in self.profiles:
            raise UnknownMember(f"{member_id!r} is not a member of the group")
        return member_id

    def predecessor(self, member_id: str, instance_id: str | None) -> str | None:
        """Return the id of the member that a join continues; None if the member is new."""
        if instance_id is not None and (owner := self._by_instance.get(instance_id)) is not None:
            if owner != member_id and not self.is_away(owner):
                raise UnreleasedInstanceId(f"{instance_id!r} is in use by member {owner!r}")
            return owner
        if member_id not in self.profiles:
            return None
        if self.profiles[member_id].instance_id != instance_id:
            raise FencedInstanceId(f"member {member_id!r} has another group instance id than {instance_id!r}")
        return member_id

    def check_epoch(self, member_id: str, request: ConsumerHeartbeatRequest) -> None:
        """Raise FencedMemberEpoch if the epoch of the request is wrong."""
        current = self.currents[member_id]
        if request.member_epoch == current.epoch:
            return
        # The reply with the newer epoch may have been lost. That is harmless if the member owns nothing that
        # was assigned to others since.
        may_own = union(current.assigned, current.revoking)
        if (
            request.member_epoch == current.previous_epoch < current.epoch
            and request.owned is not None
            and not minus(request.owned, may_own)
        ):
            return
        raise FencedMemberEpoch(
            f"member {member_id!r} is at epoch {current.epoch}, not {request.member_epoch}: "
            "it must revoke its partitions and rejoin"
        )

    def is_away(self, member_id: str) -> bool:
        """Return whether this static member has left and may come back."""
        return self.currents[member_id].epoch == STATIC_LEAVE_EPOCH

    def revocation_ends_ms(self, member_id: str, now_ms: int) -> int | None:
        """Return when a revocation that starts now times out; None if there is none."""
        if not self.currents[member_id].revoking:
            return None
        return now_ms + self.profiles[member_id].rebalance_timeout_ms

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
        return any(topic in profile.topics for profile in profiles) or any(
            TopicPattern(regex).matches(topic) for regex in {profile.regex for profile in profiles} if regex
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

    def put(self, member_id: str, profile: Profile) -> Change:
        """Add a member, or update its profile."""
        self.profiles[member_id] = profile
        self.currents.setdefault(member_id, Current())
        if profile.instance_id is not None:
            self._by_instance[profile.instance_id] = member_id
        return records.profile_change(self._group, member_id, profile)

    def put_current(self, member_id: str, current: Current) -> Change:
        """Set the current assignment of a member."""
        before = self.currents[member_id]
        if current.assigned != before.assigned:
            self._unconfirmed.add(member_id)
        self._owners.replace(member_id, before, current)
        self.currents[member_id] = current
        return records.current_change(self._group, member_id, current)

    def remove(self, member_id: str) -> list[Change]:
        """Remove a member and its assignment."""
        self._owners.replace(member_id, self.currents.pop(member_id), None)
        self._unconfirmed.discard(member_id)
        profile = self.profiles.pop(member_id)
        if profile.instance_id is not None:
            del self._by_instance[profile.instance_id]
        return [
            records.removal(self._group, records.CURRENT, member_id),
            records.removal(self._group, records.MEMBER, member_id),
        ]

    def replace(self, member_id: str, successor_id: str) -> list[Change]:
        """Give the profile and assignment of a static member to its new process."""
        profile, current = self.profiles[member_id], self.currents[member_id]
        changes = self.remove(member_id)
        changes.append(self.put(successor_id, profile))
        changes.append(self.put_current(successor_id, Current(assigned=current.assigned)))
        return changes


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


class MemberDeadlines:
    """Deadlines of sessions and revocations."""

    def __init__(self) -> None:
        self._sessions = NamedDeadlines()
        self._revocations = NamedDeadlines()

    @property
    def next_ms(self) -> int | None:
        """Return the earliest deadline."""
        dues = (due for due in (self._sessions.next_ms, self._revocations.next_ms) if due is not None)
        return min(dues, default=None)

    def renew_session(self, member_id: str, until_ms: int) -> None:
        """Restart the session of a member."""
        self._sessions.put(member_id, until_ms)

    def watch_revocation(self, member_id: str, until_ms: int | None) -> None:
        """Set the deadline of a revocation, None if there is none."""
        self._revocations.put(member_id, until_ms)

    def remove(self, member_id: str) -> None:
        """Remove the deadlines of a member."""
        self._sessions.put(member_id, None)
        self._revocations.put(member_id, None)

    def take_due(self, now_ms: int) -> tuple[set[str], set[str]]:
        """Return the members whose session has ended, and those whose revocation has timed out."""
        return {*self._sessions.take_due(now_ms)}, {*self._revocations.take_due(now_ms)}


class ConsumerGroup:
    """One group. Methods return the changes to store; a method that raises has changed nothing."""

    def __init__(
        self, group: str, settings: Callable[[], ConsumerGroupSettings], new_id: Callable[[], str]
    ) -> None:
        """Use the current settings: those of a group can be changed."""
        self.id = group
        self._current_settings = settings
        self._new_id = new_id
        self._roster = ConsumerRoster(group)
        self._target = TargetAssignment(group, settings().default_assignor)
        self._deadlines = MemberDeadlines()
        self._stored: StoredGroup | None = None
        self.epoch = 0
        self.history = RebalanceHistory()

    @property
    def _settings(self) -> ConsumerGroupSettings:
        return self._current_settings()

    @property
    def exists(self) -> bool:
        """Return whether the group is stored."""
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
        """Return when to call `tick`."""
        return self._deadlines.next_ms

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
            return self._leave_static(request, now_ms), self._leave_reply(request)

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
        if after != before:
            changes.append(self._roster.put_current(member_id, after))
            self._deadlines.watch_revocation(member_id, self._roster.revocation_ends_ms(member_id, now_ms))
        self._deadlines.renew_session(member_id, now_ms + self._settings.session_timeout_ms)
        if self.history.is_running and self.state is ConsumerGroupState.STABLE:
            self.history.end(self.epoch, len(self._roster), now_ms)
        changes += self._group_changes()
        return changes, self._reply(member_id, request, before)

    def remove(self, member_id: str, instance_id: str | None, now_ms: int) -> list[Change]:
        """Remove a member; a static one may be given by its instance id alone."""
        member_ids = [self._roster.identify(member_id, instance_id)]
        return self._remove(member_ids, RebalanceCause.MEMBER_LEFT, now_ms)

    def tick(self, now_ms: int) -> list[Change]:
        """Remove members whose session has ended, or whose revocation has timed out."""
        expired, unrevoked = self._deadlines.take_due(now_ms)
        if not (due := sorted(expired | unrevoked)):
            return []
        cause = RebalanceCause.SESSION_EXPIRED if expired else RebalanceCause.REVOCATION_TIMED_OUT
        return self._remove(due, cause, now_ms)

    def validate_commit(self, member_id: str, member_epoch: int) -> None:
        """Raise unless this member may commit. Clients without an epoch may commit to an empty group."""
        if self.is_empty and member_epoch < 0:
            return
        if (current := self._roster.currents.get(member_id)) is None:
            raise UnknownMember(f"{member_id!r} is not a member of the group")
        if member_epoch != current.epoch:
            raise StaleMemberEpoch(f"member {member_id!r} is at epoch {current.epoch}, not {member_epoch}")

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

    def delete(self) -> list[Change]:
        """Delete the group; raise NonEmptyGroup if it has members."""
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.id!r} has {len(self._roster)} members")
        return [records.group_removal(self.id)]

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Apply a stored record; `parts` is its decoded key."""
        match parts[2:]:
            case ():
                self._stored = records.group_decoder.decode(value) if value is not None else None
            case (records.TARGET, str(member_id)):
                self._target.replay(member_id, value)
            case (str(kind), str(member_id)):
                self._roster.replay(kind, member_id, value)

    def loaded(self, now_ms: int) -> list[Change]:
        """Resume after replay: start a full session for every member."""
        if self._stored is not None:
            self.epoch = self._stored.epoch
            self._target.epoch = self._stored.target_epoch
            self._target.topics_digest = self._stored.topics_digest
        self._roster.index()
        for member_id in self._roster.currents:
            self._deadlines.renew_session(member_id, now_ms + self._settings.session_timeout_ms)
            self._deadlines.watch_revocation(member_id, self._roster.revocation_ends_ms(member_id, now_ms))
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
            if predecessor is None and len(self._roster) >= self._settings.max_members:
                raise GroupMaxSizeReached(
                    f"too many members in group {self.id!r}: the limit is {len(self._roster)}"
                )
            member_id = request.member_id or self._new_id()
        else:
            member_id = predecessor = self._roster.identify(request.member_id, request.instance_id)
            self._roster.check_epoch(member_id, request)
        before = self._roster.profiles[predecessor] if predecessor is not None else None
        profile = updated_profile(before, request)

        changes: list[Change] = []
        if predecessor is not None and self._roster.is_away(predecessor):
            changes += self._roster.replace(predecessor, member_id)
            changes += self._target.move(predecessor, member_id)
            self._deadlines.remove(predecessor)
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

    def _begin_epoch(self, cause: RebalanceCause, member_ids: list[str], now_ms: int) -> None:
        self.epoch += 1
        self.history.begin(cause, member_ids, now_ms)
        self.history.set_generation(self.epoch)

    def _update_target(self, topics: TopicsView, now_ms: int) -> list[Change]:
        """Compute a new target assignment if the group or its topics have changed."""
        profiles = self._roster.profiles
        if self.epoch == self._target.epoch and self._target.topics_differ(profiles, topics):
            self._begin_epoch(RebalanceCause.TOPICS_CHANGED, [], now_ms)
        if self.epoch == self._target.epoch:
            return []
        changes = self._target.compute(self.epoch, profiles, topics)
        for member_id, current in self._roster.currents.items():
            # A static member that is away owns nothing: do not keep partitions that are not in its target.
            if self._roster.is_away(member_id):
                kept = common(current.assigned, self._target[member_id])
                if kept != current.assigned:
                    changes.append(self._roster.put_current(member_id, _away(kept)))
        return changes

    def _leave_static(self, request: ConsumerHeartbeatRequest, now_ms: int) -> list[Change]:
        """Mark a static member as away; it keeps its assignment until its session ends."""
        member_id = self._roster.identify(request.member_id, request.instance_id)
        assigned = self._roster.currents[member_id].assigned
        self._deadlines.remove(member_id)
        self._deadlines.renew_session(member_id, now_ms + self._settings.session_timeout_ms)
        return [self._roster.put_current(member_id, _away(assigned))]

    def _remove(self, member_ids: list[str], cause: RebalanceCause, now_ms: int) -> list[Change]:
        changes: list[Change] = []
        for member_id in member_ids:
            changes += self._roster.remove(member_id)
            changes += self._target.drop(member_id)
            self._deadlines.remove(member_id)
        self._begin_epoch(cause, member_ids, now_ms)
        if self.is_empty:
            self.history.end(self.epoch, 0, now_ms)
        return changes + self._group_changes()

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


def _away(kept: Partitions) -> Current:
    return Current(epoch=STATIC_LEAVE_EPOCH, assigned=kept)


def _subscription(profile: Profile) -> tuple[tuple[str, ...], str]:
    return profile.topics, profile.regex
