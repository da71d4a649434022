"""Delivers delayed messages to their partitions when they are due.

Each partition, on whatever broker, gets one batch at a time per delivery path, in the order of their
sequences. What the partition has of a batch, because of a crash or a failover before that was recorded, is
not appended again: its leader refuses sequences that it has. A refused batch is retried until it is accepted;
only if the image has no such partition is it dropped. A batch is done once it is committed and on disk.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import msgspec

from alpacamq.broker.partition.leader import Partition, append
from alpacamq.broker.partition.validation import compression_level, stored_codec
from alpacamq.broker.remote.appends import RemoteAppends
from alpacamq.broker.remote.progress import ProducerSequences
from alpacamq.broker.statemachine.host import StateMachineHost
from alpacamq.broker.topics import Topics
from alpacamq.broker.tracing.delay import DelayTraces
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.batch import BROKER_EPOCH, HEADER_BYTES, Codec, read_header, stamp_append_time
from alpacamq.model.errors import (
    AlpacaError,
    DamagedLog,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutOfOrderSequence,
    PartitionNotReady,
    PeerUnavailable,
    RequestTimedOut,
    StorageFailed,
    UnknownTopic,
    UnknownTopicId,
)
from alpacamq.model.headers import DELIVER_AT
from alpacamq.model.ids import TopicId
from alpacamq.model.ports import Clock
from alpacamq.model.records import Header, Record, write_batch
from alpacamq.model.topics import TopicConfig
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import LATE_SECONDS, Histogram
from alpacamq.timers.due_batches import SEQUENCE_MASK
from alpacamq.timers.machine import PLANNED_MS, DelayMachine
from alpacamq.timers.messages import BatchesDelivered, Deliver, TargetName
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
# Batches with their messages in memory, waiting for their due time and then for one leader.
BATCHES_IN_MEMORY = 16
# How long the leader of a target may take; the batch is then built again.
APPEND_TIMEOUT_MS = 5_000
# Errors that end with the election of a leader or the return of a replica, and how long to wait for that.
PASSING = (
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    PartitionNotReady,
    PeerUnavailable,
    RequestTimedOut,
)
MAX_ELECTION_SECONDS = 0.5
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


class TargetPartitions:
    """The partitions of all brokers, as targets of deliveries."""

    def __init__(self, topics: Topics, appends: RemoteAppends, progress: ProducerSequences) -> None:
        self._topics = topics
        self._appends = appends
        self._progress = progress
        self._in_memory: dict[int | None, asyncio.Semaphore] = {}

    def exists(self, target: TargetName) -> bool:
        """Return whether the image has a partition. By its id: a topic created again is another one."""
        return self._topics.exists(target.topic_id, target.partition)

    def led(self, target: TargetName) -> Partition | None:
        """Return a partition that this broker leads."""
        return self._topics.find(target.topic_id, target.partition)

    def is_ended(self, partition: Partition) -> bool:
        """Return whether a partition was deleted, or has another leader: that has what was committed here."""
        key, index = partition.topic_id.bytes, partition.identity.partition
        if partition.is_leading and self._topics.exists(key, index):
            return False
        return isinstance(self._topics.absence(key, index), NotLeader | UnknownTopic | UnknownTopicId)

    def replica(self, target: TargetName) -> Partition | None:
        """Return the replica of a partition on this broker."""
        return self._topics.replica(target.topic_id, target.partition)

    def config(self, target: TargetName) -> TopicConfig:
        """Return the settings of a target. Raises UnknownTopicId."""
        topic = self._topics.image.topic_by_id(TopicId(bytes=target.topic_id))
        if topic is None:
            raise self._topics.absence(target.topic_id, target.partition)
        return self._topics.config_of(topic)

    def in_memory(self, target: TargetName) -> asyncio.Semaphore:
        """Return what bounds the batches in memory that wait for the leader of a target.

        One for each leader: deliveries to others do not wait for one that has failed.
        """
        state = self._topics.image.partition(_place(target))
        leader = None if state is None else state.leader
        return self._in_memory.setdefault(leader, asyncio.Semaphore(BATCHES_IN_MEMORY))

    async def done(self, batch: Deliver) -> int:
        """Return how many of a batch's messages its target has, all of them committed."""
        last = await self._progress.last_sequence(_place(batch.target), batch.producer_id)
        return _done(batch, last)

    async def append(self, target: TargetName, batch: bytearray) -> int:
        """Append a batch, and return its offset once all replicas in sync have it."""
        if (partition := self.led(target)) is not None:
            return (await append(partition, batch)).base_offset
        place = _place(target)
        appended = await self._appends.append(
            place.topic_id, place.partition, batch, timeout_ms=APPEND_TIMEOUT_MS
        )
        return appended.base_offset

    def is_on_disk(self, target: TargetName) -> bool:
        """Return whether what is committed in a partition of another broker is on disk.

        Only with more than one replica does being committed mean that.
        """
        state = self._topics.image.partition(_place(target))
        return state is None or len(state.replicas) > 1

    async def on_disk(self, batch: Deliver) -> bool:
        """Flush the target of a batch; return whether it has the whole batch."""
        last = await self._progress.last_sequence(_place(batch.target), batch.producer_id, is_on_disk=True)
        return _done(batch, last) == len(batch.ids)


def _place(target: TargetName) -> PartitionId:
    return PartitionId(TopicId(bytes=target.topic_id), target.partition)


class Deliveries:
    """The batches of one delay log that are being delivered."""

    def __init__(
        self,
        host: StateMachineHost[DelayMachine],
        records: DelayRecords,
        targets: TargetPartitions,
        stats: DeliveryCounts,
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
        self._targets = targets
        self._stats = stats
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
        is_reported = is_counted = False
        # Another broker refuses a batch of which it has a part: it is asked only then.
        is_asked = self._targets.led(batch.target) is not None
        while self._targets.exists(batch.target):
            try:
                done = await self._targets.done(batch) if is_asked else 0
                while done < count:
                    done += await self._deliver_some(batch, done)
                await self._appended(batch)
            except Exception as error:  # noqa: BLE001 - a bug costs one queue of batches, not the broker
                if not self._targets.exists(batch.target):
                    break
                is_asked = True
                if isinstance(error, OutOfOrderSequence) and not is_counted:
                    is_counted = True  # it has a part of the batch; from now on it is asked which
                    continue
                is_reported = is_reported or self._report(batch, error)
                await asyncio.sleep(wait_seconds)
                limit = MAX_ELECTION_SECONDS if isinstance(error, PASSING) else MAX_RETRY_SECONDS
                wait_seconds = min(wait_seconds * 2, limit)
            else:
                return
        self._stats.dropped += count
        log.warning("delayed_messages_dropped", topic=batch.target.topic, messages=count)
        self._settled([batch.intent])

    def _report(self, batch: Deliver, error: Exception) -> bool:
        """Log the first failure of a batch."""
        report = log.error if isinstance(error, AlpacaError) else log.exception
        if isinstance(error, PASSING):
            report = log.info
        report(
            "not_delivered",
            partition=f"{batch.target.topic}-{batch.target.partition}",
            reason=str(error),
        )
        return True

    async def _appended(self, batch: Deliver) -> None:
        """Note a batch that its target has; settle it once it is on disk."""
        if (partition := self._targets.led(batch.target)) is not None:
            unsettled = self._unsettled.setdefault(partition, deque())
            unsettled.append((partition.log.end_offset, batch.intent, len(batch.ids)))
            if not self._is_settling:
                self._is_settling = True
                self._host.spawn(self._settle())
        elif self._targets.is_on_disk(batch.target) or await self._targets.on_disk(batch):
            self._settled([batch.intent])
        else:
            raise StorageFailed("the broker has lost it before it was flushed")

    async def _deliver_some(self, batch: Deliver, first: int) -> int:
        """Append the next messages of a batch that are due together and fit; return their number."""
        dues_ms = [due_of(timer) for timer in batch.timers]
        # One tick's worth, or all that is late.
        until_ms = max(self._clock.now_ms(), (dues_ms[first] // TICK_MS + 1) * TICK_MS)
        end = first + 1
        while end < len(dues_ms) and dues_ms[end] <= until_ms:
            end += 1
        await self._sleep_until(dues_ms[end - 1] - READ_AHEAD_MS)
        config = self._targets.config(batch.target)
        async with self._targets.in_memory(batch.target):
            records, taken = await self._read(batch.ids[first:end], dues_ms[first:end], batch.target, config)
            await self._sleep_until(dues_ms[first + taken - 1])
            await self._append(batch, first, records, taken, config)
        self._stats.delivered(dues_ms[first : first + taken], self._clock.now_ms())
        return taken

    async def _append(
        self, batch: Deliver, first: int, records: Sequence[Record], taken: int, config: TopicConfig
    ) -> None:
        now_ms = self._clock.now_ms()
        stamped = [record._replace(timestamp_ms=now_ms) for record in records]
        sequence = (batch.intent.sequence + first) & SEQUENCE_MASK
        arguments = (stamped, taken, batch.producer_id, sequence, config, now_ms)
        if stored_codec(config) in (None, Codec.NONE):
            packed = _packed(*arguments)
        else:
            packed = await asyncio.get_running_loop().run_in_executor(self._executor, _packed, *arguments)
        base_offset = await self._targets.append(batch.target, packed)
        if self._traces is not None and (partition := self._targets.replica(batch.target)) is not None:
            for record in records:
                id_ = self._id_of(batch.ids[first + record.offset])
                self._traces.fired(partition, id_, record.headers, base_offset + record.offset)

    async def _read(
        self, ids: "array[int]", dues_ms: Sequence[int], target: TargetName, config: TopicConfig
    ) -> tuple[list[Record], int]:
        """Return records for the next messages that fit into one batch, and how many messages they cover."""
        limit_bytes = min(config.max_message_bytes, MAX_BATCH_BYTES)
        replica = self._targets.replica(target)
        records: list[Record] = []
        size = HEADER_BYTES
        for place, id_ in enumerate(ids):
            if (envelope := await self._envelope(id_)) is None:
                continue  # a gap in the sequence
            record = _record(place, dues_ms[place], envelope)
            if self._traces is not None and replica is not None:
                record = self._traces.labelled(replica, self._id_of(id_), record)
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
            is_ended = self._targets.is_ended(partition)
            while batches and room > 0 and (is_ended or batches[0][0] <= partition.log.flushed_offset):
                _, intent, count = batches.popleft()
                settled.append(intent)
                room -= count
            if not batches:
                del self._unsettled[partition]
        return settled

    def _settled(self, intents: Sequence[IntentId]) -> None:
        self._known.difference_update(intents)
        self._host.post(BatchesDelivered(intents=intents))


def _done(batch: Deliver, last: int | None) -> int:
    """Return how many of a batch's messages a partition has whose last sequence is `last`."""
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
