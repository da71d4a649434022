"""Indexes of ready messages by partition and lane, and the scheduling of lanes and partitions."""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from alpacamq.model.lanes import WEIGHTS, Lane

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
