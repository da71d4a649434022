"""Hosts the delay machines on the partitions of an internal topic and performs their effects.

Machines use the wall clock: a message due at nine is delivered when the clock shows nine. Setting the clock
forward makes everything in between due; setting it back delays everything.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.producer_ids import ProducerIds
from alpacamq.broker.statemachine.host import Batching, StateMachineHost
from alpacamq.broker.statemachine.topic import HostResources, StateMachineTopic
from alpacamq.broker.tracing.delay import DelayTraces
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ports import Clock
from alpacamq.model.topics import DELAYS_TOPIC
from alpacamq.telemetry.logs import get_logger
from alpacamq.timers.machine import DelayMachine
from alpacamq.timers.messages import (
    BlockLoaded,
    Deliver,
    Dropped,
    ProducerBatch,
    ReadBlock,
    Schedule,
    TopicsDeleted,
    ToSchedule,
)

from .delivery import Deliveries, DeliveryCounts
from .log_reader import DelayRecords

log = get_logger(__name__)

# A record batch is read as a whole when one of its messages is due, so it is kept small.
BATCH_MESSAGES = 200
BATCH_BYTES = 256 << 10
# A delay log is compacted when this many messages are done, or fewer in a log of this size, but not before
# they are half as many as those pending.
GARBAGE_MESSAGES = 50_000
GARBAGE_BYTES = 64 << 20
RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
# Batches with their messages in memory, waiting for their due time.
BATCHES_IN_MEMORY = 16
# How often the clock is checked, and what counts as a step of it.
CLOCK_CHECK_SECONDS = 1.0
CLOCK_STEP_MS = 50


def _weight(request: Any) -> int:
    """Return the share of a record batch that a request takes, in bytes."""
    if not isinstance(request, Schedule):
        return 0
    size = sum(len(message.envelope) for message in request.messages)
    return max(size, len(request.messages) * BATCH_BYTES // BATCH_MESSAGES)


class DelayLog:
    """One partition of the internal topic: its machine, its records and the deliveries from it."""

    def __init__(
        self, host: StateMachineHost[DelayMachine], records: DelayRecords, deliveries: Deliveries
    ) -> None:
        self.host = host
        self.records = records
        self.deliveries = deliveries
        self._compacted_at = 0

    async def schedule(
        self, messages: Sequence[ToSchedule], source: ProducerBatch | None = None
    ) -> list[int]:
        """Return the offsets of the messages, once they are on disk; none if the source batch is known."""
        await self.host.loaded()
        replies = [
            self.host.submit(
                Schedule(messages=part, source=None if source is None else source._replace(portion=portion))
            )
            for portion, part in enumerate(_parts(messages))
        ]
        offsets: list[int] = []
        for answer in await asyncio.gather(*replies):
            if isinstance(answer, AlpacaError):
                raise answer.with_traceback(None)
            offsets += answer
        return offsets

    def is_worth_compacting(self) -> bool:
        """Return whether compaction frees enough: it has to read all pending messages."""
        if (machine := self.host.machine) is None:
            return False
        spent = machine.tombstones - self._compacted_at
        if spent < 0:  # a rebuilt machine starts counting at zero
            spent, self._compacted_at = machine.tombstones, 0
        is_much = spent >= GARBAGE_MESSAGES or self.host.partition.log.size_bytes >= GARBAGE_BYTES
        if not is_much or spent * 2 < machine.pending or not spent:
            return False
        self._compacted_at = machine.tombstones
        return True


def _parts(messages: Sequence[ToSchedule]) -> Iterator[Sequence[ToSchedule]]:
    """Split messages into parts that fit into a record batch."""
    first = size_bytes = 0
    for at, message in enumerate(messages):
        if at - first == BATCH_MESSAGES or (at > first and size_bytes + len(message.envelope) > BATCH_BYTES):
            yield messages[first:at]
            first, size_bytes = at, 0
        size_bytes += len(message.envelope)
    yield messages[first:]


class DelayLogs:
    """All delay logs, numbered by partition."""

    def __init__(
        self,
        resources: HostResources,
        producer_ids: ProducerIds,
        stats: DeliveryCounts,
        *,
        clock: Clock,
        unpacked_limit_bytes: int,
        traces: DelayTraces | None = None,
    ) -> None:
        self._resources = resources
        self._topics = resources.topics
        self._traces = traces
        self._producer_ids = producer_ids
        self._stats = stats
        self._clock = clock
        self._unpacked_limit_bytes = unpacked_limit_bytes
        self._in_memory = asyncio.Semaphore(BATCHES_IN_MEMORY)
        self._logs: dict[int, DelayLog] = {}
        self._machines: StateMachineTopic[DelayMachine] = StateMachineTopic(
            DELAYS_TOPIC,
            resources,
            self._machine,
            perform=self._perform,
            batching=Batching(_weight, BATCH_BYTES),
            # Delayed messages are on disk when they are acknowledged, whatever their topics promise. Whether
            # compaction is due is decided by `is_worth_compacting`.
            overrides={"flush.messages": "1", "min.cleanable.dirty.ratio": "0"},
        )

    async def run(self) -> None:
        """Run the machines until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._machines.run())
            await self._watch_clock()

    def __len__(self) -> int:
        """Return the number of delay logs on all brokers, 0 before the first message is delayed."""
        return self._machines.count

    def __iter__(self) -> Iterator[DelayLog]:
        """Yield the delay logs on this broker."""
        return iter([self._log_of(host) for host in self._machines.started])

    def __contains__(self, number: object) -> bool:
        """Return whether a delay log is on this broker."""
        return any(host.partition.identity.partition == number for host in self._machines.started)

    def __getitem__(self, number: int) -> DelayLog:
        """Return a delay log. Raises NotCoordinator if another broker has it."""
        return self._log_of(self._machines.host_at(number))

    def _log_of(self, host: StateMachineHost[DelayMachine]) -> DelayLog:
        number = host.partition.identity.partition
        found = self._logs.get(number)
        if found is None or found.host is not host:
            found = self._logs[number] = self._log(host)
        return found

    @property
    def pending(self) -> int:
        """The number of pending messages in the logs that are loaded."""
        return sum(machine.pending for machine in self._machines.machines)

    def failures(self) -> list[str]:
        """Describe the delay logs that cannot be loaded."""
        return self._machines.failures()

    def topic_deleted(self) -> None:
        """Drop messages for deleted topics."""
        self._machines.post_all(TopicsDeleted())

    def id_of(self, offset: int, number: int) -> int:
        """Return the id of the message at an offset of a log."""
        return offset * len(self) + number

    async def number_for(self, topic: str, partition: int) -> int:
        """Return the number of the log that stores messages for a partition."""
        await self._machines.all()
        return self._machines.index_of(f"{topic}-{partition}")

    def _machine(self, partition: Partition) -> DelayMachine:
        return DelayMachine(partition.log.end_offset, self._producer_ids.take, self._topic_exists)

    def _log(self, host: StateMachineHost[DelayMachine]) -> DelayLog:
        number = host.partition.identity.partition
        executor = self._resources.executor
        records = DelayRecords(host.partition, executor, self._unpacked_limit_bytes)
        deliveries = Deliveries(
            host,
            records,
            self._topics,
            self._stats,
            self._in_memory,
            self._clock,
            executor,
            lambda offset: self.id_of(offset, number),
            self._traces,
        )
        return DelayLog(host, records, deliveries)

    def _topic_exists(self, topic_id: bytes) -> bool:
        return self._topics.exists(topic_id, 0)

    def _perform(self, host: StateMachineHost[DelayMachine], effects: Sequence[Any]) -> None:
        delay_log = self._log_of(host)
        for effect in effects:
            match effect:
                case Deliver():
                    delay_log.deliveries.deliver(effect)
                case ReadBlock():
                    host.spawn(self._read_block(delay_log, effect))
                case Dropped():
                    self._stats.dropped += effect.messages

    async def _read_block(self, delay_log: DelayLog, block: ReadBlock) -> None:
        """Read a block, with retries: its messages are not due for days."""
        wait_seconds = RETRY_SECONDS
        while True:
            try:
                slot = await delay_log.records.block(block.offset)
                break
            except AlpacaError as error:
                partition = delay_log.host.partition
                log.error("block_not_read", partition=str(partition.identity), reason=str(error))
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(wait_seconds * 2, MAX_RETRY_SECONDS)
        delay_log.host.post(BlockLoaded(read=block, slot=slot))

    async def _watch_clock(self) -> None:
        """Wake the machines when the clock was set or the computer has slept."""
        ahead_ms = self._ahead_ms()
        while True:
            await asyncio.sleep(CLOCK_CHECK_SECONDS)
            now_ahead_ms = self._ahead_ms()
            if abs(now_ahead_ms - ahead_ms) > CLOCK_STEP_MS:
                log.warning("clock_was_set", by_ms=int(now_ahead_ms - ahead_ms))
                for host in self._machines.started:
                    host.wake()
            ahead_ms = now_ahead_ms

    def _ahead_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic() * 1000
