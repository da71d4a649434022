"""One queue (a group on a topic): its settings, partitions and totals."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from alpacamq.model.dead_letters import dead_letter_topic
from alpacamq.model.deadlines import NO_DEADLINE, Deadlines, Timed
from alpacamq.model.errors import InvalidConfig, PartitionNotReady
from alpacamq.model.lanes import Lane
from alpacamq.model.state_machine import Change
from alpacamq.model.topics import Topic, TopicConfig, check_setting

from .chunks import CHUNK_BITS, LeaseGroup, PendingMove, State
from .messages import (
    DescribeReply,
    LaneTotals,
    Move,
    PartitionsView,
    PartitionTotals,
    QueueId,
    ReceiveRequest,
    ShareTerms,
    Start,
    unreadable,
)
from .partition import Consumers, EventOutput, LeaseCounts, SharePartition
from .ready import ALL_LANES, LaneScheduler, ReadyPartitions
from .records import StoredHead, StoredQueue, head_key, pack_queue, queue_key

OVERRIDABLE = "queue."
# The settings of a share group, stored with the overrides of its queues.
ISOLATION = "isolation.level"
DELIVERY_LIMIT = "delivery.count.limit"
# Reads that one receive requests at a time, and how often it waits for further reads.
MAX_READS = 8
COLD_MESSAGES = 20_000


def check_overrides(overrides: Mapping[str, str | None]) -> None:
    """Raise InvalidConfig for a setting that a group cannot override, or an invalid value."""
    for name, text in overrides.items():
        if not name.startswith(OVERRIDABLE):
            raise InvalidConfig(f"a group can override {OVERRIDABLE}* settings, not {name!r}")
        if text is not None:
            check_setting(name, text)


def overridden(config: TopicConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """Return the settings of a topic with the overrides of a group."""
    values = {}
    for name, text in overrides.items():
        try:
            values[name.replace(".", "_")] = check_setting(name, text)
        except InvalidConfig:
            continue  # not a setting of topics, or stored by another version
    return msgspec.structs.replace(config, **values) if values else config


@dataclass(slots=True)
class Totals:
    """Counts since the broker started."""

    received: int = 0
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    expired_leases: int = 0
    dead_lettered: int = 0
    redelivered: int = 0


@dataclass(slots=True, eq=False)
class PendingReceive:
    """A receive without a reply. It gets one at `end_ms` at the latest; at `due_ms` it is served again."""

    queue: "Queue"
    request: ReceiveRequest
    reply_to: Any
    partitions: int  # as a mask
    end_ms: int
    due_ms: int = NO_DEADLINE
    reads_left: int = MAX_READS
    awaited: int = 0  # mask of partitions whose reads it waits for, also if others have messages
    has_ready: bool = False  # there are ready messages for it, and it waits for a read

    @property
    def is_poll(self) -> bool:
        """Return whether it waits for reads only, not for new messages."""
        return not self.request.wait_ms


def reads_committed(overrides: Mapping[str, str]) -> bool:
    """Return whether a queue with these overrides reads committed records only."""
    return ISOLATION not in overrides


class Queue:
    """A group on a topic."""

    def __init__(
        self,
        queue_id: QueueId,
        stored: StoredQueue,
        log: PartitionsView,
        output: EventOutput,
        deadlines: Deadlines[Timed],
        take_producer_id: Callable[[], int],
    ) -> None:
        self.id = queue_id
        self.topic_id = stored.topic_id
        self.generation = stored.generation
        self.overrides = dict(stored.overrides)
        self.partitions: dict[int, SharePartition] = {}
        self.ready_partitions = ReadyPartitions()
        self.lanes = LaneScheduler()
        self.consumers = Consumers()
        self.waiting: dict[object, PendingReceive] = {}  # the oldest first
        self.polls: dict[object, PendingReceive] = {}  # receives that wait for reads only
        self.totals = Totals()
        self.unread = 0  # mask of partitions with records that were not read
        self.reading = 0  # mask of partitions that are being read
        self.last_read = -1  # the partition of the last read
        self.read_ahead_ms = 0  # when to read ahead next
        # The first receives wait for more reads, although there are messages: until then at most, and until
        # this many messages were read.
        self.cold_until_ms = NO_DEADLINE
        self.cold_messages = COLD_MESSAGES
        self.is_dirty = False
        self.is_forgotten = False
        self.is_stored = False
        self.output = output
        self.log = log
        self._deadlines = deadlines
        self._take_producer_id = take_producer_id
        self._topic_config: TopicConfig | None = None
        self._settings: TopicConfig | None = None

    @property
    def is_committed(self) -> bool:
        """Return whether the queue reads committed records only."""
        return reads_committed(self.overrides)

    def is_of(self, topic: Topic | None) -> bool:
        """Return whether this is a queue of this topic, and not of a deleted one of the same name."""
        return topic is not None and topic.id == self.topic_id

    def share(self, terms: ShareTerms) -> None:
        """Apply the settings of a share group from now on."""
        wanted = {
            ISOLATION: None if terms.is_committed else "read_uncommitted",
            DELIVERY_LIMIT: str(terms.max_deliveries) if terms.max_deliveries else None,
        }
        if any(self.overrides.get(name) != text for name, text in wanted.items()):
            self.configure(wanted)

    def is_cold(self, now_ms: int) -> bool:
        """Return whether receives wait for reads, although there are messages."""
        return now_ms < self.cold_until_ms and bool(self.unread | self.reading)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the end of what this queue may read.

        A partition whose bounds are not known has nothing to read beyond what was read.
        """
        try:
            return self.known_bounds(number)
        except PartitionNotReady:
            if (partition := self.partitions.get(number)) is None:
                raise
            return partition.start_offset, partition.backlog.read_to

    @property
    def partition_count(self) -> int:
        """How many partitions the topic has; none if it does not exist."""
        topic = self.log.topic(self.id.topic)
        return 0 if topic is None else topic.partitions

    def known_bounds(self, number: int) -> tuple[int, int]:
        """Return the bounds of a partition. Raises PartitionNotReady if they are not known."""
        return self.log.bounds(self.id.topic, number, is_committed=self.is_committed)

    def change(self) -> Change:
        self.is_stored = True
        stored = StoredQueue(self.generation, self.overrides, self.topic_id)
        return Change(queue_key(self.id), pack_queue(stored))

    def snapshot(self) -> Iterator[Change]:
        """Yield the records of this queue as they were written last; it may change in the meantime."""
        if self.is_forgotten:
            return
        yield self.change()
        for partition in list(self.partitions.values()):
            if partition.is_forgotten:
                continue
            yield partition.stored_head()
            chunks = partition.progress.chunks
            for chunk in list(chunks.values()):
                if chunk.is_stored and chunks.get(chunk.index) is chunk:
                    yield partition.chunk_change(chunk)

    @property
    def settings(self) -> TopicConfig:
        """Return the result of `refresh`."""
        return self.refresh()

    def refresh(self) -> TopicConfig:
        """Return the settings of the topic with the overrides of this group; apply them if they have changed.

        Raises UnknownTopic.
        """
        config = self.log.config(self.id.topic)
        if config is None:
            raise unreadable(self.id.topic, self.log)
        if self._settings is None or config is not self._topic_config:
            self._topic_config = config
            self._settings = overridden(config, self.overrides)
            self._apply_ordering(self._settings)
        return self._settings

    @property
    def dead_letter_topic(self) -> str | None:
        """Return the dead-letter topic; None if messages are never dead-lettered."""
        topic = self.id.topic
        if self.log.config(topic) is None:
            return None
        return dead_letter_topic(topic, self.settings.queue_dead_letter_topic)

    def configure(self, overrides: Mapping[str, str | None]) -> None:
        """Apply valid overrides; None removes one."""
        for name, text in overrides.items():
            if text is None:
                self.overrides.pop(name, None)
            else:
                self.overrides[name] = text
        self._settings = None
        self.output.write(self)

    def open_partitions(self, start: Start) -> None:
        """Open the partitions that this group has not read before.

        Partitions added to the topic later are read from their first record, also with Start.LATEST.
        Those whose bounds are not known are opened later. Raises PartitionNotReady if that would read them
        from another offset, or if there are no others.
        """
        topic = self.log.topic(self.id.topic)
        if topic is None or topic.partitions == len(self.partitions):
            return
        from_end = not self.partitions and start is Start.LATEST
        found: dict[int, tuple[int, int]] = {}
        for number in range(topic.partitions):
            if number not in self.partitions:
                try:
                    found[number] = self.known_bounds(number)
                except PartitionNotReady:
                    if from_end:
                        raise
        if not found and not self.partitions:
            raise unreadable(self.id.topic, self.log)
        in_key_order = self.settings.queue_ordering == "key"
        for number, (log_start, log_end) in found.items():
            offset = log_end if from_end else log_start
            partition = self.restore_partition(number, StoredHead(self.generation, offset))
            partition.rebuild_backlog(in_key_order=in_key_order)
            partition.backlog.count_from(log_end)
            self.unread |= 1 << number
            self.output.write(partition)

    def restore_partition(self, number: int, head: StoredHead) -> SharePartition:
        """Create a partition from its stored head."""
        shared = (self.output, self._deadlines, self.consumers, self.ready_partitions)
        partition = self.partitions[number] = SharePartition(self.id, number, head, *shared)
        return partition

    def reset(self, number: int, offset: int, generation: int) -> None:
        """Start again at `offset` in one partition."""
        self.partitions[number].reset(offset, generation)
        self.reading &= ~(1 << number)
        self.unread |= 1 << number

    def forget(self) -> None:
        """Delete the queue, in memory and in the log."""
        self.is_forgotten = True
        self.output.delete(queue_key(self.id))
        for partition in [*self.partitions.values()]:
            self.forget_partition(partition)

    def forget_partition(self, partition: SharePartition) -> None:
        """Delete one partition."""
        partition.is_forgotten = True
        self.output.delete(head_key(self.id, partition.number))
        partition.clear()
        del self.partitions[partition.number]

    def is_spent(self, delivery_count: int) -> bool:
        """Return whether a message with this many deliveries is dead-lettered when it fails."""
        if self.dead_letter_topic is None:
            return False
        limit = self.overrides.get(DELIVERY_LIMIT)
        return 0 < (self.settings.queue_max_deliveries if limit is None else int(limit)) <= delivery_count

    def dead_letter(self, partition: SharePartition, leases: LeaseGroup, offset: int, reason: str) -> None:
        """Move a leased message to the dead-letter topic."""
        self.totals.dead_lettered += 1
        self.move(partition, leases, offset, "", reason)

    def move(
        self, partition: SharePartition, leases: LeaseGroup, offset: int, target: str, reason: str
    ) -> None:
        """Move a leased message to another topic."""
        if partition.producer_id < 0:
            partition.producer_id = self._take_producer_id()
        self.emit(partition, offset, leases.count, partition.move(leases, offset, target, reason))

    def emit(self, partition: SharePartition, offset: int, count: int, move: PendingMove) -> None:
        """Add the effect of a move."""
        self.output.moves.append(
            Move(
                queue=self.id,
                topic_id=self.topic_id,
                partition=partition.number,
                offset=offset,
                target=move.target,
                reason=move.reason,
                delivery_count=count,
                producer_id=partition.producer_id,
                sequence=move.sequence,
            )
        )

    def _apply_ordering(self, settings: TopicConfig) -> None:
        in_key_order = settings.queue_ordering == "key"
        for number, partition in self.partitions.items():
            if in_key_order != (partition.backlog.order is not None):
                partition.rebuild_backlog(in_key_order=in_key_order)
                self.reading &= ~(1 << number)
                self.unread |= 1 << number


class QueueLevels(NamedTuple):
    """The messages of a queue by state, and how many were acknowledged since the broker started."""

    queue: QueueId
    ready: int
    in_flight: int
    backoff: int
    acked_total: int


def levels_gradually(queues: Iterable[Queue]) -> Iterator[QueueLevels | None]:
    """Count the messages of queues in small steps, as in `describe_gradually`."""
    for queue in list(queues):
        ready = in_flight = backoff = 0
        for number in range(queue.partition_count):
            partition = queue.partitions.get(number)
            if partition is None:
                log_start, log_end = _known_bounds(queue, number)
                ready += log_end - log_start
            else:
                lease_counts, by_lane = _counts(partition, *queue.bounds(number))
                ready += sum(by_lane)
                in_flight += sum(lease_counts.in_flight)
                backoff += sum(lease_counts.backoff)
            if number:
                yield None
        if not queue.is_forgotten:
            yield QueueLevels(queue.id, ready, in_flight, backoff, queue.totals.acked)


def describe(queue: Queue) -> DescribeReply:
    """Describe a queue. Messages that were not read count as ready, in the normal lane."""
    return _described(queue, list(partition_totals(queue)))


def describe_gradually(queues: Iterable[Queue]) -> Iterator[DescribeReply | None]:
    """Describe queues in small steps, between which they may change: yields None after each partition."""
    for queue in list(queues):
        partitions: list[PartitionTotals] = []
        for each in partition_totals(queue):
            partitions.append(each)
            yield None
        if not queue.is_forgotten:
            yield _described(queue, partitions)


def partition_totals(queue: Queue) -> Iterator[PartitionTotals]:
    """Describe the partitions of a queue."""
    for number in range(queue.partition_count):
        partition = queue.partitions.get(number)
        if partition is not None:
            yield _opened(partition, *queue.bounds(number))
        else:
            yield _unopened(number, *_known_bounds(queue, number))


def _known_bounds(queue: Queue, number: int) -> tuple[int, int]:
    """Return the bounds of a partition without receives so far; an empty range while they are not known."""
    try:
        return queue.known_bounds(number)
    except PartitionNotReady:
        return 0, 0


def _described(queue: Queue, partitions: Sequence[PartitionTotals]) -> DescribeReply:
    totals = queue.totals
    return DescribeReply(
        queue=queue.id,
        generation=queue.generation,
        overrides={name: text for name, text in queue.overrides.items() if name.startswith(OVERRIDABLE)},
        dead_letter_topic=queue.dead_letter_topic,
        partitions=tuple(partitions),
        received_total=totals.received,
        acked_total=totals.acked,
        nacked_total=totals.nacked,
        rejected_total=totals.rejected,
        expired_leases_total=totals.expired_leases,
        dead_lettered_total=totals.dead_lettered,
        redelivered_total=totals.redelivered,
        waiting_receives=len(queue.waiting),
    )


def _unopened(number: int, log_start: int, log_end: int) -> PartitionTotals:
    """Describe a partition without receives so far: all of its messages are ready."""
    ready = log_end - log_start
    return PartitionTotals(
        partition=number,
        start_offset=log_start,
        end_offset=log_end,
        ready=ready,
        in_flight=0,
        backoff=0,
        dead_lettering=0,
        oldest_offset=log_start if ready else None,
        lanes={lane.text: LaneTotals(ready=ready if lane is Lane.NORMAL else 0) for lane in ALL_LANES},
    )


def _opened(partition: SharePartition, log_start: int, log_end: int) -> PartitionTotals:
    lease_counts, ready = _counts(partition, log_start, log_end)
    lanes = {
        lane.text: LaneTotals(
            ready=ready[lane],
            in_flight=lease_counts.in_flight[lane],
            backoff=lease_counts.backoff[lane],
            enqueued_total=partition.backlog.enqueued_total[lane],
            delivered_total=partition.delivered_total[lane],
        )
        for lane in ALL_LANES
    }
    start_offset = max(partition.start_offset, log_start)
    return PartitionTotals(
        partition=partition.number,
        start_offset=start_offset,
        end_offset=max(log_end, start_offset),
        ready=sum(ready),
        in_flight=sum(lease_counts.in_flight),
        backoff=sum(lease_counts.backoff),
        dead_lettering=lease_counts.moving,
        oldest_offset=start_offset if start_offset < log_end else None,
        lanes=lanes,
    )


def _counts(partition: SharePartition, log_start: int, log_end: int) -> tuple[LeaseCounts, list[int]]:
    """Count the messages by state and lane. Those that were not read are ready, in the normal lane."""
    if log_start > partition.start_offset:
        # Retention has removed messages since the last event.
        return _counts_from(partition, log_start, log_end)
    ready = [*partition.backlog.ready]
    ready[Lane.NORMAL] += _unread(partition, partition.backlog.read_to, log_end)
    return partition.lease_counts, ready


def _unread(partition: SharePartition, read_to: int, log_end: int) -> int:
    """Count the messages after `read_to` that are ready or unknown."""
    unread = max(log_end - read_to, 0)
    if not unread or partition.progress.delivered_end <= read_to:
        return unread
    for chunk in partition.progress.chunks.values():
        behind = -1 << max(read_to - (chunk.index << CHUNK_BITS), 0)
        unread -= (chunk.done & behind).bit_count()
        for leases in chunk.lease_groups():
            # Redelivered messages are counted as ready already, except in key order, where they must be read.
            if leases.state is not State.AVAILABLE or partition.backlog.order is None:
                unread -= (leases.mask & behind).bit_count()
    return unread


def _counts_from(partition: SharePartition, log_start: int, log_end: int) -> tuple[LeaseCounts, list[int]]:
    """Count the messages from `log_start` on by state and lane."""
    lease_counts, ready = LeaseCounts(Consumers()), [0] * len(ALL_LANES)
    ready[Lane.NORMAL] = max(log_end - log_start, 0)
    for chunk in partition.progress.chunks.values():
        behind = -1 << max(log_start - (chunk.index << CHUNK_BITS), 0)
        ready[Lane.NORMAL] -= (chunk.done & behind).bit_count()
        for leases in chunk.lease_groups():
            count = (leases.mask & behind).bit_count()
            ready[Lane.NORMAL] -= count
            if leases.state is State.AVAILABLE:
                ready[leases.lane] += count
            else:
                lease_counts.enter(leases.state, leases.lane, count, leases.owner)
    return lease_counts, ready
