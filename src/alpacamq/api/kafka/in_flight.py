"""How many bytes of requests all connections together may hold, and who waits for room."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple


class _Waiting(NamedTuple):
    """A request that cannot be received any further for now; those with the least to come go first."""

    rest_bytes: int
    number: int
    owner: object
    size: int
    resume: Callable[[int], None]


class InFlight:
    """Room for large requests: taken as they arrive, given back when they are done.

    Requests that have each taken a part could wait for one another for ever. So one of those that wait is
    let in at a time beyond the limit, with room for all that is still to come of it: what is held never
    exceeds the limit by more than one request.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes
        self._waiting: list[_Waiting] = []
        self._numbers = count()
        self._beyond_limit: object = None

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for room, or got it beyond the limit."""
        return bool(self._waiting) or self._beyond_limit is not None

    def take(self, owner: object, size: int, rest_bytes: int, resume: Callable[[int], None]) -> int:
        """Take room for the next `size` of the `rest_bytes` to come; returns how much was taken.

        If that is none, `resume` is called with how much it is once there is room.
        """
        # Nobody waits while the place beyond the limit is free.
        if size <= self._free_bytes and not self._waiting:
            self._free_bytes -= size
            return size
        if self._beyond_limit is None:
            self._beyond_limit = owner
            self._free_bytes -= rest_bytes
            return rest_bytes
        heappush(self._waiting, _Waiting(rest_bytes, next(self._numbers), owner, size, resume))
        return 0

    def give(self, owner: object, size: int) -> None:
        """The owner's request is done with."""
        self._free_bytes += size
        if owner is self._beyond_limit:
            self._beyond_limit = None
        self._let_in()

    def leave(self, owner: object, size: int) -> None:
        """The connection is gone: it waits no longer, and what it has taken is free."""
        if any(entry.owner is owner for entry in self._waiting):
            self._waiting = [entry for entry in self._waiting if entry.owner is not owner]
            heapify(self._waiting)
        self.give(owner, size)

    def _let_in(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            size = first.size
            if size > self._free_bytes:
                if self._beyond_limit is not None:
                    return
                self._beyond_limit = first.owner
                size = first.rest_bytes
            heappop(self._waiting)
            self._free_bytes -= size
            first.resume(size)
