"""Selection of names with series of their own, and the sum of the others."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from alpacamq.api.metrics.collector import Remainder, Selection

NAMES = st.sampled_from("abcdefgh")


async def test_the_largest_are_shown() -> None:
    assert await Selection[str](2).choose({"a": 1, "b": 3, "c": 2}) == {"b", "c"}


async def test_a_selected_name_stays_selected_while_it_exists() -> None:
    selection: Selection[str] = Selection(1)
    await selection.choose({"a": 1})
    assert await selection.choose({"a": 1, "b": 100}) == {"a"}
    assert await selection.choose({"b": 100, "c": 5}) == {"b"}


@given(st.integers(0, 4), st.lists(st.dictionaries(NAMES, st.integers(0, 9))))
async def test_as_many_are_shown_as_there_may_be(limit: int, steps: list[dict[str, int]]) -> None:
    selection: Selection[str] = Selection(limit)
    for sizes in steps:
        chosen = await selection.choose(sizes)
        assert chosen <= sizes.keys()
        assert len(chosen) == min(limit, len(sizes))


def test_a_deleted_name_does_not_reduce_the_sum() -> None:
    remainder: Remainder[str] = Remainder(1)
    assert [*remainder.add_up({"a": [5], "b": [7]})] == [12]
    assert [*remainder.add_up({"b": [8]})] == [13]
    assert [*remainder.add_up({"b": [8], "c": [2]})] == [15]


def test_a_recreated_name_adds_its_whole_count() -> None:
    remainder: Remainder[str] = Remainder(1)
    remainder.add_up({"a": [5]})
    assert [*remainder.add_up({"a": [1]})] == [6]


@given(st.lists(st.dictionaries(NAMES, st.tuples(st.integers(0, 9), st.integers(0, 9)))))
def test_a_sum_never_falls(steps: list[Mapping[str, tuple[int, int]]]) -> None:
    remainder: Remainder[str] = Remainder(2)
    before = [0, 0]
    for counters in steps:
        now = [*remainder.add_up(counters)]
        assert all(old <= new for old, new in zip(before, now, strict=True))
        before = now
