"""Hosts the delay machines on the partitions of an internal topic and performs their effects.

Machines use the wall clock: a message due at nine is delivered when the clock shows nine. Setting the clock
forward makes everything in between due; setting it back delays everything.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.producer_ids import ProducerIds
from alpacamq.broker.statemachine.host import Batching, StateMachineHost
from alpacamq.broker.statemachine.topic import HostResources, StateMachineTopic
from alpacamq.broker.tracing.delay import DelayTraces
from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.errors import AlpacaError, TooManyDelayed, UnknownDelayed
from alpacamq.model.ports import Clock
from alpacamq.model.records import Record
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import DELAYS_TOPIC
from alpacamq.telemetry.logs import get_logger
from alpacamq.timers.machine import DelayMachine
from alpacamq.timers.messages import (
    BlockLoaded,
    CancelMessage,
    CountPending,
    Deliver,
    Dropped,
    Listing,
    ListMessages,
    PendingCounts,
    ReadBlock,
    Schedule,
    TopicsDeleted,
    ToSchedule,
    routing_key,
)
from alpacamq.timers.records import decode_envelope
from alpacamq.timers.wheel import due_of

from .delivery import Deliveries, DeliveryCounts, TargetPartitions
from .log_reader import DelayRecords, DelaySearch
from .requests import (
    DELAY_REQUESTS,
    CancelDelayed,
    CountDelayed,
    DelayedEntry,
    ListDelayed,
    ReadDelayed,
    StoredEnvelope,
)

log = get_logger(__name__)
R = TypeVar("R")

# A record batch is read as a whole when one of its messages is due, so it is kept small.
BATCH_MESSAGES = 200
BATCH_BYTES = 256 << 10
# Contents of messages in one reply.
REPLY_BYTES = 4 << 20
# A delay log is compacted when this many messages are done, or fewer in a log of this size, but not before
# they are half as many as those pending.
GARBAGE_MESSAGES = 50_000
GARBAGE_BYTES = 64 << 20
RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
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


def is_replica_worth_compacting(log: PartitionLog) -> bool:
    """Return whether the replica of a delay log that another broker leads is compacted: no machine is here.

    Records live as long as their messages are pending, so much of what is old enough is garbage.
    """
    dirty_bytes = log.dirty_bytes
    return dirty_bytes >= GARBAGE_BYTES and dirty_bytes * 2 >= log.size_bytes - dirty_bytes


def in_parts(messages: Sequence[ToSchedule]) -> Iterator[Sequence[ToSchedule]]:
    """Split messages into parts that fit into a record batch."""
    first = size_bytes = 0
    for at, message in enumerate(messages):
        if at - first == BATCH_MESSAGES or (at > first and size_bytes + len(message.envelope) > BATCH_BYTES):
            yield messages[first:at]
            first, size_bytes = at, 0
        size_bytes += len(message.envelope)
    yield messages[first:]


async def _read_some(records: DelayRecords, offsets: Sequence[int]) -> list[StoredEnvelope]:
    """Return the contents of the first messages that fit into a reply; of one at least."""
    found: list[StoredEnvelope] = []
    size_bytes = 0
    for offset in offsets:
        stored = await records.message(offset)
        envelope = None if stored is None else stored[1].value
        size_bytes += len(envelope or b"")
        if found and size_bytes > REPLY_BYTES:
            break
        found.append(StoredEnvelope(offset, envelope))
    return found


def _entry(offset: int, partition: int, due_ms: int, record: Record) -> DelayedEntry:
    assert record.value is not None
    envelope = decode_envelope(record.value)
    size_bytes = len(envelope.key or b"") + len(envelope.value or b"")
    return DelayedEntry(offset, partition, due_ms, record.timestamp_ms, size_bytes)


class DelayLogs:
    """All delay logs, numbered by partition."""

    def __init__(
        self,
        resources: HostResources,
        producer_ids: ProducerIds,
        targets: TargetPartitions,
        stats: DeliveryCounts,
        *,
        clock: Clock,
        max_pending: int,
        unpacked_limit_bytes: int,
        traces: DelayTraces | None = None,
    ) -> None:
        """Accept up to `max_pending` messages in the logs on this broker."""
        self._resources = resources
        self._topics = resources.topics
        self._traces = traces
        self._producer_ids = producer_ids
        self._targets = targets
        self._stats = stats
        self._clock = clock
        self._max_pending = max_pending
        self._unpacked_limit_bytes = unpacked_limit_bytes
        self._search = DelaySearch(resources.executor)
        # Messages cancelled on this broker since it started.
        self.cancelled = 0
        self._logs: dict[int, DelayLog] = {}
        self._machines: StateMachineTopic[DelayMachine] = StateMachineTopic(
            DELAYS_TOPIC,
            resources,
            self._machine,
            perform=self._perform,
            batching=Batching(_weight, BATCH_BYTES),
            requests=DELAY_REQUESTS,
            answer=self._answer,
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
        await self._machines.ensure_exists()
        return self._machines.index_of(routing_key(topic, partition))

    async def ask(self, request: Request[R]) -> R:
        """Return the reply to one of DELAY_REQUESTS, from the broker that has the log."""
        return await self._machines.ask(request)

    async def schedule_here(self, requests: Sequence[Schedule]) -> list[int]:
        """Schedule messages in one log on this broker; return their offsets once they are on disk.

        The requests are handled in this order, whether or not one has to wait for the disk.
        """
        host = await self._machines.host_of(requests[0].routing_key)
        await self._producer_ids.replenish()  # the machine may need one
        await host.loaded()
        self.check_room(sum(len(request.messages) for request in requests))
        offsets: list[int] = []
        for answer in await asyncio.gather(*map(host.submit, requests)):
            if isinstance(answer, AlpacaError):
                raise answer.with_traceback(None)
            offsets += answer
        return offsets

    async def pending_counts(self) -> list[PendingCounts]:
        """Count the pending messages of every log, on whatever broker, that can be loaded."""
        return await self._machines.ask_all(CountPending())

    def check_room(self, count: int) -> None:
        """Raise TooManyDelayed if the logs on this broker must not take `count` more messages."""
        if self.pending + count > self._max_pending:
            raise TooManyDelayed(
                f"{self.pending} delayed messages are pending; delays.max_pending={self._max_pending}"
            )

    async def _answer(self, host: StateMachineHost[DelayMachine], request: Request[Any]) -> Any:
        """Answer a request to a log on this broker."""
        await host.loaded()
        match request:
            case Schedule():
                self.check_room(len(request.messages))
                await self._producer_ids.replenish()  # the machine may need one
                return await host.ask(request)
            case CancelDelayed():
                return await self._cancel(self._log_of(host), request)
            case ListDelayed():
                return await self._list(self._log_of(host), request)
            case CountDelayed():
                return await self._count(self._log_of(host), request)
            case ReadDelayed():
                return await _read_some(self._log_of(host).records, request.offsets)
            case _:
                return await host.ask(request)

    async def _cancel(self, delay_log: DelayLog, request: CancelDelayed) -> DelayedEntry:
        stored = await delay_log.records.message(request.offset)
        if stored is None:
            raise UnknownDelayed(f"no delayed message is at offset {request.offset}")
        timer, record = stored
        await delay_log.host.ask(
            CancelMessage(
                id=request.offset, timer=timer, topic_id=request.topic_id, partition=request.partition
            )
        )
        self.cancelled += 1
        target = self._topics.replica(request.topic_id, request.partition)
        if self._traces is not None and target is not None and record.value is not None:
            id_ = self.id_of(request.offset, delay_log.host.partition.identity.partition)
            self._traces.cancelled(target, id_, decode_envelope(record.value).headers, request.api)
        return _entry(request.offset, request.partition, due_of(timer), record)

    async def _list(self, delay_log: DelayLog, request: ListDelayed) -> list[DelayedEntry]:
        listing = await self._listing(delay_log, request.topic_id, request.partitions, request.after_offset)
        found: list[DelayedEntry] = []
        if listing.pending:
            records = delay_log.records
            for each in await self._search.page(listing, records, request.after_offset, request.limit):
                if (stored := await records.message(each.id)) is not None:
                    found.append(_entry(each.id, each.partition, each.due_ms, stored[1]))
        return found

    async def _count(self, delay_log: DelayLog, request: CountDelayed) -> PendingCounts:
        listing = await self._listing(delay_log, request.topic_id, request.partitions, -1)
        due_ms = await self._search.first_due_ms(listing, delay_log.records) if listing.pending else None
        return PendingCounts(listing.pending, due_ms)

    async def _listing(
        self, delay_log: DelayLog, topic_id: bytes, partitions: Sequence[int], after_offset: int
    ) -> Listing:
        return await delay_log.host.ask(
            ListMessages(topic_id=topic_id, partitions=partitions, after_id=after_offset)
        )

    def _machine(self, partition: Partition) -> DelayMachine:
        return DelayMachine(partition.log.end_offset, self._producer_ids.take, self._topic_exists)

    def _log(self, host: StateMachineHost[DelayMachine]) -> DelayLog:
        number = host.partition.identity.partition
        executor = self._resources.executor
        records = DelayRecords(host.partition, executor, self._unpacked_limit_bytes)
        deliveries = Deliveries(
            host,
            records,
            self._targets,
            self._stats,
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
