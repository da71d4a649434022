"""Rates and lag are remembered for an hour, in bounded memory, and shown as they were."""

from collections.abc import Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.api.metrics.history import MAX_SERIES, SLOTS, History, Measure, SeriesKey, Source, growth
from tests.waiting import eventually

from .problems import refused

TOTAL = SeriesKey(Measure.PUBLISHED)
ORDERS = SeriesKey(Measure.PUBLISHED, "orders")


def test_what_was_recorded_is_shown_in_order() -> None:
    history = History()
    for second in range(4):
        history.record(1000 * second + 1, {TOTAL: second, ORDERS: 10 * second})
    found = history.excerpt([ORDERS, TOTAL], after_ms=0, points=100)
    assert found.times_ms == [1, 1001, 2001, 3001]
    assert found.values == [[0, 10, 20, 30], [0, 1, 2, 3]]


def test_only_what_came_after_is_shown() -> None:
    history = History()
    for moment in range(10):
        history.record(moment, {TOTAL: moment})
    assert history.excerpt([TOTAL], after_ms=7, points=100).times_ms == [8, 9]


def test_what_was_not_there_is_unknown_and_not_zero() -> None:
    history = History()
    history.record(1, {TOTAL: 1})
    history.record(2, {TOTAL: 2, ORDERS: 3})
    history.record(3, {TOTAL: 3})
    assert history.excerpt([ORDERS], after_ms=0, points=100).values == [[None, 3, None]]


@given(records=st.integers(0, 3 * SLOTS), points=st.integers(1, SLOTS))
def test_there_are_never_more_points_than_asked_for_nor_older_than_the_window(
    records: int, points: int
) -> None:
    history = History()
    for moment in range(1, records + 1):
        history.record(moment, {TOTAL: moment})
    found = history.excerpt(history.series(), after_ms=0, points=points)
    assert len(found.times_ms) <= points
    if records:
        assert found.times_ms[-1] == records
        assert min(found.times_ms) > records - SLOTS
        (values,) = found.values
        assert values == sorted(values, key=lambda value: value or 0)


def test_a_point_is_the_mean_of_what_is_known_also_across_the_end_of_the_ring() -> None:
    history = History()
    for moment in range(1, SLOTS + 7):
        history.record(moment, {TOTAL: moment} if moment % 2 else {})
    found = history.excerpt([TOTAL], after_ms=SLOTS - 2, points=2)
    assert found.times_ms == [SLOTS + 4, SLOTS + 6]
    assert found.values == [[SLOTS + 2, SLOTS + 5]]
    # Seven moments that begin at a multiple of seven, which is the last place of the ring.
    assert history.excerpt([TOTAL], after_ms=SLOTS - 1, points=1).values == [[SLOTS + 3]]


def test_series_are_bounded_in_number_and_forgotten_when_nothing_comes() -> None:
    history = History()
    topics = [SeriesKey(Measure.PUBLISHED, f"topic-{n}") for n in range(MAX_SERIES + 10)]
    history.record(1, dict.fromkeys(topics, 1.0))
    assert len(history.series()) == MAX_SERIES
    history.record(1, {TOTAL: 1})
    assert TOTAL in history.series()
    for moment in range(2, SLOTS + 3):
        history.record(moment, {})
    assert history.series() == []


@pytest.mark.parametrize(
    ("before", "after", "published", "consumed"),
    [
        pytest.param({"t": 5}, {"t": 9}, 4, 0, id="what was written since"),
        pytest.param({}, {"t": 9}, 9, 0, id="a new topic was empty"),
        pytest.param({"t": 9}, {"t": 2}, 0, 0, id="another topic of the same name"),
        pytest.param({}, {("t", "g"): 900}, 0, 0, id="where a new group began is not known"),
        pytest.param({("t", "g"): 5}, {("t", "g"): 8}, 0, 3, id="a group came forward"),
        pytest.param(
            {("t", "g"): 5, ("t", "h"): 5}, {("t", "g"): 8, ("t", "h"): 0}, 0, 3, id="one group went back"
        ),
    ],
)
def test_rates_are_made_of_what_grew(
    before: dict[object, int], after: dict[object, int], published: int, consumed: int
) -> None:
    grown = growth(sources(before), sources(after))
    assert grown[SeriesKey(Measure.PUBLISHED)] == grown[SeriesKey(Measure.PUBLISHED, "t")] == published
    assert grown[SeriesKey(Measure.CONSUMED)] == grown[SeriesKey(Measure.CONSUMED, "t")] == consumed


def sources(counts: dict[object, int]) -> dict[Source, int]:
    """A topic by its name; a group on a topic as a pair."""
    return {
        Source(Measure.CONSUMED, *name)
        if isinstance(name, tuple)
        else Source(Measure.PUBLISHED, str(name)): count
        for name, count in counts.items()
    }


def shown(http: httpx.Client, **wanted: str) -> Callable[[str], list[float]]:
    answer = http.get("/history", params=wanted).raise_for_status().json()

    def of(measure: str) -> list[float]:
        found = [each["values"] for each in answer["series"] if each["measure"] == measure]
        assert all(len(values) == len(answer["times"]) for values in found)
        return [value for values in found for value in values if value is not None]

    return of


def test_the_broker_remembers_what_came_and_what_waits(http: httpx.Client, made: str) -> None:
    http.post(f"/topics/{made}/messages", json={"messages": [{"value": 1}] * 40}).raise_for_status()
    offsets = [{"topic": made, "partition": index, "offset": 0} for index in (0, 1)]
    http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).raise_for_status()
    eventually(lambda: any(value > 0 for value in shown(http, topic=made)("published")))
    eventually(lambda: 40 in shown(http, group=made)("lag"))
    assert any(value > 0 for value in shown(http)("published"))
    assert shown(http, topic="no-such-topic")("published") == []


def test_what_cannot_be_is_refused(http: httpx.Client) -> None:
    refused(http.get("/history", params={"points": SLOTS + 1}), 400, "invalid-input")
    refused(http.get("/history", params={"after": "0.5"}), 400, "invalid-input")
    refused(http.get("/history", params={"after": "2026-02-31T00:00:00Z"}), 422, "conflicting-input")
