"""A heap of deadlines.

Removing or changing a deadline leaves a stale entry in the heap. Stale entries are dropped when they reach
the front, and the heap is rebuilt when most of it is stale.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

NO_DEADLINE = -1
_STALE_ENTRIES_KEPT = 64


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the earlier of two deadlines, either of which may be missing."""
    if one_ms is None:
        return other_ms
    return one_ms if other_ms is None or one_ms < other_ms else other_ms


class Timed(Protocol):
    """An object with a deadline in milliseconds, or NO_DEADLINE."""

    due_ms: int


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """Items ordered by deadline; items with equal deadlines are ordered by insertion.

    An item keeps its own deadline in `due_ms`, so that no dictionary is needed to detect stale entries.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._order = count()
        self._stale = 0

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """Return the earliest deadline."""
        heap = self._heap
        while heap and heap[0][2].due_ms != heap[0][0]:
            heappop(heap)
            self._stale -= 1
        return heap[0][0] if heap else None

    def put(self, item: T) -> None:
        """Add an item that is not in the heap."""
        heappush(self._heap, (item.due_ms, next(self._order), item))

    def remove(self, item: T) -> None:
        """Remove an item and reset its deadline; do nothing if it has none."""
        if item.due_ms == NO_DEADLINE:
            return
        item.due_ms = NO_DEADLINE
        self._stale += 1
        if self._stale > _STALE_ENTRIES_KEPT and 2 * self._stale > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].due_ms == entry[0]]
            heapify(self._heap)
            self._stale = 0

    def take_due(self, now_ms: int) -> Iterator[T]:
        """Remove and yield the items that are due, earliest first."""
        while (due_ms := self.next_ms) is not None and due_ms <= now_ms:
            item = heappop(self._heap)[2]
            item.due_ms = NO_DEADLINE
            yield item


@dataclass(slots=True, eq=False)
class _Named:
    name: str
    due_ms: int


class NamedDeadlines:
    """At most one deadline per name."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Named] = {}
        self._deadlines: Deadlines[_Named] = Deadlines()

    def __len__(self) -> int:
        """Return the number of heap entries, stale ones included."""
        return len(self._deadlines)

    @property
    def next_ms(self) -> int | None:
        """Return the earliest deadline."""
        return self._deadlines.next_ms

    def put(self, name: str, due_ms: int | None) -> None:
        """Set the deadline of `name`, replacing an earlier one; None removes it."""
        known = self._by_name.get(name)
        if known is not None:
            if known.due_ms == due_ms:
                return
            self._deadlines.remove(known)
        if due_ms is not None:
            item = self._by_name[name] = _Named(name, due_ms)
            self._deadlines.put(item)
        elif known is not None:
            del self._by_name[name]

    def take_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield the names that are due, earliest first."""
        for item in self._deadlines.take_due(now_ms):
            del self._by_name[item.name]
            yield item.name
