"""When each of many things is due, where most deadlines move or vanish before they come.

One reminder per key waits in a heap. A deadline that moves to later leaves its reminder where
it is, to be put right when it comes up: so a key costs one entry however often it moves.
"""

from heapq import heappop, heappush


class Deadlines:
    """The deadline of every key that has one."""

    __slots__ = ("_due", "_heap", "_reminders")

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._reminders: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._heap:
            reminder_ms, key = self._heap[0]
            due_ms = self._due.get(key)
            if due_ms == reminder_ms:
                return due_ms
            heappop(self._heap)
            if self._reminders.get(key) == reminder_ms:
                del self._reminders[key]
                if due_ms is not None:
                    self._remind(key, due_ms)
        return None

    def put(self, key: str, due_ms: int) -> None:
        """Let `key` be due then, whenever it was before."""
        self._due[key] = due_ms
        reminder_ms = self._reminders.get(key)
        if reminder_ms is None or due_ms < reminder_ms:
            self._remind(key, due_ms)

    def drop(self, key: str) -> None:
        """Let `key` have no deadline."""
        self._due.pop(key, None)

    def take_due(self, now_ms: int, limit: int) -> list[str]:
        """Up to `limit` keys due by `now_ms`, earliest first; they have no deadline any more."""
        taken: list[str] = []
        while len(taken) < limit and (due_ms := self.next_ms) is not None and due_ms <= now_ms:
            _, key = heappop(self._heap)
            del self._reminders[key], self._due[key]
            taken.append(key)
        return taken

    def _remind(self, key: str, due_ms: int) -> None:
        self._reminders[key] = due_ms
        heappush(self._heap, (due_ms, key))
