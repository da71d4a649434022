"""One queue: a group on a topic, its settings, its partitions, and what was counted of it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from alpacamq.model.errors import InvalidConfig, UnknownTopic
from alpacamq.model.lanes import Lane
from alpacamq.model.outcome import Change
from alpacamq.model.topics import TopicConfig, check_setting

from .chunks import CHUNK_BITS, NO_DEADLINE, Hold, PendingMove, State
from .deadlines import Deadlines, Timed
from .journal import Journal
from .lanes import ALL_LANES, LaneScheduler, Turns
from .messages import DescribeReply, LaneTotals, Move, PartitionTotals, QueueId, ReceiveRequest, Start
from .partition import Consumers, SharePartition
from .records import StoredHead, StoredQueue, head_key, pack_queue, queue_key
from .views import LogView

DEAD_LETTERS = ".dlq"
OVERRIDABLE = "queue."


def check_overrides(overrides: Mapping[str, str | None]) -> None:
    """InvalidConfig if one of them is not a setting a group can have, or makes no sense."""
    for name, text in overrides.items():
        if not name.startswith(OVERRIDABLE):
            raise InvalidConfig(f"a group can have {OVERRIDABLE}* settings of its own, not {name!r}")
        if text is not None:
            check_setting(name, text)


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


class Queue:
    """A group on a topic. As something timed, its deadline is when it is to read on for those who wait."""

    def __init__(
        self,
        queue_id: QueueId,
        stored: StoredQueue,
        log: LogView,
        journal: Journal,
        deadlines: Deadlines[Timed],
        take_producer_id: Callable[[], int],
    ) -> None:
        self.id = queue_id
        self.generation = stored.generation
        self.overrides = dict(stored.overrides)
        self.partitions: dict[int, SharePartition] = {}
        self.turns = Turns()
        self.lanes = LaneScheduler()
        self.consumers = Consumers()
        self.waiting: dict[object, ReceiveRequest] = {}  # by ticket, the first come first
        self.totals = Totals()
        self.unread = 0  # mask of partitions of which more may be known than was read
        self.is_behind = False  # a receive gave up reading before it came upon a message
        self.last_read = -1  # the partition of which was read last
        self.read_ahead_ms = 0  # when to read ahead next although there is no need yet
        self.due_ms = NO_DEADLINE
        self.is_dirty = False
        self.is_forgotten = False
        self.is_stored = False
        self.journal = journal
        self.log = log
        self._deadlines = deadlines
        self._take_producer_id = take_producer_id
        self._topic_config: TopicConfig | None = None
        self._settings: TopicConfig | None = None

    def change(self) -> Change:
        self.is_stored = True
        return Change(queue_key(self.id), pack_queue(StoredQueue(self.generation, self.overrides)))

    def snapshot(self) -> Iterator[Change]:
        """The records of this queue as they were written last; it may change while they are taken."""
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
        """As `refresh`."""
        return self.refresh()

    def refresh(self) -> TopicConfig:
        """The topic's settings with this group's overrides, taken up if they are new; or UnknownTopic."""
        config = self.log.config(self.id.topic)
        if config is None:
            raise UnknownTopic(f"there is no topic {self.id.topic!r}")
        if self._settings is None or config is not self._topic_config:
            self._topic_config = config
            self._settings = self._overridden(config)
            self._keep_order(self._settings)
        return self._settings

    @property
    def has_dead_letters(self) -> bool:
        """Dead letters that fail again stay where they are, and so does what has nowhere to go."""
        topic = self.id.topic
        if topic.endswith(DEAD_LETTERS) or self.log.config(topic) is None:
            return False
        return self.settings.queue_dead_letter_topic != topic

    def configure(self, overrides: Mapping[str, str | None]) -> None:
        """Change overrides, which have been checked; None removes one."""
        for name, text in overrides.items():
            if text is None:
                self.overrides.pop(name, None)
            else:
                self.overrides[name] = text
        self._settings = None
        self.journal.mark(self)

    def open_partitions(self, start: Start) -> None:
        """Begin in partitions that this group has not been in.

        Partitions added to the topic later are begun at their beginning: nothing in them is old.
        """
        there_are = self.log.partitions(self.id.topic)
        if there_are == len(self.partitions):
            return
        is_new = not self.partitions
        in_key_order = self.settings.queue_ordering == "key"
        for number in range(there_are):
            if number not in self.partitions:
                log_start, log_end = self.log.bounds(self.id.topic, number)
                offset = log_end if is_new and start is Start.LATEST else log_start
                partition = self.restore_partition(number, StoredHead(self.generation, offset))
                partition.read_again(in_key_order=in_key_order)
                partition.backlog.count_from(log_end)
                self.unread |= 1 << number
                self.journal.mark(partition)

    def restore_partition(self, number: int, head: StoredHead) -> SharePartition:
        """A partition as it was stored."""
        shared = (self.journal, self._deadlines, self.consumers, self.turns)
        partition = self.partitions[number] = SharePartition(self.id, number, head, *shared)
        return partition

    def reset(self, number: int, offset: int, generation: int) -> None:
        """Begin again in one partition."""
        self.partitions[number].restart(offset, generation)
        self.unread |= 1 << number

    def forget(self) -> None:
        """Let go of everything, in memory and on record."""
        self.is_forgotten = True
        self.journal.forget(queue_key(self.id))
        for partition in [*self.partitions.values()]:
            self.forget_partition(partition)

    def forget_partition(self, partition: SharePartition) -> None:
        """Let go of one partition."""
        partition.is_forgotten = True
        self.journal.forget(head_key(self.id, partition.number))
        partition.forget_all()
        del self.partitions[partition.number]

    def is_spent(self, delivery_count: int) -> bool:
        """Whether a message that failed so often is a dead letter."""
        return self.has_dead_letters and 0 < self.settings.queue_max_deliveries <= delivery_count

    def dead_letter(self, partition: SharePartition, hold: Hold, offset: int, reason: str) -> None:
        """Send a leased message to the dead-letter topic."""
        self.totals.dead_lettered += 1
        self.move(partition, hold, offset, "", reason)

    def move(self, partition: SharePartition, hold: Hold, offset: int, target: str, reason: str) -> None:
        """Send a leased message to another topic."""
        if partition.producer_id < 0:
            partition.producer_id = self._take_producer_id()
        self.emit(partition, offset, hold.count, partition.move(hold, offset, target, reason))

    def emit(self, partition: SharePartition, offset: int, count: int, move: PendingMove) -> None:
        """Have a move carried out."""
        self.journal.moves.append(
            Move(
                queue=self.id,
                partition=partition.number,
                offset=offset,
                target=move.target,
                reason=move.reason,
                delivery_count=count,
                producer_id=partition.producer_id,
                sequence=move.sequence,
            )
        )

    def _overridden(self, config: TopicConfig) -> TopicConfig:
        values = {}
        for name, text in self.overrides.items():
            try:
                values[name.replace(".", "_")] = check_setting(name, text)
            except InvalidConfig:
                continue  # stored by another version, to which it meant something
        return msgspec.structs.replace(config, **values)

    def _keep_order(self, settings: TopicConfig) -> None:
        in_key_order = settings.queue_ordering == "key"
        for number, partition in self.partitions.items():
            if in_key_order != (partition.backlog.order is not None):
                partition.read_again(in_key_order=in_key_order)
                self.unread |= 1 << number


def describe(queue: Queue) -> DescribeReply:
    """The queue as it is. What was not read yet counts as ready, in the normal lane."""
    topic, log = queue.id.topic, queue.log
    partitions = []
    for number in range(log.partitions(topic)):
        log_start, log_end = log.bounds(topic, number)
        partition = queue.partitions.get(number)
        if partition is None:
            partitions.append(_unopened(number, log_start, log_end))
        else:
            partition.cut(log_start)
            partitions.append(_opened(partition, log_end))
    totals = queue.totals
    return DescribeReply(
        queue=queue.id,
        generation=queue.generation,
        overrides=dict(queue.overrides),
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
    """Nobody has received from this partition yet: all of it is ready."""
    ready = log_end - log_start
    return PartitionTotals(
        partition=number,
        start_offset=log_start,
        end_offset=log_end,
        ready=ready,
        in_flight=0,
        resting=0,
        dead_lettering=0,
        oldest_offset=log_start if ready else None,
        lanes={lane.text: LaneTotals(ready=ready if lane is Lane.NORMAL else 0) for lane in ALL_LANES},
    )


def _opened(partition: SharePartition, log_end: int) -> PartitionTotals:
    backlog = partition.backlog
    ready = [*backlog.ready]
    ready[Lane.NORMAL] += _unread(partition, log_end)
    lanes = {
        lane.text: LaneTotals(
            ready=ready[lane],
            in_flight=partition.tally.in_flight[lane],
            resting=partition.tally.resting[lane],
            enqueued_total=backlog.enqueued_total[lane],
            delivered_total=partition.delivered_total[lane],
        )
        for lane in ALL_LANES
    }
    start_offset = partition.start_offset
    return PartitionTotals(
        partition=partition.number,
        start_offset=start_offset,
        end_offset=log_end,
        ready=sum(ready),
        in_flight=sum(partition.tally.in_flight),
        resting=sum(partition.tally.resting),
        dead_lettering=partition.tally.moving,
        oldest_offset=start_offset if start_offset < log_end else None,
        lanes=lanes,
    )


def _unread(partition: SharePartition, log_end: int) -> int:
    """Messages behind what was read that are ready as far as is known."""
    backlog = partition.backlog
    unread = max(log_end - backlog.read_to, 0)
    if not unread or partition.progress.touched_end <= backlog.read_to:
        return unread
    for chunk in partition.progress.chunks.values():
        behind = -1 << max(backlog.read_to - (chunk.index << CHUNK_BITS), 0)
        unread -= (chunk.done & behind).bit_count()
        for hold in chunk.distinct_holds():
            # What came back is counted as ready already, unless it waits to be read for its place in line.
            if hold.state is not State.AVAILABLE or backlog.order is None:
                unread -= (hold.mask & behind).bit_count()
    return unread
