"""A slow client is waited for, as long as it is not too slow."""

import pytest

from alpacamq.api.http.reader import MIN_ANSWER_BYTES_PER_SECOND as RATE
from alpacamq.api.http.server import Draining

GRACE_S = 10.0


@pytest.mark.parametrize(
    ("taken_per_second", "ends_after_s"),
    [
        pytest.param(0, 11, id="nothing for the grace"),
        pytest.param(1, 111, id="a byte a second: the grace, and what a fair rate needs"),
        pytest.param(RATE, None, id="a fair rate"),
    ],
)
def test_a_client_has_as_long_as_a_fair_rate_needs(taken_per_second: int, ends_after_s: int | None) -> None:
    draining = Draining()
    unsent = 100 * RATE
    for second in range(200):
        if draining.is_too_slow(max(0, unsent - second * taken_per_second), float(second), GRACE_S):
            assert second == ends_after_s
            return
    assert ends_after_s is None


def test_a_client_that_always_has_answers_to_take_is_not_slow() -> None:
    draining = Draining()
    for second in range(200):
        draining.restart()
        assert not draining.is_too_slow(1000, float(second), GRACE_S)
