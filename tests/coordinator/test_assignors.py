"""The assignors: every partition is assigned once, evenly and with few moves."""

import sys
from math import ceil
from random import Random
from types import FrameType
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.coordinator.consumer.assignment import ASSIGNORS, Assignor, Subscriber, range_, uniform
from alpacamq.coordinator.consumer.messages import Partitions
from alpacamq.model.ids import TopicId

Topics = dict[TopicId, int]


def topic(number: int) -> TopicId:
    return UUID(int=number)


def members(count: int) -> list[str]:
    return [f"member-{number:03}" for number in range(count)]


def alike(
    names: list[str], topics: Topics, held: dict[str, Partitions] | None = None
) -> dict[str, Subscriber]:
    """Return members that subscribe to all topics."""
    return {name: Subscriber(frozenset(topics), (held or {}).get(name, {})) for name in names}


def load(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def pairs(partitions: Partitions) -> set[tuple[TopicId, int]]:
    return {(name, index) for name, indexes in partitions.items() for index in indexes}


def moved(before: dict[str, Partitions], after: dict[str, Partitions]) -> int:
    """Count the partitions that moved between members of both assignments."""
    return sum(len(pairs(before.get(name, {})) - pairs(after.get(name, {}))) for name in before)


topics_strategy = st.dictionaries(
    st.integers(1, 8).map(topic), st.integers(min_value=0, max_value=12), max_size=6
)


@st.composite
def subscribers_strategy(draw: st.DrawFn) -> tuple[dict[str, Subscriber], Topics]:
    """Draw members with arbitrary subscriptions and previous assignments, also invalid ones."""
    topics = draw(topics_strategy)
    known = [*topics, topic(99)]
    held = st.dictionaries(
        st.sampled_from(known), st.frozensets(st.integers(0, 14), min_size=1, max_size=8), max_size=4
    )
    subscriber = st.builds(
        Subscriber,
        st.frozensets(st.sampled_from(known)),
        held,
        st.none() | st.sampled_from(["i1", "i2", "i3"]),
    )
    return draw(st.dictionaries(st.sampled_from(members(9)), subscriber, max_size=8)), topics


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS.keys())
class TestAnyAssignor:
    @given(case=subscribers_strategy())
    def test_every_subscribed_partition_is_assigned_once(
        self, assign: Assignor, case: tuple[dict[str, Subscriber], Topics]
    ) -> None:
        subscribers, topics = case
        given_out = assign(subscribers, topics)
        assert given_out.keys() == subscribers.keys()
        everything = [pair for partitions in given_out.values() for pair in pairs(partitions)]
        read = {name for subscriber in subscribers.values() for name in subscriber.topics}
        wanted = {(name, index) for name in topics if name in read for index in range(topics[name])}
        assert len(everything) == len(set(everything))
        assert set(everything) == wanted

    @given(case=subscribers_strategy())
    def test_members_get_only_subscribed_topics(
        self, assign: Assignor, case: tuple[dict[str, Subscriber], Topics]
    ) -> None:
        subscribers, topics = case
        for name, partitions in assign(subscribers, topics).items():
            assert partitions.keys() <= subscribers[name].topics
            assert all(partitions.values()), "a topic without partitions is not mentioned"

    @given(case=subscribers_strategy(), random=st.randoms(use_true_random=False))
    def test_the_order_of_members_and_topics_does_not_matter(
        self,
        assign: Assignor,
        case: tuple[dict[str, Subscriber], Topics],
        random: Random,
    ) -> None:
        subscribers, topics = case
        shuffled_members, shuffled_topics = list(subscribers), list(topics)
        random.shuffle(shuffled_members)
        random.shuffle(shuffled_topics)
        again = assign(
            {name: subscribers[name] for name in shuffled_members},
            {name: topics[name] for name in shuffled_topics},
        )
        assert again == assign(subscribers, topics)

    def test_500_members_and_2000_partitions_take_a_few_calls_each(self, assign: Assignor) -> None:
        topics = {topic(number): 40 for number in range(1, 51)}
        subscribers = alike(members(500), topics, assign(alike(members(499), topics), topics))
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            assign(subscribers, topics)
        finally:
            sys.setprofile(None)
        assert calls < 30 * (500 + 2000)


class TestUniform:
    @given(topics=topics_strategy, count=st.integers(1, 9))
    def test_equal_subscriptions_are_balanced_within_one(self, topics: Topics, count: int) -> None:
        loads = [load(each) for each in uniform(alike(members(count), topics), topics).values()]
        assert max(loads) - min(loads) <= 1

    @given(topics=topics_strategy, count=st.integers(1, 9))
    def test_a_balanced_assignment_does_not_change(self, topics: Topics, count: int) -> None:
        before = uniform(alike(members(count), topics), topics)
        assert uniform(alike(members(count), topics, before), topics) == before

    @given(topics=topics_strategy, count=st.integers(1, 9))
    def test_a_join_moves_only_partitions_to_the_new_member(self, topics: Topics, count: int) -> None:
        before = uniform(alike(members(count), topics), topics)
        after = uniform(alike([*members(count), "new"], topics, before), topics)
        assert moved(before, after) == load(after["new"]) <= ceil(sum(topics.values()) / (count + 1))

    @given(topics=topics_strategy, count=st.integers(2, 9), leaver=st.integers(0, 8))
    def test_a_leave_moves_only_partitions_of_the_leaving_member(
        self, topics: Topics, count: int, leaver: int
    ) -> None:
        before = uniform(alike(members(count), topics), topics)
        stay = [name for place, name in enumerate(members(count)) if place != leaver % count]
        after = uniform(alike(stay, topics, before), topics)
        assert all(pairs(before[name]) <= pairs(after[name]) for name in stay)

    @given(data=st.data(), topics=topics_strategy, count=st.integers(1, 6))
    def test_balancing_takes_the_minimal_number_of_moves(
        self, data: st.DataObject, topics: Topics, count: int
    ) -> None:
        names = members(count)
        before: dict[str, dict[TopicId, frozenset[int]]] = {name: {} for name in names}
        for name, partitions in topics.items():
            for index in range(partitions):
                holder = before[data.draw(st.sampled_from(names))]
                holder[name] = holder.get(name, frozenset()) | {index}
        after = uniform(alike(names, topics, dict(before)), topics)
        share, longer = divmod(sum(topics.values()), count)
        heaviest_first = sorted((load(before[name]) for name in names), reverse=True)
        fewest = sum(max(0, had - share - (place < longer)) for place, had in enumerate(heaviest_first))
        assert moved(dict(before), after) == fewest

    @given(case=subscribers_strategy())
    def test_with_different_subscriptions_no_single_move_improves_the_balance(
        self, case: tuple[dict[str, Subscriber], Topics]
    ) -> None:
        subscribers, topics = case
        given_out = uniform(subscribers, topics)
        for giver, partitions in given_out.items():
            for taker, subscriber in subscribers.items():
                if partitions.keys() & subscriber.topics:
                    assert load(partitions) - load(given_out[taker]) < 2, f"{giver} could give to {taker}"

    def test_members_with_few_topics_get_their_share(self) -> None:
        topics = {topic(1): 2, topic(2): 2}
        both, second = frozenset(topics), frozenset({topic(2)})
        given_out = uniform({"a": Subscriber(both, {}), "b": Subscriber(second, {})}, topics)
        assert given_out == {"a": {topic(1): frozenset({0, 1})}, "b": {topic(2): frozenset({0, 1})}}


class TestRange:
    @given(case=subscribers_strategy())
    def test_each_member_has_consecutive_partitions_of_a_topic(
        self, case: tuple[dict[str, Subscriber], Topics]
    ) -> None:
        subscribers, topics = case
        for partitions in range_(subscribers, topics).values():
            for indexes in partitions.values():
                assert indexes == frozenset(range(min(indexes), max(indexes) + 1))

    @given(case=subscribers_strategy())
    def test_each_topic_is_balanced_within_one(self, case: tuple[dict[str, Subscriber], Topics]) -> None:
        subscribers, topics = case
        given_out = range_(subscribers, topics)
        for name in topics:
            sizes = [
                len(given_out[member].get(name, ()))
                for member, subscriber in subscribers.items()
                if name in subscriber.topics
            ]
            assert not sizes or max(sizes) - min(sizes) <= 1

    def test_the_same_index_of_equal_topics_goes_to_the_same_member(self) -> None:
        topics = {topic(1): 7, topic(2): 7}
        for partitions in range_(alike(members(3), topics), topics).values():
            assert partitions[topic(1)] == partitions[topic(2)]

    def test_a_static_member_keeps_its_partitions_with_a_new_member_id(self) -> None:
        topics = {topic(1): 4}
        everything = frozenset(topics)
        first = {"z": Subscriber(everything, {}, "i1"), "m": Subscriber(everything, {}, "i2")}
        later = {"a": Subscriber(everything, {}, "i2"), "m": Subscriber(everything, {}, "i1")}
        assert range_(first, topics)["z"] == range_(later, topics)["m"] == {topic(1): frozenset({0, 1})}
