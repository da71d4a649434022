"""How many bytes of requests all connections together may hold, and who waits for room."""

from collections import deque
from collections.abc import Callable


class InFlight:
    """Room for large requests: taken whole before one is received, given back when it is done."""

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes
        self._waiting: deque[tuple[object, int, Callable[[], None]]] = deque()

    def take(self, owner: object, size: int, resume: Callable[[], None]) -> bool:
        """Whether there was room; if not, `resume` is called once it has been taken, in turn."""
        if self._waiting or size > self._free_bytes:
            self._waiting.append((owner, size, resume))
            return False
        self._free_bytes -= size
        return True

    def give(self, size: int) -> None:
        """The request is done with."""
        self._free_bytes += size
        self._let_in()

    def leave(self, owner: object) -> None:
        """The connection is gone: it waits no longer."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not owner)
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._waiting[0][1] <= self._free_bytes:
            _, wanted, resume = self._waiting.popleft()
            self._free_bytes -= wanted
            resume()
