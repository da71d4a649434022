"""One share group of KIP-932: who is in it, and what each member fetches from.

The epoch grows whenever the members, their subscriptions or the subscribed topics change, and what each
fetches from is made anew for it. No member waits for another: partitions are shared. So a member is at the
group's epoch with its next heartbeat, and an old epoch means no more than that it has to be told again.
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
from alpacamq.coordinator.deadlines import Deadlines
from alpacamq.model.errors import FencedMemberEpoch, GroupMaxSizeReached, NonEmptyGroup, UnknownMember
from alpacamq.model.ids import TopicId
from alpacamq.model.state_machine import Change
from alpacamq.model.topics import INTERNAL_TOPICS

from . import records
from .config import ShareConfig
from .messages import (
    Departure,
    ShareGroupDescription,
    ShareGroupState,
    ShareHeartbeatReply,
    ShareHeartbeatRequest,
    ShareMemberDescription,
)
from .records import ShareProfile

SHARERS = 2


def assign_shared(
    subscribers: Mapping[str, frozenset[TopicId]],
    partition_counts: Mapping[TopicId, int],
    before: Mapping[str, Partitions],
) -> dict[str, Partitions]:
    """Everyone's partitions, as close to `before` as balance allows."""
    assigned: dict[str, dict[TopicId, frozenset[int]]] = {member: {} for member in subscribers}
    for topic, count in partition_counts.items():
        members = sorted(member for member, topics in subscribers.items() if topic in topics)
        if not members or not count:
            continue
        held = {member: before.get(member, {}).get(topic, ()) for member in members}
        for member, indexes in _topic(held, count).items():
            assigned[member][topic] = frozenset(indexes)
    return dict(assigned)


def _topic(held: Mapping[str, Iterable[int]], partitions: int) -> dict[str, set[int]]:
    """The partitions of one topic among its subscribers."""
    members = len(held)
    sharers = min(members, max(SHARERS, -(-members // partitions)))
    share, larger_shares = divmod(partitions * sharers, members)
    room = [sharers] * partitions
    given_up = [0] * partitions
    kept: dict[str, set[int]] = {}
    for member, indexes in held.items():
        keeps = {index for index in indexes if index < partitions and room[index]}
        surplus = len(keeps) - share - (larger_shares > 0)
        if surplus > 0:
            # Of different partitions where possible: a newcomer can take each of them only once.
            for index in sorted(keeps, key=lambda index: (given_up[index], index))[:surplus]:
                keeps.remove(index)
                given_up[index] += 1
        for index in keeps:
            room[index] -= 1
        larger_shares -= len(keeps) > share
        kept[member] = keeps
    by_load = [(len(keeps), member) for member, keeps in kept.items()]
    heapify(by_load)
    for index in range(partitions):
        for _ in range(room[index]):
            _give(index, kept, by_load)
    return kept


def _give(index: int, kept: Mapping[str, set[int]], by_load: list[tuple[int, str]]) -> None:
    """Give a partition to the member with the fewest among those that do not have it."""
    passed_over = []
    load, taker = heappop(by_load)
    while index in kept[taker]:
        passed_over.append((load, taker))
        load, taker = heappop(by_load)
    kept[taker].add(index)
    heappush(by_load, (load + 1, taker))
    for entry in passed_over:
        heappush(by_load, entry)


ASSIGNOR = "simple"


class SharedAssignment:
    """What each member fetches from, and the topics that was worked out from."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._topics: Mapping[str, TopicSummary] = {}
        self._by_member: Mapping[str, Partitions] = {}
        self.epoch = 0

    def __getitem__(self, member_id: str) -> Partitions:
        return self._by_member.get(member_id, {})

    def topics_differ(self, profiles: Mapping[str, ShareProfile], topics: TopicsView) -> bool:
        """Whether the subscribed topics are no longer those the assignment was made from."""
        if self._version == topics.version:
            return False
        self._version = topics.version
        return _found(profiles, topics) != self._topics

    def make(self, epoch: int, profiles: Mapping[str, ShareProfile], topics: TopicsView) -> None:
        """Work it out anew, for `epoch`."""
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
    """One group. Returned changes are to be stored; what raises has changed nothing."""

    def __init__(self, group: str, config: Callable[[], ShareConfig], max_members: int) -> None:
        self.id = group
        self._config = config
        self._max_members = max_members
        self._profiles: dict[str, ShareProfile] = {}
        # Not stored: after a restart every member has to be told again.
        self._told_epochs: dict[str, int] = {}
        self._assignment = SharedAssignment()
        self._sessions = Deadlines()
        self._stored_epoch: int | None = None
        self._departures: list[Departure] = []
        self.epoch = 0

    @property
    def exists(self) -> bool:
        """Whether anything of the group is stored."""
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
        """When to call `tick`."""
        return self._sessions.next_ms

    def heartbeat(
        self, request: ShareHeartbeatRequest, now_ms: int, topics: TopicsView
    ) -> tuple[list[Change], ShareHeartbeatReply]:
        """Let a member join, stay or leave, and tell it where it stands."""
        request.check()
        config = self._config()
        member_id = request.member_id
        if request.member_epoch == LEAVE_EPOCH:
            self.check_member(member_id)
            farewell = ShareHeartbeatReply(
                member_id=member_id,
                member_epoch=LEAVE_EPOCH,
                heartbeat_interval_ms=config.heartbeat_interval_ms,
            )
            return self._remove([member_id]), farewell
        changes = self._take_in(request)
        if self.epoch == self._assignment.epoch and self._assignment.topics_differ(self._profiles, topics):
            self.epoch += 1
        if self.epoch != self._assignment.epoch:
            self._assignment.make(self.epoch, self._profiles, topics)
        self._sessions.put(member_id, now_ms + config.session_timeout_ms)
        self._told_epochs[member_id] = self.epoch
        # Told again while the member is not at the epoch: an answer may have been lost.
        is_told = request.member_epoch != self.epoch or request.subscribed_topics is not None
        reply = ShareHeartbeatReply(
            member_id=member_id,
            member_epoch=self.epoch,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            assignment=self._assignment[member_id] if is_told else None,
        )
        return changes + self._group_changes(), reply

    def check_member(self, member_id: str) -> None:
        """UnknownMember unless this is one."""
        if member_id not in self._profiles:
            raise UnknownMember(f"{member_id!r} is not a member of group {self.id!r}")

    def tick(self, now_ms: int) -> list[Change]:
        """Remove who has not been heard of for too long; see `take_departures`."""
        due = [*self._sessions.take_due(now_ms)]
        self._departures += (
            Departure(group=self.id, member_id=member_id, topics=self._profiles[member_id].topics)
            for member_id in due
        )
        return self._remove(due) if due else []

    def take_departures(self) -> list[Departure]:
        """The members removed by `tick` since this was last asked."""
        departures, self._departures = self._departures, []
        return departures

    def subscribes(self, topic: str) -> bool:
        """Whether any member fetches from this topic."""
        return any(topic in profile.topics for profile in self._profiles.values())

    def describe(self) -> ShareGroupDescription:
        """The group and its members as they are now."""
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
                    member_epoch=self._told_epochs.get(member_id, 0),
                    client_id=profile.client_id,
                    client_host=profile.client_host,
                    subscribed_topics=profile.topics,
                    assignment=self._assignment[member_id],
                )
                for member_id, profile in self._profiles.items()
            ),
        )

    def delete(self) -> list[Change]:
        """End a group that has no members."""
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.id!r} has {len(self._profiles)} members")
        return [records.group_removal(self.id)]

    def replay(self, parts: tuple[Any, ...], value: bytes | None) -> None:
        """Take in a stored record, under the parts of its key."""
        match parts[2:]:
            case ():
                self._stored_epoch = None if value is None else records.group_decoder.decode(value).epoch
            case (records.MEMBER, str(member_id)):
                if value is None:
                    self._profiles.pop(member_id, None)
                else:
                    self._profiles[member_id] = records.profile_decoder.decode(value)

    def loaded(self, now_ms: int) -> list[Change]:
        """Go on after the last `replay`: everyone has a full session to be heard of again.

        What was assigned is not known any more, so there is a new epoch, of which everyone will be told.
        """
        self.epoch = (self._stored_epoch or 0) + 1
        for member_id in self._profiles:
            self._sessions.put(member_id, now_ms + self._config().session_timeout_ms)
        return self._group_changes()

    def snapshot(self) -> Iterator[Change]:
        """The changes from which the group can be rebuilt."""
        if self._stored_epoch is not None:
            yield records.group_change(self.id, self._stored_epoch)
            for member_id, profile in self._profiles.items():
                yield records.profile_change(self.id, member_id, profile)

    def _take_in(self, request: ShareHeartbeatRequest) -> list[Change]:
        """Find or add the member that speaks, and note what it newly says of itself."""
        member_id = request.member_id
        before = self._profiles.get(member_id)
        if request.member_epoch == JOIN_EPOCH:
            if before is None and len(self._profiles) >= self._max_members:
                raise GroupMaxSizeReached(f"group {self.id!r} has {self._max_members} members, its maximum")
        else:
            self.check_member(member_id)
            if request.member_epoch > self.epoch:
                raise FencedMemberEpoch(
                    f"group {self.id!r} is at epoch {self.epoch}: member {member_id!r} cannot be at "
                    f"{request.member_epoch} and must join again"
                )
        profile = _described(before, request)
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
            self._told_epochs.pop(member_id, None)
            self._sessions.put(member_id, None)
            changes.append(records.profile_removal(self.id, member_id))
        self.epoch += 1
        return changes + self._group_changes()

    def _group_changes(self) -> list[Change]:
        """The record of the group itself, if it says anything new."""
        if self.epoch == self._stored_epoch:
            return []
        self._stored_epoch = self.epoch
        return [records.group_change(self.id, self.epoch)]


def _found(profiles: Mapping[str, ShareProfile], topics: TopicsView) -> dict[str, TopicSummary]:
    """The subscribed topics that there are; our own state is no queue."""
    names = sorted({name for profile in profiles.values() for name in profile.topics} - INTERNAL_TOPICS)
    return {name: topic for name in names if (topic := topics.get(name)) is not None}


def _described(before: ShareProfile | None, request: ShareHeartbeatRequest) -> ShareProfile:
    """What a member says of itself, after a request that may say some of it anew."""
    changes: dict[str, Any] = {"client_id": request.client_id, "client_host": request.client_host}
    if request.rack_id is not None:
        changes["rack_id"] = request.rack_id
    if request.subscribed_topics is not None:
        changes["topics"] = tuple(sorted(set(request.subscribed_topics)))
    return msgspec.structs.replace(before or ShareProfile(), **changes)
