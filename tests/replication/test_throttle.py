"""The limit of the rate at which replicas outside the in-sync set are filled."""

import random

import pytest

from alpacamq.model.ids import BrokerId
from alpacamq.replication.throttle import BURST_MS, MAX_WAIT_MS, MIN_ROOM, Throttle, is_throttled

MIB = 1 << 20


def throttle_of(rate: int | None, now_ms: int = 0) -> Throttle:
    throttle = Throttle()
    throttle.set_rate(rate, now_ms)
    return throttle


@pytest.mark.parametrize("rate", [1, 999, 10_000, MIB, 100 * MIB])
def test_what_is_copied_never_exceeds_the_rate_by_more_than_a_burst_and_a_batch(rate: int) -> None:
    chance = random.Random(rate)
    throttle = throttle_of(rate, 5)
    now_ms, total = 5, 0
    for _ in range(2000):
        now_ms += chance.choice((0, 1, 7, 100, 5000))
        if room := throttle.room(now_ms):
            # A batch is not divided: at times it is larger than the room.
            size = chance.choice((room, room // 2, room + MIB))
            throttle.copied(size)
            total += size
        assert total <= rate * (now_ms - 5) / 1000 + rate * BURST_MS / 1000 + MIB
    assert throttle.copied_bytes == total


@pytest.mark.parametrize("rate", [1, 999, 10_000, MIB, 100 * MIB])
def test_who_always_waits_as_long_as_asked_gets_the_whole_rate(rate: int) -> None:
    throttle = throttle_of(rate)
    now_ms = 0
    while now_ms < 100_000:
        if room := throttle.room(now_ms):
            throttle.copied(room)
        now_ms += throttle.wait_ms(now_ms)
    assert throttle.copied_bytes >= rate * now_ms / 1000 - rate * BURST_MS / 1000 - 1


def test_an_idle_throttle_saves_no_more_than_a_burst() -> None:
    throttle = throttle_of(1000)
    assert throttle.room(3_600_000) == 1000 * BURST_MS // 1000


def test_there_is_room_only_for_reads_that_are_worth_it() -> None:
    throttle = throttle_of(100 * MIB)
    assert throttle.room(2) == 0
    assert throttle.wait_ms(2) == 1
    assert throttle.room(3) >= MIN_ROOM


def test_who_waits_does_not_ask_before_there_is_room_nor_in_vain() -> None:
    throttle = throttle_of(1)
    assert throttle.wait_ms(250) == 750
    assert throttle.room(999) == 0
    assert throttle.room(1000) == 1
    assert throttle.wait_ms(1000) == 1


def test_a_batch_above_the_room_is_paid_before_the_next() -> None:
    throttle = throttle_of(1000)
    assert throttle.room(1000) == 1000
    throttle.copied(5000)
    assert throttle.room(4999) == 0
    assert throttle.room(5249) == 0
    assert throttle.room(5250) == 250


def test_the_rate_changes_while_it_is_used() -> None:
    throttle = throttle_of(1000)
    throttle.copied(2000)
    throttle.set_rate(10_000, 1000)  # 1000 are still to be paid
    assert throttle.room(1300) == 0
    assert throttle.room(1400) >= 2500
    throttle.set_rate(10, 1400)
    assert throttle.room(1400) == 10
    throttle.set_rate(None, 2000)
    throttle.set_rate(1000, 3000)
    assert throttle.room(3000) == 0


def test_a_rate_of_zero_stops_copies_until_it_is_raised() -> None:
    throttle = throttle_of(0)
    assert throttle.room(10**9) == 0
    assert throttle.wait_ms(10**9) == MAX_WAIT_MS
    throttle.set_rate(1000, 10**9)
    assert throttle.room(10**9 + 1000) == 1000


def test_a_wait_is_bounded_so_that_a_new_rate_is_noticed() -> None:
    throttle = throttle_of(1)
    throttle.copied(1 << 30)
    assert throttle.wait_ms(0) == MAX_WAIT_MS


@pytest.mark.parametrize(
    ("broker_id", "isr", "adding", "listed", "limited"),
    [
        (3, (1, 2), (3,), (), True),
        (3, (1, 2), (), (), False),
        (3, (1, 2), (), ("0:3",), True),
        (3, (1, 2), (), ("*",), True),
        (3, (1, 2), (), ("1:3", "0:2"), False),
        (3, (1, 2, 3), (3,), ("0:3", "*"), False),
    ],
)
def test_replicas_that_are_added_or_listed_are_limited_unless_they_are_in_sync(
    broker_id: int, isr: tuple[int, ...], adding: tuple[int, ...], listed: tuple[str, ...], limited: bool
) -> None:
    assert is_throttled(BrokerId(broker_id), isr, adding, listed, f"0:{broker_id}") is limited
