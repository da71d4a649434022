"""One connection to one broker: pipelined requests, versions, login and deadlines.

Responses arrive in the order of the requests. After an error, or a request without an answer in time, the
connection is closed: everything in flight on it ends with Unreachable, and its outcome is unknown.
"""

import asyncio
import inspect
import ssl
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar, cast

from alpacamq.client.connect import Tls
from alpacamq.client.errors import Closed, Unreachable, Untrusted, check
from alpacamq.client.framing import (
    API_OF,
    API_VERSIONS_VERSION,
    CLIENT_ID,
    SIZE_BYTES,
    Versions,
    common_version,
    read_versions,
    request_frame,
    response_body,
    response_size,
)
from alpacamq.client.login import BearerToken, Credentials, login_messages, token_messages
from alpacamq.model.address import Address
from alpacamq.model.version import VERSION
from alpacamq.protocol.apis import APIS, Api, ApiKey
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.cluster import ApiVersionsRequest
from alpacamq.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import decode, encode

R = TypeVar("R", bound=Message)

# From the name lookup to the end of the login.
CONNECT_S = 10.0
# For sending what was written when a connection is closed.
CLOSE_S = 10.0
MAX_IN_FLIGHT = 100
_SCRATCH_BYTES = 64 << 10
# Share of a session after which another connection takes its place.
_RENEWED_AFTER = 0.8


@dataclass(slots=True, eq=False)
class _Pending(Generic[R]):
    """A request whose response has not arrived."""

    api: Api
    version: int
    correlation_id: int
    answer: type[R] | None
    response: "asyncio.Future[R | memoryview]"
    timer: asyncio.TimerHandle | None = None


class Connection(asyncio.BufferedProtocol):
    """A connection with negotiated versions; made by `connect`."""

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._spoken: Versions = {}
        self._correlation_id = 0
        self._pending: deque[_Pending[Any]] = deque()
        self._failure: Exception | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        # A new connection is needed after it: the session of the login ends soon.
        self._expires_at = inf
        self._is_writable = True
        # Whether requests were sent that have no response: nothing shows how much of them has left.
        self._has_told = False
        self._when_writable: Callable[[], None] | None = None
        # Callers that wait for a place among the requests in flight.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._end = 0
        # A response that is larger than what has arrived of it.
        self._frame: memoryview | None = None
        self._filled = 0

    @property
    def is_open(self) -> bool:
        return self._failure is None

    @property
    def is_expiring(self) -> bool:
        return self._loop.time() >= self._expires_at

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def is_writable(self) -> bool:
        """Whether the socket takes what is written; otherwise it is buffered without a limit."""
        return self._is_writable

    def when_writable(self, act: Callable[[], None]) -> None:
        """Call `act` once when the connection is writable again, or fails."""
        self._when_writable = act

    async def call(self, request: Message, answer: type[R], *, timeout_s: float) -> R:
        """Send a request in the highest common version and return the response."""
        while self._failure is None and (not self._is_writable or len(self._pending) >= MAX_IN_FLIGHT):
            place: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                self._wake_next()  # the place may have been given to this call
                raise
        return await self.start(request, answer, timeout_s=timeout_s)

    def start(self, request: Message, answer: type[R], *, timeout_s: float) -> "asyncio.Future[R]":
        """Send a request now and return the future of its response; the caller bounds what is in flight."""
        api = API_OF[type(request)]
        assert api.response is answer
        version = common_version(api, self._spoken.get(api.key), self.address)
        sent = self._send(api, version, encode(request, version), answer, timeout_s)
        return cast("asyncio.Future[R]", sent.response)

    def tell(self, request: Message) -> None:
        """Send a request without a response: a Produce with acks=0. The caller waits until it is writable."""
        api = API_OF[type(request)]
        version = common_version(api, self._spoken.get(api.key), self.address)
        self._correlation_id += 1
        self._has_told = True
        self._write(
            request_frame(api, version, self._correlation_id, encode(request, version), self._client_id)
        )

    def _send(
        self, api: Api, version: int, body: bytes, answer: type[R] | None, timeout_s: float
    ) -> _Pending[R]:
        self._correlation_id += 1
        self._write(request_frame(api, version, self._correlation_id, body, self._client_id))
        sent = _Pending[R](api, version, self._correlation_id, answer, self._loop.create_future())
        sent.timer = self._loop.call_later(timeout_s, self._expire, sent, timeout_s)
        self._pending.append(sent)
        return sent

    def _write(self, frame: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        self._transport.write(frame)

    def _expire(self, late: _Pending[Any], timeout_s: float) -> None:
        self.fail(
            Unreachable(
                f"{self.address} does not answer {late.api.name} within {timeout_s:g} s; "
                "is it an AlpacaMQ or Kafka broker, and is it overloaded or still starting?"
            )
        )

    def fail(self, error: Exception) -> None:
        """Close the connection at once; requests in flight end with the error."""
        if self._failure is not None:
            return
        if self._transport is not None:
            self._transport.abort()
        self._end_requests(error)

    def _end_requests(self, error: Exception) -> None:
        self._failure = error
        for sent in self._pending:
            if sent.timer is not None:
                sent.timer.cancel()
            if not sent.response.done():
                sent.response.set_exception(error)
                # A caller that was cancelled does not look at it.
                sent.response.exception()
        self._pending.clear()
        for place in self._waiting:
            if not place.done():
                place.set_result(None)
        self._waiting.clear()
        self._call_when_writable()

    async def close(self) -> None:
        """Close the connection and wait until the socket is. Requests without a response are sent before."""
        closed = Closed(f"the connection to {self.address} is closed")
        if self._transport is not None and self._has_told and self._failure is None:
            self._transport.close()
            self._end_requests(closed)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.shield(self._lost)
            self._transport.abort()
        self.fail(closed)
        if self._transport is not None:
            await asyncio.shield(self._lost)

    async def drained(self) -> None:
        """Wait until nothing is in flight; every request has a deadline."""
        while self._pending:
            await asyncio.wait([sent.response for sent in self._pending])
            await asyncio.sleep(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._failure is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        hint = ""
        if self._pending and not self._spoken:
            hint = "; does this listener use TLS?"
        elif isinstance(error, ssl.SSLError):
            hint = "; it may ask for a certificate that it accepts"
        reason = error or "end of stream"
        during = f" during {self._pending[0].api.name}" if self._pending else ""
        self.fail(Unreachable(f"{self.address} closed the connection{during}: {reason}{hint}"))
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake_next()
        self._call_when_writable()

    def _call_when_writable(self) -> None:
        act, self._when_writable = self._when_writable, None
        if act is not None:
            act()

    def _wake_next(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._scratch[self._end :] if self._frame is None else self._frame[self._filled :]

    def buffer_updated(self, count: int) -> None:
        try:
            self._take(count)
        except ProtocolError as error:
            self.fail(error)

    def _take(self, count: int) -> None:
        if self._frame is not None:
            self._filled += count
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._respond(frame)
            return
        self._end += count
        scratch, at, end = self._scratch, 0, self._end
        while end - at >= SIZE_BYTES and self._failure is None:
            size = response_size(scratch[at : at + SIZE_BYTES], self.address)
            begin = at + SIZE_BYTES
            at = begin + size
            if at > end:
                # The rest is received where it belongs.
                self._frame = memoryview(bytearray(size))
                self._filled = end - begin
                self._frame[: self._filled] = scratch[begin:end]
                self._end = 0
                return
            self._respond(memoryview(bytes(scratch[begin:at])))
        scratch[: end - at] = bytes(scratch[at:end])
        self._end = end - at

    def _respond(self, frame: memoryview) -> None:
        if not self._pending:
            raise ProtocolError(f"{self.address} sent a response without a request")
        sent = self._pending.popleft()
        if sent.timer is not None:
            sent.timer.cancel()
        if self._waiting and self._is_writable:
            self._wake_next()
        try:
            body = response_body(frame, sent.api, sent.version, sent.correlation_id, self.address)
            if not sent.response.done():  # or the caller was cancelled
                answer = body if sent.answer is None else decode(sent.answer, sent.version, body)
                sent.response.set_result(answer)
        except ProtocolError as error:
            if not sent.response.done():
                sent.response.set_exception(error)
            raise

    async def negotiate(self) -> None:
        """Ask for the versions of the broker."""
        api = APIS[ApiKey.API_VERSIONS]
        request = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version=VERSION)
        for version in (API_VERSIONS_VERSION, 0):
            sent: _Pending[Message] = self._send(api, version, encode(request, version), None, CONNECT_S)
            body = cast("memoryview", await sent.response)
            if (spoken := read_versions(self.address, body, version)) is not None:
                self._spoken = spoken
                return
        raise ProtocolError(f"{self.address} does not answer ApiVersions in any version")

    async def log_in(self, credentials: Credentials) -> None:
        """Authenticate. Raises LoginRefused, AuthenticationFailed."""
        about = f"logging in to {self.address} as {credentials.user}"
        agreed = await self.call(
            SaslHandshakeRequest(mechanism=credentials.mechanism), SaslHandshakeResponse, timeout_s=CONNECT_S
        )
        offer = ", ".join(agreed.mechanisms)
        check(about, agreed.error_code, offer and f"{credentials.mechanism} is not one of {offer}")
        messages = await _messages(credentials)
        token = next(messages, None)
        lifetime_ms = 0
        while token is not None:
            request = SaslAuthenticateRequest(auth_bytes=token)
            answer = await self.call(request, SaslAuthenticateResponse, timeout_s=CONNECT_S)
            check(about, answer.error_code, answer.error_message)
            lifetime_ms = answer.session_lifetime_ms
            # A proof of SCRAM takes milliseconds, or much more if the server asks for it.
            token = await asyncio.to_thread(_answer, messages, answer.auth_bytes)
        if lifetime_ms > 0:
            self._expires_at = self._loop.time() + _RENEWED_AFTER * lifetime_ms / 1000


async def _messages(credentials: Credentials) -> Generator[bytes, bytes, None]:
    if not isinstance(credentials, BearerToken):
        return login_messages(credentials)
    token = credentials.token
    if callable(token):
        found = token()
        token = await found if inspect.isawaitable(found) else found
    return token_messages(token)


def _answer(messages: Generator[bytes, bytes, None], challenge: bytes) -> bytes | None:
    try:
        return messages.send(challenge)
    except StopIteration:
        return None


async def connect(
    address: Address,
    *,
    tls: Tls | None = None,
    credentials: Credentials | None = None,
    client_id: str = CLIENT_ID,
    timeout_s: float = CONNECT_S,
) -> Connection:
    """Return an open connection that has logged in. Raises Unreachable, LoginRefused."""
    loop = asyncio.get_running_loop()
    connection: Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(address, client_id),
                address.host,
                address.port,
                ssl=None if tls is None else tls.context(),
                server_hostname=None if tls is None else address.host,
            )
            await connection.negotiate()
            if credentials is not None:
                await connection.log_in(credentials)
            return connection
    except BaseException as error:
        if connection is not None:
            await connection.close()
        if isinstance(error, TimeoutError):
            raise Unreachable(
                f"{address} does not answer within {timeout_s:g} s; is a broker running?"
            ) from None
        if isinstance(error, ssl.SSLCertVerificationError):
            raise Untrusted(
                f"the certificate of {address} is not accepted: {error.verify_message or error}"
            ) from None
        if isinstance(error, ssl.SSLError):
            raise Unreachable(f"the TLS handshake with {address} failed ({error.reason or error})") from None
        if isinstance(error, OSError):
            raise Unreachable(f"no broker answers at {address} ({error.strerror or error})") from None
        raise
