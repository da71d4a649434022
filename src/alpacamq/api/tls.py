"""TLS of accepted connections, between the socket's transport and the protocol of an API.

Not the event loop's own TLS: that starts a handshake for every connection at once, closes without an alert
that says why a handshake failed, and does not count what it has buffered for a slow client.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from struct import Struct
from time import monotonic
from typing import Any, Protocol, cast

import msgspec

from alpacamq.broker.tls import Certificates, ClientCertificates, expiry_ms
from alpacamq.model.address import client_host
from alpacamq.security.principals import Principal
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ListenerStats

log = get_logger(__name__)

HANDSHAKE_SECONDS = 10.0
# Connections of all listeners for clients that have not completed their handshake.
MAX_HANDSHAKES = 1000
# Handshakes take half a millisecond of CPU each. A flood of them gets this share of the event loop's time,
# in portions of this length.
HANDSHAKE_SHARE = 0.6
PORTION_SECONDS = 0.005
# The same for other nodes, which connect rarely. Both together leave time for requests.
NODE_HANDSHAKES = 100
NODE_HANDSHAKE_SHARE = 0.2
# Failures are logged one by one up to this many in an interval; then they are only counted.
LOGGED_FAILURES = 10
LOG_SECONDS = 10.0
READ_BYTES = 256 << 10
# The first byte of a TLS connection: a handshake record.
_HANDSHAKE_RECORD = 22
# Small pieces are encrypted together.
_JOINED_BYTES = 16 << 10
# Records that are decrypted in one turn of the event loop. One of 27 bytes can hold a key update, which takes
# 50 µs and brings no data.
MAX_RECORDS = 64
_RECORD_HEADER_BYTES = 5
_record_size = Struct(">3xH").unpack_from
# Of any version, with what encryption adds. TLS refuses larger records, and others than these types.
_MAX_RECORD_BYTES = (16 << 10) + 2048
_RECORD_TYPES = range(20, 25)
# Answers to key updates that wait for a client that does not read.
_MAX_ANSWER_BYTES = 16 << 10


class Handshakes:
    """Bounds the handshakes in progress, and the share of the event loop's time that they take.

    Clients and other nodes have their own, so that a flood of clients does not keep nodes from each other.
    """

    def __init__(self, limit: int = MAX_HANDSHAKES, share: float = HANDSHAKE_SHARE) -> None:
        self._limit = limit
        self._share = share
        # Connections that have sent nothing, the oldest first, and those that have.
        self._silent: dict[TlsConnection, None] = {}
        self._begun: dict[TlsConnection, None] = {}
        # Those that wait for CPU time.
        self._waiting: deque[TlsConnection] = deque()
        self._is_scheduled = False
        # Time spent on handshakes in excess of their share; the time spent on other things reduces it.
        self._debt_seconds = 0.0
        self._counted_at = 0.0
        # What all connections receive into; read at once.
        self.buffer = bytearray(READ_BYTES)
        self._logged = self._unlogged = 0
        self._log_again_at = 0.0

    @property
    def in_progress(self) -> int:
        return len(self._silent) + len(self._begun)

    def opened(self, connection: "TlsConnection") -> None:
        """Add a connection. If there are too many, the oldest makes room, first of those that are silent.

        A client that means it completes its handshake long before it is the oldest.
        """
        if self.in_progress >= self._limit:
            next(iter(self._silent or self._begun)).fail("too many handshakes at the same time")
        self._silent[connection] = None

    def begun(self, connection: "TlsConnection") -> None:
        """Note that a client has sent its first bytes."""
        del self._silent[connection]
        self._begun[connection] = None

    def ended(self, connection: "TlsConnection") -> None:
        """Remove a connection that is established or closed."""
        self._silent.pop(connection, None)
        self._begun.pop(connection, None)

    def run(self, connection: "TlsConnection") -> None:
        """Continue a handshake; later, if handshakes take too much time."""
        if self._waiting or self._is_exhausted():
            connection.wait()
            self._waiting.append(connection)
            self._schedule(connection.loop)
        else:
            self._step(connection)

    def abort(self) -> None:
        """End all handshakes."""
        for connection in [*self._silent, *self._begun]:
            connection.abort()

    def failed(self, listener: str, peer: str, reason: str) -> None:
        """Log a failed handshake, unless there are many."""
        now = monotonic()
        if now >= self._log_again_at:
            if self._unlogged:
                log.warning("more_handshakes_failed", count=self._unlogged)
            self._log_again_at = now + LOG_SECONDS
            self._logged = self._unlogged = 0
        if self._logged < LOGGED_FAILURES:
            self._logged += 1
            log.info("handshake_failed", listener=listener, peer=peer, reason=reason)
        else:
            self._unlogged += 1

    def _is_exhausted(self) -> bool:
        now = monotonic()
        earned = (now - self._counted_at) * self._share / (1 - self._share)
        self._debt_seconds = max(0.0, self._debt_seconds - earned)
        self._counted_at = now
        return self._debt_seconds > PORTION_SECONDS

    def _step(self, connection: "TlsConnection") -> None:
        began_at = monotonic()
        connection.continue_handshake()
        self._counted_at = monotonic()
        self._debt_seconds += self._counted_at - began_at

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_later(PORTION_SECONDS, self._continue, loop)

    def _continue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        while self._waiting and not self._is_exhausted():
            connection = self._waiting.popleft()
            if not connection.is_closing():
                self._step(connection)
                connection.proceed()
        if self._waiting:
            self._schedule(loop)


class AddressQuota(Protocol):
    """Decides about connections before their handshakes, and counts those in progress."""

    def handshake_began(self, host: str) -> bool:
        """Return whether an address may have one more connection, and count it if so."""
        ...

    def handshake_ended(self, host: str) -> None:
        """Stop counting a connection: it is closed, or its protocol counts it from now on."""
        ...


class ListenerTls(msgspec.Struct, frozen=True, kw_only=True):
    """How a listener uses TLS."""

    certificates: Certificates
    handshakes: Handshakes
    client_certificates: ClientCertificates = ClientCertificates.NONE
    # Whether certificates name principals. Those of other nodes do not.
    names_principals: bool = True
    # Whether clients may also connect without TLS. Their protocol must not begin as a TLS record does.
    is_optional: bool = False
    # Offered by ALPN; empty: none is.
    protocol: str = ""


class TlsConnection(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of an accepted socket, and the transport of an API's connection."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        tls: ListenerTls,
        factory: Callable[[], asyncio.BaseProtocol],
        stats: ListenerStats | None,
        quota: AddressQuota | None = None,
    ) -> None:
        """`factory` makes the API's protocol once the handshake is complete."""
        super().__init__()
        self.loop = loop
        self._name = name
        self._tls = tls
        self._handshakes = tls.handshakes
        self._factory = factory
        self._stats = stats
        # None if connections are not limited by address, or while this one is not counted.
        self._quota = quota
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # None until the first bytes arrive.
        self._object: ssl.SSLObject | None = None
        # None until the handshake is complete.
        self._protocol: asyncio.BaseProtocol | None = None
        # Of the client's certificate, and when that expires.
        self._principal: Principal | None = None
        self._expires_ms: int | None = None
        self._is_paused = False
        self._is_write_paused = False
        # Whether its handshake waits for CPU time.
        self._is_waiting = False
        self._is_delivering = False
        # Received bytes that are not passed to TLS yet: records for later turns, or a part of a header.
        self._rest = memoryview(b"")
        self._is_rest_due = False
        # How much is missing of the last record that was passed to TLS, and how much of it was passed.
        self._missing_bytes = 0
        self._partial_bytes = 0
        # Whether the end of our data was sent; what the client sends afterwards is dropped.
        self._has_ended = False
        self._peer = self._host = ""
        # Ends a handshake that takes too long; None before it begins.
        self._timer: asyncio.TimerHandle | None = None
        # Whether the quota of its address has been checked, for its protocol to know.
        self._is_within_quota = quota is not None

    # As the protocol of the socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self._peer = f"{host}:{port}"
        self._host = client_host(str(host))
        if self._quota is not None and not self._quota.handshake_began(self._host):
            self._quota = None
            self.abort()
            return
        self._timer = self.loop.call_later(HANDSHAKE_SECONDS, self._time_out)
        self._handshakes.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        # It keeps its transport, which is this: a reference cycle.
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._flush()
        if self._protocol is not None:
            self._protocol.resume_writing()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        return self._handshakes.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._has_ended or self._inner.is_closing():
            return
        received = memoryview(self._handshakes.buffer)[:nbytes]
        if self._object is None and not self._begin(received):
            return
        self._take(memoryview(bytes(self._rest) + received) if self._rest else received)
        if self._has_records:
            self._inner.pause_reading()
            self._go_on()

    def _take(self, received: memoryview) -> None:
        """Pass records to TLS, as many as one turn may decrypt."""
        end = self._end_of_turn(received)
        self._incoming.write(received[:end])
        # Copied once: the buffer that was received into is used again.
        self._rest = received[end:] if received.readonly else memoryview(bytes(received[end:]))
        if self._protocol is None:
            self._handshakes.run(self)
        else:
            self._deliver()

    def _end_of_turn(self, received: memoryview) -> int:
        """Return how much to decrypt in this turn: a number of records, none without its whole header."""
        at, size = self._missing_bytes, len(received)
        start = -self._partial_bytes
        last = size - _RECORD_HEADER_BYTES
        for _ in range(MAX_RECORDS):
            if at > last:
                break
            start = at
            at += _RECORD_HEADER_BYTES + _record_size(received, at)[0]
        if at <= size:
            self._missing_bytes = self._partial_bytes = 0
            return at
        self._missing_bytes = at - size
        self._partial_bytes = size - start
        if start >= 0 and (
            received[start] not in _RECORD_TYPES or at - start > _RECORD_HEADER_BYTES + _MAX_RECORD_BYTES
        ):
            self._partial_bytes = 0  # for TLS to refuse now
        return size

    def _has_whole_records(self, tls: ssl.SSLObject) -> bool:
        """Return whether there is something to decrypt.

        Decrypting a part of a record raises an error, which takes as long as a small record.
        """
        return self._incoming.pending > self._partial_bytes or tls.pending() > 0

    @property
    def _has_records(self) -> bool:
        """Whether received records wait for a later turn."""
        return len(self._rest) >= _RECORD_HEADER_BYTES

    @property
    def _is_stopped(self) -> bool:
        return self._is_paused or self._is_waiting or self._has_ended or self._inner.is_closing()

    def _go_on(self) -> None:
        """Decrypt what has arrived; if there is nothing, read."""
        if self._is_stopped:
            return
        if not self._has_records:
            self._inner.resume_reading()
        elif not self._is_rest_due:
            self._is_rest_due = True
            self.loop.call_soon(self._take_rest)

    def _take_rest(self) -> None:
        self._is_rest_due = False
        if not self._is_stopped:
            self._guarded(self._take, self._rest)
            self._go_on()

    def eof_received(self) -> bool:
        # A client that closes without a word during its handshake is a port scan or a health check.
        if self._protocol is None:
            if self._object is not None:
                self._count_failure("the client closed the connection")
        elif not self._has_ended:
            self._end_of_client()
        return False

    # Handshake.

    def _begin(self, received: memoryview) -> bool:
        self._handshakes.begun(self)
        if received[0] != _HANDSHAKE_RECORD:
            if self._tls.is_optional:
                self._serve_plain(bytes(received))
            else:
                self.fail("the client does not use TLS")
            return False
        context = self._tls.certificates.server_context(self._tls.client_certificates, self._tls.protocol)
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        return True

    def _serve_plain(self, received: bytes) -> None:
        """Leave the connection to the API's protocol, with what has arrived."""
        self._end_handshake()
        protocol = cast("asyncio.Protocol", self._factory())
        self._inner.set_protocol(protocol)
        protocol.connection_made(self._inner)
        if not self._inner.is_closing():
            protocol.data_received(received)

    def continue_handshake(self) -> None:
        """Continue the handshake with the bytes that have arrived."""
        assert self._object is not None
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except (ssl.SSLError, ValueError) as error:
            self._flush()  # the alert, which says what is wrong
            self.fail(_reason(error))
        else:
            self._flush()
            self._complete(self._object)

    def _end_handshake(self) -> None:
        """Give its place to another connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._handshakes.ended(self)
        if self._quota is not None:
            self._quota.handshake_ended(self._host)
            self._quota = None

    def _complete(self, tls: ssl.SSLObject) -> None:
        self._end_handshake()
        certificate = tls.getpeercert()
        # TLS 1.2 resumes sessions without a ticket too, and does not look at the certificate again.
        if certificate and tls.session_reused and self._tls.certificates.has_expired(certificate):
            self.fail("the client's certificate has expired")
            return
        if certificate and self._tls.names_principals:
            self._principal = self._tls.certificates.principal(certificate)
            if self._principal is None:
                self.fail("no rule of tls.principal_rules gives the client's certificate a name")
                return
            self._expires_ms = expiry_ms(certificate)
        if self._stats is not None:
            self._stats.handshakes += 1
        protocol = self._protocol = self._factory()
        protocol.connection_made(self)
        self._deliver()

    def wait(self) -> None:
        """Read nothing more until `proceed`."""
        self._is_waiting = True
        self._inner.pause_reading()

    def proceed(self) -> None:
        """Read again."""
        self._is_waiting = False
        self._go_on()

    def _time_out(self) -> None:
        self.fail(f"the handshake took longer than {HANDSHAKE_SECONDS:.0f} s")

    def fail(self, reason: str) -> None:
        """Close a connection whose handshake cannot be completed."""
        self._count_failure(reason)
        self._end_handshake()
        self._has_ended = True
        self._inner.close()

    def _count_failure(self, reason: str) -> None:
        if self._stats is not None:
            self._stats.failed_handshakes += 1
        self._handshakes.failed(self._name, self._peer, reason)

    # Reading.

    def _deliver(self) -> None:
        """Pass on decrypted bytes until there are none, or the protocol pauses."""
        if self._is_delivering:
            return  # the protocol has resumed reading while it takes bytes
        self._is_delivering = True
        tls = self._object
        assert tls is not None
        try:
            while not (self._is_paused or self._has_ended or self._inner.is_closing()):
                if not self._has_whole_records(tls):
                    break
                # It may have been replaced meanwhile.
                protocol = self._protocol
                if isinstance(protocol, asyncio.BufferedProtocol):
                    is_more = self._fill_buffer(tls, protocol)
                else:
                    is_more = self._take_all(tls, cast("asyncio.Protocol", protocol))
                if not is_more:
                    break
            if self._outgoing.pending:
                self._answer_key_updates()
        except ssl.SSLError as error:
            log.info("connection_closed", peer=self._peer, reason=f"TLS: {_reason(error)}")
            self._flush()
            self.abort()
        finally:
            self._is_delivering = False

    def _answer_key_updates(self) -> None:
        if not self._is_write_paused:
            self._flush()
        elif self._outgoing.pending > _MAX_ANSWER_BYTES:
            log.info("connection_closed", peer=self._peer, reason="TLS: key updates without end")
            self.abort()

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step of the connection; an error closes it, as it does when the transport calls the step."""
        try:
            step(*arguments)
        except Exception:
            log.exception("connection_crashed", peer=self._peer)
            self.abort()

    def _fill_buffer(self, tls: ssl.SSLObject, protocol: asyncio.BufferedProtocol) -> bool:
        """Fill the protocol's buffer; return whether there may be more."""
        buffer = memoryview(protocol.get_buffer(-1))
        filled = 0
        is_end = False
        incoming, partial_bytes, room = self._incoming, self._partial_bytes, len(buffer)
        read = cast("Callable[[int, memoryview], int]", tls.read)
        try:
            # As `_has_whole_records`.
            while filled < room and (incoming.pending > partial_bytes or tls.pending()):
                count = read(room, buffer[filled:])  # no more than the buffer has room for
                if not count:
                    is_end = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            pass
        if filled:
            protocol.buffer_updated(filled)
        if is_end:
            self._end_of_client()
        return filled > 0 and not is_end

    def _take_all(self, tls: ssl.SSLObject, protocol: asyncio.Protocol) -> bool:
        """Pass on everything that has arrived; return whether there may be more."""
        chunks: list[bytes] = []
        is_end = False
        try:
            while self._has_whole_records(tls):
                if not (chunk := tls.read(READ_BYTES)):
                    is_end = True
                    break
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            pass
        if chunks:
            protocol.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if is_end:
            self._end_of_client()
        return False

    def _end_of_client(self) -> None:
        """Handle the end of the client's data: as with a plain connection, the API closes then."""
        protocol = cast("asyncio.Protocol", self._protocol)
        protocol.eof_received()
        self.close()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._go_on()
        if self._object is not None and self._has_whole_records(self._object):
            self.loop.call_soon(self._deliver_rest)

    def _deliver_rest(self) -> None:
        if not self._inner.is_closing():
            self._guarded(self._deliver)

    def is_reading(self) -> bool:
        return not self._is_paused

    # Writing.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not (self._has_ended or self._inner.is_closing()):
            self._encrypt(data)
            self._flush()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._has_ended or self._inner.is_closing():
            return
        joined = bytearray()
        for data in list_of_data:
            if len(data) < _JOINED_BYTES:
                joined += data
                continue
            if joined:
                self._encrypt(joined)
                joined = bytearray()
            self._encrypt(data)
        if joined:
            self._encrypt(joined)
        self._flush()

    def _encrypt(self, data: bytes | bytearray | memoryview) -> None:
        if not data:
            return
        assert self._object is not None
        try:
            # One record at a time, of 16 KiB at most.
            written = self._object.write(data)
            if written < len(data):
                view = memoryview(data)
                while written < len(data):
                    written += self._object.write(view[written:])
        except ssl.SSLError as error:
            log.info("connection_closed", peer=self._peer, reason=f"TLS: {_reason(error)}")
            self.abort()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._inner.is_closing():
            self._inner.write(self._outgoing.read())

    def write_eof(self) -> None:
        if not self._has_ended:
            self._send_close_notify()
            if self._inner.can_write_eof():
                self._inner.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def _send_close_notify(self) -> None:
        """Send a close_notify alert, and drop what the client sends from now on."""
        self._has_ended = True
        if self._object is not None and self._protocol is not None and not self._inner.is_closing():
            with suppress(ssl.SSLError):  # the client has not sent its own yet
                self._object.unwrap()
            self._flush()

    def close(self) -> None:
        if not self._has_ended:
            self._send_close_notify()
        self._inner.close()

    def abort(self) -> None:
        self._has_ended = True
        self._inner.abort()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    # Passed on.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "principal":
            return self._principal
        if name == "principal_expires_ms":
            return self._expires_ms
        if name == "ssl_object":
            return self._object
        if name == "is_within_quota":
            return self._is_within_quota
        return self._inner.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size()

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol


def _reason(error: Exception) -> str:
    """Return why a handshake failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error) or type(error).__name__
