"""Who is to read which partition: the assignors a group can choose from, by name.

Each is a function of the members and the topics alone, so that the same group always gets the same
answer. Moving partitions from one answer to the next is the group's business.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from alpacamq.model.ids import TopicId

from .consumer_messages import Partitions


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
