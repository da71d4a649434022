"""The send queue of a connection: bytes from memory, and slices of log files by sendfile.

The socket is a duplicate of the transport's, because the event loop's transports have no sendfile.
Nothing is written through the transport, so that the order of bytes is decided here only.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable

from alpacamq.broker.readable import Readable

Piece = bytes | bytearray | memoryview | Readable

# sendmsg takes 1024 buffers at most; far fewer already make the cost of the system call negligible.
_GATHERED = 64
# Bytes that one connection may send before others get their turn: a few milliseconds of copying.
_TURN_BYTES = 2 << 20


def size_of(piece: Piece) -> int:
    return piece.length if isinstance(piece, Readable) else len(piece)


def release(pieces: Iterable[Piece]) -> None:
    """Release the files of slices that will not be sent."""
    for piece in pieces:
        if isinstance(piece, Readable):
            piece.release()


class Outbox:
    """An ordered queue of bytes and file slices, sent as fast as the client reads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        *,
        drained: Callable[[], None],
        broken: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._queue: deque[Piece] = deque()
        self._sent_of_head = 0
        self._waiting = False
        self._drained = drained
        self._broken = broken
        self.queued_bytes = 0
        self.sent_bytes = 0

    @property
    def is_blocked(self) -> bool:
        """Whether the client has stopped reading."""
        return self._waiting

    @property
    def is_abandoned(self) -> bool:
        """Whether the client has disconnected, as far as can be detected without reading."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def queued_pieces(self) -> int:
        return len(self._queue)

    def put(self, pieces: Iterable[Piece]) -> None:
        """Append to the queue; slices are released once sent."""
        for piece in pieces:
            self._queue.append(piece)
            self.queued_bytes += size_of(piece)

    def flush(self) -> None:
        """Send as much as the socket accepts, and the rest when it is writable."""
        if not self._waiting:
            self._send()

    def close(self) -> None:
        """Drop unsent data and release the files and the socket."""
        if self._waiting:
            self._loop.remove_writer(self._socket.fileno())
            self._waiting = False
        release(self._queue)
        self._queue.clear()
        self._socket.close()

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self._waiting = False
        self._send()
        if not self._waiting and self._socket.fileno() >= 0:
            self._drained()

    def _send(self) -> None:
        budget = _TURN_BYTES
        try:
            while self._queue:
                if budget <= 0:
                    raise BlockingIOError
                head = self._queue[0]
                sent = (
                    self._send_slice(head, budget) if isinstance(head, Readable) else self._send_bytes(budget)
                )
                self.sent_bytes += sent
                budget -= sent
        except BlockingIOError:
            self._waiting = True
            self._loop.add_writer(self._socket.fileno(), self._writable)
        except OSError as error:
            self._broken(error)

    def _send_slice(self, head: Readable, most: int) -> int:
        try:
            sent = os.sendfile(
                self._socket.fileno(),
                head.handle.descriptor,
                head.position + self._sent_of_head,
                min(head.length - self._sent_of_head, most),
            )
        except OSError as error:
            if error.errno == errno.EIO:  # of the file: sockets have other errors
                head.failed(error)
            raise
        if sent == 0:
            # The length of the response is sent already: the connection must be closed.
            raise OSError(f"{head.path} ends before byte {head.position + head.length}")
        self._sent_of_head += sent
        self.queued_bytes -= sent
        if self._sent_of_head == head.length:
            self._queue.popleft()
            self._sent_of_head = 0
            head.release()
        return sent

    def _send_bytes(self, most: int) -> int:
        queue = self._queue
        if len(queue) == 1:
            head = queue[0]
            assert not isinstance(head, Readable)
            sent = self._socket.send(_part(head, self._sent_of_head, most))
        else:
            sent = self._send_gathered(most)
        self.queued_bytes -= sent
        self._advance(sent)
        return sent

    def _send_gathered(self, most: int) -> int:
        buffers: list[bytes | bytearray | memoryview] = []
        flags = 0
        start = self._sent_of_head
        for piece in self._queue:
            if isinstance(piece, Readable):
                flags = socket.MSG_MORE  # the bytes of the slice follow in the same packet
                break
            if len(buffers) == _GATHERED or most <= 0:
                break
            buffers.append(_part(piece, start, most))
            most -= len(buffers[-1])
            start = 0
        return self._socket.sendmsg(buffers, (), flags)

    def _advance(self, sent: int) -> None:
        self._sent_of_head += sent
        while self._queue:
            head = self._queue[0]
            if isinstance(head, Readable) or self._sent_of_head < len(head):
                return
            self._sent_of_head -= len(head)
            self._queue.popleft()


def _part(piece: bytes | bytearray | memoryview, start: int, most: int) -> bytes | bytearray | memoryview:
    """Return up to `limit` bytes of a piece from `start` on, without a copy."""
    return piece if not start and len(piece) <= most else memoryview(piece)[start : start + most]
