"""What one client has sent and nobody has started on: bytes, then requests."""

from collections import deque

from .limits import MAX_UNREAD_BYTES, MAX_UNREAD_PORTIONS, PORTION_BYTES
from .messages import Refused
from .reader import Arrival, RequestReader


class Backlog:
    """The requests of one connection in the order they came, parsed no further ahead than it takes."""

    def __init__(self, reader: RequestReader) -> None:
        self.reader = reader
        self._unread: deque[bytes | memoryview] = deque()
        self._unread_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not (self.reader.arrivals or self._unread)

    @property
    def is_full(self) -> bool:
        """Whether the client should not be read from."""
        return self._unread_bytes > MAX_UNREAD_BYTES or len(self._unread) > MAX_UNREAD_PORTIONS

    def put(self, data: bytes) -> None:
        """Take what was received."""
        if self.reader.has_ended:
            return
        size = len(data)
        self._unread_bytes += size
        if size <= PORTION_BYTES:
            self._unread.append(data)
        else:
            view = memoryview(data)
            self._unread.extend(view[at : at + PORTION_BYTES] for at in range(0, size, PORTION_BYTES))

    def next(self, now: float) -> Arrival | None:
        """The next request, if it is here whole."""
        arrivals, unread = self.reader.arrivals, self._unread
        while unread and not arrivals:
            data = unread.popleft()
            self._unread_bytes -= len(data)
            self.reader.feed(data, now)
        return arrivals.popleft() if arrivals else None

    def refuse(self, refusal: Refused) -> None:
        """Wait no longer for the rest of a request."""
        self.reader.end(refusal)

    def abandon(self) -> None:
        """Drop everything."""
        self._unread.clear()
        self._unread_bytes = 0
        self.reader.abandon()
