"""Clock jumps are ignored until they last; nothing is deleted, expired or delivered meanwhile."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.broker import Broker
from alpacamq.broker.clock import FIRST_PLAUSIBLE_MS, CautiousClock, RetentionClock, SystemClock
from alpacamq.broker.delay.service import DelayedMessage
from alpacamq.broker.partition.housekeeping import Housekeeping
from alpacamq.broker.publishing import Message
from alpacamq.model.ids import TimestampMs
from alpacamq.model.topics import DAY_MS
from alpacamq.queues.messages import QueueId
from tests.waiting import soon

from .open_brokers import running, stored
from .test_publishing import publish

YEAR_MS = 366 * DAY_MS
HOUR_MS = 3_600_000
START_MS = FIRST_PLAUSIBLE_MS + 10 * YEAR_MS


class MovableClock(SystemClock):
    """A settable wall clock with time that can be advanced."""

    def __init__(self) -> None:
        self.set_ahead_ms = 0
        self.passed_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + self.passed_ms + self.set_ahead_ms)

    def monotonic(self) -> float:
        return super().monotonic() + self.passed_ms / 1000


class FakeClock:
    """A clock that advances on request."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.wall_ms = now_ms
        self.passed_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.wall_ms)

    def monotonic(self) -> float:
        return 1000 + self.passed_ms / 1000

    def advance(self, ms: int) -> None:
        self.wall_ms += ms
        self.passed_ms += ms


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cautious(clock: FakeClock) -> CautiousClock:
    return CautiousClock(clock, max_step_ms=600_000, hold_ms=HOUR_MS, purpose="tests")


@pytest.mark.parametrize("step_ms", [1, -1, 599_000, -599_000])
def test_a_small_step_is_followed_at_once(clock: FakeClock, cautious: CautiousClock, step_ms: int) -> None:
    clock.wall_ms += step_ms
    assert cautious.now_ms() == clock.wall_ms


@pytest.mark.parametrize("jump_ms", [601_000, -601_000, 10 * YEAR_MS, -9 * YEAR_MS])
def test_a_jump_is_followed_when_it_has_lasted(
    clock: FakeClock, cautious: CautiousClock, jump_ms: int
) -> None:
    clock.wall_ms += jump_ms
    assert cautious.now_ms() == START_MS
    clock.advance(HOUR_MS - 1)
    assert cautious.now_ms() == START_MS + HOUR_MS - 1
    clock.advance(1)
    assert cautious.now_ms() == START_MS + HOUR_MS + jump_ms
    clock.advance(1)
    assert cautious.now_ms() == clock.wall_ms


def test_a_jump_that_is_reverted_has_no_effect(clock: FakeClock, cautious: CautiousClock) -> None:
    for _ in range(3):
        clock.wall_ms += 10 * YEAR_MS
        cautious.now_ms()
        clock.advance(HOUR_MS // 2)
        assert cautious.now_ms() < START_MS + YEAR_MS
        clock.wall_ms -= 10 * YEAR_MS
        assert cautious.now_ms() == clock.wall_ms


def test_each_further_jump_is_held_again(clock: FakeClock, cautious: CautiousClock) -> None:
    for _ in range(10):
        clock.wall_ms += YEAR_MS
        clock.advance(HOUR_MS // 2)
        assert cautious.now_ms() == START_MS + clock.passed_ms


def test_the_first_setting_of_an_unset_clock_is_followed_at_once() -> None:
    clock = FakeClock(now_ms=12_345)
    cautious = CautiousClock(clock, max_step_ms=600_000, hold_ms=HOUR_MS, purpose="tests")
    clock.wall_ms = START_MS
    assert cautious.now_ms() == START_MS


@pytest.mark.parametrize(
    ("down_ms", "follows"),
    [
        pytest.param(29 * DAY_MS, True, id="it may have been down"),
        pytest.param(10 * YEAR_MS, False, id="it cannot have been down"),
        pytest.param(-HOUR_MS, True, id="the clock was ahead before"),
    ],
)
def test_the_clock_at_start_is_compared_with_the_last_recorded_time(*, down_ms: int, follows: bool) -> None:
    clock = FakeClock(START_MS + down_ms)
    cautious = CautiousClock(clock, max_step_ms=600_000, hold_ms=HOUR_MS, purpose="tests")
    cautious.resume(START_MS)
    assert cautious.now_ms() == START_MS + (down_ms if follows else 0)
    clock.advance(HOUR_MS - 1)
    assert cautious.now_ms() == START_MS + HOUR_MS - 1 + (down_ms if follows else 0)
    clock.advance(1)
    assert cautious.now_ms() == clock.wall_ms


def test_setting_the_clock_back_does_not_age_new_records(clock: FakeClock) -> None:
    retention = RetentionClock(clock, max_step_ms=600_000, hold_ms=HOUR_MS, purpose="tests")
    clock.wall_ms -= YEAR_MS
    assert retention.now_ms() == START_MS - YEAR_MS
    clock.wall_ms += YEAR_MS
    assert retention.now_ms() == START_MS
    clock.wall_ms += YEAR_MS
    assert retention.now_ms() == START_MS


async def clean_all(broker: Broker) -> None:
    """Run one round of housekeeping and wait for its threads."""
    housekeeping = Housekeeping(broker.topics.all_partitions, broker.work_threads, broker._retention_clock, 1)
    for partition in list(broker.topics.all_partitions()):
        await housekeeping.clean(partition)


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in stored(broker, topic)]


@asynccontextmanager
async def a_broker(path: Path, clock: MovableClock, **settings: Any) -> AsyncIterator[Broker]:
    async with running(path, clock=clock, **settings) as broker:
        yield broker


async def test_a_jump_of_ten_years_deletes_nothing_until_it_has_lasted(tmp_path: Path) -> None:
    clock = MovableClock()
    async with a_broker(tmp_path, clock) as broker:
        await broker.topics.create("old", partitions=1, overrides={"segment.bytes": "1024"})
        await broker.topics.create("quiet", partitions=1)
        sent = [bytes([65 + number]) * 600 for number in range(4)]
        for value in sent:
            await publish(broker, "old", Message(value=value))
        await publish(broker, "quiet", Message(value=b"in the active segment"))
        clock.set_ahead_ms = 10 * YEAR_MS
        await clean_all(broker)
        clock.passed_ms += HOUR_MS // 2
        await clean_all(broker)
        assert values(broker, "old") == sent
        assert values(broker, "quiet") == [b"in the active segment"]
        clock.passed_ms += HOUR_MS
        await clean_all(broker)
        assert values(broker, "old") == values(broker, "quiet") == []


async def test_a_clock_that_is_ten_years_ahead_at_start_deletes_nothing(tmp_path: Path) -> None:
    clock = MovableClock()
    async with a_broker(tmp_path, clock) as broker:
        await broker.topics.create("orders", partitions=1)
        await publish(broker, "orders", Message(value=b"kept"))
    clock.set_ahead_ms = 10 * YEAR_MS
    async with a_broker(tmp_path, clock) as broker:
        await clean_all(broker)
        assert values(broker, "orders") == [b"kept"]
    async with a_broker(tmp_path, clock) as broker:  # nor at the next
        await clean_all(broker)
        assert values(broker, "orders") == [b"kept"]


async def test_downtime_counts_towards_retention(tmp_path: Path) -> None:
    clock = MovableClock()
    async with a_broker(tmp_path, clock) as broker:
        await broker.topics.create("orders", partitions=1)
        await publish(broker, "orders", Message(value=b"old by then"))
    clock.set_ahead_ms = 20 * DAY_MS
    async with a_broker(tmp_path, clock) as broker:
        await clean_all(broker)
        assert values(broker, "orders") == []


async def test_a_jump_does_not_change_the_due_time_of_delayed_messages(tmp_path: Path) -> None:
    clock = MovableClock()
    async with a_broker(tmp_path, clock) as broker:
        await broker.topics.create("orders", partitions=1)
        await schedule(broker, b"tomorrow", DAY_MS)
        clock.set_ahead_ms = 10 * YEAR_MS
        await schedule(broker, b"in an hour", HOUR_MS)
        assert len(await broker.delays.waiting("orders")) == 2
        assert values(broker, "orders") == []
    # After a restart the clock is right again: messages scheduled meanwhile are not ten years late.
    clock.set_ahead_ms = 0
    async with a_broker(tmp_path, clock) as broker:

        async def are_loaded() -> bool:
            return len(await broker.delays.waiting("orders")) == 2

        await soon(are_loaded)
        due_ms = sorted(waiting.due_ms for waiting in await broker.delays.waiting("orders"))
        assert [abs(each - clock.now_ms()) // HOUR_MS for each in due_ms] == [0, 23]


async def schedule(broker: Broker, value: bytes, delay_ms: int) -> None:
    await broker.delays.schedule(
        [
            DelayedMessage(
                topic="orders",
                partition=0,
                due_ms=broker.clock.now_ms() + delay_ms,
                key=None,
                value=value,
                headers=(),
            )
        ]
    )


async def test_far_future_timestamps_neither_block_retention_nor_delete_records(
    tmp_path: Path,
) -> None:
    clock = MovableClock()
    settings = {"message.timestamp.after.max.ms": str(2**62), "retention.ms": str(DAY_MS)}
    async with a_broker(tmp_path, clock) as broker:
        await broker.topics.create("orders", partitions=1, overrides=settings)
        message = Message(value=b"from 2100", timestamp_ms=clock.now_ms() + 70 * YEAR_MS)
        await publish(broker, "orders", message)
        await clean_all(broker)
        clock.passed_ms += DAY_MS // 2
        await clean_all(broker)
        assert values(broker, "orders") == [b"from 2100"]
    async with a_broker(tmp_path, clock) as broker:
        await clean_all(broker)
        assert values(broker, "orders") == [b"from 2100"]
        clock.passed_ms += DAY_MS
        await clean_all(broker)
        assert values(broker, "orders") == []


async def test_a_jump_does_not_expire_queued_messages(tmp_path: Path) -> None:
    clock = MovableClock()
    async with a_broker(tmp_path, clock) as broker:
        await broker.topics.create("jobs", partitions=1, overrides={"queue.ttl.ms": str(DAY_MS)})
        await publish(broker, "jobs", Message(value=b"job"))
        clock.set_ahead_ms = 2 * DAY_MS
        (delivery,) = await broker.queues.receive(
            QueueId("workers", "jobs"), consumer="c", max_messages=1, wait_ms=0
        )
        assert delivery.record.value == b"job"
