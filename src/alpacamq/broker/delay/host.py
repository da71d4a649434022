"""The delay logs of this broker: partitions of an internal topic, each with its machine.

Machines go by the wall's clock, however that is set: nine o'clock is when it says so. A clock that is
set forward makes due what lies between; one that is set back makes everything wait longer.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpacamq.broker.metadata_log import ProducerIds
from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.statemachine.shard import Shard
from alpacamq.broker.statemachine.snapshots import ShardSnapshots
from alpacamq.broker.statemachine.topic import Shards
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.delay import DelayTraces
from alpacamq.model.errors import AlpacaError
from alpacamq.model.outcome import Outcome
from alpacamq.model.ports import Clock, Disk
from alpacamq.model.topics import DELAYS_TOPIC
from alpacamq.telemetry.logs import get_logger
from alpacamq.timers.machine import DelayMachine
from alpacamq.timers.messages import DelayOutcome, Deliver, Dropped, ReadBlock, Source, ToSchedule

from .delivery import Deliveries, DeliveryCounts
from .log_reader import DelayRecords

if TYPE_CHECKING:
    from alpacamq.timers.wheel import Slot

log = get_logger(__name__)

# What is read again as a whole when one of its messages is due is kept small.
EVENT_MESSAGES = 200
EVENT_BYTES = 256 << 10
# A delay log is compacted when so many messages are done, or fewer in so large a log, but not before they
# are half as many as those that wait.
GARBAGE_MESSAGES = 50_000
GARBAGE_BYTES = 64 << 20
RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


class _Call:
    """Messages that somebody wants scheduled together."""

    __slots__ = ("messages", "size_bytes", "source", "ticket")

    def __init__(self, messages: Sequence[ToSchedule], source: Source | None) -> None:
        self.messages = messages
        self.source = source
        self.size_bytes = sum(len(message.envelope) for message in messages)
        self.ticket: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class DelayShard:
    """Gathers what is scheduled, and carries out what the machine wants."""

    def __init__(
        self,
        shard: Shard[DelayMachine],
        records: DelayRecords,
        deliveries: Deliveries,
        stats: DeliveryCounts,
        tasks: Callable[[], asyncio.TaskGroup | None],
    ) -> None:
        self.shard = shard
        self.records = records
        self._deliveries = deliveries
        self._stats = stats
        self._tasks = tasks
        self._calls: list[_Call] = []
        self._is_due = False
        self._compacted_at = 0

    def holds_garbage(self) -> bool:
        """Whether compaction is worth while: it reads all that waits to find what no longer does."""
        if (machine := self.shard.machine) is None:
            return False
        spent = machine.tombstones - self._compacted_at
        if spent < 0:  # a machine that was rebuilt counts anew
            spent, self._compacted_at = machine.tombstones, 0
        is_much = spent >= GARBAGE_MESSAGES or self.shard.partition.log.size_bytes >= GARBAGE_BYTES
        if not is_much or spent * 2 < machine.pending or not spent:
            return False
        self._compacted_at = machine.tombstones
        return True

    async def schedule(self, messages: Sequence[ToSchedule], source: Source | None = None) -> list[int]:
        """The offsets of the messages, once they are on the medium; none if the source is known."""
        await self.shard.loaded()
        calls = [
            _Call(part, None if source is None else source._replace(portion=portion))
            for portion, part in enumerate(_parts(messages))
        ]
        self._calls += calls
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._hand_over)
        offsets: list[int] = []
        for answer in await asyncio.gather(*(call.ticket for call in calls)):
            if isinstance(answer, AlpacaError):
                raise answer.with_traceback(None)
            offsets += answer
        return offsets

    def _hand_over(self) -> None:
        self._is_due = False
        calls, self._calls = self._calls, []
        at = 0
        while at < len(calls):
            end, messages, size_bytes = at, 0, 0
            while end < len(calls) and (
                end == at
                or (
                    messages + len(calls[end].messages) <= EVENT_MESSAGES
                    and size_bytes + calls[end].size_bytes <= EVENT_BYTES
                )
            ):
                messages += len(calls[end].messages)
                size_bytes += calls[end].size_bytes
                end += 1
            self._submit(calls[at:end])
            at = end

    def _submit(self, calls: Sequence[_Call]) -> None:
        def event(machine: DelayMachine, now_ms: int) -> DelayOutcome:
            outcome = DelayOutcome()
            for call in calls:
                outcome += machine.schedule(call.messages, call.source, call.ticket, now_ms)
            return outcome

        self.shard.submit(event, [call.ticket for call in calls])

    def perform(self, outcome: Outcome) -> None:
        """Carry out what the machine wants."""
        tasks = self._tasks()
        if tasks is None or not isinstance(outcome, DelayOutcome):
            return
        for effect in outcome.effects:
            match effect:
                case Deliver():
                    self._deliveries.deliver(effect, tasks)
                case ReadBlock():
                    tasks.create_task(self._read_block(effect))
                case Dropped():
                    self._stats.dropped += effect.messages

    async def _read_block(self, block: ReadBlock) -> None:
        """Read a block, however often it takes: its messages are due in some days."""
        wait_seconds = RETRY_SECONDS
        content: Slot | None = None
        while content is None:
            try:
                content = await self.records.block(block.offset)
            except AlpacaError as error:
                log.error("block_not_read", partition=str(self.shard.partition.identity), reason=str(error))
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(wait_seconds * 2, MAX_RETRY_SECONDS)
        stored = content
        self.shard.tell(lambda machine, now_ms: machine.block_read(block, stored, now_ms))


def _parts(messages: Sequence[ToSchedule]) -> Iterator[Sequence[ToSchedule]]:
    """The messages in parts of the size of an event."""
    first = size_bytes = 0
    for at, message in enumerate(messages):
        if at - first == EVENT_MESSAGES or (at > first and size_bytes + len(message.envelope) > EVENT_BYTES):
            yield messages[first:at]
            first, size_bytes = at, 0
        size_bytes += len(message.envelope)
    yield messages[first:]


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
        stats: DeliveryCounts,
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
        self._stats = stats
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
            self._stats,
            self._in_memory,
            self._clock,
            self._executor,
            lambda offset: self.id_of(offset, number),
            self._traces,
        )
        self._logs[number] = delay_log = DelayShard(
            shard, records, deliveries, self._stats, lambda: self._tasks
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
