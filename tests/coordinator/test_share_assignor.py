"""The share assignor: every member has partitions, every partition is shared, and few partitions move."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.coordinator.consumer.messages import Partitions
from alpacamq.coordinator.share.group import assign_shared
from alpacamq.model.ids import TopicId

A, B = UUID(int=1), UUID(int=2)


def members(count: int) -> list[str]:
    return [f"m{number:03}" for number in range(count)]


def sharers(assigned: dict[str, Partitions], topic: TopicId, partitions: int) -> list[int]:
    """Count the members of each partition of a topic."""
    held = [each.get(topic, frozenset()) for each in assigned.values()]
    return [sum(index in indexes for indexes in held) for index in range(partitions)]


@pytest.mark.parametrize(
    ("member_count", "partitions", "expected"),
    [
        pytest.param(1, 3, [3], id="one has everything"),
        pytest.param(2, 3, [1, 2], id="partitions are spread"),
        pytest.param(3, 1, [1, 1, 1], id="many share the only partition"),
        pytest.param(3, 3, [1, 1, 1], id="every partition has one member"),
        pytest.param(4, 6, [1, 1, 2, 2], id="some members have one more"),
        pytest.param(10, 4, [1, 1, 1, 1, 1, 1, 1, 1, 2, 2], id="more members than partitions"),
    ],
)
def test_number_of_partitions_per_member(member_count: int, partitions: int, expected: list[int]) -> None:
    subscribers = {name: frozenset({A}) for name in members(member_count)}
    assigned = assign_shared(subscribers, {A: partitions}, {})
    assert sorted(len(each[A]) for each in assigned.values()) == expected


held = st.dictionaries(
    st.sampled_from([A, B]), st.frozensets(st.integers(0, 14), min_size=1, max_size=12), max_size=2
)


@given(
    subscribers=st.dictionaries(
        st.sampled_from(members(12)), st.frozensets(st.sampled_from([A, B])), min_size=1
    ),
    counts=st.fixed_dictionaries({A: st.integers(0, 12), B: st.integers(0, 12)}),
    before=st.dictionaries(st.sampled_from(members(12)), held),
)
def test_every_partition_has_a_member_and_every_member_has_work(
    subscribers: dict[str, frozenset[TopicId]], counts: dict[TopicId, int], before: dict[str, Partitions]
) -> None:
    assigned = assign_shared(subscribers, counts, before)
    assert set(assigned) == set(subscribers)
    for topic, partitions in counts.items():
        interested = [name for name, topics in subscribers.items() if topic in topics]
        assert all(topic not in each or name in interested for name, each in assigned.items())
        if not interested or not partitions:
            continue
        expected = -(-len(interested) // partitions)
        assert sharers(assigned, topic, partitions) == [expected] * partitions
        loads = [len(assigned[name][topic]) for name in interested]
        assert min(loads) >= 1
        assert all(index < partitions for name in interested for index in assigned[name][topic])


@given(member_count=st.integers(1, 12), partitions=st.integers(1, 12))
def test_initial_loads_differ_by_at_most_one(member_count: int, partitions: int) -> None:
    subscribers = {name: frozenset({A}) for name in members(member_count)}
    loads = [len(each[A]) for each in assign_shared(subscribers, {A: partitions}, {}).values()]
    assert max(loads) - min(loads) <= 1


@given(member_count=st.integers(1, 12), partitions=st.integers(1, 12))
def test_a_balanced_assignment_does_not_change(member_count: int, partitions: int) -> None:
    subscribers = {name: frozenset({A}) for name in members(member_count)}
    before = assign_shared(subscribers, {A: partitions}, {})
    assert assign_shared(subscribers, {A: partitions}, before) == before


def test_a_new_member_gets_no_more_than_its_share() -> None:
    subscribers = {name: frozenset({A}) for name in members(4)}
    before = assign_shared(subscribers, {A: 20}, {})
    after = assign_shared({**subscribers, "new": frozenset({A})}, {A: 20}, before)
    lost = sum(len(before[name][A] - after[name][A]) for name in subscribers)
    assert lost == len(after["new"][A]) == 4
    assert {len(each[A]) for each in after.values()} == {4}


def test_a_thousand_members_and_partitions_are_assigned_quickly() -> None:
    subscribers = {name: frozenset({A}) for name in members(1000)}
    assigned = assign_shared(subscribers, {A: 1000}, {})
    assert {len(each[A]) for each in assigned.values()} == {1}
