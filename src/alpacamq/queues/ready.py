"""Indexes of ready messages by partition and lane, and the scheduling of lanes and partitions."""

from bisect import insort
from collections import deque
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from alpacamq.model.lanes import WEIGHTS, Lane

from .messages import ReadBacklog

ALL_LANES = tuple(Lane)
_QUANTA = tuple(WEIGHTS[lane] for lane in ALL_LANES)


class LaneScheduler:
    """Deficit round robin over the lanes of one queue. `active` is a mask of the lanes that have messages."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._deficits = [0] * len(ALL_LANES)
        self._current = len(ALL_LANES) - 1
        # Since when each lane has had messages while other lanes were served.
        self._waiting_since_ms: list[int | None] = [None] * len(ALL_LANES)
        self._is_contended = False

    def starved(self, active: int, now_ms: int, starvation_ms: int) -> list[Lane]:
        """Return lanes that have waited too long, the longest first. Each may deliver one message first."""
        if not active & (active - 1):
            if self._is_contended:
                self._reset()
            return []
        self._is_contended = True
        starved = []
        for lane in ALL_LANES:
            since_ms = self._waiting_since_ms[lane]
            if not active >> lane & 1:
                self._waiting_since_ms[lane] = None
            elif since_ms is None:
                self._waiting_since_ms[lane] = now_ms
            elif now_ms - since_ms >= starvation_ms:
                starved.append((since_ms, lane))
        return [lane for _, lane in sorted(starved)]

    def choose(self, active: int, room: int) -> tuple[Lane, int]:
        """Return the next lane, and how many of `room` messages it may deliver."""
        if not active & (active - 1):
            return ALL_LANES[active.bit_length() - 1], room
        lane = self._current
        while not active >> lane & 1 or self._deficits[lane] <= 0:
            lane = (lane + 1) % len(ALL_LANES)
            if active >> lane & 1:
                self._deficits[lane] += _QUANTA[lane]
        self._current = lane
        return ALL_LANES[lane], min(room, self._deficits[lane])

    def served(self, lane: Lane, count: int, now_ms: int, *, is_empty: bool) -> None:
        """Account for `count` delivered messages of the chosen lane."""
        self._deficits[lane] = 0 if is_empty else max(self._deficits[lane] - count, 0)
        if count and self._is_contended:
            self._waiting_since_ms[lane] = now_ms


def most_urgent(active: int) -> Lane:
    """Return the first lane in strict priority order."""
    return ALL_LANES[(active & -active).bit_length() - 1]


ALL_PARTITIONS = -1  # as a mask


class ReadyRange(NamedTuple):
    """Messages first..end-1 of one lane. A single one is a redelivery, or the first message of its key."""

    first: int
    end: int
    is_single: bool


class LaneBacklog:
    """The ready messages of one lane in one partition, ordered by offset, so that redeliveries go first.

    Messages that were never delivered are kept as runs of any length. Singles may be stale when they are
    returned: the caller must check their state.
    """

    __slots__ = ("_in_runs", "_runs", "_singles")

    def __init__(self) -> None:
        self._runs: deque[list[int]] = deque()  # [first, end), ascending
        self._in_runs = 0  # messages
        self._singles: list[int] = []  # a heap

    def __bool__(self) -> bool:
        return bool(self._runs or self._singles)

    @property
    def runs(self) -> int:
        return len(self._runs)

    @property
    def count(self) -> int:
        """Return the number of messages, stale ones included."""
        return self._in_runs + len(self._singles)

    def add_run(self, first: int, end: int) -> None:
        """Add messages behind all runs."""
        runs = self._runs
        self._in_runs += end - first
        if runs and runs[-1][1] == first:
            runs[-1][1] = end
        else:
            runs.append([first, end])

    def add_single(self, offset: int) -> None:
        heappush(self._singles, offset)

    def pop(self, room: int) -> ReadyRange | None:
        """Remove and return up to `room` consecutive messages with the lowest offsets."""
        runs, singles = self._runs, self._singles
        if not runs:
            if not singles:
                return None
            offset = heappop(singles)
            return ReadyRange(offset, offset + 1, is_single=True)
        run = runs[0]
        first, end = run
        if singles:
            if singles[0] < first:
                offset = heappop(singles)
                return ReadyRange(offset, offset + 1, is_single=True)
            end = min(end, singles[0])
        end = min(end, first + room)
        self._in_runs -= end - first
        if end == run[1]:
            runs.popleft()
        else:
            run[0] = end
        return ReadyRange(first, end, is_single=False)

    def drop_before(self, offset: int) -> int:
        """Drop the messages before `offset`; return how many of them were in runs."""
        self._singles = [single for single in self._singles if single >= offset]
        heapify(self._singles)
        runs, removed = self._runs, 0
        while runs and runs[0][0] < offset:
            end = min(runs[0][1], offset)
            removed += end - runs[0][0]
            self._in_runs -= end - runs[0][0]
            if end == runs[0][1]:
                runs.popleft()
            else:
                runs[0][0] = end
        return removed


class ReadyPartitions:
    """Masks of the partitions of a queue with ready messages, by lane; round robin over partitions."""

    def __init__(self) -> None:
        self._ready = [0] * len(ALL_LANES)
        self._last = [-1] * len(ALL_LANES)
        self.lanes = 0  # mask of lanes with messages anywhere

    def mark(self, lane: Lane, partition: int) -> None:
        """Record that a partition has messages in this lane."""
        self._ready[lane] |= 1 << partition
        self.lanes |= 1 << lane

    def clear(self, lane: Lane, partition: int) -> None:
        """Record that a partition has no messages in this lane."""
        self._ready[lane] &= ~(1 << partition)
        if not self._ready[lane]:
            self.lanes &= ~(1 << lane)

    def in_lane(self, lane: Lane) -> int:
        """Return a mask of the partitions with messages in a lane."""
        return self._ready[lane]

    def active(self, among: int) -> int:
        """Return a mask of the lanes with messages in any of these partitions."""
        if among == ALL_PARTITIONS:
            return self.lanes
        active = 0
        for lane, partitions in enumerate(self._ready):
            if partitions & among:
                active |= 1 << lane
        return active

    def next_partition(self, lane: Lane, among: int) -> int:
        """Return the partition to serve next in an active lane."""
        ready = self._ready[lane] & among
        later = ready >> (self._last[lane] + 1)
        if later:
            partition = self._last[lane] + (later & -later).bit_length()
        else:
            partition = (ready & -ready).bit_length() - 1
        self._last[lane] = partition
        return partition


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
