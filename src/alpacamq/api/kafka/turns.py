"""Shares the event loop among requests that take long.

A request works in slices of a few milliseconds. Whatever their number, one slice of one request runs each
time round the event loop, so that everybody else waits for one slice at a time and not for a request. Only
a few of them may be beyond their first slice at once: a decoded request takes many times its size. Large
and small ones have places of their own, so that the usual ones need not wait for those.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.002
MAX_LARGE_REQUESTS = 8
MAX_SMALL_REQUESTS = 32
SMALL_REQUEST_BYTES = 64 << 10


class Abandoned(Exception):
    """The client of a request that takes long has hung up: nobody waits for the rest of it."""


class Turns:
    """The queue in which long requests wait for their next slice."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._large = asyncio.Semaphore(MAX_LARGE_REQUESTS)
        self._small = asyncio.Semaphore(MAX_SMALL_REQUESTS)

    def call(self, slice_: Callable[[], None]) -> None:
        """Call `slice_` when those before it have had their turn and the loop has gone round."""
        self._waiting.append(slice_)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._run_one)

    async def next(self) -> None:
        """Return when it is the caller's turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self.call(lambda: None if turn.done() else turn.set_result(None))
        await turn

    def places(self, request_bytes: int) -> asyncio.Semaphore:
        """The places among which a request of this size needs one to go on."""
        return self._small if request_bytes <= SMALL_REQUEST_BYTES else self._large

    def _run_one(self) -> None:
        slice_ = self._waiting.popleft()
        if self._waiting:
            self._loop.call_soon(self._run_one)
        slice_()


class Work:
    """The work on one request, which stops when a slice is over."""

    __slots__ = ("_has_place", "_is_wanted", "_places", "_turns", "_until")

    def __init__(self, turns: Turns, is_wanted: Callable[[], bool], request_bytes: int) -> None:
        self._turns = turns
        self._places = turns.places(request_bytes)
        self._is_wanted = is_wanted
        self._has_place = False
        self._until = monotonic() + SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the slice is over."""
        return monotonic() >= self._until

    async def pause(self) -> None:
        """Let others have their turn if the slice is over; Abandoned if the client has hung up meanwhile."""
        if monotonic() < self._until:
            return
        if not self._has_place:
            await self._places.acquire()
            self._has_place = True
        await self._turns.next()
        if not self._is_wanted():
            raise Abandoned
        self._until = monotonic() + SLICE_SECONDS

    async def run(self, slices: Generator[object, None, T]) -> T:
        """Drive a generator that stops now and then to its end; returns its result."""
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: T = end.value
                return result
            if monotonic() >= self._until:
                await self.pause()

    def leave(self) -> None:
        """Make place for others, at the end or before a wait for somebody else."""
        if self._has_place:
            self._has_place = False
            self._places.release()
