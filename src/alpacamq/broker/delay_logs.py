"""The delay logs of this broker: partitions of an internal topic, each with its machine.

Machines go by the wall's clock, however that is set: nine o'clock is when it says so. A clock that is
set forward makes due what lies between; one that is set back makes everything wait longer.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

from alpacamq.model.ports import Clock, Disk
from alpacamq.model.topics import DELAYS_TOPIC
from alpacamq.queues.delays import DelayMachine
from alpacamq.telemetry.logs import get_logger

from .delay_deliveries import Deliveries, DeliveryFigures
from .delay_records import DelayRecords
from .delay_shard import DelayShard
from .delay_traces import DelayTraces
from .partition import Partition
from .producer_ids import ProducerIds
from .shard import Shard
from .shard_snapshots import ShardSnapshots
from .shards import Shards
from .topics import Topics

log = get_logger(__name__)

# Batches that may wait for their time with their messages in memory.
BATCHES_IN_MEMORY = 16
# How often the clock is looked at, and what counts as a step of it.
CLOCK_CHECK_SECONDS = 1.0
CLOCK_STEP_MS = 50


class DelayLogs:
    """Hosts the delay logs. Each has a number, which is that of its partition."""

    def __init__(
        self,
        topics: Topics,
        producer_ids: ProducerIds,
        figures: DeliveryFigures,
        *,
        snapshots: Path,
        disk: Disk,
        clock: Clock,
        executor: Executor,
        unpacked_limit_bytes: int,
        traces: DelayTraces | None = None,
    ) -> None:
        self._topics = topics
        self._traces = traces
        self._producer_ids = producer_ids
        self._figures = figures
        self._snapshots = snapshots
        self._disk = disk
        self._clock = clock
        self._executor = executor
        self._unpacked_limit_bytes = unpacked_limit_bytes
        self._in_memory = asyncio.Semaphore(BATCHES_IN_MEMORY)
        self._logs: dict[int, DelayShard] = {}
        # What waits is on the medium, whatever the topics it is for promise.
        self._shards: Shards[DelayMachine] = Shards(
            # Whether compaction is due is decided here, so that its own measure is none.
            DELAYS_TOPIC,
            topics,
            self._shard,
            {"flush.messages": "1", "min.cleanable.dirty.ratio": "0"},
        )
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._shards.run())
            try:
                await self._watch_clock()
            finally:
                self._tasks = None  # nothing new begins while the rest ends

    def __len__(self) -> int:
        """How many there are: none before the first message is delayed."""
        return len(self._shards.started)

    def __iter__(self) -> Iterator[DelayShard]:
        return iter([self._logs[number] for number in range(len(self))])

    def __getitem__(self, number: int) -> DelayShard:
        return self._logs[number]

    @property
    def pending(self) -> int:
        """Messages that wait, as far as they are loaded."""
        machines = (log.shard.machine for log in self)
        return sum(machine.pending for machine in machines if machine is not None)

    def failures(self) -> list[str]:
        """The delay logs that cannot be loaded, and why."""
        return self._shards.failures()

    def id_of(self, offset: int, number: int) -> int:
        """What a message is called that is at an offset of a log."""
        return offset * len(self) + number

    async def number_for(self, topic: str, partition: int) -> int:
        """The log that messages for a partition wait in."""
        return await self._shards.index_of(f"{topic}-{partition}")

    def _shard(self, partition: Partition) -> Shard[DelayMachine]:
        number = partition.identity.partition
        shard: Shard[DelayMachine] = Shard(
            partition,
            lambda: DelayMachine(partition.log.end_offset, self._producer_ids.take, self._topic_exists),
            ShardSnapshots(self._disk, self._snapshots / partition.log.directory.name),
            self._clock,
            self._executor,
            lambda outcome: self._logs[number].perform(outcome),
        )
        records = DelayRecords(partition, self._executor, self._unpacked_limit_bytes)
        deliveries = Deliveries(
            shard,
            records,
            self._topics,
            self._figures,
            self._in_memory,
            self._clock,
            self._executor,
            lambda offset: self.id_of(offset, number),
            self._traces,
        )
        self._logs[number] = delay_log = DelayShard(
            shard, records, deliveries, self._figures, lambda: self._tasks
        )
        partition.holds_garbage = delay_log.holds_garbage
        return shard

    def _topic_exists(self, topic_id: bytes) -> bool:
        return self._topics.find(topic_id, 0) is not None

    async def _watch_clock(self) -> None:
        """Notice when the clock is set or the computer has slept: who sleeps until a time must know."""
        ahead_ms = self._ahead_ms()
        while True:
            await asyncio.sleep(CLOCK_CHECK_SECONDS)
            now_ahead_ms = self._ahead_ms()
            if abs(now_ahead_ms - ahead_ms) > CLOCK_STEP_MS:
                log.warning("clock_was_set", by_ms=int(now_ahead_ms - ahead_ms))
                for shard in self._shards.started:
                    shard.nudge()
            ahead_ms = now_ahead_ms

    def _ahead_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic() * 1000
