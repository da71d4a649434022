"""What is ready to be delivered: per partition and lane the messages, per queue whose turn it is."""

from collections import deque
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from alpacamq.model.lanes import WEIGHTS, Lane

ALL_LANES = tuple(Lane)
_QUANTA = tuple(WEIGHTS[lane] for lane in ALL_LANES)


class LaneScheduler:
    """The turns of one queue's lanes. `active` is always a mask of the lanes that have messages."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._deficits = [0] * len(ALL_LANES)
        self._turn = len(ALL_LANES) - 1
        # Since when each lane has had messages while others were served.
        self._waiting_since_ms: list[int | None] = [None] * len(ALL_LANES)
        self._is_contended = False

    def starved(self, active: int, now_ms: int, starvation_ms: int) -> list[Lane]:
        """Lanes that have waited too long, the longest first: each is to go first with one message."""
        if not active & (active - 1):
            if self._is_contended:
                self._begin()
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
        """The lane whose turn it is, and how many messages it may have of `room`."""
        if not active & (active - 1):
            return ALL_LANES[active.bit_length() - 1], room
        lane = self._turn
        while not active >> lane & 1 or self._deficits[lane] <= 0:
            lane = (lane + 1) % len(ALL_LANES)
            if active >> lane & 1:
                self._deficits[lane] += _QUANTA[lane]
        self._turn = lane
        return ALL_LANES[lane], min(room, self._deficits[lane])

    def served(self, lane: Lane, count: int, now_ms: int, *, is_empty: bool) -> None:
        """So many messages of the lane that was chosen have been delivered."""
        self._deficits[lane] = 0 if is_empty else max(self._deficits[lane] - count, 0)
        if count and self._is_contended:
            self._waiting_since_ms[lane] = now_ms


def most_urgent(active: int) -> Lane:
    """In strict order, the lane that goes first."""
    return ALL_LANES[(active & -active).bit_length() - 1]


ALL_PARTITIONS = -1  # as a mask


class Span(NamedTuple):
    """Messages first..end-1 of one lane. A single one came back, or is the head of its key's line."""

    first: int
    end: int
    is_single: bool


class Backlog:
    """The messages of one lane in one partition, given out by offset, so that redelivered ones go first.

    Those never delivered are runs, however long; singles may have become stale when they are given out.
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
        """The number of messages, stale ones included."""
        return self._in_runs + len(self._singles)

    def add_run(self, first: int, end: int) -> None:
        """Add messages behind all those added before."""
        runs = self._runs
        self._in_runs += end - first
        if runs and runs[-1][1] == first:
            runs[-1][1] = end
        else:
            runs.append([first, end])

    def add_single(self, offset: int) -> None:
        heappush(self._singles, offset)

    def pop(self, room: int) -> Span | None:
        """Up to `room` neighbouring messages, the oldest there are."""
        runs, singles = self._runs, self._singles
        if not runs:
            if not singles:
                return None
            offset = heappop(singles)
            return Span(offset, offset + 1, is_single=True)
        run = runs[0]
        first, end = run
        if singles:
            if singles[0] < first:
                offset = heappop(singles)
                return Span(offset, offset + 1, is_single=True)
            end = min(end, singles[0])
        end = min(end, first + room)
        self._in_runs -= end - first
        if end == run[1]:
            runs.popleft()
        else:
            run[0] = end
        return Span(first, end, is_single=False)

    def cut(self, offset: int) -> int:
        """Forget what lies before `offset`; how many messages of runs that were."""
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


class Turns:
    """Which partitions of a queue have messages in which lane, as masks, and who is next."""

    def __init__(self) -> None:
        self._ready = [0] * len(ALL_LANES)
        self._last = [-1] * len(ALL_LANES)
        self.lanes = 0  # mask of lanes with messages anywhere

    def mark(self, lane: Lane, partition: int) -> None:
        """The partition has messages in this lane."""
        self._ready[lane] |= 1 << partition
        self.lanes |= 1 << lane

    def clear(self, lane: Lane, partition: int) -> None:
        """The partition has no more messages in this lane."""
        self._ready[lane] &= ~(1 << partition)
        if not self._ready[lane]:
            self.lanes &= ~(1 << lane)

    def ready(self, lane: Lane) -> int:
        """Return the partitions with messages in a lane, as a mask."""
        return self._ready[lane]

    def active(self, among: int) -> int:
        """Mask of the lanes with messages in any of these partitions."""
        if among == ALL_PARTITIONS:
            return self.lanes
        active = 0
        for lane, partitions in enumerate(self._ready):
            if partitions & among:
                active |= 1 << lane
        return active

    def next_partition(self, lane: Lane, among: int) -> int:
        """The partition that is served next in an active lane."""
        ready = self._ready[lane] & among
        later = ready >> (self._last[lane] + 1)
        if later:
            partition = self._last[lane] + (later & -later).bit_length()
        else:
            partition = (ready & -ready).bit_length() - 1
        self._last[lane] = partition
        return partition
