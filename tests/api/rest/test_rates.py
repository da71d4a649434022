"""How fast counters grow."""

from alpacamq.api.metrics.history import WINDOW_SECONDS, Rates


def test_nothing_is_known_at_the_first_look() -> None:
    assert Rates[str]().per_second({"a": 5}, now=0.0) == {"a": None}


def test_growth_is_per_second() -> None:
    rates = Rates[str]()
    rates.per_second({"a": 5}, now=0.0)
    assert rates.per_second({"a": 25}, now=4.0) == {"a": 5.0}


def test_what_is_new_has_no_rate_and_what_began_again_has_none_below_zero() -> None:
    rates = Rates[str]()
    rates.per_second({"a": 5}, now=0.0)
    assert rates.per_second({"a": 1, "b": 7}, now=1.0) == {"a": 0.0, "b": None}


def test_what_was_long_ago_does_not_count() -> None:
    rates = Rates[str]()
    counts = {"a": 0}
    for second in range(int(WINDOW_SECONDS) * 4):
        counts["a"] += 100
        rates.per_second(counts, now=float(second))
    for second in range(int(WINDOW_SECONDS) * 4, int(WINDOW_SECONDS) * 7):
        latest = rates.per_second(counts, now=float(second))
    assert latest == {"a": 0.0}
