"""One share group of KIP-932: its members and their assignments.

The epoch grows whenever the members, their subscriptions or the subscribed topics change; assignments are
then computed again. Partitions are shared, so no member waits for another: a member reaches the epoch of the
group with its next heartbeat, and an old epoch only means that the assignment must be sent again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from alpacamq.coordinator.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Partitions,
    TopicSummary,
    TopicsView,
)
from alpacamq.model.deadlines import NamedDeadlines
from alpacamq.model.errors import FencedMemberEpoch, GroupMaxSizeReached, NonEmptyGroup, UnknownMember
from alpacamq.model.ids import TopicId
from alpacamq.model.state_machine import Change
from alpacamq.model.topics import INTERNAL_TOPICS

from . import records
from .config import ShareConfig
from .messages import (
    MemberExpired,
    ShareGroupDescription,
    ShareGroupState,
    ShareHeartbeatReply,
    ShareHeartbeatRequest,
    ShareMemberDescription,
)
from .records import ShareProfile


def assign_shared(
    subscribers: Mapping[str, frozenset[TopicId]],
    partition_counts: Mapping[TopicId, int],
    before: Mapping[str, Partitions],
) -> dict[str, Partitions]:
    """Return the partitions of every member, as close to `before` as balance allows.

    Members share a partition only if there are more members than partitions.
    """
    assigned: dict[str, dict[TopicId, frozenset[int]]] = {member: {} for member in subscribers}
    for topic, count in partition_counts.items():
        members = sorted(member for member, topics in subscribers.items() if topic in topics)
        if not members or not count:
            continue
        previous = {member: before.get(member, {}).get(topic, ()) for member in members}
        for member, indexes in _topic(previous, count).items():
            assigned[member][topic] = frozenset(indexes)
    return dict(assigned)


def _topic(previous: Mapping[str, Iterable[int]], partitions: int) -> dict[str, set[int]]:
    """Assign the partitions of one topic to its subscribers."""
    members = len(previous)
    sharers = -(-members // partitions)
    share, larger_shares = divmod(partitions * sharers, members)
    room = [sharers] * partitions
    released = [0] * partitions
    kept: dict[str, set[int]] = {}
    for member, indexes in previous.items():
        keeps = {index for index in indexes if index < partitions and room[index]}
        surplus = len(keeps) - share - (larger_shares > 0)
        if surplus > 0:
            # Release different partitions where possible: a new member can take each of them only once.
            for index in sorted(keeps, key=lambda index: (released[index], index))[:surplus]:
                keeps.remove(index)
                released[index] += 1
        for index in keeps:
            room[index] -= 1
        larger_shares -= len(keeps) > share
        kept[member] = keeps
    by_load = [(len(keeps), member) for member, keeps in kept.items()]
    heapify(by_load)
    for index in range(partitions):
        for _ in range(room[index]):
            _assign(index, kept, by_load)
    return kept


def _assign(index: int, kept: Mapping[str, set[int]], by_load: list[tuple[int, str]]) -> None:
    """Assign a partition to the member with the lowest load that does not have it."""
    skipped = []
    load, taker = heappop(by_load)
    while index in kept[taker]:
        skipped.append((load, taker))
        load, taker = heappop(by_load)
    kept[taker].add(index)
    heappush(by_load, (load + 1, taker))
    for entry in skipped:
        heappush(by_load, entry)


ASSIGNOR = "simple"


class SharedAssignment:
    """The partitions of each member, and the topics from which they were computed."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._topics: Mapping[str, TopicSummary] = {}
        self._by_member: Mapping[str, Partitions] = {}
        self.epoch = 0

    def __getitem__(self, member_id: str) -> Partitions:
        return self._by_member.get(member_id, {})

    def topics_differ(self, profiles: Mapping[str, ShareProfile], topics: TopicsView) -> bool:
        """Return whether the subscribed topics have changed since the assignment was computed."""
        if self._version == topics.version:
            return False
        self._version = topics.version
        return _found(profiles, topics) != self._topics

    def compute(self, epoch: int, profiles: Mapping[str, ShareProfile], topics: TopicsView) -> None:
        """Compute the assignment for `epoch`."""
        self.epoch = epoch
        self._version = topics.version
        self._topics = found = _found(profiles, topics)
        self._by_member = assign_shared(
            {
                member_id: frozenset(found[name].id for name in profile.topics if name in found)
                for member_id, profile in profiles.items()
            },
            {topic.id: topic.partitions for topic in found.values()},
            self._by_member,
        )


class ShareGroup:
    """One group. Methods return the changes to store; a method that raises has changed nothing."""

    def __init__(self, group: str, config: Callable[[], ShareConfig], max_members: Callable[[], int]) -> None:
        self.id = group
        self._config = config
        self._max_members = max_members
        self._profiles: dict[str, ShareProfile] = {}
        # Not stored: after a restart assignments are sent to all members again.
        self._sent_epochs: dict[str, int] = {}
        self._assignment = SharedAssignment()
        self._sessions = NamedDeadlines()
        self._stored_epoch: int | None = None
        self._expired: list[MemberExpired] = []
        self.epoch = 0

    @property
    def exists(self) -> bool:
        """Return whether the group is stored."""
        return self._stored_epoch is not None

    @property
    def is_empty(self) -> bool:
        return not self._profiles

    @property
    def member_count(self) -> int:
        return len(self._profiles)

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.EMPTY if self.is_empty else ShareGroupState.STABLE

    @property
    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`."""
        return self._sessions.next_ms

    def heartbeat(
        self, request: ShareHeartbeatRequest, now_ms: int, topics: TopicsView
    ) -> tuple[list[Change], ShareHeartbeatReply]:
        """Handle a heartbeat: join, renew or leave."""
        request.check()
        config = self._config()
        member_id = request.member_id
        if request.member_epoch == LEAVE_EPOCH:
            self.check_member(member_id)
            left = ShareHeartbeatReply(
                member_id=member_id,
                member_epoch=LEAVE_EPOCH,
                heartbeat_interval_ms=config.heartbeat_interval_ms,
            )
            return self._remove([member_id]), left
        changes = self._update_member(request)
        if self.epoch == self._assignment.epoch and self._assignment.topics_differ(self._profiles, topics):
            self.epoch += 1
        if self.epoch != self._assignment.epoch:
            self._assignment.compute(self.epoch, self._profiles, topics)
        self._sessions.put(member_id, now_ms + config.session_timeout_ms)
        self._sent_epochs[member_id] = self.epoch
        # Repeat the assignment while the member is at another epoch: the reply may have been lost.
        sends_assignment = request.member_epoch != self.epoch or request.subscribed_topics is not None
        reply = ShareHeartbeatReply(
            member_id=member_id,
            member_epoch=self.epoch,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            assignment=self._assignment[member_id] if sends_assignment else None,
        )
        return changes + self._group_changes(), reply

    def check_member(self, member_id: str) -> None:
        """Raise UnknownMember if this is not a member."""
        if member_id not in self._profiles:
            raise UnknownMember(f"{member_id!r} is not a member of group {self.id!r}")

    def tick(self, now_ms: int) -> list[Change]:
        """Remove members whose session has ended; see `take_expired_members`."""
        due = [*self._sessions.take_due(now_ms)]
        self._expired += (
            MemberExpired(group=self.id, member_id=member_id, topics=self._profiles[member_id].topics)
            for member_id in due
        )
        return self._remove(due) if due else []

    def take_expired_members(self) -> list[MemberExpired]:
        """Return the members removed by `tick` since the last call."""
        expired, self._expired = self._expired, []
        return expired

    def subscribes(self, topic: str) -> bool:
        """Return whether any member subscribes to this topic."""
        return any(topic in profile.topics for profile in self._profiles.values())

    def describe(self) -> ShareGroupDescription:
        """Describe the group and its members."""
        return ShareGroupDescription(
            group=self.id,
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self._assignment.epoch,
            assignor=ASSIGNOR,
            members=tuple(
                ShareMemberDescription(
                    member_id=member_id,
                    rack_id=profile.rack_id,
                    member_epoch=self._sent_epochs.get(member_id, 0),
                    client_id=profile.client_id,
                    client_host=profile.client_host,
                    subscribed_topics=profile.topics,
                    assignment=self._assignment[member_id],
                )
                for member_id, profile in self._profiles.items()
            ),
        )

    def delete(self) -> list[Change]:
        """Delete the group; raise NonEmptyGroup if it has members."""
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.id!r} has {len(self._profiles)} members")
        return [records.group_removal(self.id)]

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Apply a stored record; `parts` is its decoded key."""
        match parts[2:]:
            case ():
                self._stored_epoch = None if value is None else records.group_decoder.decode(value).epoch
            case (records.MEMBER, str(member_id)):
                if value is None:
                    self._profiles.pop(member_id, None)
                else:
                    self._profiles[member_id] = records.profile_decoder.decode(value)

    def loaded(self, now_ms: int) -> list[Change]:
        """Resume after replay: start a full session for every member.

        Assignments are not stored, so a new epoch begins and all members get a new assignment.
        """
        self.epoch = (self._stored_epoch or 0) + 1
        for member_id in self._profiles:
            self._sessions.put(member_id, now_ms + self._config().session_timeout_ms)
        return self._group_changes()

    def snapshot(self) -> Iterator[Change]:
        """Yield the changes that lead to the current state."""
        if self._stored_epoch is not None:
            yield records.group_change(self.id, self._stored_epoch)
            for member_id, profile in self._profiles.items():
                yield records.profile_change(self.id, member_id, profile)

    def _update_member(self, request: ShareHeartbeatRequest) -> list[Change]:
        """Find or add the member of a request, and update its profile."""
        member_id = request.member_id
        before = self._profiles.get(member_id)
        if request.member_epoch == JOIN_EPOCH:
            if before is None and len(self._profiles) >= self._max_members():
                raise GroupMaxSizeReached(
                    f"too many members in group {self.id!r}: the limit is {self._max_members()}"
                )
        else:
            self.check_member(member_id)
            if request.member_epoch > self.epoch:
                raise FencedMemberEpoch(
                    f"group {self.id!r} is at epoch {self.epoch}: member {member_id!r} cannot be at "
                    f"{request.member_epoch} and must rejoin"
                )
        profile = _updated_profile(before, request)
        if profile == before:
            return []
        self._profiles[member_id] = profile
        if before is None or before.topics != profile.topics:
            self.epoch += 1
        return [records.profile_change(self.id, member_id, profile)]

    def _remove(self, member_ids: list[str]) -> list[Change]:
        changes: list[Change] = []
        for member_id in member_ids:
            del self._profiles[member_id]
            self._sent_epochs.pop(member_id, None)
            self._sessions.put(member_id, None)
            changes.append(records.profile_removal(self.id, member_id))
        self.epoch += 1
        return changes + self._group_changes()

    def _group_changes(self) -> list[Change]:
        """Return the record of the group if it has changed."""
        if self.epoch == self._stored_epoch:
            return []
        self._stored_epoch = self.epoch
        return [records.group_change(self.id, self.epoch)]


def _found(profiles: Mapping[str, ShareProfile], topics: TopicsView) -> dict[str, TopicSummary]:
    """Return the subscribed topics that exist, without internal topics."""
    names = sorted({name for profile in profiles.values() for name in profile.topics} - INTERNAL_TOPICS)
    return {name: topic for name in names if (topic := topics.get(name)) is not None}


def _updated_profile(before: ShareProfile | None, request: ShareHeartbeatRequest) -> ShareProfile:
    """Return the profile of a member with the changes of a request."""
    changes: dict[str, Any] = {"client_id": request.client_id, "client_host": request.client_host}
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.subscribed_topics is not None:
        changes["topics"] = tuple(sorted(set(request.subscribed_topics)))
    return msgspec.structs.replace(before or ShareProfile(), **changes)
