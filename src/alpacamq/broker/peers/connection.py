"""One authenticated connection between two nodes: frames, calls and posts.

A frame is a 4-byte length, then kind, request id and body; the calling side sends CALL, POST and CANCEL, the
other side REPLY and FAILURE in any order. All frames of one turn of the event loop are one write. What
cannot be written yet waits in a queue with a limit, in which posts come first and the oldest are dropped.
"""

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, TypeVar, cast, overload

import msgspec

from alpacamq.model.address import Address
from alpacamq.model.errors import (
    InconsistentClusterId,
    InvalidRequest,
    PeerFailed,
    PeerUnavailable,
    RequestTimedOut,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.logs import get_logger

from . import handshake
from .handshake import ClientHandshake, HandshakeFailed, LocalNode, Peer, Purpose, Refusal
from .values import InvalidValue, Values, error_from_bytes

log = get_logger(__name__)

R = TypeVar("R")


class PeerTls(NamedTuple):
    """TLS with other nodes: returns the context for a new connection.

    `is_optional`: a node that cannot be reached with TLS is reached without it.
    """

    context: Callable[[], ssl.SSLContext]
    is_optional: bool = False


CALL: Final = 1
POST: Final = 2
CANCEL: Final = 3
REPLY: Final = 4
FAILURE: Final = 5

LENGTH_BYTES: Final = 4
_LENGTH = Struct(">I")
_HEAD = Struct(">IBI")  # length of the rest, kind, request id
_CALL_HEAD = Struct(">IBII")  # and the remaining time in ms
KIND_AND_ID = Struct(">BI")
KIND_ID_TIMEOUT = Struct(">BII")
MAX_TIMEOUT_MS: Final = 0xFFFF_FFFF
_MAX_ID: Final = 0xFFFF_FFFF
# Bytes that the transport may hold before frames wait in our own queue, where they can still be withdrawn.
_TRANSPORT_BYTES: Final = 256 << 10
# Larger bodies are not copied to put a header before them.
_COPIED_BYTES: Final = 16 << 10
# Withdrawn calls whose replies are still of interest.
_MAX_WITHDRAWN: Final = 4096
# A machine that vanished without a word is noticed after about this long.
_DEAD_AFTER_MS: Final = 10_000


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection between nodes.

    The serving side allows twice the calls and bytes of the calling side, so that it never has to stop
    reading, and with it the posts, of a node that keeps to its limits.
    """

    max_frame_bytes: int = 64 << 20
    max_calls: int = 16_384  # with the long polls of clients
    max_call_bytes: int = 128 << 20  # unanswered calls, and replies that wait to be sent
    max_post_bytes: int = 16 << 20


DEFAULT_LIMITS: Final = Limits()


class ProtocolViolated(Exception):
    """The other node sent bytes that no version of the protocol sends."""


class FrameSplitter:
    """Splits received bytes into frames; holds at most one incomplete frame."""

    __slots__ = ("_needed", "_rest", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._rest = bytearray()
        self._needed = 0  # length of the incomplete frame with its header, 0 if unknown

    @property
    def is_inside_frame(self) -> bool:
        return bool(self._rest)

    def split(self, data: bytes) -> list[memoryview]:
        """Return the frames that are complete now, without their lengths. Raises ProtocolViolated."""
        view: memoryview
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return []
            view, self._rest = memoryview(self._rest), bytearray()
        else:
            view = memoryview(data)
        frames: list[memoryview] = []
        at, end = 0, len(view)
        self._needed = 0
        while end - at >= LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(view, at)
            if not is_frame_length_allowed(length, self.max_frame_bytes):
                raise ProtocolViolated(f"a frame of {length} bytes; the limit is {self.max_frame_bytes}")
            if end - at < LENGTH_BYTES + length:
                self._needed = LENGTH_BYTES + length
                break
            at += LENGTH_BYTES
            frames.append(view[at : at + length])
            at += length
        if at < end:
            self._rest = bytearray(view[at:])
        return frames


def is_frame_length_allowed(length: int, max_frame_bytes: int) -> bool:
    """Return whether a frame may have this length; checked before any of it is stored."""
    return 0 < length <= max_frame_bytes


def with_length(payload: bytes) -> bytes:
    """Return a payload as a frame."""
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def frames_of(kind: int, request_id: int, body: bytes) -> tuple[bytes, ...]:
    """Return the pieces of a frame; a small one is one piece."""
    head = _HEAD.pack(_HEAD.size - LENGTH_BYTES + len(body), kind, request_id)
    return (head + body,) if len(body) <= _COPIED_BYTES else (head, body)


class FramedConnection(asyncio.Protocol, ABC):
    """What both sides share: splitting, sending once per turn, back-pressure and the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: Peer, max_frame_bytes: int) -> None:
        self._loop = loop
        self._splitter = FrameSplitter(max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._is_writing_paused = False
        self.peer = peer
        self.is_closed = False
        self.close_reason = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_TRANSPORT_BYTES)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        try:
            for frame in self._splitter.split(data):
                self._received(frame)
                if self.is_closed:
                    return
        except ProtocolViolated as error:
            log.warning(
                "peer_violated_protocol", node=self.peer.node_id, peer=self.peer.address, reason=str(error)
            )
            self.close(f"protocol violated: {error}")
        except Exception:
            log.exception("peer_connection_crashed", node=self.peer.node_id, peer=self.peer.address)
            self.close("internal error")

    def eof_received(self) -> bool:
        return False  # close: neither side ends only its own direction

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc else "closed by the other node")

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._schedule_flush()

    def close(self, reason: str) -> None:
        """Close the connection; frames that were not written are dropped."""
        if not self.is_closed:
            if self._transport is not None:
                self._transport.abort()
            self._end(reason)

    def _end(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.close_reason = reason
            self._splitter = FrameSplitter(0)  # free what was received
            self._ended(reason)

    def _schedule_flush(self) -> None:
        if not self._flush_due and not self._is_writing_paused:
            self._flush_due = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_due = False
        if not self.is_closed and not self._is_writing_paused and (frames := self._unsent()):
            assert self._transport is not None
            if len(frames) == 1:
                self._transport.write(frames[0])
            else:
                self._transport.writelines(frames)

    @abstractmethod
    def _received(self, frame: memoryview) -> None:
        """Handle one frame. Raises ProtocolViolated."""

    @abstractmethod
    def _unsent(self) -> list[bytes]:
        """Remove and return the frames to write."""

    @abstractmethod
    def _ended(self, reason: str) -> None:
        """Release everything that waits for this connection."""


# Takes the reply to a call that was withdrawn while the reply was on its way.
Late = Callable[[Any], None] | None


class _Pending:
    """A call without a reply. `frames` are None once they are written."""

    __slots__ = ("frames", "future", "late", "request", "size")

    def __init__(
        self, request: type, future: asyncio.Future[Any], frames: tuple[bytes, ...], size: int, late: Late
    ) -> None:
        self.request = request
        self.future = future
        self.frames: tuple[bytes, ...] | None = frames
        self.size = size
        self.late = late

    @property
    def is_sent(self) -> bool:
        return self.frames is None


class CallConnection(FramedConnection):
    """The calling side."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peer: Peer,
        values: Values,
        limits: Limits,
        on_closed: "Callable[[CallConnection, str], None] | None" = None,
    ) -> None:
        super().__init__(loop, peer, limits.max_frame_bytes)
        self._values = values
        self._limits = limits
        self._on_closed = on_closed
        self._last_id = 0
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        # Calls with a `late` that were withdrawn, the oldest first. Most are cancelled and never answered.
        self._withdrawn: OrderedDict[int, _Pending] = OrderedDict()
        # Calls and cancellations in order; a call that was withdrawn stays as an entry without frames.
        self._queue: deque[_Pending | bytes] = deque()
        self._posts: deque[bytes] = deque()
        self._post_bytes = 0
        self.dropped_posts = 0

    @property
    def calls_in_flight(self) -> int:
        return len(self._pending)

    @property
    def queued_bytes(self) -> int:
        """Bytes of unanswered calls and unsent posts."""
        return self._pending_bytes + self._post_bytes

    @overload
    async def call(self, value: Request[R], timeout_ms: int, late: Late = None) -> R: ...
    @overload
    async def call(self, value: msgspec.Struct, timeout_ms: int, late: Late = None) -> Any: ...
    async def call(self, value: msgspec.Struct, timeout_ms: int, late: Late = None) -> Any:
        """Send a request and return the reply, or raise the error that the handler raised.

        PeerUnavailable: the request was not sent. RequestTimedOut: it may have taken effect. If the caller is
        cancelled or its time is up, the handler is cancelled too; a reply that was on its way goes to `late`.
        """
        timeout_ms = min(max(timeout_ms, 0), MAX_TIMEOUT_MS)
        request_id = self._next_id()
        pending = self._enqueue(value, request_id, timeout_ms, late)
        timer = self._loop.call_later(timeout_ms / 1000, self._time_out, pending, timeout_ms)
        try:
            return await pending.future
        finally:
            timer.cancel()
            if self._pending.pop(request_id, None) is not None:
                self._pending_bytes -= pending.size
                self._withdraw(pending, request_id)

    def post(self, value: msgspec.Struct) -> None:
        """Send a value without a reply. If the other node does not read, the oldest posts are dropped."""
        self._check_cluster(type(value))
        body = self._values.encode(value)
        frame = _HEAD.pack(_HEAD.size - LENGTH_BYTES + len(body), POST, 0) + body
        if self.is_closed or len(frame) - LENGTH_BYTES > self._limits.max_frame_bytes:
            self.dropped_posts += 1
            return
        self._posts.append(frame)
        self._post_bytes += len(frame)
        while self._post_bytes > self._limits.max_post_bytes:
            self._post_bytes -= len(self._posts.popleft())
            self.dropped_posts += 1
        self._schedule_flush()

    def _next_id(self) -> int:
        # Ids wrap around after 2^32 calls, and a long poll may still hold an old one.
        while True:
            self._last_id = (self._last_id + 1) & _MAX_ID
            if self._last_id not in self._pending and self._last_id not in self._withdrawn:
                return self._last_id

    def _enqueue(self, value: msgspec.Struct, request_id: int, timeout_ms: int, late: Late) -> _Pending:
        self._check_cluster(type(value))
        body = self._values.encode(value)
        length = _CALL_HEAD.size - LENGTH_BYTES + len(body)
        if length > self._limits.max_frame_bytes:
            raise InvalidRequest(
                f"a request of {length} bytes between nodes; the limit is {self._limits.max_frame_bytes}"
            )
        if self.is_closed:
            raise PeerUnavailable(f"not connected to node {self.peer.node_id}: {self.close_reason}")
        if not self._has_room(length):
            raise PeerUnavailable(f"too many unanswered requests to node {self.peer.node_id}")
        head = _CALL_HEAD.pack(length, CALL, request_id, timeout_ms)
        frames = (head + body,) if length <= _COPIED_BYTES else (head, body)
        pending = _Pending(type(value), self._loop.create_future(), frames, length, late)
        self._pending[request_id] = pending
        self._pending_bytes += length
        self._queue.append(pending)
        self._schedule_flush()
        return pending

    def _has_room(self, size: int) -> bool:
        """Return whether one more call keeps the limits; a call alone always does."""
        limits = self._limits
        if len(self._queue) >= 2 * limits.max_calls:
            return False  # withdrawn calls and cancellations, to a node that does not read
        return not self._pending or (
            len(self._pending) < limits.max_calls and self._pending_bytes + size <= limits.max_call_bytes
        )

    def _check_cluster(self, kind: type) -> None:
        if not self.peer.cluster_id and not self._values.may_be_sent_without_cluster(kind):
            raise InconsistentClusterId(
                f"{kind.__name__} may not be sent to node {self.peer.node_id}: "
                "one of the nodes does not know its cluster yet"
            )

    def _time_out(self, pending: _Pending, timeout_ms: int) -> None:
        if not pending.future.done():
            name, node = pending.request.__name__, self.peer.node_id
            pending.future.set_exception(
                RequestTimedOut(f"node {node} did not answer {name} within {timeout_ms} ms")
                if pending.is_sent
                else PeerUnavailable(f"{name} could not be sent to node {node} within {timeout_ms} ms")
            )

    def _withdraw(self, pending: _Pending, request_id: int) -> None:
        """Withdraw a call: cancel its handler, or do not send it at all."""
        if not pending.is_sent:
            pending.frames = ()
        elif not self.is_closed:
            self._queue.append(_HEAD.pack(_HEAD.size - LENGTH_BYTES, CANCEL, request_id))
            self._schedule_flush()
            if pending.late is not None:
                self._withdrawn[request_id] = pending
                if len(self._withdrawn) > _MAX_WITHDRAWN:
                    self._withdrawn.popitem(last=False)

    def _received(self, frame: memoryview) -> None:
        if len(frame) < KIND_AND_ID.size:
            raise ProtocolViolated(f"a frame of {len(frame)} bytes")
        kind, request_id = KIND_AND_ID.unpack_from(frame)
        if kind not in (REPLY, FAILURE):
            raise ProtocolViolated(f"a frame of kind {kind}")
        pending = self._pending.pop(request_id, None)
        if pending is None:
            # Given up; its cancellation crossed the reply.
            self._received_late(kind, request_id, frame[KIND_AND_ID.size :])
            return
        self._pending_bytes -= pending.size
        if pending.future.done():
            return
        body = frame[KIND_AND_ID.size :]
        if kind == FAILURE:
            pending.future.set_exception(error_from_bytes(body))
            return
        try:
            pending.future.set_result(self._values.decode_reply(pending.request, body))
        except InvalidValue as error:
            pending.future.set_exception(
                PeerFailed(f"the reply to {pending.request.__name__} cannot be read: {error}")
            )

    def _received_late(self, kind: int, request_id: int, body: memoryview) -> None:
        withdrawn = self._withdrawn.pop(request_id, None)
        if withdrawn is None or withdrawn.late is None or kind != REPLY:
            return
        try:
            withdrawn.late(self._values.decode_reply(withdrawn.request, body))
        except InvalidValue as error:
            log.debug("peer_reply_dropped", node=self.peer.node_id, reason=str(error))

    def _unsent(self) -> list[bytes]:
        frames: list[bytes] = list(self._posts)
        self._posts.clear()
        self._post_bytes = 0
        budget = _TRANSPORT_BYTES
        while self._queue and budget > 0:
            entry = self._queue.popleft()
            if isinstance(entry, bytes):
                frames.append(entry)
            elif entry.frames:
                frames += entry.frames
                budget -= entry.size
                entry.frames = None
        if self._queue:
            # The rest in later turns: it can be withdrawn until then, and posts overtake it.
            self._loop.call_soon(self._schedule_flush)
        return frames

    def _ended(self, reason: str) -> None:
        self._posts.clear()
        self._queue.clear()
        self._withdrawn.clear()
        self._post_bytes = 0
        pending, self._pending = self._pending, {}
        self._pending_bytes = 0
        node = self.peer.node_id
        for call in pending.values():
            if not call.future.done():
                call.future.set_exception(
                    RequestTimedOut(f"the connection to node {node} was lost before it answered: {reason}")
                    if call.is_sent
                    else PeerUnavailable(f"the connection to node {node} was lost: {reason}")
                )
        if self._on_closed is not None:
            self._on_closed(self, reason)


P = TypeVar("P", bound=asyncio.BaseProtocol)


class _Dialling(asyncio.Protocol):
    """The connecting side of a handshake; hands the transport over to the protocol that follows."""

    def __init__(
        self,
        client: ClientHandshake,
        address: str,
        follow: Callable[[Peer], asyncio.BaseProtocol],
        done: asyncio.Future[asyncio.BaseProtocol],
    ) -> None:
        self._client = client
        self._address = address
        self._follow = follow
        self._done = done
        self._splitter = FrameSplitter(handshake.MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        detect_dead_peer(transport)
        self._transport.write(with_length(self._client.opening))

    def data_received(self, data: bytes) -> None:
        if self._done.done():
            return
        try:
            for frame in self._splitter.split(data):
                self._received(bytes(frame))
        except ProtocolViolated as error:
            self._fail(HandshakeFailed(Refusal.MALFORMED, f"{self._address} is no cluster listener: {error}"))
        except HandshakeFailed as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(
                ConnectionResetError(f"closed during the handshake: {exc or 'no reason'}")
            )

    def _received(self, frame: bytes) -> None:
        assert self._transport is not None
        if self._done.done():
            raise HandshakeFailed(Refusal.MALFORMED, "bytes behind the handshake")
        answer = self._client.received(frame, self._address)
        if isinstance(answer, bytes):
            self._transport.write(with_length(answer))
            return
        # At once: between here and the next turn, the connection could end unnoticed.
        protocol = self._follow(answer)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        self._done.set_result(protocol)

    def _fail(self, error: HandshakeFailed) -> None:
        if not self._done.done():
            self._done.set_exception(error)
        if self._transport is not None:
            self._transport.abort()


async def dial(
    address: Address,
    local: LocalNode,
    expected: BrokerId | None,
    purpose: Purpose,
    secret: bytes,
    follow: Callable[[Peer], P],
    timeout_seconds: float = handshake.TIMEOUT_SECONDS,
    tls: PeerTls | None = None,
) -> P:
    """Connect to a node and return the protocol that `follow` creates for it, connected.

    Without `tls` the connection is plain. Raises HandshakeFailed, OSError, or TimeoutError.
    """
    terms = (address, local, expected, purpose, secret, follow, timeout_seconds)
    if tls is None or not tls.is_optional:
        return await _dial(*terms, tls)
    try:
        return await _dial(*terms, tls)
    except (ConnectionRefusedError, TimeoutError):
        raise
    except (HandshakeFailed, OSError) as error:
        protocol = await _dial(*terms, None)
        log.warning("node_connected_without_tls", address=str(address), reason=str(error) or repr(error))
        return protocol


async def _dial(
    address: Address,
    local: LocalNode,
    expected: BrokerId | None,
    purpose: Purpose,
    secret: bytes,
    follow: Callable[[Peer], P],
    timeout_seconds: float,
    tls: PeerTls | None,
) -> P:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[asyncio.BaseProtocol] = loop.create_future()
    client = ClientHandshake(local, expected, purpose, secret)
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            transport = await _connect(
                loop, address, lambda: _Dialling(client, str(address), follow, done), tls
            )
            return cast("P", await done)
    except BaseException:
        if done.done() and not done.cancelled():
            done.exception()  # retrieved
        else:
            done.cancel()
        if transport is not None:
            cast("asyncio.Transport", transport).abort()
        raise


async def _connect(
    loop: asyncio.AbstractEventLoop,
    address: Address,
    protocol: Callable[[], asyncio.Protocol],
    tls: PeerTls | None,
) -> asyncio.BaseTransport:
    """Connect to the first address of a host that accepts. Raises OSError.

    ConnectionRefusedError is raised only if every address refused: the event loops would raise an OSError
    with many texts for a host that has an IPv4 and an IPv6 address.
    """
    errors: list[OSError] = []
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, _, _, _, target in found:
        try:
            transport, _ = await loop.create_connection(
                protocol,
                str(target[0]),
                address.port,
                family=family,
                ssl=None if tls is None else tls.context(),
                server_hostname=None if tls is None else address.host,
            )
            return transport
        except OSError as error:
            errors.append(error)
    for failure in errors:
        if not isinstance(failure, ConnectionRefusedError):
            raise failure
    raise ConnectionRefusedError(f"{address} refused the connection")


async def ask(
    address: Address,
    local: LocalNode,
    secret: bytes,
    values: Values,
    value: msgspec.Struct,
    *,
    expected: BrokerId | None = None,
    timeout_ms: int = 5000,
    tls: PeerTls | None = None,
) -> tuple[Peer, Any]:
    """Make one call to an address, for nodes that are not known yet. Raises like `dial` and `call`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_ms / 1000
    connection = await dial(
        address,
        local,
        expected,
        Purpose.CALLS,
        secret,
        lambda peer: CallConnection(loop, peer, values, DEFAULT_LIMITS),
        timeout_ms / 1000,
        tls,
    )
    try:
        remaining_ms = int((until - loop.time()) * 1000)
        return connection.peer, await connection.call(value, remaining_ms)
    finally:
        connection.close("done")


def detect_dead_peer(transport: asyncio.BaseTransport) -> None:
    """Let the kernel end a connection whose machine has vanished."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)
