"""All queues of an engine: lookup, creation, deletion, and recovery from stored records."""

from collections.abc import Callable, Iterator

from alpacamq.model.deadlines import NO_DEADLINE, Deadlines, Timed
from alpacamq.model.errors import GroupIdNotFound, InvalidGroupId, TooManyGroups
from alpacamq.model.ids import NO_TOPIC_ID, TopicId
from alpacamq.model.state_machine import Change

from .chunks import CHUNK_BITS, CHUNK_SIZE, Chunk, LeaseGroup, State
from .messages import EngineLimits, Move, PartitionsView, QueueId, fits, unreadable
from .partition import EventOutput, SharePartition
from .queue import Queue
from .records import (
    HEAD,
    QUEUE,
    StoredHead,
    StoredKey,
    StoredQueue,
    parse_key,
    unpack_chunk,
    unpack_head,
    unpack_queue,
)


def restore(partition: SharePartition, output: EventOutput, now_ms: int) -> list[LeaseGroup]:
    """Activate the restored lease groups; return the moves that are not known to be done, in their order."""
    _drop_done(partition, output)
    progress = partition.progress
    moves = []
    for leases in progress.lease_groups():
        if leases.acquired_ms > now_ms:
            _shift_to_clock(leases, now_ms, output)
        partition.activate(leases)
        if leases.state is State.MOVING:
            moves.append(leases)
    touched = (
        (chunk.index << CHUNK_BITS) + (chunk.done | chunk.unfinished_mask()).bit_length()
        for chunk in progress.chunks.values()
    )
    progress.delivered_end = max(progress.start_offset, *touched, 0)
    return sorted(moves, key=_sequence)


def cut_tail(partition: SharePartition, leader_end: int, output: EventOutput) -> bool:
    """Forget deliveries of messages that the partition has lost; return whether there were any.

    Their offsets will be given to new messages, which old receipts must not settle. `leader_end` is the end
    of the partition's leader: by that of a replica that lags behind, acknowledged messages would be delivered
    again.
    """
    progress = partition.progress
    is_cut = progress.start_offset > leader_end
    if is_cut:
        progress.start_offset = leader_end
        output.write(partition)
    for chunk in [*progress.chunks.values()]:
        if chunk.end_offset > leader_end:
            base = chunk.index << CHUNK_BITS
            is_cut |= _retain(partition, chunk, (1 << max(leader_end - base, 0)) - 1, output)
    return is_cut


def _drop_done(partition: SharePartition, output: EventOutput) -> None:
    """Forget stored state before the start offset: everything there is done."""
    start_offset = partition.start_offset
    for chunk in [*partition.progress.chunks.values()]:
        past = start_offset - (chunk.index << CHUNK_BITS)
        if past > 0 and (past >= CHUNK_SIZE or chunk.unfinished_mask() & ~(-1 << past)):
            _retain(partition, chunk, -1 << past, output)


def _shift_to_clock(leases: LeaseGroup, now_ms: int, output: EventOutput) -> None:
    """Restart a lease or backoff with its full length, because the clock was set back during downtime."""
    if leases.due_ms != NO_DEADLINE:
        leases.due_ms -= leases.acquired_ms - now_ms
    leases.acquired_ms = now_ms
    leases.packed = None
    output.write_chunk(leases.chunk)


def _retain(partition: SharePartition, chunk: Chunk, mask: int, output: EventOutput) -> bool:
    """Forget the messages of a chunk that are not in the mask; return whether there were any."""
    had_others = bool((chunk.done | chunk.unfinished_mask()) & ~mask)
    if had_others:
        chunk.done &= mask
        for leases in chunk.lease_groups():
            leases.mask &= mask
            leases.packed = None
        chunk.groups = {offset: leases for leases in chunk.lease_groups() for offset in leases.offsets()}
        output.write_chunk(chunk)
    if not chunk.done and not chunk.groups:
        del partition.progress.chunks[chunk.index]
        output.delete_chunk(chunk)
    return had_others


def _sequence(leases: LeaseGroup) -> int:
    return -1 if leases.move is None else leases.move.sequence


MAX_GROUP_BYTES = 1024


class QueueDirectory:
    """All queues of an engine, the output of the current event, and the deadlines."""

    def __init__(
        self, log: PartitionsView, take_producer_id: Callable[[], int], limits: EngineLimits
    ) -> None:
        self.output = EventOutput()
        self.deadlines: Deadlines[Timed] = Deadlines()
        self._log = log
        self._take_producer_id = take_producer_id
        self._limits = limits
        self._queues: dict[QueueId, Queue] = {}
        self._by_topic: dict[str, dict[QueueId, Queue]] = {}
        self._last_generation = 0

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def find(self, queue_id: QueueId) -> Queue | None:
        return self._queues.get(queue_id)

    def get(self, queue_id: QueueId) -> Queue:
        """Return a queue; raise GroupIdNotFound if it does not exist."""
        if (queue := self._queues.get(queue_id)) is None:
            raise GroupIdNotFound(
                f"group {queue_id.group!r} does not use topic {queue_id.topic!r} as a queue"
            )
        return queue

    def of_topic(self, topic: str) -> list[Queue]:
        return list(self._by_topic.get(topic, {}).values())

    def moving(self, move: Move) -> tuple[Queue, SharePartition, LeaseGroup] | None:
        """Return the queue, partition and lease group of a pending move; None if it is not pending."""
        queue = self._queues.get(move.queue)
        partition = None if queue is None else queue.partitions.get(move.partition)
        if queue is None or partition is None or partition.producer_id != move.producer_id:
            return None
        leases = partition.progress.find(move.offset)
        if leases is None or leases.move is None or leases.move.sequence != move.sequence:
            return None
        return queue, partition, leases

    def open(self, queue_id: QueueId, now_ms: int) -> Queue:
        """Return a queue; create it if it does not exist."""
        if (queue := self._queues.get(queue_id)) is not None:
            return queue
        if not queue_id.group or not fits(queue_id.group, MAX_GROUP_BYTES):
            raise InvalidGroupId(f"invalid group id: must be 1 to {MAX_GROUP_BYTES} bytes of UTF-8")
        topic = self._log.topic(queue_id.topic)
        if topic is None or self._log.config(queue_id.topic) is None:
            raise unreadable(queue_id.topic, self._log)
        if len(self._queues) >= self._limits.max_queues:
            raise TooManyGroups(f"too many queues: queues.max_queues={self._limits.max_queues}")
        queue = self._add(queue_id, StoredQueue(self.new_generation(now_ms), {}, topic.id))
        self.output.write(queue)
        return queue

    def new_generation(self, now_ms: int) -> int:
        """Return a number that no queue of the same name has had, including deleted ones."""
        self._last_generation = max(now_ms, self._last_generation + 1)
        return self._last_generation

    def forget(self, queue: Queue) -> None:
        """Delete a queue."""
        queue.forget()
        self._remove(queue.id)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a stored record. Compaction may leave records in any order."""
        if (stored := parse_key(key)) is None:
            return
        if value is None:
            self._replay_removal(stored)
            return
        queue = self._queues.get(stored.queue) or self._add(stored.queue, StoredQueue(0, {}))
        if stored.kind == QUEUE:
            queue.generation, overrides, queue.topic_id = unpack_queue(value)
            queue.overrides = dict(overrides)
            queue.is_stored = True
            self._last_generation = max(self._last_generation, queue.generation)
            return
        partition = queue.partitions.get(stored.partition)
        if stored.kind == HEAD:
            head = unpack_head(value)
            self._last_generation = max(self._last_generation, head.generation)
            if partition is None:
                queue.restore_partition(stored.partition, head)
            else:
                partition.restore_head(head)
            return
        if partition is None:
            partition = queue.restore_partition(stored.partition, StoredHead(0, 0))
        chunk = Chunk(partition, stored.chunk)
        unpack_chunk(value, chunk)
        chunk.is_stored = True
        partition.progress.chunks[stored.chunk] = chunk

    def adopt_topic_ids(self, former_id: Callable[[str], TopicId]) -> None:
        """Give queues that were stored without a topic id that of their topic."""
        for queue in self:
            if queue.topic_id == NO_TOPIC_ID:
                queue.topic_id = former_id(queue.id.topic)
                self.output.write(queue)

    def check_loadable(self) -> None:
        """Raise PartitionNotReady if a partition that a queue has state of is led here and not open yet."""
        for queue in self:
            for partition in queue.partitions.values():
                if self._exists(queue, partition):
                    self._log.leader_end(queue.id.topic, partition.number)

    def loaded(self, now_ms: int) -> None:
        """Resume after replay; repeat moves that are not known to be done."""
        for queue in list(self._queues.values()):
            for partition in [*queue.partitions.values()]:
                if self._exists(queue, partition):
                    self._load(queue, partition, now_ms)
                else:
                    restore(partition, self.output, now_ms)
                    queue.forget_partition(partition)
            if not queue.is_stored or not queue.is_of(self._log.topic(queue.id.topic)):
                # The topic was deleted, and the broker stopped before the queue was.
                self.forget(queue)

    def snapshot(self) -> Iterator[Change]:
        for queue in list(self._queues.values()):
            yield from queue.snapshot()

    def _exists(self, queue: Queue, partition: SharePartition) -> bool:
        """Return whether the queue's topic has this partition."""
        topic = self._log.topic(queue.id.topic)
        return topic is not None and queue.is_of(topic) and partition.number < topic.partitions

    def _load(self, queue: Queue, partition: SharePartition, now_ms: int) -> None:
        leader_end = self._log.leader_end(queue.id.topic, partition.number)
        if leader_end is not None and cut_tail(partition, leader_end, self.output):
            partition.generation = self.new_generation(now_ms)
            self.output.write(partition)
        for leases in restore(partition, self.output, now_ms):
            (offset,) = leases.offsets()
            assert leases.move is not None
            queue.emit(partition, offset, leases.count, leases.move)
        partition.advance()
        partition.rebuild_backlog(in_key_order=queue.settings.queue_ordering == "key")
        partition.backlog.count_from(queue.bounds(partition.number)[1])
        queue.unread |= 1 << partition.number

    def _replay_removal(self, stored: StoredKey) -> None:
        if (queue := self._queues.get(stored.queue)) is None:
            return
        if stored.kind == QUEUE:
            self._remove(stored.queue)
        elif stored.kind == HEAD:
            queue.partitions.pop(stored.partition, None)
        elif (partition := queue.partitions.get(stored.partition)) is not None:
            partition.progress.chunks.pop(stored.chunk, None)

    def _add(self, queue_id: QueueId, stored: StoredQueue) -> Queue:
        queue = Queue(queue_id, stored, self._log, self.output, self.deadlines, self._take_producer_id)
        self._queues[queue_id] = queue
        self._by_topic.setdefault(queue_id.topic, {})[queue_id] = queue
        return queue

    def _remove(self, queue_id: QueueId) -> None:
        del self._queues[queue_id]
        same_topic = self._by_topic[queue_id.topic]
        del same_topic[queue_id]
        if not same_topic:
            del self._by_topic[queue_id.topic]
