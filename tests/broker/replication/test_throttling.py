"""Reassignments with a throttle: the copy is held to the rate, and replicas in sync are not."""

import asyncio
from pathlib import Path

import pytest

from alpacamq.cluster.broker_config import FOLLOWER_RATE, LEADER_RATE
from alpacamq.cluster.commands import ConfigureBroker
from alpacamq.model.batch import HEADER_BYTES
from alpacamq.model.ids import BrokerId
from alpacamq.replication import throttle
from alpacamq.replication.throttle import BURST_MS, Throttle

from .nodes import ReplicaCluster, TestClock, a_cluster, produce, until

RATE = 256 << 10
BATCH_BYTES = 64 << 10
BATCHES = 48
STEP_MS = 250


class FreezingClock(TestClock):
    """Runs until it is frozen; then it only moves when it is advanced.

    Followers whose first fetch fails retry after a time, so it has to run until they follow.
    """

    def __init__(self) -> None:
        super().__init__()
        self._frozen_at: float | None = None

    def freeze(self) -> None:
        self._frozen_at = super().monotonic() - self.ahead_ms / 1000

    def monotonic(self) -> float:
        if self._frozen_at is None:
            return super().monotonic()
        return self._frozen_at + self.ahead_ms / 1000


@pytest.fixture(autouse=True)
def ask_often(monkeypatch: pytest.MonkeyPatch) -> None:
    # Replicas without room ask again soon by the loop's clock; the broker's may be frozen.
    monkeypatch.setattr(throttle, "MAX_WAIT_MS", 2)


class Watched:
    """Notes how much more every copy brings than the rate allows."""

    def __init__(self, watched: Throttle, clock: TestClock) -> None:
        self.throttle = watched
        self._clock = clock
        self._began_ms = clock.ahead_ms
        self._copied = watched.copied
        watched.copied = self._note  # type: ignore[method-assign]
        self.excess: list[float] = []

    def _note(self, size: int) -> None:
        self._copied(size)
        allowed = RATE * (self._clock.ahead_ms - self._began_ms + BURST_MS) / 1000
        self.excess.append(self.throttle.copied_bytes - allowed)


def limit(cluster: ReplicaCluster, name: str, rate: int, resource: str = "") -> None:
    cluster.decide(ConfigureBroker(name=resource, overrides={name: str(rate)}))


async def filled(cluster: ReplicaCluster) -> int:
    """Write a few MiB to a partition on brokers 1 and 2; return its size."""
    cluster.create(1, 2)
    leader = await cluster.leader()
    for _ in range(BATCHES):
        await produce(leader, b"x" * (BATCH_BYTES - HEADER_BYTES))
    return leader.size_bytes


@pytest.mark.parametrize("side", [LEADER_RATE, FOLLOWER_RATE])
async def test_a_replica_that_is_added_is_filled_at_the_rate_while_others_acknowledge(
    tmp_path: Path, side: str
) -> None:
    clock = FreezingClock()
    async with a_cluster(tmp_path, 1, 2, 3, clock=clock) as cluster:
        size = await filled(cluster)
        clock.freeze()
        limit(cluster, side, RATE)
        node = cluster.nodes[1 if side == LEADER_RATE else 3]
        limited = (
            node.replication.leader_throttle if side == LEADER_RATE else node.replication.follower_throttle
        )
        watched = Watched(limited, cluster.clock)
        leader = await cluster.leader()
        began_ms = cluster.clock.ahead_ms
        cluster.reassign(1, 2, 3)
        while cluster.in_sync() != {1, 2, 3}:
            # No time passes until replicas in sync have acknowledged.
            await produce(leader, b"more")
            await asyncio.sleep(0.01)
            cluster.advance(STEP_MS)
        elapsed_ms = cluster.clock.ahead_ms - began_ms
        # A batch is not divided.
        assert max(watched.excess) <= 2 * BATCH_BYTES
        assert limited.copied_bytes >= size
        assert elapsed_ms >= (size - 2 * BATCH_BYTES) * 1000 / RATE - BURST_MS
        await cluster.replicated()
        # In sync it is not limited any more, although the limit is there.
        copied = limited.copied_bytes
        await produce(leader, b"y" * BATCH_BYTES)
        assert limited.copied_bytes == copied


async def test_a_limit_is_changed_and_removed_while_a_replica_is_filled(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        await filled(cluster)
        limit(cluster, LEADER_RATE, 0)
        leader = await cluster.leader()
        cluster.reassign(1, 2, 3)
        cluster.advance(60_000)
        await until(lambda: 3 in {each.broker_id for each in leader.followers()}, "broker 3 follows")
        await produce(leader, b"more")
        assert cluster.in_sync() == {1, 2}
        assert cluster.nodes[1].replication.leader_throttle.copied_bytes == 0
        cluster.decide(ConfigureBroker(name="", overrides={}))
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "broker 3 is in sync")


async def test_lists_of_topics_limit_replicas_that_return(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        cluster.create(1, 2, 3)
        leader = await cluster.leader()
        await cluster.kill(3)
        await until(lambda: cluster.in_sync() == {1, 2}, "broker 3 is out of sync")
        await produce(leader, b"x" * BATCH_BYTES)
        cluster.configure(leader_replication_throttled_replicas="0:1")
        limit(cluster, LEADER_RATE, 0, resource="1")
        await cluster.start(3)
        assert leader.is_throttled(BrokerId(3))
        assert not leader.is_throttled(BrokerId(2))
        await produce(leader, b"more")
        cluster.configure()
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "broker 3 is in sync")
        assert cluster.nodes[1].replication.leader_throttle.copied_bytes == 0


async def test_replicas_that_are_limited_do_not_share_a_connection_with_others(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, 1, 2, 3) as cluster:
        await filled(cluster)
        limit(cluster, FOLLOWER_RATE, 0)
        cluster.reassign(1, 2, 3)
        follower = cluster.nodes[3].replication
        await until(lambda: [each.is_bulk for each in follower.fetchers()] == [True], "a bulk fetcher")
        limit(cluster, FOLLOWER_RATE, 1 << 40)
        cluster.advance(1)
        await until(lambda: cluster.in_sync() == {1, 2, 3}, "broker 3 is in sync")
        await until(lambda: [each.is_bulk for each in follower.fetchers()] == [False], "a live fetcher")
