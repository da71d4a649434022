"""Groups with member epochs: their members, stored records and deadlines.

Used by consumer groups (KIP-848) and streams groups (KIP-1071). A member has a profile, which it sends, and a
current assignment, which the group moves towards a target with the heartbeats of the member.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from alpacamq.model.deadlines import NamedDeadlines
from alpacamq.model.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstanceId,
)
from alpacamq.model.state_machine import Change

from .consumer.messages import STATIC_LEAVE_EPOCH
from .rebalances import RebalanceCause, RebalanceHistory
from .records import key

MEMBER = "member"
TARGET = "target"
CURRENT = "current"


class MemberProfile(Protocol):
    """The part of a profile that is the same in all kinds of groups."""

    @property
    def instance_id(self) -> str | None: ...
    @property
    def rebalance_timeout_ms(self) -> int: ...


class MemberCurrent(Protocol):
    """The part of a current assignment that is the same in all kinds of groups."""

    @property
    def epoch(self) -> int: ...
    @property
    def previous_epoch(self) -> int: ...
    @property
    def assigned(self) -> Any: ...
    @property
    def revoking(self) -> Any: ...


class Owners(Protocol):
    """The owners of what is assigned to members."""

    def replace(self, member_id: str, before: Any, after: Any) -> None:
        """Replace the current assignment of a member; None is no assignment."""
        ...


P = TypeVar("P", bound=MemberProfile)
C = TypeVar("C", bound=MemberCurrent)
A = TypeVar("A")  # partitions or tasks
W = TypeVar("W", bound=Owners)


class MemberRecords(Generic[P, C, A]):
    """The stored records of members. Each has three, because they change at different times.

    Values are msgpack arrays; topic ids are 16 bytes rather than 36 characters.
    """

    def __init__(
        self,
        group_kind: str,
        profile: type[P],
        current: type[C],
        *,
        stored_target: Callable[[A], object],
        decode_target: Callable[[bytes], A],
    ) -> None:
        self._group_kind = group_kind
        self._encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
        self._stored_target = stored_target
        self.decode_target = decode_target
        self.decode_profile = msgspec.msgpack.Decoder(profile).decode
        self.decode_current = msgspec.msgpack.Decoder(current).decode
        self.new_current: Callable[..., C] = current

    def group_change(self, group: str, value: object, *part: str) -> Change:
        """Return the record of a group, or of a part of it that no member owns."""
        return Change(key(self._group_kind, group, *part), self._encoder.encode(value))

    def group_removal(self, group: str, *part: str) -> Change:
        """Return the tombstone of the record of a group, or of a part of it."""
        return Change(key(self._group_kind, group, *part), None)

    def profile_change(self, group: str, member_id: str, profile: P) -> Change:
        """Return the record of a member's profile."""
        return self.group_change(group, profile, MEMBER, member_id)

    def current_change(self, group: str, member_id: str, current: C) -> Change:
        """Return the record of a member's current assignment."""
        return self.group_change(group, current, CURRENT, member_id)

    def target_change(self, group: str, member_id: str, target: A) -> Change:
        """Return the record of a member's target assignment."""
        return self.group_change(group, self._stored_target(target), TARGET, member_id)


class MemberRoster(ABC, Generic[P, C, W]):
    """The members of one group, by id."""

    def __init__(self, group: str, records: MemberRecords[P, C, Any], new_owners: Callable[[], W]) -> None:
        self._group = group
        self._records = records
        self._new_owners = new_owners
        self._owners = new_owners()
        self.profiles: dict[str, P] = {}
        self.currents: dict[str, C] = {}
        self._by_instance: dict[str, str] = {}

    @abstractmethod
    def common(self, one: Any, other: Any) -> Any:
        """Return what is in both assignments."""

    @abstractmethod
    def _may_own(self, current: C, owned: Any) -> bool:
        """Return whether everything in `owned` is assigned to the member or being revoked."""

    def __len__(self) -> int:
        return len(self.profiles)

    def replay(self, kind: str, member_id: str, value: bytes | None) -> None:
        """Apply a stored record; call `index` after the last one."""
        if kind == MEMBER:
            if value is None:
                self.profiles.pop(member_id, None)
            else:
                self.profiles[member_id] = self._records.decode_profile(value)
        elif kind == CURRENT:
            if value is None:
                self.currents.pop(member_id, None)
            else:
                self.currents[member_id] = self._records.decode_current(value)

    def index(self) -> None:
        """Rebuild the indexes by instance id and by owner."""
        self._by_instance = {
            profile.instance_id: member_id
            for member_id, profile in self.profiles.items()
            if profile.instance_id is not None
        }
        self._owners = self._new_owners()
        for member_id, current in self.currents.items():
            self._owners.replace(member_id, None, current)

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        for member_id, profile in self.profiles.items():
            yield self._records.profile_change(self._group, member_id, profile)
            yield self._records.current_change(self._group, member_id, self.currents[member_id])

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

    def check_epoch(self, member_id: str, epoch: int, owned: Any) -> None:
        """Raise FencedMemberEpoch if the epoch of a heartbeat is wrong; `owned` is None if unchanged."""
        current = self.currents[member_id]
        if epoch == current.epoch:
            return
        # The reply with the newer epoch may have been lost. That is harmless if the member owns nothing that
        # was assigned to others since.
        is_previous = epoch == current.previous_epoch < current.epoch
        if is_previous and owned is not None and self._may_own(current, owned):
            return
        raise FencedMemberEpoch(
            f"member {member_id!r} is at epoch {current.epoch}, not {epoch}: "
            "it must give up its assignment and rejoin"
        )

    def is_away(self, member_id: str) -> bool:
        """Return whether this static member has left and may come back."""
        return self.currents[member_id].epoch == STATIC_LEAVE_EPOCH

    def revocation_ends_ms(self, member_id: str, now_ms: int) -> int | None:
        """Return when a revocation that starts now times out; None if there is none."""
        if not self.currents[member_id].revoking:
            return None
        return now_ms + self.profiles[member_id].rebalance_timeout_ms

    def put(self, member_id: str, profile: P) -> Change:
        """Add a member, or update its profile."""
        self.profiles[member_id] = profile
        self.currents.setdefault(member_id, self._records.new_current())
        if profile.instance_id is not None:
            self._by_instance[profile.instance_id] = member_id
        return self._records.profile_change(self._group, member_id, profile)

    def put_current(self, member_id: str, current: C) -> Change:
        """Set the current assignment of a member."""
        self._owners.replace(member_id, self.currents[member_id], current)
        self.currents[member_id] = current
        return self._records.current_change(self._group, member_id, current)

    def put_away(self, member_id: str, kept: Any) -> Change:
        """Mark a static member as away; it keeps this assignment."""
        return self.put_current(member_id, self._records.new_current(epoch=STATIC_LEAVE_EPOCH, assigned=kept))

    def remove(self, member_id: str) -> list[Change]:
        """Remove a member and its assignment."""
        self._owners.replace(member_id, self.currents.pop(member_id), None)
        profile = self.profiles.pop(member_id)
        if profile.instance_id is not None:
            del self._by_instance[profile.instance_id]
        return [self._records.group_removal(self._group, kind, member_id) for kind in (CURRENT, MEMBER)]

    def replace(self, member_id: str, successor_id: str) -> list[Change]:
        """Give the profile and assignment of a static member to its new process."""
        profile, current = self.profiles[member_id], self.currents[member_id]
        changes = self.remove(member_id)
        changes.append(self.put(successor_id, profile))
        changes.append(self.put_current(successor_id, self._records.new_current(assigned=current.assigned)))
        return changes


class MemberTargets(Generic[A]):
    """The target assignment of each member, and its epoch."""

    def __init__(self, group: str, records: MemberRecords[Any, Any, A], nothing: A) -> None:
        self._group = group
        self._records = records
        self._nothing = nothing
        self._by_member: dict[str, A] = {}
        self.epoch = 0

    def __getitem__(self, member_id: str) -> A:
        return self._by_member.get(member_id, self._nothing)

    def replay(self, member_id: str, value: bytes | None) -> None:
        """Apply a stored record."""
        if value is None:
            self._by_member.pop(member_id, None)
        else:
            self._by_member[member_id] = self._records.decode_target(value)

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        for member_id, target in self._by_member.items():
            yield self._records.target_change(self._group, member_id, target)

    def put(self, member_id: str, target: A) -> list[Change]:
        """Set the target of a member."""
        if self._by_member.get(member_id) == target:
            return []
        self._by_member[member_id] = target
        return [self._records.target_change(self._group, member_id, target)]

    def drop(self, member_id: str) -> list[Change]:
        """Remove the target of a member."""
        if self._by_member.pop(member_id, None) is None:
            return []
        return [self._records.group_removal(self._group, TARGET, member_id)]

    def move(self, member_id: str, successor_id: str) -> list[Change]:
        """Give the target of a static member to its new process."""
        target = self[member_id]
        return self.drop(member_id) + self.put(successor_id, target)


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


R = TypeVar("R", bound=MemberRoster[Any, Any, Any])
T = TypeVar("T", bound=MemberTargets[Any])


class EpochGroup(ABC, Generic[R, T]):
    """A group whose epoch grows with every change that needs a new target assignment.

    Methods return the changes to store; a method that raises has changed nothing.
    """

    def __init__(self, group: str, roster: R, target: T) -> None:
        self.id = group
        self.epoch = 0
        self.history = RebalanceHistory()
        self._roster = roster
        self._target = target
        self._deadlines = MemberDeadlines()

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Return whether the group is stored."""

    @abstractmethod
    def _removal(self) -> list[Change]:
        """Return the tombstones of a group without members."""

    @abstractmethod
    def _group_changes(self) -> list[Change]:
        """Return the record of the group if it has changed."""

    @property
    @abstractmethod
    def _session_timeout_ms(self) -> int: ...

    @property
    def is_empty(self) -> bool:
        return not self._roster

    @property
    def member_count(self) -> int:
        return len(self._roster)

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`."""
        return self._deadlines.next_ms

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

    def delete(self) -> list[Change]:
        """Delete the group; raise NonEmptyGroup if it has members."""
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.id!r} has {len(self._roster)} members")
        return self._removal()

    def _replay_member(self, kind: str, member_id: str, value: bytes | None) -> None:
        """Apply a stored record of a member."""
        if kind == TARGET:
            self._target.replay(member_id, value)
        else:
            self._roster.replay(kind, member_id, value)

    def _begin_epoch(self, cause: RebalanceCause, member_ids: list[str], now_ms: int) -> None:
        self.epoch += 1
        self.history.begin(cause, member_ids, now_ms)
        self.history.set_generation(self.epoch)

    def _remove(self, member_ids: list[str], cause: RebalanceCause, now_ms: int) -> list[Change]:
        """Remove members and begin a new epoch."""
        changes: list[Change] = []
        for member_id in member_ids:
            changes += self._roster.remove(member_id)
            changes += self._target.drop(member_id)
            self._deadlines.remove(member_id)
        self._begin_epoch(cause, member_ids, now_ms)
        if self.is_empty:
            self.history.end(self.epoch, 0, now_ms)
        return changes + self._group_changes()

    def _leave_static(self, member_id: str, instance_id: str | None, now_ms: int) -> list[Change]:
        """Mark a static member as away; it keeps its assignment until its session ends."""
        member_id = self._roster.identify(member_id, instance_id)
        self._deadlines.remove(member_id)
        self._renew(member_id, now_ms)
        return [self._roster.put_away(member_id, self._roster.currents[member_id].assigned)]

    def _return_static(self, predecessor: str | None, member_id: str) -> list[Change]:
        """Give the place of a static member that is away to its new process."""
        if predecessor is None or not self._roster.is_away(predecessor):
            return []
        self._deadlines.remove(predecessor)
        return self._roster.replace(predecessor, member_id) + self._target.move(predecessor, member_id)

    def _trim_away(self) -> list[Change]:
        """Take from static members that are away what is not in their target: they own nothing."""
        changes = []
        for member_id, current in self._roster.currents.items():
            if self._roster.is_away(member_id):
                kept = self._roster.common(current.assigned, self._target[member_id])
                if kept != current.assigned:
                    changes.append(self._roster.put_away(member_id, kept))
        return changes

    def _reconciled(self, member_id: str, current: MemberCurrent, now_ms: int) -> list[Change]:
        """Set the current assignment of a member after its heartbeat, and renew its session."""
        changes = []
        if current != self._roster.currents[member_id]:
            changes.append(self._roster.put_current(member_id, current))
            self._watch_revocation(member_id, now_ms)
        self._renew(member_id, now_ms)
        return changes

    def _renew(self, member_id: str, now_ms: int) -> None:
        self._deadlines.renew_session(member_id, now_ms + self._session_timeout_ms)

    def _watch_revocation(self, member_id: str, now_ms: int) -> None:
        self._deadlines.watch_revocation(member_id, self._roster.revocation_ends_ms(member_id, now_ms))

    def _resume(self, now_ms: int) -> None:
        """Resume after replay: start a full session for every member."""
        self._roster.index()
        for member_id in self._roster.currents:
            self._renew(member_id, now_ms)
            self._watch_revocation(member_id, now_ms)
