"""Shares the event loop among long requests.

A request works in slices of a few milliseconds. Each iteration of the event loop runs one slice of one
request, so that other work waits for one slice and not for a whole request. A slice is time on the event
loop: waiting for a coordinator or the disk does not count.

Only a few requests may continue after their first slice, because a decoded request takes many times its size
in memory, and so does its response. Each needs a slot; there are separate slots for large and small requests.
Short requests, the usual ones, need none before their tenth slice, and every second slice goes to requests
without a slot: they complete by then, even if the garbage collector or another process took time from them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from time import monotonic
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SLICE_SECONDS = 0.002
MAX_LARGE_REQUESTS = 8
MAX_SMALL_REQUESTS = 32
SMALL_REQUEST_BYTES = 64 << 10
# The first slices of a request of up to this size need no slot. Decoded, it takes little memory.
FREE_SLICES = 10
SHORT_REQUEST_BYTES = 4 << 10
# A request of up to this size gets a second slice at once: it is nearly done, and was probably preempted.
TINY_REQUEST_BYTES = 1 << 10


class Abandoned(Exception):
    """The client of a long request has disconnected; the rest of the work is dropped."""


class Turns:
    """The queues in which long requests wait for their next slice."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begun: deque[Callable[[], None]] = deque()
        self._long: deque[Callable[[], None]] = deque()
        self._large = asyncio.Semaphore(MAX_LARGE_REQUESTS)
        self._small = asyncio.Semaphore(MAX_SMALL_REQUESTS)

    def call(self, slice_: Callable[[], None]) -> None:
        """Call `slice_` after those before it, in a later iteration of the event loop."""
        self._enqueue(self._long, slice_)

    async def next(self, *, has_slot: bool) -> None:
        """Return when it is the caller's turn."""
        turn: asyncio.Future[None] = self._loop.create_future()
        queue = self._long if has_slot else self._begun
        self._enqueue(queue, lambda: None if turn.done() else turn.set_result(None))
        await turn

    def slots(self, request_bytes: int) -> asyncio.Semaphore:
        """Return the semaphore of slots for requests of this size."""
        return self._small if request_bytes <= SMALL_REQUEST_BYTES else self._large

    def _enqueue(self, queue: deque[Callable[[], None]], slice_: Callable[[], None]) -> None:
        queue.append(slice_)
        if len(self._begun) + len(self._long) == 1:
            self._loop.call_soon(self._run_one, self._begun, self._long)

    def _run_one(self, first: deque[Callable[[], None]], second: deque[Callable[[], None]]) -> None:
        slice_ = (first or second).popleft()
        if first or second:
            self._loop.call_soon(self._run_one, second, first)
        slice_()


class Work:
    """The work on one request, in slices."""

    __slots__ = (
        "_began_at",
        "_free_slices",
        "_goes_on",
        "_has_slot",
        "_is_wanted",
        "_slots",
        "_turns",
        "_until",
        "_used_seconds",
    )

    def __init__(self, turns: Turns, is_wanted: Callable[[], bool], request_bytes: int) -> None:
        self._turns = turns
        self._slots = turns.slots(request_bytes)
        self._is_wanted = is_wanted
        self._free_slices = FREE_SLICES if request_bytes <= SHORT_REQUEST_BYTES else 0
        self._goes_on = request_bytes <= TINY_REQUEST_BYTES
        self._has_slot = False
        self._until = monotonic() + SLICE_SECONDS
        # Time on the event loop up to the last stop, and when it went on.
        self._used_seconds = self._began_at = 0.0

    @property
    def used_seconds(self) -> float:
        """How long the request has used the event loop."""
        return self._used_seconds + monotonic() - self._began_at

    @property
    def is_over(self) -> bool:
        """Whether the slice is over."""
        return monotonic() >= self._until

    async def begin(self) -> None:
        """Wait for the first turn: any number of requests may have arrived together."""
        await self._turns.next(has_slot=False)
        self._until = monotonic() + SLICE_SECONDS

    async def pause(self) -> None:
        """Yield if the slice is over; raise Abandoned if the client has disconnected meanwhile."""
        if monotonic() < self._until:
            return
        if self._goes_on:
            self._goes_on = False
            self._until = monotonic() + SLICE_SECONDS
            return
        if self._free_slices:
            self._free_slices -= 1
        elif not self._has_slot:
            await self._slots.acquire()
            self._has_slot = True
        await self._turns.next(has_slot=self._has_slot)
        if not self._is_wanted():
            raise Abandoned
        self._until = monotonic() + SLICE_SECONDS

    @coroutine
    def drive(self, steps: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run a coroutine that works on the request, without counting the time in which it waits."""
        left_seconds = SLICE_SECONDS
        error: BaseException | None = None
        while True:
            self._began_at = monotonic()
            self._until = self._began_at + left_seconds
            try:
                waited_for = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                error = None  # it references this frame
            stopped_at = monotonic()
            self._used_seconds += stopped_at - self._began_at
            left_seconds = self._until - stopped_at
            try:
                yield waited_for
            except BaseException as raised:  # noqa: BLE001 - for the coroutine to handle, a cancellation above all
                error = raised

    async def run(self, slices: Generator[object, None, T]) -> T:
        """Run a generator to its end, with pauses at its stops; return its result."""
        while True:
            try:
                next(slices)
            except StopIteration as end:
                result: T = end.value
                return result
            if monotonic() >= self._until:
                await self.pause()

    def leave(self) -> None:
        """Release the slot, at the end or before waiting for other requests."""
        if self._has_slot:
            self._has_slot = False
            self._slots.release()
