"""Replication of the partitions of one broker: who is led and followed, by which fetcher.

Partitions report their roles here. Nothing is fetched, flushed or proposed before `run`: roles are known
earlier, while partitions are recovered.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import Executor
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from alpacamq.broker.metadata.metadata import Metadata
from alpacamq.broker.partition.leader import Partition
from alpacamq.cluster.broker_config import FOLLOWER_RATE, LEADER_RATE, throttled_rate
from alpacamq.cluster.image import Delta
from alpacamq.cluster.partition_state import PartitionId, PartitionState
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Clock
from alpacamq.replication.leader import KnownBrokers
from alpacamq.replication.throttle import Throttle
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ReplicationStats

from .fetcher import BULK, LIVE, Fetcher, FetchPeers, Pace, is_bulk
from .following import Flushes, FollowerResources, Following
from .in_sync import IsrProposals

log = get_logger(__name__)


class FlushPolicy(StrEnum):
    """Whether replicas flush records before they count as replicated."""

    ACK = "ack"
    INTERVAL = "interval"  # flush.ms decides: a power loss of all replicas can lose acknowledged records


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of replication, the same on all brokers."""

    replica_lag_ms: int = 10_000
    flush: FlushPolicy = FlushPolicy.ACK


class FetcherStatus(NamedTuple):
    """The fetches from one leader, for status pages and metrics."""

    leader_id: BrokerId
    # Whether it is for partitions that are far behind.
    is_bulk: bool
    partitions: int
    is_connected: bool
    last_error: str
    requests: int
    received_bytes: int


class Replication:
    """Leads and follows with the other brokers; the `ReplicationHost` of all partitions."""

    def __init__(
        self,
        settings: ReplicationSettings,
        metadata: Metadata,
        *,
        node_id: BrokerId,
        broker_epoch: Callable[[], int],
        flushes: Flushes,
        executor: Executor,
        clock: Clock,
        is_damage_known: Callable[[PartitionId], bool] = lambda _partition: False,
    ) -> None:
        """`broker_epoch` returns that of this broker's registration; `connect` follows.

        `is_damage_known` returns whether the controller has confirmed that it knows of a replica's damage.
        """
        self.node_id = node_id
        self.replica_lag_ms = settings.replica_lag_ms
        self.flush_counts = settings.flush is FlushPolicy.ACK
        self.brokers = KnownBrokers({}, ())
        # What fetchers in use have received is added when they end.
        self.stats = ReplicationStats()
        # Called when the disk has failed a partition, or one is sound again; in any thread.
        self.on_storage_change: Callable[[], None] = lambda: None
        self._metadata = metadata
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._peers: FetchPeers | None = None
        self._group: asyncio.TaskGroup | None = None
        self._resources = FollowerResources(
            node_id,
            flushes,
            executor,
            self._spawn,
            self.now_ms,
            self.flush_counts,
            is_damage_known,
            self.storage_changed,
        )
        self._followings: dict[Partition, Following] = {}
        # By leader and pace.
        self._fetchers: dict[tuple[BrokerId, Pace], tuple[Fetcher, asyncio.Task[None]]] = {}
        self._proposals = IsrProposals(
            metadata,
            node_id=node_id,
            broker_epoch=broker_epoch,
            now_ms=self.now_ms,
            replica_lag_ms=settings.replica_lag_ms,
        )
        # What is sent to and fetched for replicas that are not in sync.
        self.leader_throttle = Throttle()
        self.follower_throttle = Throttle()
        self._know_brokers()
        self._know_rates()
        metadata.subscribe(self._image_changed)

    def connect(self, peers: FetchPeers) -> None:
        """Fetch from other brokers with `peers`."""
        self._peers = peers

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    async def run(self) -> None:
        """Replicate until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                group.create_task(self._proposals.run())
                for partition in list(self._proposals.led):
                    partition.flush_soon()
                for following in list(self._followings.values()):
                    self._assign(following, is_new_leader=True)
                await asyncio.Event().wait()
            finally:
                # Nothing is begun any more: the logs are about to be closed.
                self._group = None
                for following in self._followings.values():
                    following.stop()

    # Roles of partitions.

    def led(self, partition: Partition) -> None:
        self._stop_following(partition)
        self._proposals.add(partition)
        if self._group is not None:
            partition.flush_soon()

    def followed(self, partition: Partition, state: PartitionState) -> None:
        self._proposals.remove(partition)
        following = self._followings.get(partition)
        if following is None:
            following = self._followings[partition] = Following(partition, self._resources)
            partition.following = following
        is_new_leader = following.follow(state)
        if self._group is not None:
            self._assign(following, is_new_leader=is_new_leader)

    def stopped(self, partition: Partition) -> None:
        self._stop_following(partition)
        self._proposals.remove(partition)

    def damage_known(self) -> None:
        """Rebuild the damaged replicas of which the controller knows by now."""
        for following in self._followings.values():
            if following.partition.log.has_lost_data:
                following.drive()

    def in_sync_changed(self, before: Collection[int], after: Collection[int]) -> None:
        self.stats.in_sync_shrinks += not set(before) <= set(after)
        self.stats.in_sync_expands += not set(after) <= set(before)

    def has_proposal(self, partition: Partition) -> None:
        self._proposals.has_proposal(partition)

    def storage_changed(self) -> None:
        self.on_storage_change()

    # Status.

    @property
    def led_partitions(self) -> Iterable[Partition]:
        """The partitions with other replicas that this broker leads."""
        return self._proposals.led

    @property
    def under_replicated(self) -> int:
        """How many partitions led here have replicas that are not in sync."""
        return sum(partition.is_under_replicated for partition in self._proposals.led)

    @property
    def received_bytes(self) -> int:
        """Bytes fetched from leaders."""
        return self.stats.received_bytes + sum(each.received_bytes for each, _ in self._fetchers.values())

    def fetchers(self) -> list[FetcherStatus]:
        """Return the fetches from each leader."""
        return [
            FetcherStatus(
                leader_id,
                pace.is_bulk,
                fetcher.partitions,
                fetcher.is_connected,
                fetcher.last_error,
                fetcher.requests,
                fetcher.received_bytes,
            )
            for (leader_id, pace), (fetcher, _) in sorted(self._fetchers.items(), key=lambda each: each[0])
        ]

    # Fetchers.

    def _assign(self, following: Following, *, is_new_leader: bool) -> None:
        """Let the fetcher of its leader follow a partition."""
        leader_id = following.core.leader_id
        pace = BULK if is_bulk(following, self.follower_throttle) else LIVE
        fetcher = None if leader_id is None else self._fetcher(leader_id, pace)
        current = following.fetcher
        if current is not fetcher and isinstance(current, Fetcher):
            self._release(current, following)
        if fetcher is None:
            following.fetcher = None
        elif current is not fetcher or is_new_leader:
            fetcher.add(following, is_new_leader=is_new_leader)
        else:
            following.drive()

    def _pace_changed(self, following: Following) -> None:
        if self._group is not None:
            self._assign(following, is_new_leader=False)

    def _fetcher(self, leader_id: BrokerId, pace: Pace) -> Fetcher | None:
        if self._peers is None:
            return None  # a cluster of this node only
        if (found := self._fetchers.get((leader_id, pace))) is not None:
            return found[0]
        fetcher = Fetcher(
            leader_id,
            pace,
            self._peers,
            node_id=self.node_id,
            broker_epoch=self._broker_epoch,
            now_ms=self.now_ms,
            throttle=self.follower_throttle,
            pace_changed=self._pace_changed,
        )
        self._fetchers[leader_id, pace] = fetcher, self._spawn(fetcher.run())
        return fetcher

    def _stop_following(self, partition: Partition) -> None:
        following = self._followings.pop(partition, None)
        if following is not None:
            if isinstance(following.fetcher, Fetcher):
                self._release(following.fetcher, following)
            following.stop()

    def _release(self, fetcher: Fetcher, following: Following) -> None:
        fetcher.remove(following)
        if fetcher.is_idle:
            _, task = self._fetchers.pop((fetcher.leader_id, fetcher.pace))
            self.stats.received_bytes += fetcher.received_bytes
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None, "nothing is begun before `run`"
        return self._group.create_task(work)

    # Metadata.

    def _image_changed(self, delta: Delta) -> None:
        if delta.brokers:
            self._know_brokers()
            self._proposals.look_now()
        if delta.broker_configs:
            self._know_rates()

    def _know_rates(self) -> None:
        image = self._metadata.image
        for throttle, name in ((self.leader_throttle, LEADER_RATE), (self.follower_throttle, FOLLOWER_RATE)):
            rate = throttled_rate(image, self.node_id, name)
            if rate != throttle.rate:
                log.info("replication_throttled", setting=name, rate=rate)
                throttle.set_rate(rate, self.now_ms())

    def _know_brokers(self) -> None:
        brokers = self._metadata.image.brokers.values()
        self.brokers.epochs = {broker.id: broker.epoch for broker in brokers}
        self.brokers.joinable = {
            broker.id for broker in brokers if broker.is_running and not broker.is_shutting_down
        }
