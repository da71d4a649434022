"""When each of many named things next needs attention.

A heap that keeps stale entries: moving a deadline leaves the old entry behind, to be passed over
when its time comes, and the heap is rebuilt when most of it is stale.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

_STALE_ENTRIES_KEPT = 64


class Deadlines:
    """At most one deadline per name."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline there is."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def put(self, name: str, due_ms: int | None) -> None:
        """Give `name` this deadline instead of the one it has; None takes it away."""
        if due_ms is None:
            self._due.pop(name, None)
        elif self._due.get(name) != due_ms:
            self._due[name] = due_ms
            heappush(self._heap, (due_ms, name))
        if len(self._heap) > 2 * len(self._due) + _STALE_ENTRIES_KEPT:
            self._heap = [(due, name) for name, due in self._due.items()]
            heapify(self._heap)

    def take_due(self, now_ms: int) -> Iterator[str]:
        """The names whose time has come, earliest first; each loses its deadline."""
        while (due_ms := self.next_ms) is not None and due_ms <= now_ms:
            name = heappop(self._heap)[1]
            del self._due[name]
            yield name
