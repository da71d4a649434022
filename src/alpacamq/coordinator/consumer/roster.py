"""The members of a consumer group: profiles, current assignments, and rules for member and instance ids."""

from collections.abc import Iterator
from typing import Any

import msgspec

from alpacamq.model.errors import FencedInstanceId, FencedMemberEpoch, UnknownMember, UnreleasedInstanceId
from alpacamq.model.state_machine import Change

from . import records
from .messages import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_TIMEOUT,
    ConsumerHeartbeatRequest,
    ConsumerMemberDescription,
    Partitions,
)
from .reconciliation import PartitionOwners, minus, union
from .records import Current, Profile
from .topic_pattern import TopicPattern


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
