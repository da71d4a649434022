"""The messages of one call: parts of an HTTP/2 stream, received and sent within bounds.

Messages that have arrived wait until the call takes them; until then the client may send no more than a
window. A response waits while the client's window is closed or the socket is full, and the call with it.
"""

import asyncio
import zlib
from base64 import b64encode
from enum import Enum
from typing import Any, Protocol

from grpclib.metadata import encode_grpc_message

from alpacamq.api.http.reader import Room
from alpacamq.model.errors import AlpacaError

from .errors import Malformed, MessageTooLarge, Overloaded, to_status

# Messages that a call takes before others have their turn.
TURN_MESSAGES = 64
# A message that is decompressed in one go; larger ones in a thread.
INLINE_BYTES = 64 << 10

_ACCEPT_ENCODING = ("grpc-accept-encoding", "identity,gzip")
_RESPONSE_HEADERS = ((":status", "200"), ("content-type", "application/grpc+proto"), _ACCEPT_ENCODING)
_OK = (("grpc-status", "0"),)
_PREFIX_BYTES = 5
# What was taken is removed when it is more than this.
_KEPT_BYTES = 64 << 10


class Http2(Protocol):
    """The connection of a stream."""

    @property
    def room(self) -> Room:
        """Memory that all connections share."""
        ...

    @property
    def max_message_bytes(self) -> int: ...

    @property
    def is_writable(self) -> bool:
        """Whether a call may send more now."""
        ...

    def sendable(self, stream_id: int) -> int:
        """Return how much the client takes of a stream now, in one frame."""
        ...

    def send_headers(self, stream_id: int, headers: Any) -> None: ...

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send data that fits into the window of a stream."""
        ...

    def send_trailers(self, stream: "Stream", headers: Any) -> None:
        """End a stream."""
        ...

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Give a client a part of its window back."""
        ...


class Encoding(Enum):
    """How the messages of a client are compressed."""

    IDENTITY = "identity"
    GZIP = "gzip"


class Stream:
    """The messages of one call; an Exchange."""

    __slots__ = (
        "_connection",
        "_has_ended",
        "_has_message",
        "_has_sent_headers",
        "_message_end",
        "_received",
        "_taken",
        "_taken_in_turn",
        "_unacked",
        "_waiter",
        "_window_waiter",
        "began_at",
        "encoding",
        "failure",
        "id",
        "is_closed",
        "task",
    )

    def __init__(self, connection: Http2, stream_id: int) -> None:
        self._connection = connection
        self.id = stream_id
        self.task: asyncio.Task[None] | None = None
        self.encoding = Encoding.IDENTITY
        # What has arrived, how much of it was taken, and where the next message ends.
        self._received = bytearray()
        self._taken = 0
        self._message_end = 0
        self._has_message = False
        # Messages that were taken since the event loop last had its turn.
        self._taken_in_turn = 0
        # When the message that is incomplete began to arrive.
        self.began_at = 0.0
        # Bytes that the client has sent and that its window does not have back.
        self._unacked = 0
        self._has_ended = False
        self._has_sent_headers = False
        # Why the call ends, instead of what its handler says.
        self.failure: AlpacaError | None = None
        self.is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._window_waiter: asyncio.Future[None] | None = None

    # Receiving.

    @property
    def partial_bytes(self) -> int:
        """How much has arrived of a message that is incomplete."""
        return 0 if self._has_message else len(self._received) - self._taken

    def feed(self, data: bytes, flow_bytes: int, now: float) -> None:
        """Take data of the client."""
        connection = self._connection
        if self.is_closed or self.failure is not None:
            connection.acknowledge(self.id, flow_bytes)
            return
        self._unacked += flow_bytes
        connection.room.occupy(len(data))
        if not self.partial_bytes:
            self.began_at = now
        self._received += data
        if connection.room.is_exhausted:
            self.fail(Overloaded("too many bytes of requests are in progress; try again later"))
            return
        if not self._has_message:
            self._look()

    def _look(self) -> None:
        """Find out whether the next message is complete. It is not taken apart before: it may be many."""
        at, size = self._taken, len(self._received)
        self._has_message = False
        if size - at >= _PREFIX_BYTES:
            length = int.from_bytes(self._received[at + 1 : at + _PREFIX_BYTES])
            limit = self._connection.max_message_bytes
            if length > limit:
                text = f"the message has {length} bytes, and grpc.max_message_bytes is {limit}"
                self.fail(MessageTooLarge(text))
                return
            self._message_end = at + _PREFIX_BYTES + length
            self._has_message = size >= self._message_end
        if self._has_message:
            self._wake()
        else:
            # The rest of the message may come.
            self._acknowledge(self._unacked)

    def end(self) -> None:
        """Note that the client sends no more."""
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> bytes | None:
        while True:
            if self._has_message:
                if self._taken_in_turn >= TURN_MESSAGES:
                    self._taken_in_turn = 0
                    await asyncio.sleep(0)
                    continue
                is_compressed = self._is_compressed
                data = self._take()
                return await self._decompressed(data) if is_compressed else data
            if self._has_ended:
                if self.partial_bytes:
                    raise Malformed("the client ended the stream within a message")
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            self._taken_in_turn = 0
            try:
                await self._waiter
            finally:
                self._waiter = None

    def receive_nowait(self) -> bytes | None:
        # A compressed one may need a thread.
        if not self._has_message or self._taken_in_turn >= TURN_MESSAGES or self._is_compressed:
            return None
        return self._take()

    @property
    def _is_compressed(self) -> bool:
        flag = self._received[self._taken]
        if flag > 1:
            raise Malformed(f"a message begins with {flag}, not with 0 or 1")
        return flag == 1

    def _take(self) -> bytes:
        """Remove and return the next message."""
        self._taken_in_turn += 1
        begin, end = self._taken, self._message_end
        data = bytes(memoryview(self._received)[begin + _PREFIX_BYTES : end])
        self._taken = end
        if end == len(self._received):
            self._received.clear()
            self._taken = 0
        elif end > _KEPT_BYTES:
            del self._received[:end]
            self._taken = 0
        self._connection.room.give(end - begin)
        self._acknowledge(min(end - begin, self._unacked))
        self._look()
        return data

    def _acknowledge(self, size: int) -> None:
        """Give the client a part of its window back."""
        if size and not self.is_closed:
            self._unacked -= size
            self._connection.acknowledge(self.id, size)

    async def _decompressed(self, data: bytes) -> bytes:
        if self.encoding is Encoding.IDENTITY:
            raise Malformed("a message is compressed, and grpc-encoding does not say how")
        limit = self._connection.max_message_bytes
        unpacking = zlib.decompressobj(wbits=31)
        try:
            found = unpacking.decompress(data, INLINE_BYTES)
            if unpacking.unconsumed_tail:
                loop = asyncio.get_running_loop()
                rest = limit + 1 - len(found)
                found += await loop.run_in_executor(
                    None, unpacking.decompress, unpacking.unconsumed_tail, rest
                )
        except zlib.error as error:
            raise Malformed(f"the message is not gzip: {error}") from None
        if len(found) > limit:
            raise MessageTooLarge(
                f"the message has more than {limit} bytes decompressed, which is grpc.max_message_bytes"
            )
        if not unpacking.eof:
            raise Malformed("the compressed message is incomplete")
        return found

    # Sending.

    async def send(self, message: bytes) -> None:
        connection = self._connection
        if not self._has_sent_headers:
            self._has_sent_headers = True
            connection.send_headers(self.id, _RESPONSE_HEADERS)
        data = b"\0" + len(message).to_bytes(4) + message
        size = len(data)
        if connection.is_writable and size <= connection.sendable(self.id):
            connection.send_data(self.id, data)
            return
        connection.room.occupy(size)
        try:
            view, at = memoryview(data), 0
            while at < size:
                room = connection.sendable(self.id) if connection.is_writable else 0
                if room <= 0:
                    await self._wait_for_window()
                    continue
                connection.send_data(self.id, bytes(view[at : at + room]))
                at += room
        finally:
            connection.room.give(size)

    async def _wait_for_window(self) -> None:
        self._window_waiter = asyncio.get_running_loop().create_future()
        try:
            await self._window_waiter
        finally:
            self._window_waiter = None

    def window_opened(self) -> None:
        """Continue to send, if possible."""
        if self._window_waiter is not None and not self._window_waiter.done():
            self._window_waiter.set_result(None)

    # The end.

    def fail(self, error: AlpacaError) -> None:
        """End the call with an error, whatever its handler does."""
        if self.failure is None and not self.is_closed:
            self.failure = error
            self._drop()
            self.cancel(asyncio.get_running_loop())

    def cancel(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the call."""
        if self.task is not None:
            # Not immediately: a task that never started would not end properly.
            loop.call_soon(self.task.cancel)

    def finish(self, error: AlpacaError | None, tenant: str | None = None) -> None:
        """Send the status of the call."""
        if self.is_closed:
            return
        trailers = _OK if error is None else _trailers(error, tenant)
        if not self._has_sent_headers:
            trailers = (*_RESPONSE_HEADERS, *trailers)
        self._connection.send_trailers(self, trailers)

    def refuse(self, http_status: int) -> None:
        """Answer a request that is not one of gRPC."""
        if not self.is_closed:
            self._connection.send_trailers(self, ((":status", str(http_status)),))

    def close(self) -> None:
        """Forget the messages; nothing more is sent or received."""
        if not self.is_closed:
            self._drop()
            self.is_closed = True

    def _drop(self) -> None:
        self._connection.room.give(len(self._received) - self._taken)
        self._received.clear()
        self._taken = 0
        self._has_message = False
        self._acknowledge(self._unacked)

    @property
    def has_ended(self) -> bool:
        """Whether the client sends no more."""
        return self._has_ended


def _trailers(error: AlpacaError, tenant: str | None) -> tuple[tuple[str, str], ...]:
    status = to_status(error, tenant)
    details = b64encode(status.SerializeToString()).rstrip(b"=").decode()
    return (
        ("grpc-status", str(status.code)),
        ("grpc-message", encode_grpc_message(status.message)),
        ("grpc-status-details-bin", details),
    )
