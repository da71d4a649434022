"""The send queue of a connection: bytes from memory, and slices of log files.

On a plain connection small slices are read and sent together with the bytes around them, and others go out by
sendfile. The socket is a duplicate of the transport's, because the
event loop's transports have no sendfile. Nothing is written through the transport, so that the order of bytes
is decided here only. With TLS everything goes through the transport, which encrypts it: slices are read in
portions, no more of them than the client takes.
"""

import asyncio
import errno
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable

from alpacamq.broker.readable import Readable

Piece = bytes | bytearray | memoryview | Readable

# sendmsg takes 1024 buffers at most; far fewer already make the cost of the system call negligible.
_GATHERED = 64
# Pieces up to this size are copied, and slices read, to send about as many at once as the second size says:
# that takes less time than system calls of their own.
_SMALL_BYTES = 16 << 10
_JOINED_BYTES = 64 << 10
# Bytes that one connection may send before others get their turn: a few milliseconds of copying.
_TURN_BYTES = 2 << 20
# With TLS: bytes that are read and encrypted at once, those that the transport may hold, and a turn.
_PORTION_BYTES = 256 << 10
_HELD_BYTES = 64 << 10
_TLS_TURN_BYTES = 1 << 20
# Linux's states of a TCP connection that the other side has reset or closed: CLOSE and CLOSE_WAIT.
_LEFT = (7, 8)


def size_of(piece: Piece) -> int:
    return piece.length if isinstance(piece, Readable) else len(piece)


def release(pieces: Iterable[Piece]) -> None:
    """Release the files of slices that will not be sent."""
    for piece in pieces:
        if isinstance(piece, Readable):
            piece.release()


def _ignore_drained() -> None:
    pass


def _ignore_broken(_: OSError) -> None:
    pass


class Outbox(ABC):
    """An ordered queue of bytes and file slices, sent as fast as the client reads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        drained: Callable[[], None],
        broken: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
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
    @abstractmethod
    def is_abandoned(self) -> bool:
        """Whether the client has disconnected, and everything that it has sent was read."""

    @property
    @abstractmethod
    def has_left(self) -> bool:
        """Whether the client has disconnected, even if something that it has sent was not read."""

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
        release(self._queue)
        self._queue.clear()
        # The connection would be part of a reference cycle, which the garbage collector frees late, or never
        # if the connection was open during a long collection (gc.freeze).
        self._drained, self._broken = _ignore_drained, _ignore_broken

    @abstractmethod
    def _send(self) -> None: ...


class SocketOutbox(Outbox):
    """Sends through a duplicate of the socket, with sendfile."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        *,
        drained: Callable[[], None],
        broken: Callable[[OSError], None],
    ) -> None:
        super().__init__(loop, drained=drained, broken=broken)
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)

    @property
    def is_abandoned(self) -> bool:
        return _has_ended(self._socket)

    @property
    def has_left(self) -> bool:
        return _has_left(self._socket)

    def close(self) -> None:
        if self._waiting:
            self._loop.remove_writer(self._socket.fileno())
            self._waiting = False
        super().close()
        self._socket.close()

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self._waiting = False
        self._send()
        if not self._waiting and self._socket.fileno() >= 0:
            self._drained()

    def _send(self) -> None:
        budget = _TURN_BYTES
        queue = self._queue
        try:
            while queue:
                if budget <= 0:
                    raise BlockingIOError
                if len(queue) > 1 or isinstance(queue[0], Readable):
                    self._join_small()
                head = queue[0]
                if isinstance(head, Readable):
                    sent = self._send_slice(head, budget)
                elif len(queue) > 1 or self._sent_of_head or len(head) > budget:
                    sent = self._send_bytes(budget)
                else:
                    sent = self._socket.send(head)
                    self.queued_bytes -= sent
                    if sent == len(head):
                        queue.popleft()
                    else:
                        self._sent_of_head = sent
                self.sent_bytes += sent
                budget -= sent
        except BlockingIOError:
            self._waiting = True
            self._loop.add_writer(self._socket.fileno(), self._writable)
        except OSError as error:
            self._broken(error)

    def _join_small(self) -> None:
        """Make one piece of the small ones at the head, which one system call sends."""
        queue = self._queue
        joined: list[bytes | bytearray | memoryview] = []
        size = 0
        while queue and size_of(piece := queue[0]) <= _SMALL_BYTES and size < _JOINED_BYTES:
            if isinstance(piece, Readable):
                small = _read_slice(piece, 0, piece.length)
                piece.release()
                piece = small
            joined.append(piece)
            size += len(piece)
            queue.popleft()
        if joined:
            queue.appendleft(b"".join(joined))

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
            raise _ends_early(head)
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
            if len(buffers) == _GATHERED or most <= 0:
                break
            if isinstance(piece, Readable):
                flags = socket.MSG_MORE  # the bytes of the slice follow in the same packet
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


def _read_slice(piece: Readable, start: int, size: int) -> bytes:
    """Read a part of a slice. An OSError means that the connection must be closed."""
    try:
        part = piece.handle.read(size, piece.position + start)
    except OSError as error:
        piece.failed(error)
        raise
    if len(part) < size:
        raise _ends_early(piece)
    return part


def _ends_early(piece: Readable) -> OSError:
    """Return the error of a file that was cut: the length of the response is sent already."""
    return OSError(f"{piece.path} ends before byte {piece.position + piece.length}")


def _has_ended(connected: socket.socket) -> bool:
    """Return whether the other side has disconnected and everything that it has sent was read."""
    try:
        return not connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _has_left(connected: socket.socket) -> bool:
    """Return whether the other side has disconnected."""
    if not hasattr(socket, "TCP_INFO"):
        return _has_ended(connected)
    try:
        return connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _LEFT
    except OSError:
        return True


class TransportOutbox(Outbox):
    """Sends through a transport with TLS. Its protocol calls `blocked` and `writable`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        *,
        drained: Callable[[], None],
        broken: Callable[[OSError], None],
    ) -> None:
        super().__init__(loop, drained=drained, broken=broken)
        self._transport = transport
        transport.set_write_buffer_limits(_HELD_BYTES)
        self._is_blocked = False
        self._is_closed = False

    @property
    def is_abandoned(self) -> bool:
        return self._look(_has_ended)

    @property
    def has_left(self) -> bool:
        return self._look(_has_left)

    def _look(self, check: Callable[[socket.socket], bool]) -> bool:
        connected = socket.socket(fileno=self._transport.get_extra_info("socket").fileno())
        try:
            return check(connected)
        finally:
            connected.detach()  # it is the transport's

    def close(self) -> None:
        self._is_closed = True
        super().close()

    def blocked(self) -> None:
        """Note that the transport holds enough bytes."""
        self._is_blocked = self._waiting = True

    def writable(self) -> None:
        """Send more: the client has taken what the transport held."""
        self._is_blocked = False
        self._resume()

    def _resume(self) -> None:
        if self._is_blocked or self._is_closed or not self._waiting:
            return
        self._waiting = False
        self._send()
        if not (self._waiting or self._is_closed):
            self._drained()

    def _send(self) -> None:
        budget = _TLS_TURN_BYTES
        try:
            while self._queue and not self._is_blocked:
                if budget <= 0:
                    self._waiting = True
                    self._loop.call_soon(self._resume)
                    return
                portion = self._next_portion()
                self.queued_bytes -= len(portion)
                self.sent_bytes += len(portion)
                budget -= len(portion)
                self._transport.write(portion)
        except OSError as error:
            self._broken(error)

    def _next_portion(self) -> bytes | bytearray | memoryview:
        """Take bytes from the queue: a part of a slice, or of one or several pieces in memory."""
        head = self._queue[0]
        if isinstance(head, Readable):
            return self._read(head)
        start = self._sent_of_head
        if len(head) - start >= _PORTION_BYTES or len(self._queue) == 1:
            portion = _part(head, start, _PORTION_BYTES)
            self._advance(len(portion))
            return portion
        joined = bytearray()
        while self._queue and not isinstance(head := self._queue[0], Readable):
            if len(joined) >= _PORTION_BYTES:
                break
            part = _part(head, self._sent_of_head, _PORTION_BYTES - len(joined))
            joined += part
            self._advance(len(part))
        return joined

    def _advance(self, taken: int) -> None:
        self._sent_of_head += taken
        head = self._queue[0]
        if self._sent_of_head == size_of(head):
            self._queue.popleft()
            self._sent_of_head = 0
            if isinstance(head, Readable):
                head.release()

    def _read(self, head: Readable) -> bytes:
        size = min(head.length - self._sent_of_head, _PORTION_BYTES)
        portion = _read_slice(head, self._sent_of_head, size)
        self._advance(len(portion))
        return portion
