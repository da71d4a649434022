"""One HTTP/2 connection of a gRPC client, and the calls on it.

h2 keeps the state of the protocol. This module moves bytes between it and the transport, divides the data of
a call into messages, and bounds what a client can make the broker hold: grpclib's server, which would do the
same, has no such bounds.

A call is a task of the listener. Messages that have arrived for it wait until it takes them; until then the
client may send no more than a window. A response waits while the client's window is closed or the socket is
full, and the call with it.
"""

import asyncio
import zlib
from base64 import b64encode
from collections import deque
from contextlib import suppress
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from grpclib.metadata import decode_timeout, encode_grpc_message

from alpacamq.api.http import throttling
from alpacamq.api.http.login import AUTHORIZATION
from alpacamq.api.http.messages import Request
from alpacamq.api.http.server import Draining
from alpacamq.api.listening import ListenerSettings
from alpacamq.broker.access import ANONYMOUS_CALLER, Caller
from alpacamq.broker.tls import HTTP2
from alpacamq.model.address import Address, client_host
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.logs import get_logger

from .call import Call
from .errors import (
    Expired,
    InternalError,
    InvalidField,
    Malformed,
    MessageTooLarge,
    Overloaded,
    ShuttingDown,
    Unimplemented,
    to_status,
)
from .frames import MAX_HEADER_BYTES, FloodError, FrameKind, FrameMeter

if TYPE_CHECKING:
    from .server import Server

log = get_logger(__name__)

MAX_STREAMS = 100
# What a client may send before a call has taken it: of one call, and of all calls of a connection.
STREAM_WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 16 << 20
# Above this, calls wait before they send more.
MAX_UNSENT_BYTES = 256 << 10
# Small responses are written together at the end of a turn.
_WRITE_BYTES = 64 << 10
# A message that is decompressed in one go; larger ones in a thread.
_INLINE_BYTES = 64 << 10
# A message that takes longer than the header timeout has to arrive at this rate.
MIN_BYTES_PER_SECOND = 64 << 10
# A client with open calls that sends nothing gets a ping, and has as long again to answer it.
PING_SECONDS = 20.0
# Methods that clients may call without authentication.
OPEN_METHODS = frozenset({"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"})
UNKNOWN_METHOD = "unknown"

_CONTENT_TYPE = "application/grpc"
_ACCEPT_ENCODING = ("grpc-accept-encoding", "identity,gzip")
_RESPONSE_HEADERS = ((":status", "200"), ("content-type", "application/grpc+proto"), _ACCEPT_ENCODING)
_PREFIX_BYTES = 5
_PING = b"alpacamq"


class _Http2(h2.connection.H2Connection):  # type: ignore[misc]
    """An HTTP/2 server connection. Beyond the limit of streams, a stream is refused, not all of them."""

    @property
    def open_inbound_streams(self) -> int:
        open_streams: int = super().open_inbound_streams
        return min(open_streams, MAX_STREAMS - 1)


_CONFIG = h2.config.H2Configuration(
    client_side=False,
    header_encoding="ascii",
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class Encoding(Enum):
    """How the messages of a client are compressed."""

    IDENTITY = "identity"
    GZIP = "gzip"


class Stream:
    """The messages of one call; an Exchange."""

    __slots__ = (
        "_connection",
        "_has_ended",
        "_has_sent_headers",
        "_held_bytes",
        "_messages",
        "_partial",
        "_unacked",
        "_waiter",
        "_want",
        "_window_waiter",
        "began_at",
        "encoding",
        "failure",
        "id",
        "is_closed",
        "task",
    )

    def __init__(self, connection: "Connection", stream_id: int) -> None:
        self._connection = connection
        self.id = stream_id
        self.task: asyncio.Task[None] | None = None
        self.encoding = Encoding.IDENTITY
        # Complete messages, and whether each is compressed.
        self._messages: deque[tuple[bytes, bool]] = deque()
        # The beginning of a message, and its size with the prefix; 0 if that is not known.
        self._partial = bytearray()
        self._want = 0
        # When it began to arrive.
        self.began_at = 0.0
        # Bytes that the client has sent and that its window does not have back.
        self._unacked = 0
        # Bytes that are counted in the room of all connections.
        self._held_bytes = 0
        self._has_ended = False
        self._has_sent_headers = False
        # Why the call ends, instead of what its handler says.
        self.failure: AlpacaError | None = None
        self.is_closed = False
        self._waiter: asyncio.Future[None] | None = None
        self._window_waiter: asyncio.Future[None] | None = None

    # Receiving.

    @property
    def is_partial(self) -> bool:
        """Whether a message has arrived in part."""
        return bool(self._partial)

    @property
    def partial_bytes(self) -> int:
        return len(self._partial)

    def feed(self, data: bytes, flow_bytes: int, now: float) -> None:
        """Take data of the client."""
        connection = self._connection
        if self.is_closed or self.failure is not None:
            connection.acknowledge(self.id, flow_bytes)
            return
        self._unacked += flow_bytes
        self._held_bytes += len(data)
        connection.room.occupy(len(data))
        try:
            self._divide(data, now)
        except AlpacaError as error:
            self.fail(error)
            return
        if connection.room.is_exhausted:
            self.fail(Overloaded("too many bytes of requests are in progress; try again later"))
            return
        if self._messages:
            self._wake()
        elif self._partial:
            # Nothing else waits: the rest of the message may come.
            self._acknowledge()

    def _divide(self, data: bytes, now: float) -> None:
        """Append complete messages."""
        partial, limit = self._partial, self._connection.max_message_bytes
        if partial:
            partial += data
            if len(partial) < self._want:
                return
            data = bytes(partial)
            partial.clear()
        at, size = 0, len(data)
        self._want = 0
        while size - at >= _PREFIX_BYTES:
            length = int.from_bytes(data[at + 1 : at + _PREFIX_BYTES])
            if length > limit:
                raise MessageTooLarge(
                    f"the message has {length} bytes, and grpc.max_message_bytes is {limit}"
                )
            end = at + _PREFIX_BYTES + length
            if end > size:
                self._want = _PREFIX_BYTES + length
                break
            if data[at] > 1:
                raise Malformed(f"a message begins with {data[at]}, not with 0 or 1")
            self._messages.append((data[at + _PREFIX_BYTES : end], data[at] == 1))
            at = end
        if at < size:
            partial += data[at:]
            self._want = self._want or _PREFIX_BYTES
            self.began_at = now

    def end(self) -> None:
        """Note that the client sends no more."""
        self._has_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> bytes | None:
        while True:
            if self._messages:
                data, is_compressed = self._pop()
                return await self._decompressed(data) if is_compressed else data
            if self._has_ended:
                if self._partial:
                    raise Malformed("the client ended the stream within a message")
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def receive_nowait(self) -> bytes | None:
        # A compressed one may need a thread.
        if not self._messages or self._messages[0][1]:
            return None
        return self._pop()[0]

    def _pop(self) -> tuple[bytes, bool]:
        data, is_compressed = self._messages.popleft()
        size = len(data) + _PREFIX_BYTES
        self._held_bytes -= size
        self._connection.room.give(size)
        if self._messages:
            self._acknowledge(size)
        else:
            self._acknowledge()
        return data, is_compressed

    def _acknowledge(self, size: int | None = None) -> None:
        """Give the client its window back."""
        count = self._unacked if size is None else min(size, self._unacked)
        if count and not self.is_closed:
            self._unacked -= count
            self._connection.acknowledge(self.id, count)

    async def _decompressed(self, data: bytes) -> bytes:
        if self.encoding is Encoding.IDENTITY:
            raise Malformed("a message is compressed, and grpc-encoding does not say how")
        limit = self._connection.max_message_bytes
        unpacking = zlib.decompressobj(wbits=31)
        try:
            found = unpacking.decompress(data, _INLINE_BYTES)
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
        self._messages.clear()
        self._partial.clear()
        self._connection.room.give(self._held_bytes)
        self._held_bytes = 0
        self._acknowledge()

    @property
    def has_ended(self) -> bool:
        """Whether the client sends no more."""
        return self._has_ended


_OK = (("grpc-status", "0"),)


def _trailers(error: AlpacaError, tenant: str | None) -> tuple[tuple[str, str], ...]:
    status = to_status(error, tenant)
    details = b64encode(status.SerializeToString()).rstrip(b"=").decode()
    return (
        ("grpc-status", str(status.code)),
        ("grpc-message", encode_grpc_message(status.message)),
        ("grpc-status-details-bin", details),
    )


class Connection(asyncio.Protocol):
    """The asyncio protocol of one accepted socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: "Server", listener: ListenerSettings) -> None:
        self._loop = loop
        self._server = server
        self._listener = listener.name
        self._authentication = listener.authentication
        self._stats = server.stats
        self.room = server.room
        self.max_message_bytes = server.limits.max_message_bytes
        self._streams: dict[int, Stream] = {}
        self._h2 = _Http2(_CONFIG)
        now = loop.time()
        self._meter = FrameMeter(now)
        # Received bytes that are parsed in later turns.
        self._unparsed = b""
        self._parsed_to = 0
        self._parse_is_due = False
        self._flush_is_due = False
        self._pending_bytes = 0
        self._is_write_paused = False
        self._is_read_paused = False
        self._draining = Draining()
        self._opened_at = self._active_at = self._received_at = now
        # When the frame that is incomplete began to arrive.
        self._frame_began_at = now
        self._pinged_at: float | None = None
        self.has_asked = False
        self.is_closed = False
        self._is_going_away = False

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self._host = client_host(str(host))
        self.peer = str(Address(self._host, port))
        tls = transport.get_extra_info("ssl_object")
        self._has_tls = tls is not None
        self._principal = transport.get_extra_info("principal")
        self._principal_expires_ms = transport.get_extra_info("principal_expires_ms")
        server = self._server
        is_within_quota = server.connection_limit.is_within_quota(self._host, transport)
        is_http2 = tls is None or tls.selected_alpn_protocol() == HTTP2
        if not (is_http2 and is_within_quota and server.connection_limit.has_place(self._loop.time())):
            self.is_closed = True
            self._start(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            log.info(
                "connection_refused",
                peer=self.peer,
                reason="too many connections" if is_http2 else "the client does not offer h2 (ALPN)",
            )
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(MAX_UNSENT_BYTES)
        server.connections.add(self)
        server.connection_limit.opened(self._host)
        if self._stats is not None:
            self._stats.opened += 1
        self._start()

    def _start(self, refusal: Any = None) -> None:
        """Send our settings; with a refusal, the end of the connection as well."""
        state = self._h2
        codes = h2.settings.SettingCodes
        state.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                codes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
                codes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                codes.ENABLE_PUSH: 0,
            },
        )
        state.decoder.max_header_list_size = MAX_HEADER_BYTES
        state.initiate_connection()
        if refusal is not None:
            state.close_connection(refusal)
        else:
            state.increment_flow_control_window(CONNECTION_WINDOW_BYTES - (64 << 10) + 1)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended is logged where it is known
        self._end()
        self._leave()

    def _leave(self) -> None:
        if self in self._server.connections:
            self._server.connections.discard(self)
            self._server.connection_limit.closed(self._host, self)
            if self._stats is not None:
                self._stats.shut += 1

    def eof_received(self) -> bool:
        # A client that has ended its side cannot acknowledge anything, and starts no calls.
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._draining.restart()
        self._wake_senders()

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        if self._stats is not None:
            self._stats.received_bytes += len(data)
        now = self._received_at = self._loop.time()
        self._pinged_at = None
        if self._meter.is_between:
            self._frame_began_at = now
        self._unparsed = self._unparsed[self._parsed_to :] + data if self._unparsed else data
        self._parsed_to = 0
        if not self._parse_is_due:
            self._parse()

    def _parse(self) -> None:
        """Handle the frames of one turn."""
        self._parse_is_due = False
        if self.is_closed:
            return
        now = self._loop.time()
        try:
            self._meter.refill(now)
            begin = self._parsed_to
            end = self._meter.end_of_turn(self._unparsed, begin)
            portion = self._unparsed if end - begin == len(self._unparsed) else self._unparsed[begin:end]
            self._parsed_to = end
            for event in self._h2.receive_data(portion):
                self._handle(event, now)
            if self._parsed_to < len(self._unparsed):
                self._parse_later()
            else:
                self._unparsed = b""
                self._parsed_to = 0
                if self._is_read_paused and not self._transport.is_closing():
                    self._is_read_paused = False
                    self._transport.resume_reading()
            self._flush()
        except FloodError as error:
            self._close_with(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, str(error))
        except h2.exceptions.ProtocolError as error:
            # h2 has added GOAWAY with the reason.
            self._flush()
            self.close(f"HTTP/2: {error or type(error).__name__}")
        except Exception:
            log.exception("connection_crashed", peer=self.peer)
            self._abort("internal error")

    def _parse_later(self) -> None:
        self._parse_is_due = True
        if not self._is_read_paused:
            self._is_read_paused = True
            self._transport.pause_reading()
        self._loop.call_soon(self._parse)

    # Events.

    def _handle(self, event: Any, now: float) -> None:
        if isinstance(event, h2.events.DataReceived):
            stream = self._streams.get(event.stream_id)
            if stream is None:
                self.acknowledge(event.stream_id, event.flow_controlled_length)
            else:
                stream.feed(event.data, event.flow_controlled_length, now)
        elif isinstance(event, h2.events.StreamEnded):
            if (stream := self._streams.get(event.stream_id)) is not None:
                stream.end()
        elif isinstance(event, h2.events.WindowUpdated):
            if event.stream_id == 0:
                self._wake_senders()
            elif (stream := self._streams.get(event.stream_id)) is not None:
                stream.window_opened()
        elif isinstance(event, h2.events.RequestReceived):
            self._begin(event.stream_id, event.headers)
        elif isinstance(event, h2.events.StreamReset):
            if (stream := self._streams.pop(event.stream_id, None)) is not None:
                self._cancel(stream)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self._wake_senders()
        elif isinstance(event, h2.events.ConnectionTerminated):
            # The client goes after its calls; an error ends them.
            if event.error_code:
                self.close(f"the client reports {event.error_code!r}")
            self._is_going_away = True

    def _wake_senders(self) -> None:
        for stream in list(self._streams.values()):
            stream.window_opened()

    def _begin(self, stream_id: int, headers: list[tuple[str, str]]) -> None:
        """Start a call."""
        self.has_asked = True
        server = self._server
        if len(self._streams) >= MAX_STREAMS or server.is_stopping:
            # As a reset by the client: a client that goes on regardless is closed.
            self._meter.spend(FrameKind.RST_STREAM)
            self._reset(stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        stream = self._streams[stream_id] = Stream(self, stream_id)
        stream.task = server.tasks.create_task(self._serve(stream, headers))
        server.started()

    def _reset(self, stream_id: int, code: Any) -> None:
        with suppress(h2.exceptions.ProtocolError):
            self._h2.reset_stream(stream_id, code)

    def _cancel(self, stream: Stream) -> None:
        stream.close()
        stream.cancel(self._loop)

    # Calls.

    async def _serve(self, stream: Stream, headers: list[tuple[str, str]]) -> None:
        """Serve one call; never raises, unless the listener ends."""
        server = self._server
        began_at = monotonic()
        fields: dict[str, str] = {}
        for name, value in headers:
            fields[name] = f"{fields[name]}, {value}" if name in fields else value
        path = fields.get(":path", "")
        kind = path[1:] if path in server.handlers else UNKNOWN_METHOD
        error: AlpacaError | None = None
        tenant: str | None = None
        try:
            if fields.get(":method") != "POST":
                stream.refuse(405)
            elif not fields.get("content-type", "").startswith(_CONTENT_TYPE):
                stream.refuse(415)
            else:
                call = await self._call(stream, path, fields)
                tenant = call.tenant
                await self._run(call, server.handlers[path].func)
        except AlpacaError as raised:
            error = stream.failure or raised
        except asyncio.CancelledError:
            error = stream.failure
            if error is None and not stream.is_closed:
                # Cancelled by the listener, which ends.
                error = ShuttingDown("the broker is shutting down")
        except h2.exceptions.ProtocolError as raised:
            # A response to a stream that was closed meanwhile.
            log.debug("response_not_sent", peer=self.peer, method=kind, reason=str(raised))
        except Exception:
            log.exception("call_failed", peer=self.peer, method=kind)
            error = InternalError("internal error; see the log of the broker")
        if stream.failure is not None:
            error = stream.failure
        self._finish(stream, kind, error, tenant, monotonic() - began_at)

    def _finish(
        self, stream: Stream, kind: str, error: AlpacaError | None, tenant: str | None, seconds: float
    ) -> None:
        was_closed = stream.is_closed
        try:
            stream.finish(error, tenant)
        except h2.exceptions.ProtocolError as raised:
            log.debug("status_not_sent", peer=self.peer, method=kind, reason=str(raised))
        stream.close()
        stream.task = None
        self._streams.pop(stream.id, None)
        self._active_at = self._loop.time()
        self._meter.earn(FrameKind.RST_STREAM)
        self._server.finished(kind, error, was_cancelled=was_closed and error is None, seconds=seconds)

    async def _call(self, stream: Stream, path: str, fields: dict[str, str]) -> "Call[Any, Any]":
        """Return a call whose client is known and may call. Raises why it may not."""
        server = self._server
        if path not in server.handlers:
            raise Unimplemented(f"unknown method {path[:200]!r}")
        encoding = fields.get("grpc-encoding", "identity")
        try:
            stream.encoding = Encoding(encoding)
        except ValueError:
            raise Unimplemented(f"messages compressed with {encoding[:50]!r} are not supported") from None
        deadline = None
        if (timeout := fields.get("grpc-timeout")) is not None:
            try:
                # Eight digits at most, by the protocol: a larger number would overflow.
                deadline = self._loop.time() + decode_timeout(timeout[:9])
            except ValueError:
                raise InvalidField("grpc-timeout", f"{timeout[:20]!r} is not a timeout") from None
        # The console's cookie is for its pages.
        fields.pop("cookie", None)
        request = Request("POST", path, "", fields, b"", self.peer)
        request.connection = self
        request.has_tls = self._has_tls
        request.principal = self._principal
        request.principal_expires_ms = self._principal_expires_ms
        request.authentication = self._authentication
        caller = await self._authenticated(request)
        call: Call[Any, Any] = Call(
            server.backend,
            stream,
            path[1:],
            request,
            caller,
            server.handlers[path].request_type,
            deadline,
            self._listener,
        )
        access = server.access
        if path not in OPEN_METHODS:
            if access.requires_login(self._authentication):
                server.login.check_authenticated(caller)
            if call.tenant is not None:
                access.check_active(caller)
            if server.quotas.is_active:
                throttling.check_connection(server.quotas, request, caller)
                call.check_quota()
        if server.audit is not None:
            user_agent, request_id = fields.get("user-agent", ""), fields.get("x-request-id", "")
            server.audit.enter("grpc", call.method, user_agent, request_id, caller)
        return call

    async def _authenticated(self, request: Request) -> Caller:
        access, login = self._server.access, self._server.login
        if not (
            access.requires_login(request.authentication)
            or access.is_enforced
            or request.principal is not None
            or AUTHORIZATION in request.headers
        ):
            return ANONYMOUS_CALLER
        return login.known(request) or await login.authenticate(request)

    async def _run(self, call: "Call[Any, Any]", method: Any) -> None:
        """Run a method until its deadline."""
        work = method(call)
        limits = self._server.quotas.of_user(call.caller) if self._server.quotas.is_active else None
        if limits is not None and limits.request is not None:
            work = _charged(limits.request, work)
        if call.deadline is None:
            await work
            return
        try:
            async with asyncio.timeout_at(call.deadline) as timeout:
                await work
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Expired("the deadline of the call has passed") from None

    # Output.

    @property
    def is_writable(self) -> bool:
        """Whether a call may send more now."""
        return not self._is_write_paused and self._pending_bytes < MAX_UNSENT_BYTES

    def sendable(self, stream_id: int) -> int:
        """Return how much the client takes of a stream now, in one frame."""
        window: int = self._h2.local_flow_control_window(stream_id)
        frame_bytes: int = self._h2.max_outbound_frame_size
        return min(window, frame_bytes)

    def send_headers(self, stream_id: int, headers: Any) -> None:
        self._h2.send_headers(stream_id, headers)
        self._flush_soon()

    def send_data(self, stream_id: int, data: bytes) -> None:
        """Send data that fits into the window of a stream."""
        self._h2.send_data(stream_id, data)
        self._meter.earn(FrameKind.WINDOW_UPDATE, 2)
        self._meter.earn(FrameKind.PING)
        self._pending_bytes += len(data)
        if self._pending_bytes > _WRITE_BYTES:
            self._flush()
        else:
            self._flush_soon()

    def send_trailers(self, stream: Stream, headers: Any) -> None:
        """End a stream."""
        self._h2.send_headers(stream.id, headers, end_stream=True)
        if not stream.has_ended:
            # Whatever the client still sends is not needed.
            self._reset(stream.id, h2.errors.ErrorCodes.NO_ERROR)
        self._flush_soon()

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Give a client a part of its window back."""
        if size and not self.is_closed:
            with suppress(h2.exceptions.ProtocolError):  # the stream has ended
                self._h2.acknowledge_received_data(size, stream_id)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._pending_bytes = 0
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            if self._stats is not None:
                self._stats.sent_bytes += len(data)
            self._transport.write(data)
        if not self._is_write_paused:
            self._wake_blocked()

    def _wake_blocked(self) -> None:
        """Let calls go on that waited for a write."""
        for stream in list(self._streams.values()):
            stream.window_opened()

    # Limits.

    @property
    def idle_since(self) -> float | None:
        """When its last call ended; None while there is one."""
        return None if self.is_closed or self._streams else self._active_at

    def evict(self) -> None:
        """Close the connection in favour of another client."""
        self._close_with(h2.errors.ErrorCodes.NO_ERROR, "evicted for another client")
        self._leave()

    def check_timeouts(self, now: float) -> None:
        """Close a connection that is idle, dead or too slow, and end calls whose messages are too slow."""
        if self.is_closed:
            return
        limits = self._server.limits
        patience = limits.header_timeout_ms / 1000
        idle_timeout = limits.idle_timeout_ms / 1000
        if self._draining.is_too_slow(self._transport.get_write_buffer_size(), now, idle_timeout):
            self._abort("the client does not read its responses")
        elif not self.has_asked and now - self._opened_at > patience:
            self._close_with(h2.errors.ErrorCodes.NO_ERROR, "no call for header_timeout_ms")
        elif not self._meter.is_between and now - self._frame_began_at > patience + (16 << 10) / (8 << 10):
            self._close_with(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, "a frame did not arrive in time")
        elif not self._streams and now - self._active_at > idle_timeout:
            self._close_with(h2.errors.ErrorCodes.NO_ERROR, "no call for idle_timeout_ms")
        else:
            self._check_streams(now, patience)

    def _check_streams(self, now: float, patience: float) -> None:
        for stream in list(self._streams.values()):
            if stream.is_partial:
                late = now - stream.began_at - patience
                if late > stream.partial_bytes / MIN_BYTES_PER_SECOND:
                    stream.fail(Expired("the message did not arrive in time"))
        if self._streams and now - self._received_at > PING_SECONDS:
            if self._pinged_at is None:
                self._pinged_at = now
                self._h2.ping(_PING)
                self._flush()
            elif now - self._pinged_at > PING_SECONDS:
                self._abort("the client does not answer a ping")

    # The end.

    def go_away(self) -> None:
        """Ask the client to start no more calls here."""
        if not self.is_closed:
            with suppress(h2.exceptions.ProtocolError):
                # GOAWAY of h2 would end its state, and with it the calls.
                frame = b"\0\0\x08\x07\0\0\0\0\0" + (2**31 - 1).to_bytes(4) + b"\0\0\0\0"
                self._flush()
                self._transport.write(frame)

    def fail_all(self, error: AlpacaError) -> None:
        """End all calls with an error."""
        for stream in list(self._streams.values()):
            stream.fail(error)

    @property
    def calls(self) -> list["asyncio.Task[None]"]:
        """The tasks of open calls."""
        return [each.task for each in self._streams.values() if each.task is not None]

    def close(self, reason: str) -> None:
        """Close after sending what is to be sent."""
        if not self.is_closed:
            log.info("connection_closed", peer=self.peer, reason=reason)
            self._end()
            if self._transport.get_write_buffer_size():
                self._loop.call_later(1.0, self._transport.abort)
            self._transport.close()

    def _close_with(self, code: Any, reason: str) -> None:
        if not self.is_closed:
            with suppress(h2.exceptions.ProtocolError):
                self._h2.close_connection(code)
            self._flush()
            self.close(reason)

    def _abort(self, reason: str) -> None:
        if not self.is_closed:
            log.info("connection_closed", peer=self.peer, reason=reason)
        self._end()
        self._transport.abort()

    def _end(self) -> None:
        """Cancel all calls."""
        if self.is_closed:
            return
        self.is_closed = True
        self._unparsed = b""
        self._parsed_to = 0
        for stream in list(self._streams.values()):
            self._cancel(stream)
        self._streams.clear()


async def _charged(limit: Any, work: Any) -> None:
    """Await a method, and count for how long it has used the event loop."""
    _, seconds = await throttling.measured(work)
    limit.charge(seconds)
