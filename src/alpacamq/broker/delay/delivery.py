"""Delivers delayed messages to their partitions when they are due.

Each partition gets one batch at a time per delivery path, in the order of their sequences. A batch that the
partition already has, because of a crash before that was recorded, is not appended again. A refused batch
is retried until it is accepted; a batch whose partition was deleted is dropped. A batch is done once the
partition has it on disk.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import msgspec

from alpacamq.broker.partition.leader import Partition, append
from alpacamq.broker.partition.validation import compression_level, stored_codec
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.delay import DelayTraces
from alpacamq.model.batch import BROKER_EPOCH, HEADER_BYTES, Codec, read_header, stamp_append_time
from alpacamq.model.errors import AlpacaError, DamagedLog
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.ports import Clock
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import TopicConfig
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import LATE_SECONDS, Histogram
from alpacamq.timers.due_batches import SEQUENCE_MASK
from alpacamq.timers.machine import PLANNED_MS, DelayMachine
from alpacamq.timers.messages import BatchesDelivered, Deliver
from alpacamq.timers.records import DeliveryPath, Envelope, IntentId, decode_envelope
from alpacamq.timers.wheel import TICK_MS, due_of

from .log_reader import DelayRecords

if TYPE_CHECKING:
    from array import array

log = get_logger(__name__)

RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 30.0
MAX_BATCH_BYTES = 1 << 20
# Messages are read this long before they are due and kept in memory until then.
READ_AHEAD_MS = 15
SETTLE_SECONDS = 0.1
SETTLED_AT_ONCE = 1000
LATENESS_KEPT = 1000
# Upper bounds of a record's size beside key, value and headers, and of a header's beside name and value.
_RECORD_BYTES = 48
_HEADER_BYTES = 10


class DeliveryCounts:
    """Counts deliveries since the broker started."""

    def __init__(self) -> None:
        self.fired = 0
        self.dropped = 0
        self.late_seconds = Histogram(LATE_SECONDS)
        self._late_ms: deque[int] = deque(maxlen=LATENESS_KEPT)

    def delivered(self, dues_ms: Sequence[int], now_ms: int) -> None:
        self.fired += len(dues_ms)
        late_ms = [max(now_ms - due_ms, 0) for due_ms in dues_ms]
        self._late_ms.extend(late_ms)
        for each, times in Counter(late_ms).items():
            self.late_seconds.observe(each / 1000, times)

    def late_ms_p99(self) -> float:
        late = sorted(self._late_ms)
        return float(late[len(late) * 99 // 100]) if late else 0.0


class Deliveries:
    """The batches of one delay log that are being delivered."""

    def __init__(
        self,
        host: StateMachineHost[DelayMachine],
        records: DelayRecords,
        topics: Topics,
        stats: DeliveryCounts,
        in_memory: asyncio.Semaphore,
        clock: Clock,
        executor: Executor,
        id_of: Callable[[int], int],
        traces: DelayTraces | None = None,
    ) -> None:
        self._host = host
        # Maps an offset in the delay log to a message id.
        self._id_of = id_of
        self._traces = traces
        self._records = records
        self._topics = topics
        self._stats = stats
        # Bounds the batches that wait for their due time with their messages in memory.
        self._in_memory = in_memory
        self._clock = clock
        self._executor = executor
        self._queues: dict[tuple[int, DeliveryPath], deque[Deliver]] = {}
        # Being delivered, or not yet on disk. A machine that was rebuilt requests them again.
        self._known: set[IntentId] = set()
        # Appended batches that may not be flushed: the end offset of each in its partition, in order.
        self._unsettled: dict[Partition, deque[tuple[int, IntentId, int]]] = {}
        self._is_settling = False

    def deliver(self, batch: Deliver) -> None:
        """Deliver a batch, after the earlier ones for the same partition."""
        if batch.intent in self._known:
            return
        self._known.add(batch.intent)
        key = batch.intent.target, batch.intent.path
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._host.spawn(self._deliver_all(key, queue))
        queue.append(batch)

    async def _deliver_all(self, key: tuple[int, DeliveryPath], queue: deque[Deliver]) -> None:
        while queue:
            await self._deliver(queue[0])
            queue.popleft()
        del self._queues[key]

    async def _deliver(self, batch: Deliver) -> None:
        """Deliver a batch; retries until it succeeds or the partition is deleted."""
        wait_seconds = RETRY_SECONDS
        count = len(batch.ids)
        while self._topics.exists(batch.target.topic_id, batch.target.partition):
            try:
                partition = self._find(batch)
                done = _done(batch, partition)
                while done < count:
                    done += await self._deliver_some(batch, done, partition)
            except Exception as error:  # noqa: BLE001 - a bug costs one queue of batches, not the broker
                if not self._topics.exists(batch.target.topic_id, batch.target.partition):
                    break
                if wait_seconds == RETRY_SECONDS:
                    report = log.error if isinstance(error, AlpacaError) else log.exception
                    identity = f"{batch.target.topic}-{batch.target.partition}"
                    report("not_delivered", partition=identity, reason=str(error))
                await asyncio.sleep(wait_seconds)
                wait_seconds = min(wait_seconds * 2, MAX_RETRY_SECONDS)
            else:
                unsettled = self._unsettled.setdefault(partition, deque())
                unsettled.append((partition.log.end_offset, batch.intent, count))
                if not self._is_settling:
                    self._is_settling = True
                    self._host.spawn(self._settle())
                return
        self._stats.dropped += count
        log.warning("delayed_messages_dropped", topic=batch.target.topic, messages=count)
        self._settled([batch.intent])

    def _find(self, batch: Deliver) -> Partition:
        # By its id: a topic created again under the same name is another one.
        key, index = batch.target.topic_id, batch.target.partition
        if (found := self._topics.find(key, index)) is None:
            raise self._topics.absence(key, index)
        return found

    async def _deliver_some(self, batch: Deliver, first: int, partition: Partition) -> int:
        """Append the next messages of a batch that are due together and fit; return their number."""
        dues_ms = [due_of(timer) for timer in batch.timers]
        # One tick's worth, or all that is late.
        until_ms = max(self._clock.now_ms(), (dues_ms[first] // TICK_MS + 1) * TICK_MS)
        end = first + 1
        while end < len(dues_ms) and dues_ms[end] <= until_ms:
            end += 1
        await self._sleep_until(dues_ms[end - 1] - READ_AHEAD_MS)
        async with self._in_memory:
            records, taken = await self._read(batch.ids[first:end], dues_ms[first:end], partition)
            await self._sleep_until(dues_ms[first + taken - 1])
            await self._append(batch, first, records, taken, partition)
        self._stats.delivered(dues_ms[first : first + taken], self._clock.now_ms())
        return taken

    async def _append(
        self, batch: Deliver, first: int, records: Sequence[Record], taken: int, partition: Partition
    ) -> None:
        now_ms = self._clock.now_ms()
        stamped = [record._replace(timestamp_ms=now_ms) for record in records]
        sequence = (batch.intent.sequence + first) & SEQUENCE_MASK
        config = partition.config
        arguments = (stamped, taken, batch.producer_id, sequence, config, now_ms)
        if stored_codec(config) in (None, Codec.NONE):
            packed = _packed(*arguments)
        else:
            packed = await asyncio.get_running_loop().run_in_executor(self._executor, _packed, *arguments)
        placed = await append(partition, packed)
        if self._traces is not None:
            for record in records:
                id_ = self._id_of(batch.ids[first + record.offset])
                self._traces.fired(partition, id_, record.headers, placed.base_offset + record.offset)

    async def _read(
        self, ids: "array[int]", dues_ms: Sequence[int], partition: Partition
    ) -> tuple[list[Record], int]:
        """Return records for the next messages that fit into one batch, and how many messages they cover."""
        limit_bytes = min(partition.config.max_message_bytes, MAX_BATCH_BYTES)
        records: list[Record] = []
        size = HEADER_BYTES
        for place, id_ in enumerate(ids):
            if (envelope := await self._envelope(id_)) is None:
                continue  # a gap in the sequence
            record = _record(place, dues_ms[place], envelope)
            if self._traces is not None:
                record = self._traces.labelled(partition, self._id_of(id_), record)
            size += _size(record)
            if records and size > limit_bytes:
                return records, place
            records.append(record)
        return records, len(ids)

    async def _envelope(self, id_: int) -> Envelope | None:
        """Read a message; None if it is lost."""
        try:
            if (stored := await self._records.message(id_)) is not None and stored[1].value is not None:
                return decode_envelope(stored[1].value)
            reason = "its record is missing"
        except (DamagedLog, msgspec.DecodeError) as error:
            reason = str(error)
        log.error(
            "delayed_message_lost", partition=str(self._host.partition.identity), offset=id_, reason=reason
        )
        return None

    async def _sleep_until(self, at_ms: int) -> None:
        """Sleep until a time, but no longer than deliveries are planned ahead.

        A later time means that the clock was set back. The message is then delivered by the old clock: those
        queued behind it must not wait for hours.
        """
        loop = asyncio.get_running_loop()
        limit = loop.time() + PLANNED_MS / 1000
        while (  # noqa: ASYNC110 - the clock may be set
            (left_ms := at_ms - self._clock.now_ms()) > 0 and (left := limit - loop.time()) > 0
        ):
            await asyncio.sleep(min(left_ms / 1000, left))

    async def _settle(self) -> None:
        """Report batches that are on disk to the machine."""
        while self._unsettled:
            if settled := self._take_settled():
                self._settled(settled)
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(SETTLE_SECONDS)
        self._is_settling = False

    def _take_settled(self) -> list[IntentId]:
        """Take batches that are on disk, as many as may be reported at once."""
        settled: list[IntentId] = []
        room = SETTLED_AT_ONCE
        for partition, batches in list(self._unsettled.items()):
            is_deleted = not self._topics.exists(partition.topic_id.bytes, partition.identity.partition)
            while batches and room > 0 and (is_deleted or batches[0][0] <= partition.log.flushed_offset):
                _, intent, count = batches.popleft()
                settled.append(intent)
                room -= count
            if not batches:
                del self._unsettled[partition]
        return settled

    def _settled(self, intents: Sequence[IntentId]) -> None:
        self._known.difference_update(intents)
        self._host.post(BatchesDelivered(intents=intents))


def _done(batch: Deliver, partition: Partition) -> int:
    """Return how many of a batch's messages the partition already has."""
    last = partition.log.producers.last_sequence(batch.producer_id)
    if last is None:
        return 0
    ahead = (last - batch.intent.sequence + 1) & SEQUENCE_MASK
    # Sequences wrap around: more than half of them ahead means behind.
    return min(ahead, len(batch.ids)) if ahead <= SEQUENCE_MASK // 2 else 0


def _record(place: int, due_ms: int, envelope: Envelope) -> Record:
    headers = envelope.headers
    if not any(header.key == DELIVER_AT for header in headers):
        headers = (*headers, Header(DELIVER_AT, str(due_ms).encode()))
    return Record(place, 0, envelope.key, envelope.value, headers)


def _size(record: Record) -> int:
    """Return an upper bound of a record's size in a batch."""
    size = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 4 * len(name) + len(value or b"") + _HEADER_BYTES
    return size


def _packed(
    records: Sequence[Record], count: int, producer_id: int, sequence: int, config: TopicConfig, now_ms: int
) -> bytearray:
    """Pack records into a batch that spans `count` offsets and sequences."""
    packed = write_batch(
        records,
        base_offset=0,
        last_offset=count - 1,
        codec=stored_codec(config) or Codec.NONE,
        level=compression_level(config),
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=producer_id,
        producer_epoch=BROKER_EPOCH,
        base_sequence=sequence,
    )
    if config.message_timestamp_type == "LogAppendTime":
        stamp_append_time(packed, read_header(packed), now_ms)
    return packed
