"""The index of ready messages of one partition, as far as its log was read: by lane, and by key."""

from bisect import insort
from typing import NamedTuple

from alpacamq.model.lanes import Lane

from .lanes import ALL_LANES, LaneBacklog, ReadyPartitions
from .messages import ReadBacklog

NO_HEAD = -1


class ReadyMessage(NamedTuple):
    """A message that can be delivered, or is next of its key."""

    offset: int
    lane: Lane


class _KeyQueue:
    """The unfinished messages of one key."""

    __slots__ = ("head", "in_flight", "key", "waiting")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.waiting: list[ReadyMessage] = []  # ascending
        self.in_flight = 0  # leased, in backoff or moving
        self.head = NO_HEAD  # the first waiting message, while it is deliverable


class KeyOrder:
    """The messages of one partition by key. One is deliverable if all earlier ones of its key are done."""

    def __init__(self) -> None:
        self._queues_by_key: dict[bytes, _KeyQueue] = {}
        self._queue_by_offset: dict[int, _KeyQueue] = {}

    @property
    def size(self) -> int:
        """Return the number of messages that were read and are not done."""
        return len(self._queue_by_offset)

    def add(self, key: bytes, offset: int, lane: Lane) -> ReadyMessage | None:
        """Add a message; return the message that became deliverable, if any."""
        queue = self._queue_of(key, offset)
        insort(queue.waiting, ReadyMessage(offset, lane))
        return self._next_deliverable(queue)

    def add_in_flight(self, key: bytes, offset: int) -> None:
        """Add a message that is leased, in backoff or moving."""
        queue = self._queue_of(key, offset)
        queue.in_flight += 1
        queue.head = NO_HEAD

    def contains(self, offset: int) -> bool:
        return offset in self._queue_by_offset

    def is_deliverable(self, offset: int) -> bool:
        """Return whether this message, returned as deliverable before, still is."""
        queue = self._queue_by_offset.get(offset)
        return queue is not None and queue.head == offset

    def take(self, offset: int) -> ReadyMessage | None:
        """Remove the head of its key for delivery; return the message behind it."""
        queue = self._queue_by_offset[offset]
        assert queue.waiting[0].offset == offset
        del queue.waiting[0]
        queue.in_flight += 1
        queue.head = NO_HEAD
        return queue.waiting[0] if queue.waiting else None

    def requeue(self, offset: int, lane: Lane) -> ReadyMessage | None:
        """Make a message in flight available again; return the message that became deliverable, if any."""
        queue = self._queue_by_offset[offset]
        queue.in_flight -= 1
        insort(queue.waiting, ReadyMessage(offset, lane))
        return self._next_deliverable(queue)

    def finish(self, offset: int, lane: Lane, *, was_waiting: bool) -> ReadyMessage | None:
        """Remove a message that is done; return the message that became deliverable, if any."""
        queue = self._queue_by_offset.pop(offset)
        if was_waiting:
            queue.waiting.remove(ReadyMessage(offset, lane))
            if queue.head == offset:
                queue.head = NO_HEAD
        else:
            queue.in_flight -= 1
        if not queue.in_flight and not queue.waiting:
            del self._queues_by_key[queue.key]
            return None
        return self._next_deliverable(queue)

    def _queue_of(self, key: bytes, offset: int) -> _KeyQueue:
        queue = self._queues_by_key.get(key)
        if queue is None:
            queue = self._queues_by_key[key] = _KeyQueue(key)
        self._queue_by_offset[offset] = queue
        return queue

    def _next_deliverable(self, queue: _KeyQueue) -> ReadyMessage | None:
        """Return the head of a key without messages in flight, unless it was returned before."""
        if queue.in_flight or not queue.waiting or queue.head == queue.waiting[0].offset:
            return None
        queue.head = queue.waiting[0].offset
        return queue.waiting[0]


class PartitionBacklog:
    """The lanes of one partition.

    `ready` counts the available messages of each lane, including those blocked by others of their key.
    """

    def __init__(self, number: int, ready_partitions: ReadyPartitions) -> None:
        self._number = number
        self._ready_partitions = ready_partitions
        self._counted_to = 0
        self.enqueued_total = [0] * len(ALL_LANES)
        self.reset(0, 0, in_key_order=False)

    def reset(self, offset: int, delivered_end: int, *, in_key_order: bool) -> None:
        """Clear the index; the log is read again from `offset`.

        In key order, no message is deliverable until all messages before `delivered_end` were read: earlier
        ones of the same key may be leased.
        """
        self.read_to = offset
        self.reading: ReadBacklog | None = None
        self._delivered_end = delivered_end
        self._deferred: list[ReadyMessage] = []
        self.order = KeyOrder() if in_key_order else None
        self.lanes = [LaneBacklog() for _ in ALL_LANES]
        self.ready = [0] * len(ALL_LANES)
        for lane in ALL_LANES:
            self._ready_partitions.clear(lane, self._number)

    def count_from(self, offset: int) -> None:
        """Do not count messages before `offset` as enqueued: they are older than this process."""
        self._counted_to = offset

    def count_read(self, first: int, end: int, lane: Lane) -> None:
        """Count messages as enqueued that are read for the first time."""
        if end > self._counted_to:
            self.enqueued_total[lane] += end - max(first, self._counted_to)
            self._counted_to = end

    @property
    def runs(self) -> int:
        return sum(lane.runs for lane in self.lanes)

    @property
    def keyed_count(self) -> int:
        """Return the number of messages in key order."""
        return self.order.size if self.order is not None else 0

    def add_run(self, first: int, end: int, lane: Lane) -> None:
        """Add messages that were never delivered and have no key order."""
        self.ready[lane] += end - first
        self.lanes[lane].add_run(first, end)
        self._ready_partitions.mark(lane, self._number)

    def add_keyed(self, key: bytes, offset: int, lane: Lane) -> None:
        """Add a message that is delivered in the order of its key."""
        assert self.order is not None
        self.ready[lane] += 1
        self._offer(self.order.add(key, offset, lane))

    def add_single(self, offset: int, lane: Lane) -> None:
        """Add a message that was delivered before and has no key order."""
        self.ready[lane] += 1
        self._add_ready(ReadyMessage(offset, lane))

    def requeue(self, offset: int, lane: Lane) -> None:
        """Make a message available again, at its place in the order."""
        if self.order is None:
            self.add_single(offset, lane)
        elif offset < self.read_to:
            # A message that was not read yet is added when it is read.
            self.ready[lane] += 1
            if self.order.contains(offset):
                self._offer(self.order.requeue(offset, lane))
            else:
                self._add_ready(ReadyMessage(offset, lane))

    def finish(self, offset: int, lane: Lane, *, was_waiting: bool) -> None:
        """Remove a message that is done."""
        if self.order is None:
            self.ready[lane] -= was_waiting
        elif offset < self.read_to:
            self.ready[lane] -= was_waiting
            if self.order.contains(offset):
                self._offer(self.order.finish(offset, lane, was_waiting=was_waiting))

    def drop_before(self, offset: int) -> None:
        """Drop the messages before `offset`. Only for backlogs without key order."""
        assert self.order is None
        for lane in ALL_LANES:
            self.ready[lane] -= self.lanes[lane].drop_before(offset)
            self.clear_if_empty(lane)

    def clear_if_empty(self, lane: Lane) -> None:
        if not self.lanes[lane]:
            self._ready_partitions.clear(lane, self._number)

    def release_deferred(self, *, is_full: bool = False) -> bool:
        """Make deferred messages deliverable once enough was read; return whether there were any.

        `is_full`: no more can be read ahead.
        """
        if not is_full and self.read_to < self._delivered_end:
            return False
        self._delivered_end = 0
        deferred, self._deferred = self._deferred, []
        for message in deferred:
            self._add_ready(message)
        return bool(deferred)

    def _offer(self, message: ReadyMessage | None) -> None:
        """Add the next message of a key, or defer it."""
        if message is None:
            return
        if self.read_to < self._delivered_end:
            self._deferred.append(message)
        else:
            self._add_ready(message)

    def _add_ready(self, message: ReadyMessage) -> None:
        self.lanes[message.lane].add_single(message.offset)
        self._ready_partitions.mark(message.lane, self._number)
