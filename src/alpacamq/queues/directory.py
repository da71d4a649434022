"""The queues there are: found, made, forgotten, and rebuilt from what was stored."""

from collections.abc import Callable, Iterator

from alpacamq.model.errors import GroupIdNotFound, InvalidGroupId, TooManyGroups, UnknownTopic
from alpacamq.model.state_machine import Change

from .chunks import CHUNK_BITS, CHUNK_SIZE, NO_DEADLINE, Chunk, LeaseGroup, State
from .deadlines import Deadlines, Timed
from .journal import Journal
from .messages import EngineLimits, Move, QueueId, fits
from .partition import SharePartition
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
from .views import TopicsView


def restore(partition: SharePartition, journal: Journal, now_ms: int) -> list[LeaseGroup]:
    """Put what was stored in force; the moves that are not known to be done, in their order."""
    _drop_done(partition, journal)
    progress = partition.progress
    moves = []
    for hold in progress.holds():
        if hold.acquired_ms > now_ms:
            _set_back(hold, now_ms, journal)
        partition.take_up(hold)
        if hold.state is State.MOVING:
            moves.append(hold)
    touched = (
        (chunk.index << CHUNK_BITS) + (chunk.done | chunk.held_mask()).bit_length()
        for chunk in progress.chunks.values()
    )
    progress.touched_end = max(progress.start_offset, *touched, 0)
    return sorted(moves, key=_sequence)


def cut_tail(partition: SharePartition, log_end: int, journal: Journal) -> bool:
    """A crash can take messages with it whose deliveries were kept: others will have their offsets.

    Whether it did. Receipts of those deliveries must not settle the others.
    """
    progress = partition.progress
    is_cut = progress.start_offset > log_end
    if is_cut:
        progress.start_offset = log_end
        journal.mark(partition)
    for chunk in [*progress.chunks.values()]:
        if chunk.end_offset > log_end:
            base = chunk.index << CHUNK_BITS
            is_cut |= _keep(partition, chunk, (1 << max(log_end - base, 0)) - 1, journal)
    return is_cut


def _drop_done(partition: SharePartition, journal: Journal) -> None:
    """What lies before the start offset is done, whatever else was stored of it."""
    start_offset = partition.start_offset
    for chunk in [*partition.progress.chunks.values()]:
        past = start_offset - (chunk.index << CHUNK_BITS)
        if past > 0 and (past >= CHUNK_SIZE or chunk.held_mask() & ~(-1 << past)):
            _keep(partition, chunk, -1 << past, journal)


def _set_back(hold: LeaseGroup, now_ms: int, journal: Journal) -> None:
    """The clock was set back while nobody ran: a lease or a rest is as long as it was, from now on."""
    if hold.due_ms != NO_DEADLINE:
        hold.due_ms -= hold.acquired_ms - now_ms
    hold.acquired_ms = now_ms
    hold.packed = None
    journal.mark_chunk(hold.chunk)


def _keep(partition: SharePartition, chunk: Chunk, mask: int, journal: Journal) -> bool:
    """Forget the messages of a chunk that are not in the mask; whether there were any."""
    had_others = bool((chunk.done | chunk.held_mask()) & ~mask)
    if had_others:
        chunk.done &= mask
        for hold in chunk.distinct_holds():
            hold.mask &= mask
            hold.packed = None
        chunk.holds = {offset: hold for hold in chunk.distinct_holds() for offset in hold.offsets()}
        journal.mark_chunk(chunk)
    if not chunk.done and not chunk.holds:
        del partition.progress.chunks[chunk.index]
        journal.drop_chunk(chunk)
    return had_others


def _sequence(hold: LeaseGroup) -> int:
    return -1 if hold.move is None else hold.move.sequence


MAX_GROUP_BYTES = 1024


class QueueDirectory:
    """Every queue of a shard, what an event has changed of them, and their deadlines."""

    def __init__(self, log: TopicsView, take_producer_id: Callable[[], int], limits: EngineLimits) -> None:
        self.journal = Journal()
        self.deadlines: Deadlines[Timed] = Deadlines()
        self._log = log
        self._take_producer_id = take_producer_id
        self._limits = limits
        self._queues: dict[QueueId, Queue] = {}
        self._by_topic: dict[str, dict[QueueId, Queue]] = {}
        self._last_generation = 0

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._queues.values())

    def find(self, queue_id: QueueId) -> Queue | None:
        return self._queues.get(queue_id)

    def get(self, queue_id: QueueId) -> Queue:
        """The queue, or GroupIdNotFound."""
        if (queue := self._queues.get(queue_id)) is None:
            raise GroupIdNotFound(
                f"group {queue_id.group!r} does not use topic {queue_id.topic!r} as a queue"
            )
        return queue

    def of_topic(self, topic: str) -> list[Queue]:
        return list(self._by_topic.get(topic, {}).values())

    def moving(self, move: Move) -> tuple[Queue, SharePartition, LeaseGroup] | None:
        """The message that a move is about and where it is, if it is still to be moved so."""
        queue = self._queues.get(move.queue)
        partition = None if queue is None else queue.partitions.get(move.partition)
        if queue is None or partition is None or partition.producer_id != move.producer_id:
            return None
        hold = partition.progress.find(move.offset)
        if hold is None or hold.move is None or hold.move.sequence != move.sequence:
            return None
        return queue, partition, hold

    def open(self, queue_id: QueueId, now_ms: int) -> Queue:
        """The queue, made if there is none and there may be one."""
        if (queue := self._queues.get(queue_id)) is not None:
            return queue
        if not queue_id.group or not fits(queue_id.group, MAX_GROUP_BYTES):
            raise InvalidGroupId(f"the name of a group is 1 to {MAX_GROUP_BYTES} bytes of UTF-8")
        if self._log.config(queue_id.topic) is None:
            raise UnknownTopic(f"there is no topic {queue_id.topic!r}")
        if len(self._queues) >= self._limits.max_queues:
            raise TooManyGroups(f"there are {self._limits.max_queues} queues, which is as many as may be")
        queue = self._add(queue_id, StoredQueue(self.new_generation(now_ms), {}))
        self.journal.mark(queue)
        return queue

    def new_generation(self, now_ms: int) -> int:
        """A number that no queue of the same name has had, even one that was forgotten."""
        self._last_generation = max(now_ms, self._last_generation + 1)
        return self._last_generation

    def forget(self, queue: Queue) -> None:
        """The group no longer uses the topic."""
        queue.forget()
        self._remove(queue.id)

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a stored record, in whatever order compaction left them."""
        if (stored := parse_key(key)) is None:
            return
        if value is None:
            self._replay_removal(stored)
            return
        queue = self._queues.get(stored.queue) or self._add(stored.queue, StoredQueue(0, {}))
        if stored.kind == QUEUE:
            queue.generation, overrides = unpack_queue(value)
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

    def loaded(self, now_ms: int) -> None:
        """Everything was replayed: put it in force. Moves not known to be done are to be done again."""
        for queue in list(self._queues.values()):
            topic = queue.id.topic
            there_are = self._log.partitions(topic) if self._log.config(topic) is not None else 0
            for partition in [*queue.partitions.values()]:
                if partition.number < there_are:
                    self._load(queue, partition, now_ms)
                else:
                    restore(partition, self.journal, now_ms)
                    queue.forget_partition(partition)
            if not there_are or not queue.is_stored:
                # Its topic was deleted, and nobody lived to tell.
                self.forget(queue)

    def snapshot(self) -> Iterator[Change]:
        for queue in list(self._queues.values()):
            yield from queue.snapshot()

    def _load(self, queue: Queue, partition: SharePartition, now_ms: int) -> None:
        _, log_end = self._log.bounds(queue.id.topic, partition.number)
        # Records that have come since the start have the offsets of lost ones.
        cut_offset = self._log.cut_offset(queue.id.topic, partition.number)
        if cut_tail(partition, log_end if cut_offset is None else min(cut_offset, log_end), self.journal):
            partition.generation = self.new_generation(now_ms)
            self.journal.mark(partition)
        for hold in restore(partition, self.journal, now_ms):
            (offset,) = hold.offsets()
            assert hold.move is not None
            queue.emit(partition, offset, hold.count, hold.move)
        partition.advance()
        partition.read_again(in_key_order=queue.settings.queue_ordering == "key")
        partition.backlog.count_from(log_end)
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
        queue = Queue(queue_id, stored, self._log, self.journal, self.deadlines, self._take_producer_id)
        self._queues[queue_id] = queue
        self._by_topic.setdefault(queue_id.topic, {})[queue_id] = queue
        return queue

    def _remove(self, queue_id: QueueId) -> None:
        del self._queues[queue_id]
        same_topic = self._by_topic[queue_id.topic]
        del same_topic[queue_id]
        if not same_topic:
            del self._by_topic[queue_id.topic]
