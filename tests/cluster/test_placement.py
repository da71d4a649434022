"""Replica placement: even, on different racks, and never led by a broker that does not run."""

from collections import Counter
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from alpacamq.cluster.brokers import BrokerRegistration
from alpacamq.cluster.image import ClusterImage, broker_change, partition_change, topic_change
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.cluster.placement import default_replication_factor, place, rack_of, replacement
from alpacamq.model.errors import InvalidReplication
from alpacamq.model.ids import BrokerId, TopicName
from alpacamq.model.topics import Topic


def broker(
    number: int, rack: str, *, is_fenced: bool = False, is_draining: bool = False
) -> BrokerRegistration:
    return BrokerRegistration(
        id=BrokerId(number),
        incarnation_id=UUID(int=number),
        directory_id=UUID(int=number),
        epoch=1,
        rack=rack,
        is_fenced=is_fenced,
        is_draining=is_draining,
    )


def image_of(*brokers: BrokerRegistration) -> ClusterImage:
    image = ClusterImage()
    image.apply(map(broker_change, brokers))
    return image


def topic_of(number: int = 1, partitions: int = 1) -> Topic:
    return Topic(name=TopicName("t"), id=UUID(int=number), partitions=partitions)


def spread(counts: Counter[int], brokers: int) -> int:
    return max(counts[each] for each in range(brokers)) - min(counts[each] for each in range(brokers))


@given(
    racks=st.integers(1, 5),
    per_rack=st.integers(1, 4),
    partitions=st.integers(1, 40),
    wanted=st.integers(1, 5),
    topic=st.integers(0, 1 << 128).filter(lambda number: number < 1 << 128),
)
def test_a_symmetrical_cluster_is_balanced(
    racks: int, per_rack: int, partitions: int, wanted: int, topic: int
) -> None:
    brokers = racks * per_rack
    factor = min(wanted, brokers)
    image = image_of(*(broker(number, f"r{number % racks}") for number in range(brokers)))

    placed = place(image, topic_of(topic), partitions, factor)

    assert placed == place(image.copy(), topic_of(topic), partitions, factor)
    for replicas in placed:
        assert len(set(replicas)) == factor
        in_rack = Counter(each % racks for each in replicas)
        assert max(in_rack.values()) <= -(-factor // racks)
    assert spread(Counter(each for replicas in placed for each in replicas), brokers) <= 1
    assert spread(Counter(replicas[0] for replicas in placed), brokers) <= 1


@given(
    brokers=st.lists(
        st.builds(dict, rack=st.sampled_from("abc"), is_fenced=st.booleans(), is_draining=st.booleans()),
        min_size=1,
        max_size=8,
    ),
    partitions=st.integers(1, 20),
    factor=st.integers(1, 4),
)
def test_any_cluster_is_used_as_far_as_it_goes(
    brokers: list[dict[str, str | bool]], partitions: int, factor: int
) -> None:
    image = image_of(*(broker(number, **each) for number, each in enumerate(brokers)))  # type: ignore[arg-type]
    registered = image.brokers
    staying = {number for number, each in registered.items() if each.is_staying}
    absent = {number for number, each in registered.items() if each.is_fenced and not each.is_draining}
    try:
        placed = place(image, topic_of(), partitions, factor)
    except InvalidReplication:
        assert not staying or len(staying | absent) < factor
        return
    racks = {rack_of(registered[number]) for number in staying}
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] in staying
        assert set(replicas) <= staying | absent
        if not set(replicas) <= staying:
            assert staying <= set(replicas), "a fenced broker although another one runs"
        elif factor <= len(racks):
            assert len({rack_of(registered[BrokerId(each)]) for each in replicas}) == factor


def test_topics_with_one_partition_are_spread_over_the_cluster() -> None:
    image = image_of(*(broker(number, f"r{number}") for number in range(3)))
    for number in range(1, 10):
        topic = topic_of(number)
        (replicas,) = place(image, topic, 1, 1)
        state = PartitionState(replicas=replicas, isr=replicas, leader=replicas[0])
        image.apply(
            [
                topic_change(Topic(name=TopicName(f"t{number}"), id=topic.id, partitions=1)),
                partition_change(PartitionId(topic.id, 0), state),
            ]
        )
    assert [image.led_by(number) for number in range(3)] == [3, 3, 3]


def test_partitions_that_are_added_go_to_brokers_with_fewer_of_the_topic() -> None:
    image = image_of(*(broker(number, f"r{number}") for number in range(4)))
    existing = [PartitionState(replicas=(0, 1), isr=(0, 1)), PartitionState(replicas=(1, 0), isr=(0, 1))]
    placed = place(image, topic_of(), 2, 2, existing)
    assert sorted(each for replicas in placed for each in replicas) == [2, 2, 3, 3]
    assert sorted(replicas[0] for replicas in placed) == [2, 3]


@pytest.mark.parametrize(
    ("racks", "factor"),
    [
        pytest.param([], 1, id="no broker yet"),
        pytest.param(["a"], 1, id="one broker"),
        pytest.param(["a", "a", "a"], 1, id="three processes on one host"),
        pytest.param(["a", "b"], 2, id="two racks"),
        pytest.param(["a", "b", "c", "d"], 3, id="at most 3"),
        pytest.param(["", "", ""], 3, id="without racks, each broker counts"),
    ],
)
def test_the_default_factor_is_a_replica_on_each_rack(racks: list[str], factor: int) -> None:
    image = image_of(*(broker(number, rack) for number, rack in enumerate(racks)))
    assert default_replication_factor(image) == factor


def test_a_broker_that_restarts_does_not_lower_the_default_factor() -> None:
    image = image_of(broker(1, "a"), broker(2, "b"), broker(3, "c", is_fenced=True))
    assert default_replication_factor(image) == 3
    (replicas,) = place(image, topic_of(), 1, 3)
    assert replicas[2] == 3


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        pytest.param([broker(4, "c"), broker(3, "a")], 4, id="another rack first"),
        pytest.param([broker(5, "c"), broker(4, "c")], 4, id="then the lowest id"),
        pytest.param([broker(4, "c", is_fenced=True)], None, id="not a fenced one"),
        pytest.param([broker(4, "c", is_draining=True)], None, id="not one that is drained"),
    ],
)
def test_the_replacement_of_a_replica(brokers: list[BrokerRegistration], expected: int | None) -> None:
    image = image_of(broker(1, "a"), broker(2, "b"), *brokers)
    state = PartitionState(replicas=(1, 2), isr=(1, 2), leader=1)
    assert replacement(image, state, 2, {}) == expected


@pytest.mark.parametrize(
    ("is_fenced", "text"),
    [
        pytest.param(False, "replication factor 3: 2 brokers can take replicas now", id="all run"),
        pytest.param(
            True,
            "replication factor 3: 1 brokers can take replicas now, 1 are not running",
            id="one does not run",
        ),
    ],
)
def test_too_few_brokers_are_counted_with_those_that_do_not_run(is_fenced: bool, text: str) -> None:
    image = image_of(broker(1, "a"), broker(2, "b", is_fenced=is_fenced))
    with pytest.raises(InvalidReplication) as raised:
        place(image, topic_of(), 1, 3)
    assert str(raised.value) == text
