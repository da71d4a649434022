"""Histograms and counters."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.telemetry.metrics import REQUEST_SECONDS, Histogram, ListenerStats
from alpacamq.telemetry.metrics_catalogue import CATALOGUE, Kind, metrics_page

SECONDS = st.floats(min_value=0, max_value=1e6)


def test_a_value_at_a_bound_belongs_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]


@given(st.lists(st.tuples(SECONDS, st.integers(1, 100))))
def test_a_value_can_be_counted_several_times(values: list[tuple[float, int]]) -> None:
    together, apart = Histogram(REQUEST_SECONDS), Histogram(REQUEST_SECONDS)
    for value, times in values:
        together.observe(value, times)
        for _ in range(times):
            apart.observe(value)
    assert together.counts == apart.counts
    assert together.count == sum(times for _, times in values)
    assert together.total == pytest.approx(apart.total)


@given(SECONDS)
def test_bucket_bounds_follow_prometheus(value: float) -> None:
    place = bisect_left(REQUEST_SECONDS, value)
    assert all(value <= bound for bound in REQUEST_SECONDS[place:])
    assert all(value > bound for bound in REQUEST_SECONDS[:place])


def test_requests_of_a_kind_are_counted_together() -> None:
    listener = ListenerStats()
    listener.of("Produce").seconds.observe(0.1)
    listener.of("Produce").refused("CORRUPT_MESSAGE")
    listener.of("Produce").refused("CORRUPT_MESSAGE")
    assert listener.of("Produce").seconds.count == 1
    assert listener.of("Produce").refusals == {"CORRUPT_MESSAGE": 2}


def test_the_catalogue_follows_the_conventions_of_prometheus() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(names) == len(set(names))
    for metric in CATALOGUE:
        assert metric.name.startswith(("alpacamq_", "process_"))
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert not metric.name.endswith(("_ms", "_milliseconds", "_mb", "_kb", "_count", "_sum", "_bucket"))
        assert metric.help.endswith(".")
        assert "|" not in metric.help, "it would end a cell of the guide's table"
        assert metrics_page().count(f"| `{metric.name}` |") == 1
