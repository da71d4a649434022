"""The offsets of a batch are limited and split."""

from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq_spark.read.ranges import OffsetRange, between, limited, split


def place(partition: int) -> TopicPartition:
    return TopicPartition(TopicName("orders"), partition)


BACKLOGS = st.lists(st.integers(0, 10_000), min_size=1, max_size=20)


@given(BACKLOGS, st.integers(1, 5000))
def test_a_limited_batch_moves_every_partition_that_has_something(backlogs: list[int], limit: int) -> None:
    start = {place(n): 100 for n in range(len(backlogs))}
    end = {place(n): 100 + size for n, size in enumerate(backlogs)}
    reached = limited(start, end, limit)
    taken = {each: reached[each] - start[each] for each in reached}
    waiting = [size for size in backlogs if size]
    assert all(0 <= taken[place(n)] <= size for n, size in enumerate(backlogs))
    assert all(taken[place(n)] >= 1 for n, size in enumerate(backlogs) if size)
    assert sum(taken.values()) <= max(limit, len(waiting))
    if sum(backlogs) <= limit:
        assert reached == end
    else:
        # Rounding leaves less than one record for each partition.
        assert sum(taken.values()) > limit - len(waiting) - 1


def test_a_skewed_partition_starves_no_other() -> None:
    start = dict.fromkeys(map(place, range(4)), 0)
    end = {place(0): 1_000_000, place(1): 300, place(2): 300, place(3): 300}
    reached = limited(start, end, 1000)
    assert [reached[place(n)] for n in (1, 2, 3)] == [125, 125, 125]
    assert reached[place(0)] == 624


def test_a_recreated_partition_moves_back_whatever_the_limit() -> None:
    reached = limited({place(0): 100, place(1): 0}, {place(0): 0, place(1): 500}, 10)
    assert reached == {place(0): 0, place(1): 10}


def test_a_partition_that_is_new_begins_at_its_first_record() -> None:
    assert between({place(0): 5}, {place(0): 5, place(1): 3}) == [OffsetRange(place(1), 0, 3)]


@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=9),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 40),
)
def test_split_ranges_cover_the_same_offsets(
    backlogs: list[int], at_least: int | None, at_most: int | None
) -> None:
    whole = [OffsetRange(place(n), 7, 7 + size) for n, size in enumerate(backlogs) if size]
    parts = split(whole, at_least=at_least, at_most=at_most)
    assert [(part.partition, at) for part in parts for at in range(part.start, part.end)] == [
        (each.partition, at) for each in whole for at in range(each.start, each.end)
    ]
    assert all(len(part) > 0 for part in parts)
    if at_most is not None:
        assert all(len(part) <= at_most for part in parts)


def test_a_big_partition_is_split_into_more_parts_than_a_small_one() -> None:
    parts = split([OffsetRange(place(0), 0, 900), OffsetRange(place(1), 0, 100)], at_least=10, at_most=None)
    assert [part.partition.partition for part in parts] == [0] * 9 + [1]
