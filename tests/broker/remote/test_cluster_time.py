"""Cluster time of three brokers, one of which has a wrong clock."""

import asyncio
from pathlib import Path

from alpacamq.broker.clock import SystemClock
from alpacamq.broker.delay.service import DelayedMessage
from alpacamq.broker.health import clock
from alpacamq.model.ids import TimestampMs

from .three_brokers import ThreeBrokers, three_brokers

HOUR_MS = 3_600_000
PARTITIONS = 6


class WallClock(SystemClock):
    """A clock whose wall time can be set; its monotonic time goes on."""

    ahead_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(super().now_ms() + self.ahead_ms)


def errors_ms(cluster: ThreeBrokers) -> list[int]:
    """Return how far the cluster time of each broker is from the true time."""
    return [broker.time.now_ms() - SystemClock().now_ms() for broker in cluster.brokers.values()]


def controller_of(cluster: ThreeBrokers) -> int | None:
    return next((number for number, each in cluster.brokers.items() if each.metadata.is_controller), None)


async def test_a_controller_with_a_wrong_clock_is_reported_and_moves_nothing(tmp_path: Path) -> None:
    clocks = {number: WallClock() for number in (1, 2, 3)}
    async with three_brokers(tmp_path, clocks) as cluster:
        former = controller_of(cluster)
        assert former is not None
        clocks[former].ahead_ms = HOUR_MS
        wrong = clock(cluster[former])
        assert not wrong.is_ok
        assert f"the clock of node {former} is 3600." in wrong.detail
        assert "s ahead of cluster time" in wrong.detail
        assert all(clock(each).is_ok for number, each in cluster.brokers.items() if number != former)
        heartbeats = cluster[former].registration
        reply = heartbeats.last_reply
        await cluster.until(lambda: heartbeats.last_reply is not reply, "a heartbeat with the wrong clock")
        assert all(abs(error_ms) < 1000 for error_ms in errors_ms(cluster))
        before_ms = max(broker.time.now_ms() for broker in cluster.brokers.values())
        await cluster.kill(former)
        await cluster.until(lambda: controller_of(cluster) is not None, "a controller")
        assert min(broker.time.now_ms() for broker in cluster.brokers.values()) >= before_ms - 100
        assert all(abs(error_ms) < 1000 for error_ms in errors_ms(cluster))


async def test_messages_are_not_delivered_early_by_a_broker_whose_clock_is_ahead(tmp_path: Path) -> None:
    clocks = {number: WallClock() for number in (1, 2, 3)}
    async with three_brokers(tmp_path, clocks) as cluster:
        await cluster.create("orders", partitions=PARTITIONS)
        due_ms = cluster[1].time.now_ms() + 4000
        await cluster[1].delays.schedule(
            [
                DelayedMessage(
                    topic="orders", partition=index, due_ms=due_ms, key=None, value=b"v", headers=()
                )
                for index in range(PARTITIONS)
            ]
        )
        clocks[2].ahead_ms = HOUR_MS  # it takes over some of the delay logs
        await cluster.kill(3)

        async def delivered() -> int:
            return sum([(await cluster.led("orders", index)).high_watermark for index in range(PARTITIONS)])

        while (left_ms := due_ms - SystemClock().now_ms()) > 0:
            assert await delivered() == 0 or SystemClock().now_ms() >= due_ms - 100
            await asyncio.sleep(min(left_ms, 100) / 1000)
        async with asyncio.timeout(10):
            while await delivered() < PARTITIONS:  # noqa: ASYNC110 - asks the leaders
                await asyncio.sleep(0.02)
        assert await delivered() == PARTITIONS
