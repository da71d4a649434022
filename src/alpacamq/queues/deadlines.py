"""When leases, rests and waits end.

A heap that keeps stale entries: what ends otherwise leaves its entry behind, to be passed over when its
time comes, and the heap is rebuilt when most of it is stale.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

from .chunks import NO_DEADLINE

_STALE_ENTRIES_KEPT = 64


class Timed(Protocol):
    """Something with a deadline, NO_DEADLINE if it has none."""

    due_ms: int


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Things by deadline; among equals, the one put first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._order = count()
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline there is."""
        heap = self._heap
        while heap and heap[0][2].due_ms != heap[0][0]:
            heappop(heap)
            self._stale -= 1
        return heap[0][0] if heap else None

    def put(self, thing: T) -> None:
        """Something new has a deadline."""
        heappush(self._heap, (thing.due_ms, next(self._order), thing))

    def forget(self, thing: T) -> None:
        """Take away the deadline of a thing, if it has one."""
        if thing.due_ms == NO_DEADLINE:
            return
        thing.due_ms = NO_DEADLINE
        self._stale += 1
        if self._stale > _STALE_ENTRIES_KEPT and 2 * self._stale > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].due_ms == entry[0]]
            heapify(self._heap)
            self._stale = 0

    def take_due(self, now_ms: int) -> Iterator[T]:
        """Those whose time has come, earliest first; each loses its deadline."""
        while (due_ms := self.next_ms) is not None and due_ms <= now_ms:
            thing = heappop(self._heap)[2]
            thing.due_ms = NO_DEADLINE
            yield thing
