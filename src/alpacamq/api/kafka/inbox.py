"""Splits the received bytes of a connection into frames, without copying large ones.

Bytes arrive in one scratch buffer that all connections share for the duration of a turn. The rest
of a small frame is copied for the next turn; a large frame is received into a buffer of its own. Such a
buffer is a memory mapping of the announced size: it takes memory only as far as it is filled, and is
freed as a whole.
"""

import mmap
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from struct import Struct
from typing import Any, NamedTuple

from alpacamq.protocol.errors import ProtocolError


class _Waiting(NamedTuple):
    """A request that waits for memory; those with the least remaining bytes are served first."""

    rest_bytes: int
    number: int
    owner: Any
    size: int
    resume: Callable[[int], None]


class InFlight:
    """Memory for large requests: reserved as they arrive, released when they are done.

    Requests that each hold a part could deadlock. So one waiting request at a time may exceed the limit,
    with memory for all its remaining bytes: the total exceeds the limit by one request at most.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes
        self._waiting: list[_Waiting] = []
        self._numbers = count()
        self._beyond_limit: object = None

    @property
    def is_short(self) -> bool:
        """Whether a request waits for memory, or holds some beyond the limit."""
        return bool(self._waiting) or self._beyond_limit is not None

    def take(self, owner: object, size: int, rest_bytes: int, resume: Callable[[int], None]) -> int:
        """Reserve memory for the next `size` of the remaining `rest_bytes`; return how much was reserved.

        If that is 0, `resume` is called with the amount once memory is available.
        """
        # No request waits while the exception beyond the limit is unused.
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
        """Release the memory of the owner's request."""
        self._free_bytes += size
        if owner is self._beyond_limit:
            self._beyond_limit = None
        self._let_in()

    def leave(self, owner: object, size: int) -> None:
        """Release the memory of a closed connection, and remove it from the waiting ones."""
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
# How clients begin that use another protocol.
_FOREIGN_BYTES = 3
_FOREIGN = {
    b"\x16\x03\x01": "TLS",
    b"\x16\x03\x03": "TLS",
    b"GET": "HTTP",
    b"POS": "HTTP",
    b"PUT": "HTTP",
    b"PRI": "HTTP",
}

# What a request that frees its frame before it ends has instead.
NO_FRAME = memoryview(b"")
_POOLED = 8
_POOLED_BYTES = 2 << 20


class Buffers:
    """Buffers for large frames. A few are reused, because their pages are allocated already."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def take(self, size: int) -> mmap.mmap:
        for index, buffer in enumerate(self._free):
            if len(buffer) >= size:
                return self._free.pop(index)
        rounded = max(size, min(_POOLED_BYTES, 1 << (size - 1).bit_length()))
        buffer = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            # With huge pages, a frame that stops after its first bytes would still take 2 MiB.
            buffer.madvise(mmap.MADV_NOHUGEPAGE)
        return buffer

    def give(self, buffer: mmap.mmap) -> None:
        if len(self._free) < _POOLED and len(buffer) <= _POOLED_BYTES:
            self._free.append(buffer)


class Inbox:
    """The incoming bytes of one connection."""

    def __init__(self, scratch: bytearray, max_frame_bytes: int) -> None:
        self._scratch = scratch
        self._max_frame_bytes = max_frame_bytes
        self._limit_name = "kafka.max_request_bytes is"
        self._view = NO_FRAME
        self._at = 0
        # Where in the scratch buffer the last bytes were received.
        self._start = 0
        self._rest = bytearray()
        self._large: memoryview | None = None
        self._filled = 0
        # How far the large frame may be filled; more needs a reservation first.
        self._room_bytes = 0
        # Size of a large frame that has begun and needs a buffer.
        self.wanted_bytes: int | None = None

    def limit(self, max_frame_bytes: int, name: str) -> None:
        """Set the size of the largest frame, and how an error names the limit."""
        self._max_frame_bytes = max_frame_bytes
        self._limit_name = name

    @property
    def is_inside_frame(self) -> bool:
        return self._large is not None or bool(self._rest)

    @property
    def frame_bytes(self) -> int:
        """Size of the large frame being received, or 0."""
        return len(self._large) if self._large is not None else 0

    @property
    def received_bytes(self) -> int:
        """Received bytes of the large frame."""
        return self._filled if self._large is not None else 0

    @property
    def begun_bytes(self) -> int:
        """Received bytes of the large frame that needs a buffer."""
        return len(self._rest or self._view[self._at :]) - _SIZE.size

    @property
    def is_full(self) -> bool:
        """Whether the remaining bytes of the large frame exceed the reserved memory."""
        return self._large is not None and self._filled == self._room_bytes < len(self._large)

    @property
    def is_filling(self) -> bool:
        """Whether there is room for more bytes of a large frame, which is incomplete."""
        return self._large is not None and self._filled < self._room_bytes

    def buffer(self, scratch_used: int = 0) -> memoryview:
        """Return the buffer for the next bytes; others use the first bytes of the scratch buffer."""
        if self._large is not None:
            return self._large[self._filled : self._room_bytes]
        self._start = scratch_used
        return memoryview(self._scratch)[scratch_used + len(self._rest) :]

    def received(self, count: int) -> None:
        """Note that `count` bytes were written to `buffer`."""
        if self._large is not None:
            self._filled += count
            return
        start, rest = self._start, len(self._rest)
        if rest:
            self._scratch[start : start + rest] = self._rest
            self._rest.clear()
        self._view = memoryview(self._scratch)[start : start + rest + count]
        self._at = 0

    def reopen(self) -> None:
        """Continue with the bytes that `park` kept."""
        if self._rest:
            self._view = memoryview(self._rest)
            self._rest = bytearray()
            self._at = 0

    def next_frame(self) -> memoryview | None:
        """Return the next complete frame without its size; writable, and valid until the turn ends."""
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
            found = _FOREIGN.get(size.to_bytes(4, "big", signed=True)[:_FOREIGN_BYTES])
            if found is not None:
                raise ProtocolError(f"the client sends {found} to a plain Kafka listener")
            raise ProtocolError(f"a frame claims {size} bytes; {self._limit_name} {self._max_frame_bytes}")
        start = self._at + _SIZE.size
        if size > left - _SIZE.size:
            if size > LARGE_BYTES:
                self.wanted_bytes = size
            return None
        self._at = start + size
        return self._view[start : self._at]

    def receive_into(self, buffer: mmap.mmap, room_bytes: int) -> None:
        """Receive the large frame into `buffer`, up to `room_bytes` for now."""
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
        """Extend the reservation of the large frame."""
        self._room_bytes += added_bytes

    def park(self) -> int:
        """End the turn: copy the remaining bytes, because the scratch buffer is shared.

        Returns how many bytes its frames occupy.
        """
        frame_bytes = self._at
        if frame_bytes < len(self._view):
            self._rest = bytearray(self._view[frame_bytes:])
        self._view = NO_FRAME
        self._at = 0
        return frame_bytes

    def drop(self) -> None:
        """Drop all received bytes and free their memory."""
        self._rest = bytearray()
        self._view = NO_FRAME
        self._large = None
        self.wanted_bytes = None
