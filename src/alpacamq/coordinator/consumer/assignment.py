"""Assignments of consumer groups: assignors, stored targets, and moving members to their targets.

No partition has two owners. A member first revokes partitions that are not in its target, and stays at its
epoch until it has confirmed that. Then it moves to the epoch of the target and gets the partitions without an
owner; it gets the others as their owners revoke them. Partitions that it keeps are not affected.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from hashlib import blake2b
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, NamedTuple, TypeVar

from alpacamq.coordinator.members import MemberTargets
from alpacamq.model.errors import InvalidRegularExpression
from alpacamq.model.ids import TopicId
from alpacamq.model.names import topic_for_pattern
from alpacamq.model.state_machine import Change

from .messages import JOIN_EPOCH, Partitions, TopicSummary, TopicsView
from .records import Current, Profile, records

_NONE: frozenset[int] = frozenset()

K = TypeVar("K")


class MemberState(StrEnum):
    """The reconciliation state of a member. Any state can follow any: targets change at any time."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"  # has not confirmed a revocation
    UNRELEASED = "unreleased"  # waits for partitions that others have not revoked


def state_of(current: Current, target: Partitions) -> MemberState:
    """Return the state of a member with these assignments."""
    if current.revoking:
        return MemberState.UNREVOKED
    return MemberState.STABLE if current.assigned == target else MemberState.UNRELEASED


def reconcile(
    current: Current,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    available: Callable[[Partitions], Partitions],
) -> Current:
    """Return the current assignment after a heartbeat that reported `owned` (None: unchanged).

    `available` selects the partitions that no other member owns.
    """
    if current.epoch == target_epoch and current.assigned == target and not current.revoking:
        return current
    # A heartbeat can confirm only revocations that were sent before it.
    revoking = _unconfirmed(current, owned)
    # A member that joins owns nothing, so there is nothing to revoke.
    surplus = minus(current.assigned, target) if current.epoch != JOIN_EPOCH else {}
    assigned = common(current.assigned, target)
    if surplus or revoking:
        revoking = union(revoking, surplus)
        return Current(
            epoch=current.epoch,
            previous_epoch=current.previous_epoch,
            assigned=assigned,
            revoking=revoking,
            is_disowned=owned is not None and not common(owned, revoking),
        )
    return Current(
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else current.epoch,
        assigned=union(assigned, available(minus(target, assigned))),
    )


def _unconfirmed(current: Current, owned: Partitions | None) -> Partitions:
    """Return the revoked partitions that the member may still own."""
    if owned is not None:
        return common(current.revoking, owned)
    return {} if current.is_disowned else current.revoking


def common(one: Mapping[K, frozenset[int]], other: Mapping[K, frozenset[int]]) -> Mapping[K, frozenset[int]]:
    """Return the partitions in both."""
    return {topic: both for topic, indexes in one.items() if (both := indexes & other.get(topic, _NONE))}


def minus(one: Mapping[K, frozenset[int]], other: Mapping[K, frozenset[int]]) -> Mapping[K, frozenset[int]]:
    """Return the partitions in `one` only."""
    return {topic: rest for topic, indexes in one.items() if (rest := indexes - other.get(topic, _NONE))}


def union(one: Mapping[K, frozenset[int]], other: Mapping[K, frozenset[int]]) -> Mapping[K, frozenset[int]]:
    """Return the partitions in either."""
    both = dict(one)
    for topic, indexes in other.items():
        both[topic] = both.get(topic, _NONE) | indexes
    return both


class PartitionOwners:
    """The owner of each partition: a member that was assigned it and has not confirmed its revocation."""

    __slots__ = ("_by_topic",)

    def __init__(self) -> None:
        self._by_topic: dict[TopicId, dict[int, str]] = {}

    def replace(self, member_id: str, before: Current | None, after: Current | None) -> None:
        """Replace the partitions of a member."""
        previous = union(before.assigned, before.revoking) if before is not None else {}
        current = union(after.assigned, after.revoking) if after is not None else {}
        for topic, indexes in minus(previous, current).items():
            owners = self._by_topic[topic]
            for index in indexes:
                del owners[index]
            if not owners:
                del self._by_topic[topic]
        for topic, indexes in minus(current, previous).items():
            owners = self._by_topic.setdefault(topic, {})
            for index in indexes:
                assert index not in owners, f"partition {index} of {topic} is owned by {owners[index]} too"
                owners[index] = member_id

    def available_to(self, member_id: str, wanted: Partitions) -> Partitions:
        """Return the wanted partitions that no other member owns."""
        found: dict[TopicId, frozenset[int]] = {}
        for topic, indexes in wanted.items():
            owners = self._by_topic.get(topic, {})
            if free := frozenset(index for index in indexes if owners.get(index, member_id) == member_id):
                found[topic] = free
        return found


class Subscriber(NamedTuple):
    """A member in the input of an assignor."""

    topics: frozenset[TopicId]
    previous: Partitions  # its previous target
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]
PartitionCounts = Mapping[TopicId, int]
Assignor = Callable[[Subscribers, PartitionCounts], dict[str, Partitions]]


def range_(subscribers: Subscribers, counts: PartitionCounts) -> dict[str, Partitions]:
    """Assign each subscriber of a topic one range of consecutive partitions.

    Topics with the same subscribers and size are assigned alike.
    """
    given: dict[str, dict[TopicId, frozenset[int]]] = {member: {} for member in subscribers}
    # A static member keeps its position when its member id changes.
    order = sorted(subscribers, key=lambda member: (subscribers[member].instance_id or member, member))
    for topic, count in counts.items():
        members = [member for member in order if topic in subscribers[member].topics]
        if not members:
            continue
        share, longer = divmod(count, len(members))
        start = 0
        for place, member in enumerate(members):
            end = start + share + (place < longer)
            if end > start:
                given[member][topic] = frozenset(range(start, end))
            start = end
    return dict(given)


def uniform(subscribers: Subscribers, counts: PartitionCounts) -> dict[str, Partitions]:
    """Balance the number of partitions with as few moves as possible.

    Among members with the same subscription, loads differ by at most one and the number of moves is minimal.
    With different subscriptions, no partition can be moved to a subscriber that has two fewer.
    """
    assignment = _UniformAssignment(subscribers, counts)
    assignment.keep_previous()
    assignment.assign_free()
    assignment.balance()
    return assignment.result()


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}


@dataclass(slots=True)
class _TopicGroup:
    """Topics with the same subscribers."""

    members: list[str]
    topics: list[int] = field(default_factory=list)
    # A heap of members by load. Entries may be too low; they are corrected when they reach the front.
    lightest: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _MemberLoad:
    """The partitions of one member, by topic group; the last of each group is moved first."""

    load: int = 0
    numbers: dict[int, list[int]] = field(default_factory=dict)
    is_unchanged: bool = False


class _UniformAssignment:
    """The state of one `uniform` assignment.

    A partition is the number `partition * topics + topic`: in sorted order, the first partitions of all
    topics precede the second ones.
    """

    def __init__(self, subscribers: Subscribers, counts: PartitionCounts) -> None:
        self._subscribers = {member: subscribers[member] for member in sorted(subscribers)}
        self._topics = sorted(counts)
        self._counts = [counts[topic] for topic in self._topics]
        self._topic_groups = self._group_topics()
        self._topic_group_of = {
            topic: index
            for index, topic_group in enumerate(self._topic_groups)
            for topic in topic_group.topics
        }
        self._loads = {member: _MemberLoad() for member in self._subscribers}
        self._topic_groups_by_member: dict[str, list[_TopicGroup]] = {
            member: [] for member in self._subscribers
        }
        for topic_group in self._topic_groups:
            for member in topic_group.members:
                self._topic_groups_by_member[member].append(topic_group)
        self._free = [set(range(count)) for count in self._counts]

    def _group_topics(self) -> list[_TopicGroup]:
        members_by_subscription: dict[frozenset[TopicId], list[str]] = {}
        for member, subscriber in self._subscribers.items():
            members_by_subscription.setdefault(subscriber.topics, []).append(member)
        found: dict[tuple[frozenset[TopicId], ...], _TopicGroup] = {}
        for index, topic in enumerate(self._topics):
            key = tuple(subscription for subscription in members_by_subscription if topic in subscription)
            if not key:
                continue
            if key not in found:
                members = (member for subscription in key for member in members_by_subscription[subscription])
                found[key] = _TopicGroup(sorted(members))
            found[key].topics.append(index)
        # Smallest groups first, so that their members are not filled with partitions that others could take.
        return sorted(found.values(), key=lambda topic_group: (len(topic_group.members), topic_group.topics))

    def keep_previous(self) -> None:
        """Keep previous assignments as far as they are still valid."""
        place_of = {topic: index for index, topic in enumerate(self._topics)}
        width = len(self._topics)
        for member, subscriber in self._subscribers.items():
            member_load = self._loads[member]
            member_load.is_unchanged = True
            for topic, partitions in subscriber.previous.items():
                index = place_of.get(topic)
                if index is None or topic not in subscriber.topics:
                    member_load.is_unchanged = False
                    continue
                kept = partitions & self._free[index]
                member_load.is_unchanged = member_load.is_unchanged and len(kept) == len(partitions)
                self._free[index] -= kept
                numbers = member_load.numbers.setdefault(self._topic_group_of[index], [])
                numbers += [partition * width + index for partition in kept]
                member_load.load += len(kept)
            for numbers in member_load.numbers.values():
                numbers.sort()

    def assign_free(self) -> None:
        """Assign free partitions to the members with the lowest load."""
        for index, topic_group in enumerate(self._topic_groups):
            topic_group.lightest = [(self._loads[member].load, member) for member in topic_group.members]
            heapify(topic_group.lightest)
            for number in self._free_numbers(topic_group):
                member = self._lightest(topic_group)
                member_load = self._loads[member]
                member_load.numbers.setdefault(index, []).append(number)
                member_load.load += 1
                member_load.is_unchanged = False

    def _free_numbers(self, topic_group: _TopicGroup) -> list[int]:
        width = len(self._topics)
        return sorted(
            partition * width + topic for topic in topic_group.topics for partition in self._free[topic]
        )

    def balance(self) -> None:
        """Move partitions from members to others that have at least two fewer, until there are none."""
        # One pass is usually enough, but a later move can make an earlier member movable. Each move makes the
        # loads more equal, so this terminates.
        while self._balance_once():
            pass

    def _balance_once(self) -> bool:
        loads = [member_load.load for member_load in self._loads.values()]
        if max(loads, default=0) - min(loads, default=0) < 2:
            return False
        heaviest = [(-member_load.load, member) for member, member_load in self._loads.items()]
        heapify(heaviest)
        has_moved = False
        while heaviest:
            load, member = heappop(heaviest)
            member_load = self._loads[member]
            if -load != member_load.load:  # it got a partition in the meantime
                heappush(heaviest, (-member_load.load, member))
            elif self._move_one(member):
                heappush(heaviest, (-member_load.load, member))
                has_moved = True
        return has_moved

    def _move_one(self, giver: str) -> bool:
        """Move a partition from `giver` to the member with the lowest load; return False if impossible."""
        member_load = self._loads[giver]
        choices = [
            (self._loads[taker].load, index, taker)
            for index, numbers in member_load.numbers.items()
            if numbers and (taker := self._lightest(self._topic_groups[index]))
        ]
        load, index, taker = min(choices, default=(member_load.load, 0, giver))
        if member_load.load - load < 2:
            return False
        other = self._loads[taker]
        other.numbers.setdefault(index, []).append(member_load.numbers[index].pop())
        other.load += 1
        member_load.load -= 1
        member_load.is_unchanged = other.is_unchanged = False
        for topic_group in self._topic_groups_by_member[giver]:
            heappush(topic_group.lightest, (member_load.load, giver))
        return True

    def _lightest(self, topic_group: _TopicGroup) -> str:
        """Return the subscriber with the lowest load."""
        heap = topic_group.lightest
        while True:
            load, member = heap[0]
            actual = self._loads[member].load
            if load == actual:
                return member
            if load < actual:
                heapreplace(heap, (actual, member))
            else:
                heappop(heap)  # its load has decreased; another entry has the new load

    def result(self) -> dict[str, Partitions]:
        """Return the assignment of every member."""
        given: dict[str, Partitions] = {}
        width = len(self._topics)
        for member, member_load in self._loads.items():
            if member_load.is_unchanged:
                given[member] = self._subscribers[member].previous
                continue
            partitions: dict[int, list[int]] = {}
            for numbers in member_load.numbers.values():
                for number in numbers:
                    partition, topic = divmod(number, width)
                    partitions.setdefault(topic, []).append(partition)
            given[member] = {
                self._topics[topic]: frozenset(indexes) for topic, indexes in sorted(partitions.items())
            }
        return given


_DIGEST_BYTES = 8


MAX_PATTERN_LENGTH = 4096
# Memory of a compiled pattern, including the states that matching computes.
_PATTERN_BYTES = 1 << 20


class TopicPattern:
    """A subscription in RE2 syntax, matched against whole topic names in linear time."""

    def __init__(self, pattern: str) -> None:
        import re2

        if len(pattern) > MAX_PATTERN_LENGTH:
            raise InvalidRegularExpression(f"pattern longer than {MAX_PATTERN_LENGTH} characters")
        try:
            self._pattern = re2.compile(pattern, _pattern_options())
        except UnicodeEncodeError as error:
            raise InvalidRegularExpression("pattern is not valid Unicode") from error
        except re2.error as error:
            raise InvalidRegularExpression(error.args[0].decode(errors="replace")) from error

    def matches(self, topic: str) -> bool:
        return self._pattern.fullmatch(topic) is not None


@cache
def _pattern_options() -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PATTERN_BYTES
    return options


class Subscriptions:
    """Resolves the subscriptions of a group to topics, as of one version of the topics."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._version: int | None = None
        self._patterns: dict[str, TopicPattern] = {}
        self._matches: dict[str, frozenset[str]] = {}
        self._topics: dict[tuple[tuple[str, ...], str], frozenset[TopicId]] = {}
        self.partition_counts: Mapping[TopicId, int] = {}

    def is_current(self, topics: TopicsView) -> bool:
        return self._version == topics.version

    def resolve(self, profiles: Iterable[Profile], topics: TopicsView) -> bytes:
        """Resolve all subscriptions; return a digest of the subscribed topics."""
        if not self.is_current(topics):
            self._version = topics.version
            self._matches = {}
        subscriptions = {(profile.topics, profile.regex) for profile in profiles}
        found: dict[str, TopicSummary] = {}
        self._topics = {}
        for names, regex in subscriptions:
            ids = set()
            for name in self._matching(regex, topics).union(names):
                if (topic := topics.get(name)) is not None:
                    found[name] = topic
                    ids.add(topic.id)
            self._topics[names, regex] = frozenset(ids)
        in_use = {regex for _, regex in subscriptions}
        self._patterns = {regex: each for regex, each in self._patterns.items() if regex in in_use}
        self._matches = {regex: each for regex, each in self._matches.items() if regex in in_use}
        self.partition_counts = {topic.id: topic.partitions for topic in found.values()}
        return _digest(found)

    def topics_of(self, profile: Profile) -> frozenset[TopicId]:
        """Return the topics of a profile that was resolved."""
        return self._topics[profile.topics, profile.regex]

    def _matching(self, regex: str, topics: TopicsView) -> frozenset[str]:
        if not regex:
            return frozenset()
        if regex not in self._matches:
            if regex not in self._patterns:
                self._patterns[regex] = TopicPattern(regex)
            matches = self._patterns[regex].matches
            # A pattern is about the names that topics have in the tenant of the group.
            self._matches[regex] = frozenset(
                name
                for name in topics.names()
                if (named := topic_for_pattern(self._group, name)) is not None and matches(named)
            )
        return self._matches[regex]


class TargetAssignment(MemberTargets[Partitions]):
    """The target of every member for one epoch of the group."""

    def __init__(self, group: str, default_assignor: str) -> None:
        super().__init__(group, records, {})
        self._default_assignor = default_assignor
        self._subscriptions = Subscriptions(group)
        self.topics_digest = b""

    def topics_differ(self, profiles: Mapping[str, Profile], topics: TopicsView) -> bool:
        """Return whether the subscribed topics have changed since the target was computed."""
        if self._subscriptions.is_current(topics):
            return False
        return self._subscriptions.resolve(profiles.values(), topics) != self.topics_digest

    def assignor(self, profiles: Iterable[Profile]) -> str:
        """Return the assignor that most members prefer."""
        votes = Counter(profile.assignor for profile in profiles if profile.assignor is not None)
        return min(votes, key=lambda name: (-votes[name], name), default=self._default_assignor)

    def compute(self, epoch: int, profiles: Mapping[str, Profile], topics: TopicsView) -> list[Change]:
        """Compute the target of every member for `epoch`."""
        self.topics_digest = self._subscriptions.resolve(profiles.values(), topics)
        self.epoch = epoch
        subscribers = {
            member_id: Subscriber(
                self._subscriptions.topics_of(profile), self[member_id], profile.instance_id
            )
            for member_id, profile in profiles.items()
        }
        assign = ASSIGNORS[self.assignor(profiles.values())]
        assigned = assign(subscribers, self._subscriptions.partition_counts)
        return [
            change for member_id, partitions in assigned.items() for change in self.put(member_id, partitions)
        ]


def _digest(topics: Mapping[str, TopicSummary]) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name, topic in sorted(topics.items()):
        digest.update(b"%s/%s%d/" % (name.encode(), topic.id.bytes, topic.partitions))
    return digest.digest()
