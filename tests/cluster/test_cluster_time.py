"""Cluster time: learned from replies, monotonic, corrected slowly, continued by the next controller."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.cluster.cluster_time import (
    MAX_SLEW,
    MAX_SLEWED_MS,
    ROUNDING_MS,
    TOLERATED_MS,
    ClusterTime,
    middle,
)

START_MS = 1_790_000_000_000

delays = st.integers(0, 500)
pauses = st.integers(0, 20_000)


def synchronised(time_ms: int = START_MS, now_ms: int = 0) -> ClusterTime:
    time = ClusterTime(0, now_ms)
    time.observe(time_ms, now_ms, now_ms)
    return time


def test_the_first_reply_sets_the_time_to_the_middle_of_the_round_trip() -> None:
    time = ClusterTime(5, 0)
    time.observe(START_MS, 1000, 1200)
    assert time.at(1200) == START_MS + 101  # half of the round trip and of the rounding
    assert time.at(1300) == START_MS + 201


@given(st.integers(-MAX_SLEWED_MS, MAX_SLEWED_MS), st.lists(st.tuples(pauses, delays, delays), max_size=20))
def test_time_never_goes_back_and_runs_at_a_bounded_rate(
    ahead_ms: int, replies: list[tuple[int, int, int]]
) -> None:
    time = synchronised()
    now_ms = 0
    before_ms = time.at(0)
    for pause_ms, there_ms, back_ms in replies:
        sent_ms = now_ms + pause_ms
        received_ms = sent_ms + there_ms + back_ms
        assert time.at(sent_ms) >= before_ms
        time.observe(START_MS + ahead_ms + sent_ms + there_ms, sent_ms, received_ms)
        after_ms = time.at(received_ms)
        elapsed_ms = received_ms - now_ms
        assert abs(after_ms - before_ms - elapsed_ms) <= elapsed_ms * MAX_SLEW + 1
        assert after_ms >= before_ms
        now_ms, before_ms = received_ms, after_ms


@given(
    st.integers(-MAX_SLEWED_MS, MAX_SLEWED_MS), st.lists(st.tuples(delays, delays), min_size=1, max_size=20)
)
def test_time_comes_to_the_controllers_within_the_shortest_round_trip(
    ahead_ms: int, replies: list[tuple[int, int]]
) -> None:
    time = synchronised()
    now_ms = 0
    for there_ms, back_ms in replies:
        received_ms = now_ms + there_ms + back_ms
        time.observe(START_MS + ahead_ms + now_ms + there_ms, now_ms, received_ms)
        now_ms = received_ms + 3000
    shortest_ms = min(there_ms + back_ms for there_ms, back_ms in replies)
    later_ms = now_ms + int(MAX_SLEWED_MS / MAX_SLEW) + 1
    assert abs(time.at(later_ms) - (START_MS + ahead_ms + later_ms)) <= shortest_ms + ROUNDING_MS


def test_replies_that_agree_with_the_time_do_not_move_it() -> None:
    time = synchronised()
    for sent_ms, there_ms, back_ms in ((1000, 0, 30), (2000, 30, 0), (3000, 5, 5), (4000, 400, 100)):
        time.observe(START_MS + sent_ms + there_ms, sent_ms, sent_ms + there_ms + back_ms)
    assert time.at(100_000) == START_MS + 100_001


def test_a_node_that_was_suspended_is_set_forward() -> None:
    time = synchronised()
    time.observe(START_MS + 3_600_000, 1000, 1000)
    assert time.at(1000) == START_MS + 3_600_000


def test_a_node_that_is_far_ahead_runs_slower_but_is_not_set_back() -> None:
    time = synchronised()
    time.observe(START_MS - 3_600_000, 0, 0)
    assert time.at(1000) == START_MS + 981


def test_a_new_controller_goes_on_from_the_time_that_it_knows() -> None:
    time = synchronised()
    time.lead(START_MS - 3_600_000, START_MS, 1000)
    assert time.at(1000) == START_MS + 1001


def test_the_first_controller_uses_its_clock_but_no_time_before_the_recorded() -> None:
    time = ClusterTime(0, 0)
    time.lead(START_MS, START_MS - 5, 0)
    assert time.at(10) == START_MS + 10
    time = ClusterTime(0, 0)
    time.lead(START_MS, START_MS + 600_000, 0)
    assert time.at(10) == START_MS + 600_010


@pytest.mark.parametrize(
    ("ahead_ms", "expected"),
    [
        pytest.param([], 0, id="no clock"),
        pytest.param([0, 3_600_000], 0, id="one of two is ahead"),
        pytest.param([-3_600_000, 40], 0, id="one of two is behind"),
        pytest.param([-7, -3_600_000], -7, id="both are behind"),
        pytest.param([3_600_000, 20, -30], 20, id="one of three is an hour ahead"),
        pytest.param([500, 480, 0], 480, id="the controller's own is behind"),
        pytest.param([0, 0, 900, 900], 0, id="even"),
    ],
)
def test_the_clock_in_the_middle_counts(ahead_ms: list[int], expected: int) -> None:
    assert middle(ahead_ms) == expected


def test_the_controller_follows_clocks_slowly_and_ignores_small_differences() -> None:
    time = synchronised()
    time.follow_clocks([TOLERATED_MS, TOLERATED_MS, 3_600_000], 0)
    assert time.at(10_000) == START_MS + 10_001
    time.follow_clocks([500, 500, 0], 10_000)
    assert time.at(20_000) == START_MS + 20_201
    time.follow_clocks([20 * MAX_SLEWED_MS] * 3, 20_000)  # not set forward: brokers would follow
    assert time.at(30_000) == START_MS + 30_401
