"""History of rates and lag: bounded in memory, averaged on request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.broker.sampling import CounterKey, growth
from alpacamq.telemetry.history import (
    MAX_SERIES,
    RATE_WINDOW_SECONDS,
    SLOTS,
    History,
    Measure,
    Rates,
    SeriesKey,
)

TOTAL = SeriesKey(Measure.PUBLISHED)
ORDERS = SeriesKey(Measure.PUBLISHED, "orders")


def test_samples_are_returned_in_order() -> None:
    history = History()
    for second in range(4):
        history.record(1000 * second + 1, {TOTAL: second, ORDERS: 10 * second})
    found = history.excerpt([ORDERS, TOTAL], after_ms=0, points=100)
    assert found.times_ms == [1, 1001, 2001, 3001]
    assert found.values == [[0, 10, 20, 30], [0, 1, 2, 3]]


def test_an_excerpt_begins_after_a_timestamp() -> None:
    history = History()
    for at_ms in range(10):
        history.record(at_ms, {TOTAL: at_ms})
    assert history.excerpt([TOTAL], after_ms=7, points=100).times_ms == [8, 9]


def test_missing_samples_are_none_not_zero() -> None:
    history = History()
    history.record(1, {TOTAL: 1})
    history.record(2, {TOTAL: 2, ORDERS: 3})
    history.record(3, {TOTAL: 3})
    assert history.excerpt([ORDERS], after_ms=0, points=100).values == [[None, 3, None]]


@given(records=st.integers(0, 3 * SLOTS), points=st.integers(1, SLOTS))
def test_an_excerpt_is_bounded_in_points_and_age(records: int, points: int) -> None:
    history = History()
    for at_ms in range(1, records + 1):
        history.record(at_ms, {TOTAL: at_ms})
    found = history.excerpt(history.series(), after_ms=0, points=points)
    assert len(found.times_ms) <= points
    if records:
        assert found.times_ms[-1] == records
        assert min(found.times_ms) > records - SLOTS
        (values,) = found.values
        assert values == sorted(values, key=lambda value: value or 0)


def test_a_point_is_the_mean_of_what_is_known_also_across_the_end_of_the_ring() -> None:
    history = History()
    for at_ms in range(1, SLOTS + 7):
        history.record(at_ms, {TOTAL: at_ms} if at_ms % 2 else {})
    found = history.excerpt([TOTAL], after_ms=SLOTS - 2, points=2)
    assert found.times_ms == [SLOTS + 4, SLOTS + 6]
    assert found.values == [[SLOTS + 2, SLOTS + 5]]
    # Seven timestamps that begin at a multiple of seven, which is the last slot of the ring.
    assert history.excerpt([TOTAL], after_ms=SLOTS - 1, points=1).values == [[SLOTS + 3]]


def published(*names: str) -> list[SeriesKey]:
    return [SeriesKey(Measure.PUBLISHED, name) for name in names]


MANY = published(*(f"topic-{number}" for number in range(MAX_SERIES + 10)))


def test_series_of_a_measure_are_bounded_in_number_and_the_largest_are_kept() -> None:
    history = History()
    history.record(1, {key: float(number) for number, key in enumerate(MANY)})
    assert history.series() == sorted(MANY[10:])
    assert history.omitted == set(MANY[:10])
    lag = SeriesKey(Measure.LAG, "topic-1", "group")
    history.record(1, {TOTAL: 1, lag: 1})
    assert {TOTAL, lag} <= set(history.series())
    assert not history.omitted


def test_series_without_samples_are_removed_after_an_hour() -> None:
    history = History()
    history.record(1, dict.fromkeys(MANY, 1.0))
    for at_ms in range(2, SLOTS + 3):
        history.record(at_ms, {})
    assert history.series() == []


@pytest.mark.parametrize(
    ("numbers", "is_added"),
    [
        pytest.param(dict.fromkeys(MANY[:MAX_SERIES], 0.0), True, id="instead of an idle one"),
        pytest.param(dict.fromkeys(MANY[1:MAX_SERIES], 9.0), True, id="instead of one that has ended"),
        pytest.param(dict.fromkeys(MANY[:MAX_SERIES], 1.0), True, id="instead of a smaller one"),
        pytest.param(dict.fromkeys(MANY[:MAX_SERIES], 2.0), False, id="not instead of one about as large"),
    ],
)
def test_a_busy_series_is_added_to_a_full_history(numbers: dict[SeriesKey, float], is_added: bool) -> None:
    history = History()
    [busy] = published("busy")
    history.record(1, dict.fromkeys(MANY[:MAX_SERIES], 0.0))
    history.record(2, numbers)
    history.record(3, {**numbers, busy: 3.0})
    assert (busy in history.series()) is is_added
    assert (busy in history.omitted) is not is_added
    assert len(history.series()) == MAX_SERIES
    if len(numbers) < MAX_SERIES:
        assert MANY[0] not in history.series()


def test_series_that_were_not_measured_count_as_omitted() -> None:
    history = History()
    unmeasured = SeriesKey(Measure.LAG, "?", "group-201")
    history.record(1, {TOTAL: 1}, [unmeasured])
    assert history.omitted == {unmeasured}
    assert history.series() == [TOTAL]


def test_an_idle_series_replaces_none() -> None:
    history = History()
    history.record(1, dict.fromkeys(MANY[:MAX_SERIES], 0.0))
    history.record(2, dict.fromkeys(MANY, 0.0))
    assert history.series() == sorted(MANY[:MAX_SERIES])
    assert len(history.omitted) == 10


@pytest.mark.parametrize(
    ("before", "after", "published", "consumed"),
    [
        pytest.param({"t": 5}, {"t": 9}, 4, 0, id="records written since"),
        pytest.param({}, {"t": 9}, 9, 0, id="a new topic was empty"),
        pytest.param({"t": 9}, {"t": 2}, 0, 0, id="another topic of the same name"),
        pytest.param({}, {("t", "g"): 900}, 0, 0, id="the start of a new group is unknown"),
        pytest.param({("t", "g"): 5}, {("t", "g"): 8}, 0, 3, id="a group advanced"),
        pytest.param(
            {("t", "g"): 5, ("t", "h"): 5}, {("t", "g"): 8, ("t", "h"): 0}, 0, 3, id="one group was reset"
        ),
    ],
)
def test_growth_of_counters(
    before: dict[object, int], after: dict[object, int], published: int, consumed: int
) -> None:
    grown = growth(counters(before), counters(after))
    assert grown[SeriesKey(Measure.PUBLISHED)] == grown[SeriesKey(Measure.PUBLISHED, "t")] == published
    assert grown[SeriesKey(Measure.CONSUMED)] == grown[SeriesKey(Measure.CONSUMED, "t")] == consumed


def counters(counts: dict[object, int]) -> dict[CounterKey, int]:
    """A topic by its name; a group on a topic as a pair."""
    return {
        CounterKey(Measure.CONSUMED, *name)
        if isinstance(name, tuple)
        else CounterKey(Measure.PUBLISHED, str(name)): count
        for name, count in counts.items()
    }


def test_the_first_sample_has_no_rates() -> None:
    assert Rates[str]().per_second({"a": 5}, now=0.0) == {"a": None}


def test_rates_are_per_second() -> None:
    rates = Rates[str]()
    rates.per_second({"a": 5}, now=0.0)
    assert rates.per_second({"a": 25}, now=4.0) == {"a": 5.0}


def test_a_new_counter_has_no_rate_and_a_reset_one_is_not_negative() -> None:
    rates = Rates[str]()
    rates.per_second({"a": 5}, now=0.0)
    assert rates.per_second({"a": 1, "b": 7}, now=1.0) == {"a": 0.0, "b": None}


def test_rates_cover_a_short_window() -> None:
    rates = Rates[str]()
    counts = {"a": 0}
    for second in range(int(RATE_WINDOW_SECONDS) * 4):
        counts["a"] += 100
        rates.per_second(counts, now=float(second))
    for second in range(int(RATE_WINDOW_SECONDS) * 4, int(RATE_WINDOW_SECONDS) * 7):
        latest = rates.per_second(counts, now=float(second))
    assert latest == {"a": 0.0}
