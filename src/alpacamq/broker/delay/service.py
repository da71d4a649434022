"""Schedules, cancels and lists delayed messages, which wait in an internal log until they are due.

The target partition decides which partition of the internal log stores a message. Its id combines the offset
there with the number of that partition, so that ids are unique in a topic.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.partition.validation import check_writable
from alpacamq.broker.producer_ids import ProducerIds
from alpacamq.broker.statemachine.topic import HostResources
from alpacamq.broker.tracing.delay import DelayTraces, trace_of_delayed
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.errors import InvalidDelay, RecordError, TooManyDelayed, UnknownDelayed
from alpacamq.model.ports import Clock
from alpacamq.model.records import Header, Record
from alpacamq.model.topics import DAY_MS, DELAYS_TOPIC
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.tracing import ClientApi, now_us
from alpacamq.timers.messages import (
    CancelMessage,
    CountPending,
    Listing,
    ListMessages,
    PendingCounts,
    ProducerBatch,
    TargetName,
    ToSchedule,
)
from alpacamq.timers.records import decode_envelope, encode_envelope
from alpacamq.timers.wheel import MAX_DUE_MS, due_of

from .delivery import DeliveryCounts
from .host import DelayLogs
from .log_reader import DelaySearch, Found

log = get_logger(__name__)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A pending message as listed; `id` is unique within the topic."""

    topic: str
    partition: int
    id: int
    due_ms: int
    scheduled_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayCounts:
    """Statistics of delayed messages; totals count since the broker started."""

    pending: int
    next_due_ms: int | None
    scheduled_total: int
    fired_total: int
    cancelled_total: int
    late_ms_p99: float  # of recent deliveries, after their due time
    dropped_total: int = 0  # their topic was deleted


class Delays:
    """All delayed messages of this broker."""

    def __init__(
        self,
        resources: HostResources,
        producer_ids: ProducerIds,
        settings: DelaySettings,
        *,
        clock: Clock,
        unpacked_limit_bytes: int,
        traces: DelayTraces | None = None,
    ) -> None:
        self._topics = resources.topics
        self._traces = traces  # None if tracing is disabled
        self._producer_ids = producer_ids
        self._settings = settings
        self._clock = clock
        self._delivered = DeliveryCounts()
        self._logs = DelayLogs(
            resources,
            producer_ids,
            self._delivered,
            clock=clock,
            unpacked_limit_bytes=unpacked_limit_bytes,
            traces=traces,
        )
        self.run = self._logs.run
        self._search = DelaySearch(resources.executor)
        # Delay of deliveries after their due time.
        self.late_seconds = self._delivered.late_seconds
        self._being_scheduled = 0
        self._scheduled = self._cancelled = 0

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
            partition = self._topics.partition(message.topic, message.partition)
            check_writable(partition.identity)
            envelope = encode_envelope(message.key, message.value, message.headers)
            due_ms = self._due_ms(message.due_ms, now_ms)
            to_schedule.append(ToSchedule(_target(partition), due_ms, envelope))
        by_log: dict[int, list[int]] = {}
        for at, message in enumerate(messages):
            by_log.setdefault(await self._logs.number_for(message.topic, message.partition), []).append(at)
        ids = [0] * len(messages)
        with self._room_for(len(messages)):
            await self._producer_ids.replenish()  # a machine may need one
            calls = [
                self._logs[number].schedule([to_schedule[at] for at in places])
                for number, places in by_log.items()
            ]
            for (number, places), offsets in zip(by_log.items(), await asyncio.gather(*calls), strict=True):
                for at, offset in zip(places, offsets, strict=True):
                    ids[at] = self._logs.id_of(offset, number)
        self._scheduled += len(messages)
        if self._traces is not None:
            for message, id_ in zip(messages, ids, strict=True):
                target = self._topics.find(message.topic.encode(), message.partition)
                if target is not None:
                    record = Record(-1, 0, message.key, message.value, message.headers)
                    self._traces.scheduled(target, id_, record, message.due_ms, received_us, origin)
        return ids

    def trace_of(self, message: DelayedMessage, delayed_id: int) -> str | None:
        """Return the trace id of a scheduled message, if it has one."""
        partition = self._topics.find(message.topic.encode(), message.partition)
        return None if partition is None else trace_of_delayed(partition, delayed_id, message.headers)

    async def first_seen_ms(self, partition: Partition, source: ProducerBatch) -> int | None:
        """Return when a producer's batch was first split, if it was sent before."""
        if not self._logs:
            return None
        delay_log = self._logs[await self._logs.number_for(*partition.identity)]
        machine = await delay_log.host.loaded()
        return machine.first_seen_ms(partition.topic_id.bytes, partition.identity.partition, source)

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
        too_late = [
            RecordError(record.offset - base_offset, str(error))
            for due_ms, record in records
            if (error := self._delay_error(due_ms, now_ms)) is not None
        ]
        if too_late:
            raise InvalidDelay(too_late[0].reason).naming(too_late)
        target = _target(partition)
        to_schedule = [
            ToSchedule(target, max(due_ms, 1), encode_envelope(*record[2:])) for due_ms, record in records
        ]
        number = await self._logs.number_for(*partition.identity)
        with self._room_for(len(to_schedule)):
            await self._producer_ids.replenish()
            received_us = now_us()
            offsets = await self._logs[number].schedule(to_schedule, source)
            self._scheduled += len(offsets)
        if self._traces is not None and offsets:
            for (due_ms, record), offset in zip(records, offsets, strict=True):
                id_ = self._logs.id_of(offset, number)
                self._traces.scheduled(partition, id_, record, due_ms, received_us, origin)

    async def cancel(
        self, topic: str, partition: int, delayed_id: int, api: ClientApi = ClientApi.BROKER
    ) -> Waiting:
        """Cancel a message; raises UnknownDelayed if it is not pending."""
        target = self._topics.partition(topic, partition)
        topic_id = target.topic_id.bytes
        unknown = UnknownDelayed(f"no delayed message {delayed_id} in partition {partition} of {topic!r}")
        if not self._logs or delayed_id < 0:
            raise unknown
        offset, number = divmod(delayed_id, len(self._logs))
        delay_log = self._logs[number]
        stored = await delay_log.records.message(offset)
        if stored is None:
            raise unknown
        timer, record = stored
        try:
            await delay_log.host.ask(
                CancelMessage(id=offset, timer=timer, topic_id=topic_id, partition=partition)
            )
        except UnknownDelayed:
            raise unknown from None
        self._cancelled += 1
        if self._traces is not None and record.value is not None:
            self._traces.cancelled(target, delayed_id, decode_envelope(record.value).headers, api)
        return _waiting(topic, partition, delayed_id, due_of(timer), record)

    async def waiting(
        self, topic: str, *, partition: int | None = None, after_id: int = -1, limit: int = 100
    ) -> list[Waiting]:
        """List the pending messages of a topic, by id."""
        found: list[tuple[int, Found]] = []
        for number, listing in await self._listings(topic, partition, after_id):
            after_offset = self._offset_after(after_id, number)
            page = await self._search.page(listing, self._logs[number].records, after_offset, limit)
            found += [(self._logs.id_of(entry.id, number), entry) for entry in page]
        listed: list[Waiting] = []
        for id_, entry in sorted(found)[:limit]:
            stored = await self._logs[id_ % len(self._logs)].records.message(entry.id)
            if stored is not None:
                listed.append(_waiting(topic, entry.partition, id_, entry.due_ms, stored[1]))
        return listed

    async def messages(
        self, topic: str, *, after_id: int = -1, limit: int = 100
    ) -> list[tuple[int, DelayedMessage]]:
        """Return the messages that `waiting` lists, with their ids and contents."""
        found: list[tuple[int, DelayedMessage]] = []
        for entry in await self.waiting(topic, after_id=after_id, limit=limit):
            offset, number = divmod(entry.id, len(self._logs))
            if (stored := await self._logs[number].records.message(offset)) is not None:
                assert stored[1].value is not None
                envelope = decode_envelope(stored[1].value)
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
        answers: list[PendingCounts] = []
        for each in self._logs:
            if each.host.failure is None:
                answers.append(await each.host.ask(CountPending()))
        return DelayCounts(
            pending=sum(answer.pending for answer in answers),
            next_due_ms=min((a.next_due_ms for a in answers if a.next_due_ms is not None), default=None),
            scheduled_total=self._scheduled,
            fired_total=self._delivered.fired,
            cancelled_total=self._cancelled,
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
        return number in self._logs and self._logs[number].is_worth_compacting()

    async def _topic_stats(self, topic: str) -> DelayCounts:
        pending = 0
        dues_ms: list[int] = []
        for number, listing in await self._listings(topic, None, -1):
            pending += listing.pending
            due_ms = await self._search.first_due_ms(listing, self._logs[number].records)
            if due_ms is not None:
                dues_ms.append(due_ms)
        return DelayCounts(
            pending=pending,
            next_due_ms=min(dues_ms, default=None),
            scheduled_total=0,
            fired_total=0,
            cancelled_total=0,
            late_ms_p99=0.0,
        )

    async def _listings(self, topic: str, partition: int | None, after_id: int) -> list[tuple[int, Listing]]:
        """Return the listings of a topic by number of the delay log, without empty ones."""
        described = self._topics.image.topic(topic)
        if partition is not None:
            self._topics.partition(topic, partition)  # raises if it does not exist
        if not self._logs:
            return []
        by_log: dict[int, list[int]] = {}
        for index in range(described.partitions) if partition is None else [partition]:
            by_log.setdefault(await self._logs.number_for(topic, index), []).append(index)
        listings: list[tuple[int, Listing]] = []
        for number, partitions in by_log.items():
            listing = await self._logs[number].host.ask(
                ListMessages(
                    topic_id=described.id.bytes,
                    partitions=partitions,
                    after_id=self._offset_after(after_id, number),
                )
            )
            if listing.pending:
                listings.append((number, listing))
        return listings

    def _offset_after(self, after_id: int, number: int) -> int:
        """Return the largest offset in a delay log whose id is at most `after_id`."""
        return (after_id - number) // len(self._logs)

    @contextmanager
    def _room_for(self, count: int) -> Iterator[None]:
        """Reserve room for messages while they are being scheduled; raises TooManyDelayed."""
        pending = self._being_scheduled + self._logs.pending
        if pending + count > self._settings.max_pending:
            raise TooManyDelayed(
                f"{pending} delayed messages are pending; delays.max_pending={self._settings.max_pending}"
            )
        self._being_scheduled += count
        try:
            yield
        finally:
            self._being_scheduled -= count

    def _due_ms(self, due_ms: int, now_ms: int) -> int:
        """Return the due time to store; raises InvalidDelay if it is too far ahead."""
        if (error := self._delay_error(due_ms, now_ms)) is not None:
            raise error
        return max(due_ms, 1)

    def _delay_error(self, due_ms: int, now_ms: int) -> InvalidDelay | None:
        max_delay_ms = self._settings.max_delay_ms
        if due_ms - now_ms <= max_delay_ms and due_ms <= MAX_DUE_MS:
            return None
        return InvalidDelay(
            f"a delay of {due_ms - now_ms} ms is longer than delays.max_delay_ms={max_delay_ms}"
        )


def _target(partition: Partition) -> TargetName:
    return TargetName(partition.topic_id.bytes, *partition.identity)


def _waiting(topic: str, partition: int, delayed_id: int, due_ms: int, record: Record) -> Waiting:
    assert record.value is not None
    envelope = decode_envelope(record.value)
    return Waiting(
        topic=topic,
        partition=partition,
        id=delayed_id,
        due_ms=due_ms,
        scheduled_ms=record.timestamp_ms,
        size_bytes=len(envelope.key or b"") + len(envelope.value or b""),
    )
