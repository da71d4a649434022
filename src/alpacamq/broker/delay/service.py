"""Schedules, cancels and lists delayed messages, which wait in an internal log until they are due.

The target partition decides which partition of the internal log, a delay log, stores a message; the broker
that leads that delivers it. Its id combines the offset
there with the number of that partition, so that ids are unique in a topic.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.partition.validation import check_writable
from alpacamq.broker.producer_ids import ProducerIds
from alpacamq.broker.remote.appends import RemoteAppends
from alpacamq.broker.remote.progress import ProducerSequences
from alpacamq.broker.slices import in_slices
from alpacamq.broker.statemachine.topic import HostResources
from alpacamq.broker.tracing.delay import DelayTraces, trace_of_delayed
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.tenants import tenant_of
from alpacamq.model.errors import (
    CoordinatorLoading,
    CoordinatorUnavailable,
    InvalidDelay,
    NotCoordinator,
    RecordError,
    RequestTimedOut,
    UnknownDelayed,
    UnknownTopic,
)
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.records import Header, Record
from alpacamq.model.topics import DAY_MS, DELAYS_TOPIC
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.tracing import ClientApi, now_us
from alpacamq.timers.due_batches import SEQUENCE_MASK
from alpacamq.timers.messages import (
    CountPending,
    FirstSeen,
    PendingCounts,
    ProducerBatch,
    Schedule,
    TargetName,
    ToSchedule,
)
from alpacamq.timers.records import decode_envelope, encode_envelope
from alpacamq.timers.wheel import MAX_DUE_MS

from .delivery import DeliveryCounts, TargetPartitions
from .host import DelayLogs, in_parts, is_replica_worth_compacting
from .requests import CancelDelayed, CountDelayed, DelayedEntry, ListDelayed, ReadDelayed

log = get_logger(__name__)

# How long to wait until the broker with the delay log knows a topic that this one knows.
NEW_TOPIC_SECONDS = 5.0
NEW_TOPIC_PAUSE_SECONDS = 0.02
# Errors of requests that a client may send again.
RETRIABLE = (CoordinatorLoading, CoordinatorUnavailable, NotCoordinator, RequestTimedOut)
_UNKNOWN_ORIGIN = Origin()


class DelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of delayed messages."""

    max_pending: int = 5_000_000
    max_delay_ms: int = 366 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessage:
    """A message and its due time."""

    topic: str
    partition: int
    due_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A pending message as listed; `id` is unique within the topic."""

    topic: str
    partition: int
    id: int
    due_ms: int
    scheduled_ms: int
    size_bytes: int


class DelayCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of delayed messages; totals count since the broker started."""

    pending: int
    next_due_ms: int | None
    scheduled_total: int
    fired_total: int
    cancelled_total: int
    late_ms_p99: float  # of recent deliveries, after their due time
    dropped_total: int = 0  # their topic was deleted


class ScheduleProducer(NamedTuple):
    """A producer id of this broker for scheduling, and its next sequence number."""

    producer_id: int
    sequence: int


class ScheduleProducers:
    """Gives each call to a delay log a producer id that no other call uses at the same time.

    With it, a call whose outcome is unknown can be repeated, at the next leader of the log too: messages that
    it has are recognised. Few ids are in use, as the last one that became free is taken first.
    """

    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids
        self._free: list[ScheduleProducer] = []

    @asynccontextmanager
    async def take(self, calls: int, now_ms: int) -> AsyncIterator[list[ProducerBatch]]:
        """Take a lane for this many calls, one after the other; yield how each is identified."""
        lane = self._free.pop() if self._free else ScheduleProducer(await self._producer_ids.new(), 0)
        sequences = [(lane.sequence + number) & SEQUENCE_MASK for number in range(calls)]
        try:
            yield [ProducerBatch(lane.producer_id, 0, number, number, now_ms) for number in sequences]
        finally:
            self._free.append(lane._replace(sequence=(lane.sequence + calls) & SEQUENCE_MASK))


class Delays:
    """The delayed messages of the cluster."""

    def __init__(
        self,
        resources: HostResources,
        producer_ids: ProducerIds,
        appends: RemoteAppends,
        progress: ProducerSequences,
        settings: DelaySettings,
        *,
        clock: Clock,
        is_member: bool = False,
        unpacked_limit_bytes: int,
        traces: DelayTraces | None = None,
    ) -> None:
        """`is_member`: there may be other brokers, so the outcome of a request may be unknown."""
        self._topics = resources.topics
        self._traces = traces  # None if tracing is disabled
        self._settings = settings
        self._clock = clock
        self._lanes = ScheduleProducers(producer_ids) if is_member else None
        self._delivered = DeliveryCounts()
        self._logs = DelayLogs(
            resources,
            producer_ids,
            TargetPartitions(resources.topics, appends, progress),
            self._delivered,
            clock=clock,
            max_pending=settings.max_pending,
            unpacked_limit_bytes=unpacked_limit_bytes,
            traces=traces,
        )
        self.run = self._logs.run
        # Delay of deliveries after their due time.
        self.late_seconds = self._delivered.late_seconds
        self._being_scheduled = 0
        self._scheduled = 0

    def now_ms(self) -> int:
        """Return the time by which messages are due."""
        return self._clock.now_ms()

    async def schedule(
        self,
        messages: Sequence[DelayedMessage],
        origin: Origin = _UNKNOWN_ORIGIN,
        received_us: int | None = None,
    ) -> list[int]:
        """Schedule messages and return their ids in order, once all are on disk.

        Raises InvalidDelay, TooManyDelayed or UnknownTopic.
        """
        received_us = now_us() if received_us is None else received_us
        now_ms = self._clock.now_ms()
        to_schedule = []
        for message in messages:
            target = self._target(message.topic, message.partition)
            check_writable(TopicPartition(TopicName(message.topic), message.partition))
            envelope = encode_envelope(message.key, message.value, message.headers)
            due_ms = self._due_ms(message.topic, message.due_ms, now_ms)
            to_schedule.append(ToSchedule(target, due_ms, envelope))
        by_log: dict[int, list[int]] = {}
        for at, message in enumerate(messages):
            by_log.setdefault(await self._logs.number_for(message.topic, message.partition), []).append(at)
        ids = [0] * len(messages)
        with self._room_for(sum(len(places) for number, places in by_log.items() if number in self._logs)):
            calls = [self._schedule_in_log([to_schedule[at] for at in places]) for places in by_log.values()]
            for (number, places), offsets in zip(by_log.items(), await asyncio.gather(*calls), strict=True):
                for at, offset in zip(places, offsets, strict=True):
                    ids[at] = self._logs.id_of(offset, number)
        self._scheduled += len(messages)
        if self._traces is not None:
            for message, id_ in zip(messages, ids, strict=True):
                replica = self._topics.replica(message.topic.encode(), message.partition)
                if replica is not None:
                    record = Record(-1, 0, message.key, message.value, message.headers)
                    self._traces.scheduled(replica, id_, record, message.due_ms, received_us, origin)
        return ids

    def trace_of(self, message: DelayedMessage, delayed_id: int) -> str | None:
        """Return the trace id of a scheduled message, if it has one."""
        replica = self._topics.replica(message.topic.encode(), message.partition)
        return None if replica is None else trace_of_delayed(replica, delayed_id, message.headers)

    async def first_seen_ms(self, partition: Partition, source: ProducerBatch) -> int | None:
        """Return when a producer's batch was first split, if it was sent before."""
        if not self._logs:
            return None
        return await self._logs.ask(FirstSeen(target=_target(partition), source=source))

    async def schedule_records(
        self,
        partition: Partition,
        records: Sequence[tuple[int, Record]],
        source: ProducerBatch | None,
        origin: Origin = _UNKNOWN_ORIGIN,
        *,
        base_offset: int = 0,
    ) -> None:
        """Schedule the delayed records of a produced batch, each with its due time.

        A batch that an idempotent producer sends again is scheduled once. An error names records by their
        distance from `base_offset`.
        """
        now_ms = self._clock.now_ms()
        tenant_limit_ms = self._tenant_limit_ms(partition.identity.topic)
        target = _target(partition)
        to_schedule: list[ToSchedule] = []
        async for some in in_slices(records):
            too_late = [
                RecordError(record.offset - base_offset, str(error))
                for due_ms, record in some
                if (error := self._delay_error(due_ms, now_ms, tenant_limit_ms)) is not None
            ]
            if too_late:
                raise InvalidDelay(too_late[0].reason).naming(too_late)
            to_schedule += [
                ToSchedule(target, max(due_ms, 1), encode_envelope(*record[2:])) for due_ms, record in some
            ]
        number = await self._logs.number_for(*partition.identity)
        with self._room_for(len(to_schedule) if number in self._logs else 0):
            received_us = now_us()
            offsets = await self._schedule_in_log(to_schedule, source)
            self._scheduled += len(offsets)
        if self._traces is not None and len(offsets) == len(records):  # else it was scheduled before
            for (due_ms, record), offset in zip(records, offsets, strict=True):
                id_ = self._logs.id_of(offset, number)
                self._traces.scheduled(partition, id_, record, due_ms, received_us, origin)

    async def _schedule_in_log(
        self, messages: Sequence[ToSchedule], source: ProducerBatch | None = None
    ) -> list[int]:
        """Schedule messages of one delay log, and return their offsets there."""
        parts = list(in_parts(messages))
        portions: list[ProducerBatch | None] = [None] * len(parts)
        if source is not None:
            portions = [source._replace(portion=portion) for portion in range(len(parts))]
        if self._lanes is None:
            return await self._logs.schedule_here(
                [
                    Schedule(messages=part, source=portion)
                    for part, portion in zip(parts, portions, strict=True)
                ]
            )
        if source is not None:
            return await self._schedule_in_turn(parts, portions)
        async with self._lanes.take(len(parts), self._clock.now_ms()) as sources:
            return await self._schedule_in_turn(parts, sources)

    async def _schedule_in_turn(
        self, parts: Sequence[Sequence[ToSchedule]], sources: Sequence[ProducerBatch | None]
    ) -> list[int]:
        """Schedule parts one after the other.

        A portion counts as a duplicate once a later one is stored, and messages due at the same time are
        delivered in the order of the call.
        """
        offsets: list[int] = []
        for part, source in zip(parts, sources, strict=True):
            offsets += await self._schedule_part(Schedule(messages=part, source=source))
        return offsets

    async def _schedule_part(self, request: Schedule) -> list[int]:
        """Schedule messages that carry a source: a request of unknown outcome is repeated on the way."""
        names = {(message.target.topic_id, message.target.partition) for message in request.messages}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NEW_TOPIC_SECONDS
        while True:
            try:
                return await self._logs.ask(request)
            except UnknownTopic:
                # The broker with the log may not have heard of a new topic yet.
                is_known = all(self._topics.exists(*name) for name in names)
                if not is_known or loop.time() >= deadline:
                    raise
            await asyncio.sleep(NEW_TOPIC_PAUSE_SECONDS)

    async def cancel(
        self, topic: str, partition: int, delayed_id: int, api: ClientApi = ClientApi.BROKER
    ) -> Waiting:
        """Cancel a message; raises UnknownDelayed if it is not pending."""
        target = self._target(topic, partition)
        unknown = UnknownDelayed(f"no delayed message {delayed_id} in partition {partition} of {topic!r}")
        if not self._logs or delayed_id < 0:
            raise unknown
        offset, number = divmod(delayed_id, len(self._logs))
        if await self._logs.number_for(topic, partition) != number:
            raise unknown
        request = CancelDelayed(
            topic=topic, topic_id=target.topic_id, partition=partition, offset=offset, api=api
        )
        try:
            entry = await self._logs.ask(request)
        except UnknownDelayed:
            raise unknown from None
        return self._waiting(topic, number, entry)

    async def waiting(
        self, topic: str, *, partition: int | None = None, after_id: int = -1, limit: int = 100
    ) -> list[Waiting]:
        """List the pending messages of a topic, by id."""
        by_log = await self._by_log(topic, partition)
        described = self._topics.image.topic(topic)
        pages = [
            self._logs.ask(
                ListDelayed(
                    topic=topic,
                    topic_id=described.id.bytes,
                    partitions=partitions,
                    after_offset=self._offset_after(after_id, number),
                    limit=limit,
                )
            )
            for number, partitions in by_log.items()
        ]
        listed: list[Waiting] = []
        for number, page in zip(by_log, await asyncio.gather(*pages), strict=True):
            listed += [self._waiting(topic, number, entry) for entry in page]
        return sorted(listed, key=lambda entry: entry.id)[:limit]

    async def messages(
        self, topic: str, *, after_id: int = -1, limit: int = 100
    ) -> list[tuple[int, DelayedMessage]]:
        """Return the messages that `waiting` lists, with their ids and contents."""
        waiting = await self.waiting(topic, after_id=after_id, limit=limit)
        found: list[tuple[int, DelayedMessage]] = []
        for entry, stored in zip(waiting, await self._contents(topic, waiting), strict=True):
            if stored is not None:
                envelope = decode_envelope(stored)
                message = DelayedMessage(
                    topic=topic,
                    partition=entry.partition,
                    due_ms=entry.due_ms,
                    key=envelope.key,
                    value=envelope.value,
                    headers=envelope.headers,
                )
                found.append((entry.id, message))
        return found

    async def _contents(self, topic: str, waiting: Sequence[Waiting]) -> list[bytes | None]:
        """Return the encoded contents of pending messages; None for those that are not pending any more."""
        by_log: dict[int, list[Waiting]] = {}
        for entry in waiting:
            by_log.setdefault(entry.id % len(self._logs), []).append(entry)
        found: dict[int, bytes | None] = {}
        for number, entries in by_log.items():
            offsets = [entry.id // len(self._logs) for entry in entries]
            while offsets:
                request = ReadDelayed(topic=topic, partition=entries[0].partition, offsets=tuple(offsets))
                some = await self._logs.ask(request)
                for stored in some:
                    found[self._logs.id_of(stored.offset, number)] = stored.envelope
                del offsets[: len(some)]
        return [found[entry.id] for entry in waiting]

    async def message(self, topic: str, delayed_id: int) -> tuple[Waiting, DelayedMessage]:
        """Return a pending message; raises UnknownDelayed if there is none with this id."""
        waiting = await self.waiting(topic, after_id=delayed_id - 1, limit=1)
        messages = await self.messages(topic, after_id=delayed_id - 1, limit=1)
        if not (waiting and messages and waiting[0].id == messages[0][0] == delayed_id):
            raise UnknownDelayed(f"no delayed message {delayed_id} in {topic!r}")
        return waiting[0], messages[0][1]

    async def stats(self, topic: str | None = None) -> DelayCounts:
        """Return statistics of one topic (only pending and next_due_ms) or of all."""
        if topic is not None:
            return await self._topic_stats(topic)
        return self._counts(await self._logs.pending_counts() if self._logs else [])

    async def local_stats_of(self, topic: str) -> DelayCounts:
        """Return the same of the messages of one topic whose delay logs are on this broker."""
        return await self._topic_stats(topic, is_here=True)

    async def local_stats(self) -> DelayCounts:
        """Return statistics of the messages whose delay logs are on this broker."""
        return self._counts(
            [await each.host.ask(CountPending()) for each in self._logs if not each.host.failure]
        )

    def _counts(self, pending: Sequence[PendingCounts]) -> DelayCounts:
        return DelayCounts(
            pending=sum(each.pending for each in pending),
            next_due_ms=min(
                (each.next_due_ms for each in pending if each.next_due_ms is not None), default=None
            ),
            scheduled_total=self._scheduled,
            fired_total=self._delivered.fired,
            cancelled_total=self._logs.cancelled,
            late_ms_p99=self._delivered.late_ms_p99(),
            dropped_total=self._delivered.dropped,
        )

    def failures(self) -> list[str]:
        """Describe the delay logs that cannot be loaded."""
        return self._logs.failures()

    def topic_deleted(self) -> None:
        """Drop messages for deleted topics."""
        self._logs.topic_deleted()

    def is_worth_compacting(self, partition: Partition) -> bool:
        """Return whether a partition of the delay topic has enough garbage; True for other topics."""
        if partition.identity.topic != DELAYS_TOPIC:
            return True
        number = partition.identity.partition
        if number in self._logs:
            return self._logs[number].is_worth_compacting()
        return not partition.is_leading and is_replica_worth_compacting(partition.log)

    async def _topic_stats(self, topic: str, *, is_here: bool = False) -> DelayCounts:
        by_log = await self._by_log(topic, None)
        topic_id = self._topics.image.topic(topic).id.bytes
        requests = (
            CountDelayed(topic=topic, topic_id=topic_id, partitions=partitions)
            for number, partitions in by_log.items()
            if not is_here or number in self._logs
        )
        counts = await asyncio.gather(*map(self._logs.ask, requests))
        return DelayCounts(
            pending=sum(each.pending for each in counts),
            next_due_ms=min(
                (each.next_due_ms for each in counts if each.next_due_ms is not None), default=None
            ),
            scheduled_total=0,
            fired_total=0,
            cancelled_total=0,
            late_ms_p99=0.0,
        )

    async def _by_log(self, topic: str, partition: int | None) -> dict[int, tuple[int, ...]]:
        """Return the partitions of a topic, or one of them, by the number of their delay log."""
        described = self._topics.image.topic(topic)
        if partition is not None:
            self._target(topic, partition)  # raises if it does not exist
        by_log: dict[int, tuple[int, ...]] = {}
        if self._logs:
            for index in range(described.partitions) if partition is None else [partition]:
                number = await self._logs.number_for(topic, index)
                by_log[number] = (*by_log.get(number, ()), index)
        return by_log

    def _target(self, topic: str, partition: int) -> TargetName:
        """Return a partition that the cluster has, on whatever broker."""
        if not self._topics.exists(topic.encode(), partition):
            raise self._topics.absence(topic.encode(), partition)
        return TargetName(self._topics.image.topic(topic).id.bytes, topic, partition)

    def _waiting(self, topic: str, number: int, entry: DelayedEntry) -> Waiting:
        return Waiting(
            topic=topic,
            partition=entry.partition,
            id=self._logs.id_of(entry.offset, number),
            due_ms=entry.due_ms,
            scheduled_ms=entry.scheduled_ms,
            size_bytes=entry.size_bytes,
        )

    def _offset_after(self, after_id: int, number: int) -> int:
        """Return the largest offset in a delay log whose id is at most `after_id`."""
        return (after_id - number) // len(self._logs)

    @contextmanager
    def _room_for(self, count: int) -> Iterator[None]:
        """Reserve room in the logs on this broker while messages are scheduled; raises TooManyDelayed."""
        self._logs.check_room(self._being_scheduled + count)
        self._being_scheduled += count
        try:
            yield
        finally:
            self._being_scheduled -= count

    def _due_ms(self, topic: str, due_ms: int, now_ms: int) -> int:
        """Return the due time to store; raises InvalidDelay if it is too far ahead."""
        if (error := self._delay_error(due_ms, now_ms, self._tenant_limit_ms(topic))) is not None:
            raise error
        return max(due_ms, 1)

    def _tenant_limit_ms(self, topic: str) -> int | None:
        """Return the longest delay that the tenant of a topic allows; None without a limit."""
        tenant = tenant_of(self._topics.image, topic)
        return None if tenant is None else tenant.limits.delay_ms

    def _delay_error(self, due_ms: int, now_ms: int, tenant_limit_ms: int | None) -> InvalidDelay | None:
        if tenant_limit_ms is not None and due_ms - now_ms > tenant_limit_ms:
            return InvalidDelay(
                f"a delay of {due_ms - now_ms} ms is longer than the limit of the tenant, "
                f"{tenant_limit_ms} ms"
            )
        max_delay_ms = self._settings.max_delay_ms
        if due_ms - now_ms <= max_delay_ms and due_ms <= MAX_DUE_MS:
            return None
        return InvalidDelay(
            f"a delay of {due_ms - now_ms} ms is longer than delays.max_delay_ms={max_delay_ms}"
        )


def _target(partition: Partition) -> TargetName:
    return TargetName(partition.topic_id.bytes, *partition.identity)
