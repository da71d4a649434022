"""Lanes get their shares whatever the sizes of receives, and no lane starves."""

from itertools import cycle, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.model.lanes import WEIGHTS, Lane
from alpacamq.queues.messages import Action
from alpacamq.queues.ready import LaneScheduler, most_urgent

from .fake_log import Entry, FakeLog
from .queue_host import QUEUE, QueueHost

ALL = 0b11111


def served(scheduler: LaneScheduler, active: int, sizes: list[int]) -> dict[Lane, int]:
    """Count deliveries by lane for receives of these sizes, if no active lane runs empty."""
    counts = dict.fromkeys(Lane, 0)
    for size in sizes:
        left = size
        assert scheduler.starved(active, 0, 1000) == []
        while left:
            lane, allowance = scheduler.choose(active, left)
            assert 0 < allowance <= left
            scheduler.served(lane, allowance, 0, is_empty=False)
            counts[lane] += allowance
            left -= allowance
    return counts


@given(st.lists(st.integers(1, 10), min_size=1, max_size=50))
def test_shares_follow_the_weights_whatever_the_sizes_of_receives(pattern: list[int]) -> None:
    sizes = [*islice(cycle(pattern), 1000)]
    counts = served(LaneScheduler(), ALL, sizes)
    total = sum(counts.values())
    for lane, weight in WEIGHTS.items():
        assert abs(counts[lane] - total * weight / 100) <= weight


@given(st.integers(1, ALL), st.integers(1, 40))
def test_the_share_of_empty_lanes_is_divided_among_the_others_by_weight(active: int, size: int) -> None:
    counts = served(LaneScheduler(), active, [size] * 100)
    there = [lane for lane in Lane if active >> lane & 1]
    total, weights = sum(counts.values()), sum(WEIGHTS[lane] for lane in there)
    for lane in Lane:
        expected = total * WEIGHTS[lane] / weights if lane in there else 0
        assert abs(counts[lane] - expected) <= WEIGHTS[lane]


def test_shares_of_a_hundred_thousand_deliveries_are_within_two_percent() -> None:
    log = FakeLog()
    log.add(QUEUE.topic)
    queue = QueueHost(log)
    queue.append(*[Entry(lane) for lane, weight in WEIGHTS.items() for _ in range(weight)] * 1100)
    counts = dict.fromkeys(Lane, 0)
    for size in islice(cycle([1, 7, 10, 3, 5, 9, 10, 2]), 17_100):
        messages = queue.receive(size)
        for message in messages:
            counts[message.lane] += 1
        queue.settle(Action.ACK, *messages)
        queue.now_ms += 5
        queue.changes.clear()
    total = sum(counts.values())
    assert total >= 100_000
    for lane, weight in WEIGHTS.items():
        assert counts[lane] / total == pytest.approx(weight / 100, rel=0.02)


def test_a_lane_that_waits_too_long_is_starved_until_it_is_served() -> None:
    scheduler = LaneScheduler()
    both = 1 << Lane.CRITICAL | 1 << Lane.LOW
    assert scheduler.starved(both, 0, 1000) == []
    scheduler.served(Lane.CRITICAL, 5, 900, is_empty=False)
    assert scheduler.starved(both, 999, 1000) == []
    assert scheduler.starved(both, 1000, 1000) == [Lane.LOW]
    scheduler.served(Lane.LOW, 1, 1000, is_empty=False)
    assert scheduler.starved(both, 1999, 1000) == [Lane.CRITICAL]


def test_a_single_active_lane_does_not_starve() -> None:
    scheduler = LaneScheduler()
    both = 1 << Lane.CRITICAL | 1 << Lane.LOW
    scheduler.starved(both, 0, 1000)
    assert scheduler.starved(1 << Lane.LOW, 5000, 1000) == []
    assert scheduler.starved(both, 5001, 1000) == []


@pytest.mark.parametrize(
    ("active", "lane"), [(0b11111, Lane.CRITICAL), (0b11000, Lane.LOW), (0b10000, Lane.BACKGROUND)]
)
def test_strict_order_serves_the_most_urgent_lane_first(active: int, lane: Lane) -> None:
    assert most_urgent(active) is lane
