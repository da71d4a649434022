"""What each member of a consumer group is to have, and the topics that was worked out from."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from alpacamq.model.ids import TopicId
from alpacamq.model.state_machine import Change

from . import records
from .messages import Partitions, TopicSummary, TopicsView
from .records import Profile
from .topic_pattern import TopicPattern


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[TopicId]
    held: Partitions  # what the assignment before this one gave it
    instance_id: str | None = None


Subscribers = Mapping[str, Subscriber]
PartitionCounts = Mapping[TopicId, int]
Assignor = Callable[[Subscribers, PartitionCounts], dict[str, Partitions]]


def range_(subscribers: Subscribers, counts: PartitionCounts) -> dict[str, Partitions]:
    """Give each subscriber of a topic one run of neighbouring partitions.

    The same index of two topics with the same subscribers and size goes to the same member.
    """
    given: dict[str, dict[TopicId, frozenset[int]]] = {member: {} for member in subscribers}
    # A static member keeps its place when its process, and with it its member id, changes.
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
    """Give everyone as many partitions as everyone else, moving as few as that takes.

    Among members with the same subscription, loads differ by one at most and no fewer moves would do. With
    different subscriptions, no member could hand a partition to a subscriber that has two fewer.
    """
    table = _Table(subscribers, counts)
    table.keep_held()
    table.deal_free()
    table.level()
    return table.hands()


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": range_}


@dataclass(slots=True)
class _Audience:
    """Topics that have the same subscribers: what one of these can be given, all can."""

    members: list[str]
    topics: list[int] = field(default_factory=list)
    # Members by load. An entry may be too low, and is put right when it comes up.
    lightest: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Hand:
    """What one member has been given, by audience; the last card of each goes first."""

    load: int = 0
    cards: dict[int, list[int]] = field(default_factory=dict)
    is_as_held: bool = False


class _Table:
    """The work of one `uniform` assignment.

    Partitions are cards: numbers that, sorted, go through the topics' first partitions, then their second…
    """

    def __init__(self, subscribers: Subscribers, counts: PartitionCounts) -> None:
        self._subscribers = {member: subscribers[member] for member in sorted(subscribers)}
        self._topics = sorted(counts)
        self._counts = [counts[topic] for topic in self._topics]
        self._audiences = self._find_audiences()
        self._audience_of = {
            topic: index for index, audience in enumerate(self._audiences) for topic in audience.topics
        }
        self._hands = {member: _Hand() for member in self._subscribers}
        self._heard_by: dict[str, list[_Audience]] = {member: [] for member in self._subscribers}
        for audience in self._audiences:
            for member in audience.members:
                self._heard_by[member].append(audience)
        self._free = [set(range(count)) for count in self._counts]

    def _find_audiences(self) -> list[_Audience]:
        members_by_subscription: dict[frozenset[TopicId], list[str]] = {}
        for member, subscriber in self._subscribers.items():
            members_by_subscription.setdefault(subscriber.topics, []).append(member)
        found: dict[tuple[frozenset[TopicId], ...], _Audience] = {}
        for index, topic in enumerate(self._topics):
            key = tuple(subscription for subscription in members_by_subscription if topic in subscription)
            if not key:
                continue
            if key not in found:
                members = (member for subscription in key for member in members_by_subscription[subscription])
                found[key] = _Audience(sorted(members))
            found[key].topics.append(index)
        # The fewest first: who can take the fewest topics is not filled up with what others could take.
        return sorted(found.values(), key=lambda audience: (len(audience.members), audience.topics))

    def keep_held(self) -> None:
        """Leave everyone what it had, as far as it may still have it."""
        place_of = {topic: index for index, topic in enumerate(self._topics)}
        width = len(self._topics)
        for member, subscriber in self._subscribers.items():
            hand = self._hands[member]
            hand.is_as_held = True
            for topic, partitions in subscriber.held.items():
                index = place_of.get(topic)
                if index is None or topic not in subscriber.topics:
                    hand.is_as_held = False
                    continue
                kept = partitions & self._free[index]
                hand.is_as_held = hand.is_as_held and len(kept) == len(partitions)
                self._free[index] -= kept
                cards = hand.cards.setdefault(self._audience_of[index], [])
                cards += [partition * width + index for partition in kept]
                hand.load += len(kept)
            for cards in hand.cards.values():
                cards.sort()

    def deal_free(self) -> None:
        """Give what nobody has to whoever has least."""
        for index, audience in enumerate(self._audiences):
            audience.lightest = [(self._hands[member].load, member) for member in audience.members]
            heapify(audience.lightest)
            for card in self._free_cards(audience):
                member = self._lightest(audience)
                hand = self._hands[member]
                hand.cards.setdefault(index, []).append(card)
                hand.load += 1
                hand.is_as_held = False

    def _free_cards(self, audience: _Audience) -> list[int]:
        width = len(self._topics)
        return sorted(
            partition * width + topic for topic in audience.topics for partition in self._free[topic]
        )

    def level(self) -> None:
        """Move partitions from who has most to who has two fewer, until nobody has."""
        # One pass is enough unless somebody who could not move anything had its chance too early. Each move
        # makes the loads more equal, so this ends.
        while self._level_once():
            pass

    def _level_once(self) -> bool:
        loads = [hand.load for hand in self._hands.values()]
        if max(loads, default=0) - min(loads, default=0) < 2:
            return False
        heaviest = [(-hand.load, member) for member, hand in self._hands.items()]
        heapify(heaviest)
        has_moved = False
        while heaviest:
            load, member = heappop(heaviest)
            hand = self._hands[member]
            if -load != hand.load:  # it has been given something meanwhile
                heappush(heaviest, (-hand.load, member))
            elif self._hand_over(member):
                heappush(heaviest, (-hand.load, member))
                has_moved = True
        return has_moved

    def _hand_over(self, giver: str) -> bool:
        """Let `giver` give one partition to the lightest of those who can take one of its; False if none."""
        hand = self._hands[giver]
        choices = [
            (self._hands[taker].load, index, taker)
            for index, cards in hand.cards.items()
            if cards and (taker := self._lightest(self._audiences[index]))
        ]
        load, index, taker = min(choices, default=(hand.load, 0, giver))
        if hand.load - load < 2:
            return False
        other = self._hands[taker]
        other.cards.setdefault(index, []).append(hand.cards[index].pop())
        other.load += 1
        hand.load -= 1
        hand.is_as_held = other.is_as_held = False
        for audience in self._heard_by[giver]:
            heappush(audience.lightest, (hand.load, giver))
        return True

    def _lightest(self, audience: _Audience) -> str:
        """The member of the audience that has least."""
        heap = audience.lightest
        while True:
            load, member = heap[0]
            actual = self._hands[member].load
            if load == actual:
                return member
            if load < actual:
                heapreplace(heap, (actual, member))
            else:
                heappop(heap)  # it has become lighter, and another entry says so

    def hands(self) -> dict[str, Partitions]:
        """What everyone has now."""
        given: dict[str, Partitions] = {}
        width = len(self._topics)
        for member, hand in self._hands.items():
            if hand.is_as_held:
                given[member] = self._subscribers[member].held
                continue
            partitions: dict[int, list[int]] = {}
            for cards in hand.cards.values():
                for card in cards:
                    partition, topic = divmod(card, width)
                    partitions.setdefault(topic, []).append(partition)
            given[member] = {
                self._topics[topic]: frozenset(indexes) for topic, indexes in sorted(partitions.items())
            }
        return given


_DIGEST_BYTES = 8


class Subscriptions:
    """The topics that the members' subscriptions mean, as of one version of the topics."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._patterns: dict[str, TopicPattern] = {}
        self._matches: dict[str, frozenset[str]] = {}
        self._topics: dict[tuple[tuple[str, ...], str], frozenset[TopicId]] = {}
        self.partition_counts: Mapping[TopicId, int] = {}

    def is_current(self, topics: TopicsView) -> bool:
        return self._version == topics.version

    def resolve(self, profiles: Iterable[Profile], topics: TopicsView) -> bytes:
        """Look up everything subscribed to; the digest differs if any of it does."""
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
        """The topics of a member that was there when last resolved."""
        return self._topics[profile.topics, profile.regex]

    def _matching(self, regex: str, topics: TopicsView) -> frozenset[str]:
        if not regex:
            return frozenset()
        if regex not in self._matches:
            if regex not in self._patterns:
                self._patterns[regex] = TopicPattern(regex)
            matches = self._patterns[regex].matches
            self._matches[regex] = frozenset(name for name in topics.names() if matches(name))
        return self._matches[regex]


class TargetAssignment:
    """The target of every member, made for one epoch of the group."""

    def __init__(self, group: str, default_assignor: str) -> None:
        self._group = group
        self._default_assignor = default_assignor
        self._subscriptions = Subscriptions()
        self._by_member: dict[str, Partitions] = {}
        self.epoch = 0
        self.topics_digest = b""

    def __getitem__(self, member_id: str) -> Partitions:
        return self._by_member.get(member_id, {})

    def replay(self, member_id: str, value: bytes | None) -> None:
        """Take in a stored record."""
        if value is None:
            self._by_member.pop(member_id, None)
        else:
            self._by_member[member_id] = records.decode_target(value)

    def snapshot(self) -> Iterator[Change]:
        """The changes from which all this can be rebuilt."""
        for member_id, partitions in self._by_member.items():
            yield records.target_change(self._group, member_id, partitions)

    def drop(self, member_id: str) -> list[Change]:
        """Forget the target of a member that is gone."""
        if self._by_member.pop(member_id, None) is None:
            return []
        return [records.removal(self._group, records.TARGET, member_id)]

    def move(self, member_id: str, successor_id: str) -> list[Change]:
        """Let `successor_id` have what was for `member_id`."""
        partitions = self[member_id]
        changes = self.drop(member_id)
        self._by_member[successor_id] = partitions
        changes.append(records.target_change(self._group, successor_id, partitions))
        return changes

    def topics_differ(self, profiles: Mapping[str, Profile], topics: TopicsView) -> bool:
        """Whether the subscribed topics are no longer those the target was made from."""
        if self._subscriptions.is_current(topics):
            return False
        return self._subscriptions.resolve(profiles.values(), topics) != self.topics_digest

    def assignor(self, profiles: Iterable[Profile]) -> str:
        """The assignor that most of those who ask for one ask for."""
        votes = Counter(profile.assignor for profile in profiles if profile.assignor is not None)
        return min(votes, key=lambda name: (-votes[name], name), default=self._default_assignor)

    def make(self, epoch: int, profiles: Mapping[str, Profile], topics: TopicsView) -> list[Change]:
        """Work everyone's target out anew, for `epoch`."""
        self.topics_digest = self._subscriptions.resolve(profiles.values(), topics)
        self.epoch = epoch
        before = self._by_member
        subscribers = {
            member_id: Subscriber(
                self._subscriptions.topics_of(profile), before.get(member_id, {}), profile.instance_id
            )
            for member_id, profile in profiles.items()
        }
        assign = ASSIGNORS[self.assignor(profiles.values())]
        self._by_member = assign(subscribers, self._subscriptions.partition_counts)
        return [
            records.target_change(self._group, member_id, partitions)
            for member_id, partitions in self._by_member.items()
            if before.get(member_id) != partitions
        ]


def _digest(topics: Mapping[str, TopicSummary]) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name, topic in sorted(topics.items()):
        digest.update(b"%s/%s%d/" % (name.encode(), topic.id.bytes, topic.partitions))
    return digest.digest()
