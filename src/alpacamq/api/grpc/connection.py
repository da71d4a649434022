"""One HTTP/2 connection of a gRPC client, and the calls on it.

h2 keeps the state of the protocol. This module moves bytes between it and the transport, starts a task of the
listener for each call, and bounds what a client can make the broker do: grpclib's server, which would do the
rest, has no such bounds.
"""

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Any, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from alpacamq.api.http.server import Draining
from alpacamq.api.listening import ListenerSettings
from alpacamq.broker.tls import HTTP2
from alpacamq.model.address import Address, client_host
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.logs import get_logger

from .dispatch import ClientConnection, serve_call
from .errors import Expired
from .frames import MAX_HEADER_BYTES, FloodError, FrameKind, FrameLengthError, FrameMeter
from .server import Server
from .stream import Stream

log = get_logger(__name__)

MAX_STREAMS = 100
# What a client may send before a call has taken it: of one call, and of all calls of a connection.
STREAM_WINDOW_BYTES = 1 << 20
CONNECTION_WINDOW_BYTES = 16 << 20
# Above this, calls wait before they send more.
MAX_UNSENT_BYTES = 256 << 10
# Small responses are written together at the end of a turn.
_WRITE_BYTES = 64 << 10
# How long, and for how many bytes, a connection that is over waits until its client has closed it.
LINGER_SECONDS = 1.0
MAX_DROPPED_BYTES = 1 << 20
# A message that takes longer than the header timeout has to arrive at this rate.
MIN_BYTES_PER_SECOND = 64 << 10
# A client with open calls that sends nothing gets a ping, and has as long again to answer it.
PING_SECONDS = 20.0

_PING = b"alpacamq"


class _Http2(h2.connection.H2Connection):  # type: ignore[misc]
    """An HTTP/2 server connection. Beyond the limit of streams, a stream is refused, not all of them."""

    @property
    def open_inbound_streams(self) -> int:
        open_streams: int = super().open_inbound_streams
        return min(open_streams, MAX_STREAMS - 1)


_CONFIG = h2.config.H2Configuration(
    client_side=False,
    header_encoding="latin-1",
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class Connection(asyncio.Protocol):
    """The asyncio protocol of one accepted socket."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, listener: ListenerSettings) -> None:
        self._loop = loop
        self._server = server
        self._listener = listener
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
        # Whether the client has sent its settings.
        self._has_begun = False
        self.is_closed = False
        # What the client has sent since.
        self._dropped_bytes = 0
        self._is_going_away = False

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self._host = client_host(str(host))
        self.peer = str(Address(self._host, port))
        tls = transport.get_extra_info("ssl_object")
        self._client = ClientConnection(
            connection=self,
            peer=self.peer,
            listener=self._listener.name,
            authentication=self._listener.authentication,
            has_tls=tls is not None,
            principal=transport.get_extra_info("principal"),
            principal_expires_ms=transport.get_extra_info("principal_expires_ms"),
        )
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
            self._dropped_bytes += len(data)
            if self._dropped_bytes > MAX_DROPPED_BYTES:
                self._transport.abort()
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
        except FrameLengthError as error:
            # h2 would call it a PROTOCOL_ERROR.
            self._close_with(h2.errors.ErrorCodes.FRAME_SIZE_ERROR, str(error))
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
            self._has_begun = True
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
        """Serve one call and send its status."""
        began_at = monotonic()
        served = await serve_call(self._server, self._client, stream, headers)
        was_cancelled = stream.is_closed and served.error is None
        try:
            stream.finish(served.error, served.tenant)
        except h2.exceptions.ProtocolError as error:
            log.debug("status_not_sent", peer=self.peer, method=served.method, reason=str(error))
        except Exception:  # a bug costs one call, not the listener
            log.exception("status_not_sent", peer=self.peer, method=served.method)
            self._reset(stream.id, h2.errors.ErrorCodes.INTERNAL_ERROR)
        stream.close()
        stream.task = None
        self._streams.pop(stream.id, None)
        self._active_at = self._loop.time()
        self._meter.earn(FrameKind.RST_STREAM)
        self._server.finished(
            served.method, served.error, was_cancelled=was_cancelled, seconds=monotonic() - began_at
        )

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
        elif not self._has_begun and now - self._opened_at > patience:
            self._close_with(h2.errors.ErrorCodes.NO_ERROR, "HTTP/2 has not begun in header_timeout_ms")
        elif not self._meter.is_between and now - self._frame_began_at > patience + (16 << 10) / (8 << 10):
            self._close_with(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, "a frame did not arrive in time")
        elif not self._streams and now - self._active_at > idle_timeout:
            self._close_with(h2.errors.ErrorCodes.NO_ERROR, "no call for idle_timeout_ms")
        else:
            self._check_streams(now, patience)

    def _check_streams(self, now: float, patience: float) -> None:
        for stream in list(self._streams.values()):
            if partial_bytes := stream.partial_bytes:
                late = now - stream.began_at - patience
                if late > partial_bytes / MIN_BYTES_PER_SECOND:
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
            self._linger()

    def _linger(self) -> None:
        """Close with the client, or soon. Closing while it still sends would reset the connection.

        Then it might not see why.
        """
        if not self._transport.is_closing():
            with suppress(OSError):  # the client has gone
                self._transport.write_eof()
            if self._is_read_paused:
                self._is_read_paused = False
                self._transport.resume_reading()
            self._loop.call_later(LINGER_SECONDS, self._transport.abort)

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
