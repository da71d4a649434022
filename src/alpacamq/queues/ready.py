"""Indexes of ready messages by partition and lane, and the scheduling of lanes and partitions.

Within a lane the message that has been ready for the longest time is delivered first, whatever its partition.
A message is ready since it arrived, or since it was released after a delivery.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from alpacamq.model.lanes import WEIGHTS, Lane

from .chunks import bits_of
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

NEVER_MS = 1 << 62
# Batches whose times are kept; beyond that, neighbouring batches share a time.
MAX_TIMES = 8192
_STALE_ENTRIES = 64
# Turns of other partitions after which a partition is served, whatever its timestamps.
MAX_PASSED_OVER = 200


class ArrivalTimes:
    """When the messages of a partition arrived, by batch, as far as the log was read.

    Times never decrease with offsets: a batch with an earlier timestamp has the time of the one before it.
    """

    __slots__ = ("_offsets", "_times_ms")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._times_ms = array("q")

    def add(self, offset: int, time_ms: int) -> None:
        """Add the first offset of a batch behind all others."""
        times_ms = self._times_ms
        self._offsets.append(offset)
        times_ms.append(max(time_ms, times_ms[-1]) if times_ms else time_ms)
        if len(times_ms) > MAX_TIMES:
            self._offsets, self._times_ms = self._offsets[::2], times_ms[::2]

    def at(self, offset: int) -> int:
        """Return when a message arrived; 0 if it is before everything that was read."""
        place = bisect_right(self._offsets, offset) - 1
        return self._times_ms[place] if place >= 0 else 0

    def batch_end(self, offset: int) -> int:
        """Return the first offset behind the batch of a message; -1 for the last batch."""
        place = bisect_right(self._offsets, offset)
        return self._offsets[place] if place < len(self._offsets) else -1

    def first_at(self, time_ms: int) -> int:
        """Return the first offset that arrived at `time_ms` or later; -1 if there is none."""
        place = bisect_left(self._times_ms, time_ms)
        return self._offsets[place] if place < len(self._offsets) else -1

    def drop_before(self, offset: int) -> None:
        """Forget the batches before the one of `offset`."""
        if (place := bisect_right(self._offsets, offset) - 1) > 0:
            del self._offsets[:place]
            del self._times_ms[:place]


class ReadyRange(NamedTuple):
    """Messages first..end-1 of one lane. A single one is a redelivery, or the first message of its key."""

    first: int
    end: int
    is_single: bool


class LaneBacklog:
    """The ready messages of one lane in one partition, in the order in which they became ready.

    Messages that were never delivered are kept as runs of any length. Singles may be stale when they are
    returned: the caller must check their state.
    """

    __slots__ = ("_in_runs", "_runs", "_since", "_singles", "_times")

    def __init__(self, times: ArrivalTimes) -> None:
        self._times = times
        self._runs: deque[list[int]] = deque()  # [first, end), ascending
        self._in_runs = 0  # messages
        self._since: dict[int, int] = {}  # since when each single has been ready
        self._singles: list[tuple[int, int]] = []  # a heap of the same; the first entry is current

    def __bool__(self) -> bool:
        return bool(self._runs or self._singles)

    @property
    def runs(self) -> int:
        return len(self._runs)

    @property
    def count(self) -> int:
        """Return the number of messages, stale ones included."""
        return self._in_runs + len(self._since)

    @property
    def since_ms(self) -> int:
        """Return since when the first message has been ready. The lane must not be empty."""
        if not self._runs:
            return self._singles[0][0]
        since_ms = self._times.at(self._runs[0][0])
        return min(since_ms, self._singles[0][0]) if self._singles else since_ms

    def add_run(self, first: int, end: int) -> None:
        """Add messages behind all runs."""
        runs = self._runs
        self._in_runs += end - first
        if runs and runs[-1][1] == first:
            runs[-1][1] = end
        else:
            runs.append([first, end])

    def add_single(self, offset: int, since_ms: int) -> None:
        self._since[offset] = since_ms
        if len(self._singles) > 2 * len(self._since) + _STALE_ENTRIES:
            self._rebuild()
        else:
            heappush(self._singles, (since_ms, offset))
            self._drop_stale()

    def remove_single(self, offset: int) -> None:
        """Remove a single that is not ready any more."""
        if self._since.pop(offset, None) is not None:
            self._drop_stale()

    def pop(self, room: int, until_ms: int) -> ReadyRange | None:
        """Remove and return up to `room` consecutive messages that have been ready for the longest time.

        Messages that became ready at `until_ms` or later are left, except for the batch of the first message.
        """
        runs, singles = self._runs, self._singles
        if not runs:
            return self._pop_single() if singles else None
        run = runs[0]
        first, end = run
        if singles:
            since_ms = self._times.at(first)
            if singles[0] < (since_ms, first):
                return self._pop_single()
            until_ms = min(until_ms, singles[0][0])
        if end - first > 1 and (later := self._times.first_at(until_ms)) != -1 and later < end:
            if later <= first:
                later = self._times.batch_end(first)
            end = min(end, later) if later != -1 else end
        end = min(end, first + room)
        self._in_runs -= end - first
        if end == run[1]:
            runs.popleft()
        else:
            run[0] = end
        return ReadyRange(first, end, is_single=False)

    def drop_before(self, offset: int) -> int:
        """Drop the messages before `offset`; return how many of them were in runs."""
        self._since = {single: since_ms for single, since_ms in self._since.items() if single >= offset}
        self._rebuild()
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

    def _pop_single(self) -> ReadyRange:
        _, offset = heappop(self._singles)
        del self._since[offset]
        self._drop_stale()
        return ReadyRange(offset, offset + 1, is_single=True)

    def _drop_stale(self) -> None:
        singles, since = self._singles, self._since
        while singles and since.get(singles[0][1]) != singles[0][0]:
            heappop(singles)

    def _rebuild(self) -> None:
        self._singles = [(since_ms, offset) for offset, since_ms in self._since.items()]
        heapify(self._singles)


class PartitionHeap:
    """Partitions by the time since when their first message has been ready; equals by turn."""

    def __init__(self) -> None:
        # Since when, turn and partition. An entry may be early or stale, and is checked when it is first.
        self._heap: list[tuple[int, int, int]] = []
        self.entries: dict[int, tuple[int, int, int]] = {}

    def put(self, partition: int, since_ms: int, turn: int) -> None:
        """Add a partition, or replace its entry."""
        entry = self.entries[partition] = (since_ms, turn, partition)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self.entries) + _STALE_ENTRIES:
            self._heap[:] = self.entries.values()
            heapify(self._heap)

    def remove(self, partition: int) -> bool:
        """Remove a partition; return whether it was there."""
        if self.entries.pop(partition, None) is None:
            return False
        if not self.entries:
            self._heap.clear()
        return True

    def first(self, since: Callable[[int], int]) -> tuple[int, int]:
        """Return the first partition, and since when the one after it is ready. There must be one.

        `since` returns since when the first message of a partition has been ready.
        """
        heap, entries = self._heap, self.entries
        while True:
            entry = heap[0]
            number = entry[2]
            if entries.get(number) != entry:
                heappop(heap)
            elif (since_ms := since(number)) > entry[0]:
                entries[number] = entry = (since_ms, entry[1], number)
                heapreplace(heap, entry)
            else:
                # The entries below the first may be early: then fewer messages are taken at a time.
                return number, min(heap[1:3])[0] if len(heap) > 1 else NEVER_MS


class ReadyPartitions:
    """The partitions of a queue with ready messages, by lane.

    The partition whose first message has been ready for the longest time is next; among equals, the one
    that was served least recently. A partition that was passed over many times comes first: timestamps are
    those of producers, whose clocks may be wrong.
    """

    def __init__(self) -> None:
        self._ready = [0] * len(ALL_LANES)  # masks
        self._heaps = [PartitionHeap() for _ in ALL_LANES]
        # The turn in which each partition was served last or became ready, ascending.
        self._turns: list[dict[int, int]] = [{} for _ in ALL_LANES]
        self._turn = 0
        self.lanes = 0  # mask of lanes with messages anywhere

    def mark(self, lane: Lane, partition: int, since_ms: int) -> None:
        """Record that a partition has messages in this lane, ready since then."""
        heap, turns = self._heaps[lane], self._turns[lane]
        if partition not in turns:
            self._ready[lane] |= 1 << partition
            self.lanes |= 1 << lane
            turns[partition] = self._turn = self._turn + 1
        elif since_ms >= heap.entries[partition][0]:
            return
        heap.put(partition, since_ms, turns[partition])

    def clear(self, lane: Lane, partition: int) -> None:
        """Record that a partition has no messages in this lane."""
        if self._heaps[lane].remove(partition):
            del self._turns[lane][partition]
            self._ready[lane] &= ~(1 << partition)
            if not self._ready[lane]:
                self.lanes &= ~(1 << lane)

    def served(self, lane: Lane, partition: int, since_ms: int) -> None:
        """Record that a partition was served and has messages left, ready since then."""
        turns = self._turns[lane]
        if turns.pop(partition, None) is not None:
            turns[partition] = self._turn = self._turn + 1
            self._heaps[lane].put(partition, since_ms, self._turn)

    def in_lane(self, lane: Lane) -> int:
        """Return a mask of the partitions with messages in a lane."""
        return self._ready[lane]

    @property
    def all(self) -> int:
        """Return a mask of the partitions with messages in any lane."""
        found = 0
        for partitions in self._ready:
            found |= partitions
        return found

    def active(self, among: int) -> int:
        """Return a mask of the lanes with messages in any of these partitions."""
        if among == ALL_PARTITIONS:
            return self.lanes
        active = 0
        for lane, partitions in enumerate(self._ready):
            if partitions & among:
                active |= 1 << lane
        return active

    def heap(self, lane: Lane, among: int) -> PartitionHeap:
        """Return these partitions with messages in a lane; a copy, unless they are all."""
        if not self._ready[lane] & ~among:
            return self._heaps[lane]
        heap = PartitionHeap()
        for number in bits_of(self._ready[lane] & among, 0):
            since_ms, turn, _ = self._heaps[lane].entries[number]
            heap.put(number, since_ms, turn)
        return heap

    def update(self, heap: PartitionHeap, lane: Lane, partition: int) -> None:
        """Update a copy after a partition was served."""
        if heap is self._heaps[lane]:
            return
        if (entry := self._heaps[lane].entries.get(partition)) is None:
            heap.remove(partition)
        else:
            heap.put(partition, *entry[:2])

    def passed_over(self, lane: Lane, among: int) -> int | None:
        """Return one of these partitions that was not served for many turns, if there is one."""
        turns = self._turns[lane]
        since = self._turn - max(MAX_PASSED_OVER, 2 * len(turns))
        for number, turn in turns.items():
            if turn > since:
                return None
            if among >> number & 1:
                return number
        return None


NO_HEAD = -1


class ReadyMessage(NamedTuple):
    """A message that can be delivered, or is next of its key."""

    offset: int
    lane: Lane


class _KeyQueue:
    """The unfinished messages of one key."""

    __slots__ = ("head", "in_flight", "key", "released_ms", "waiting")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.waiting: list[ReadyMessage] = []  # ascending
        self.in_flight: list[int] = []  # leased, in backoff or moving; ascending
        self.head = NO_HEAD  # the first waiting message, while it is deliverable
        self.released_ms = 0  # when the first message was released after a delivery

    def hold(self, offset: int) -> None:
        """Record that a message is in flight."""
        insort(self.in_flight, offset)
        if offset <= self.head:
            self.head = NO_HEAD


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
        self._queue_of(key, offset).hold(offset)

    def contains(self, offset: int) -> bool:
        return offset in self._queue_by_offset

    def is_deliverable(self, offset: int) -> bool:
        """Return whether this message, returned as deliverable before, still is."""
        queue = self._queue_by_offset.get(offset)
        return queue is not None and queue.head == offset

    def take(self, offset: int) -> ReadyMessage | None:
        """Remove the head of its key for delivery; return the message behind it, unless one is in between."""
        queue = self._queue_by_offset[offset]
        assert queue.waiting[0].offset == offset
        del queue.waiting[0]
        queue.hold(offset)
        if not queue.waiting:
            return None
        following = queue.waiting[0]
        later = bisect_right(queue.in_flight, offset)
        if later < len(queue.in_flight) and queue.in_flight[later] < following.offset:
            return None
        return following

    def hide(self, offset: int, lane: Lane) -> None:
        """Put a waiting message in flight, whatever its place in the order."""
        queue = self._queue_by_offset[offset]
        queue.waiting.remove(ReadyMessage(offset, lane))
        queue.hold(offset)

    def requeue(self, offset: int, lane: Lane, released_ms: int) -> ReadyMessage | None:
        """Make a message in flight available again; return the message that became deliverable, if any."""
        queue = self._queue_by_offset[offset]
        queue.in_flight.remove(offset)
        queue.released_ms = max(queue.released_ms, released_ms)
        insort(queue.waiting, ReadyMessage(offset, lane))
        return self._next_deliverable(queue)

    def released_ms(self, offset: int) -> int:
        """Return when the first message of this key was released after a delivery; 0 if it was not."""
        queue = self._queue_by_offset.get(offset)
        return 0 if queue is None else queue.released_ms

    def finish(self, offset: int, lane: Lane, *, was_waiting: bool) -> ReadyMessage | None:
        """Remove a message that is done; return the message that became deliverable, if any."""
        queue = self._queue_by_offset.pop(offset)
        queue.released_ms = 0
        if was_waiting:
            queue.waiting.remove(ReadyMessage(offset, lane))
            if queue.head == offset:
                queue.head = NO_HEAD
        else:
            queue.in_flight.remove(offset)
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
        """Return the first message of a key if no earlier one is in flight, unless it was returned before."""
        if not queue.waiting or queue.head == (first := queue.waiting[0]).offset:
            return None
        if queue.in_flight and queue.in_flight[0] < first.offset:
            return None
        queue.head = first.offset
        return first


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
        self.times = ArrivalTimes()
        self.lanes = [LaneBacklog(self.times) for _ in ALL_LANES]
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
        backlog = self.lanes[lane]
        if not backlog.runs:
            self._ready_partitions.mark(lane, self._number, self.times.at(first))
        backlog.add_run(first, end)

    def add_keyed(self, key: bytes, offset: int, lane: Lane) -> None:
        """Add a message that is delivered in the order of its key."""
        assert self.order is not None
        self.ready[lane] += 1
        self._offer(self.order.add(key, offset, lane))

    def add_single(self, offset: int, lane: Lane) -> None:
        """Add a message that was delivered before and has no key order."""
        self.ready[lane] += 1
        self._add_ready(ReadyMessage(offset, lane))

    def requeue(self, offset: int, lane: Lane, released_ms: int) -> None:
        """Make a message available again, at its place in the order, or as ready since `released_ms`."""
        if self.order is None:
            self.ready[lane] += 1
            self._add_ready(ReadyMessage(offset, lane), released_ms)
        elif offset < self.read_to:
            # A message that was not read yet is added when it is read.
            self.ready[lane] += 1
            if self.order.contains(offset):
                self._offer(self.order.requeue(offset, lane, released_ms))
            else:
                self._add_ready(ReadyMessage(offset, lane), released_ms)

    def hide(self, offset: int, lane: Lane) -> None:
        """Remove an available message that is leased again by its last consumer."""
        if self.order is None:
            self.ready[lane] -= 1
        elif offset < self.read_to:
            self.ready[lane] -= 1
            if self.order.contains(offset):
                self.order.hide(offset, lane)
        self.lanes[lane].remove_single(offset)
        self.clear_if_empty(lane)

    def since_ms(self, lane: Lane) -> int:
        """Return since when the first message of a lane has been ready."""
        return self.lanes[lane].since_ms

    def served(self, lane: Lane) -> None:
        """Update the index of partitions after messages of a lane were taken."""
        if self.lanes[lane]:
            self._ready_partitions.served(lane, self._number, self.lanes[lane].since_ms)
        else:
            self._ready_partitions.clear(lane, self._number)

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

    def _add_ready(self, message: ReadyMessage, released_ms: int = 0) -> None:
        if self.order is not None:
            released_ms = max(released_ms, self.order.released_ms(message.offset))
        since_ms = max(self.times.at(message.offset), released_ms)
        self.lanes[message.lane].add_single(message.offset, since_ms)
        self._ready_partitions.mark(message.lane, self._number, since_ms)
