"""Cuts the stream of bytes a client sends into frames, without copying the large ones.

Bytes arrive in one scratch buffer that all connections share, for as long as a turn lasts. What
is left over of a small frame is kept until the next turn; a large one gets a buffer of its own
and is received straight into it. Such a buffer is a mapping of its own: it has the size that the frame
announces, takes memory only as far as it is filled, and gives all of it back at once.
"""

import mmap
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from struct import Struct
from typing import NamedTuple

from alpacamq.protocol.errors import ProtocolError


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


SCRATCH_BYTES = 256 << 10
LARGE_BYTES = 64 << 10
_SIZE = Struct(">i")

_POOLED = 8
_POOLED_BYTES = 2 << 20


class Buffers:
    """Buffers for large frames, a few of them kept for the next: their pages are there already."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self, size: int) -> mmap.mmap:
        for index, buffer in enumerate(self._free):
            if len(buffer) >= size:
                return self._free.pop(index)
        rounded = max(size, min(_POOLED_BYTES, 1 << (size - 1).bit_length()))
        buffer = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # With huge pages, a frame that stops after its first bytes would take 2 MiB all the same.
            buffer.madvise(mmap.MADV_NOHUGEPAGE)
        return buffer

    def give(self, buffer: mmap.mmap) -> None:
        if len(self._free) < _POOLED and len(buffer) <= _POOLED_BYTES:
            self._free.append(buffer)


class Inbox:
    """One connection's incoming bytes."""

    def __init__(self, scratch: bytearray, max_frame_bytes: int) -> None:
        self._scratch = scratch
        self._max_frame_bytes = max_frame_bytes
        self._view = memoryview(b"")
        self._at = 0
        self._rest = bytearray()
        self._large: memoryview | None = None
        self._filled = 0
        # How far the large frame may be filled; whoever receives more asks for room first.
        self._room_bytes = 0
        # Size of a large frame that has begun and needs a buffer before more can be received.
        self.wanted_bytes: int | None = None

    @property
    def is_inside_frame(self) -> bool:
        return self._large is not None or bool(self._rest)

    @property
    def frame_bytes(self) -> int:
        """Size of the large frame being received, 0 if there is none."""
        return len(self._large) if self._large is not None else 0

    @property
    def received_bytes(self) -> int:
        """How much of the large frame has been received."""
        return self._filled if self._large is not None else 0

    @property
    def begun_bytes(self) -> int:
        """How much of the large frame that needs a buffer is here already."""
        return len(self._rest or self._view[self._at :]) - _SIZE.size

    @property
    def is_full(self) -> bool:
        """Whether there is more of the large frame to come than there is room for."""
        return self._large is not None and self._filled == self._room_bytes < len(self._large)

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return self._large[self._filled : self._room_bytes]
        return memoryview(self._scratch)[len(self._rest) :]

    def received(self, count: int) -> None:
        """`count` bytes have been put where `buffer` said."""
        if self._large is not None:
            self._filled += count
            return
        rest = len(self._rest)
        if rest:
            self._scratch[:rest] = self._rest
            self._rest.clear()
        self._view = memoryview(self._scratch)[: rest + count]
        self._at = 0

    def reopen(self) -> None:
        """Go on with what `park` put aside."""
        if self._rest:
            self._view = memoryview(self._rest)
            self._rest = bytearray()
            self._at = 0

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size; writable, and valid until the turn ends."""
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            frame, self._large = self._large, None
            return frame
        left = len(self._view) - self._at
        if left < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._view, self._at)
        if not 0 <= size <= self._max_frame_bytes:
            raise ProtocolError(
                f"a frame claims {size} bytes; kafka.max_request_bytes is {self._max_frame_bytes}"
            )
        start = self._at + _SIZE.size
        if size > left - _SIZE.size:
            if size > LARGE_BYTES:
                self.wanted_bytes = size
            return None
        self._at = start + size
        return self._view[start : self._at]

    def receive_into(self, buffer: mmap.mmap, room_bytes: int) -> None:
        """Receive the large frame that has begun into `buffer`, `room_bytes` of it for now."""
        assert self.wanted_bytes is not None
        if self._rest:
            self.reopen()
        begun = self._view[self._at + _SIZE.size :]
        self._large = memoryview(buffer)[: self.wanted_bytes]
        self._large[: len(begun)] = begun
        self._filled = len(begun)
        self._room_bytes = room_bytes
        self._at = len(self._view)
        self.wanted_bytes = None

    def extend(self, added_bytes: int) -> None:
        """Receive so much more of the large frame."""
        self._room_bytes += added_bytes

    def park(self) -> None:
        """End the turn: keep what is left over, since the scratch buffer is everybody's."""
        if self._at < len(self._view):
            self._rest = bytearray(self._view[self._at :])
        self._view = memoryview(b"")
        self._at = 0

    def drop(self) -> None:
        """Forget everything that has arrived; its memory is free at once."""
        self._rest = bytearray()
        self._view = memoryview(b"")
        self._large = None
        self.wanted_bytes = None
