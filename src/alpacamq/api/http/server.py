"""One client connection. Requests are answered one at a time, in order of arrival.

A turn handles all requests of one receive, or those that waited for a response to complete or to be sent;
its responses go out in one write. A response that is not available immediately calls the connection when it
is (`Later`), or is awaited in a task of the listener; both are cancelled when the client disconnects. Reading
continues meanwhile, up to a limit: otherwise a disconnect would go unnoticed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from time import monotonic
from typing import Any, cast

from alpacamq.api.listening import ConnectionLimit, ListenerSettings, ListeningSocket
from alpacamq.broker.later import Later
from alpacamq.broker.quotas import Quotas
from alpacamq.model.address import Address, client_host
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ListenerStats

from .messages import App, Refused, Request, Response, problem
from .reader import (
    LINGER_SECONDS,
    MAX_UNREAD_BYTES,
    MAX_UNREAD_PORTIONS,
    MAX_UNSENT_BYTES,
    MIN_ANSWER_BYTES_PER_SECOND,
    MIN_BODY_BYTES_PER_SECOND,
    PORTION_BYTES,
    RETRY_AFTER_SECONDS,
    TURN_REQUESTS,
    TURN_SECONDS,
    Arrival,
    HttpLimits,
    KnownHeads,
    Persistence,
    Phase,
    RequestReader,
    Room,
)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_CONNECTION = {
    Persistence.KEEP: b"\r\n",
    Persistence.KEEP_AND_SAY_SO: b"Connection: keep-alive\r\n\r\n",
    Persistence.CLOSE: b"Connection: close\r\n\r\n",
}
# Bodies up to this size are copied behind their head, so that both are one buffer.
_COPIED_BYTES = 16 << 10


class DateLine:
    """The Date header, formatted once a second."""

    def __init__(self) -> None:
        self._line = b""
        self._valid_until = 0.0

    def at(self, now: float) -> bytes:
        """Return the header line for `now`, a time of the loop's clock."""
        if now >= self._valid_until:
            self._valid_until = now + 1.0
            self._line = f"Date: {formatdate(time.time(), usegmt=True)}\r\n".encode()
        return self._line


def encode(response: Response, persistence: Persistence, date_line: bytes, *, with_body: bool) -> list[bytes]:
    """Return the buffers to send; ValueError if a header contains invalid characters."""
    status, body, content_type, headers, _ = response
    lines = _status_and_type(status, content_type) + date_line
    for name, value in headers:
        lines += _header(name, value)
    if status in _BODILESS:
        return [lines + _CONNECTION[persistence]]
    ending = b"\r\n" if persistence is Persistence.KEEP else _CONNECTION[persistence]
    if with_body and len(body) <= _COPIED_BYTES:
        return [b"%bContent-Length: %d\r\n%b%b" % (lines, len(body), ending, body)]
    head = b"%bContent-Length: %d\r\n%b" % (lines, len(body), ending)
    return [head, body] if with_body else [head]


@lru_cache(maxsize=256)
def _status_and_type(status: int, content_type: str) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = f"HTTP/1.1 {status} {phrase}\r\n".encode()
    if status in _BODILESS:
        return lines
    # Message contents must never be taken for a page or a script.
    return lines + _header("Content-Type", content_type) + _header("X-Content-Type-Options", "nosniff")


def _header(name: str, value: str) -> bytes:
    # A line break from untrusted input would allow response splitting.
    if not (name.isprintable() and value.isprintable()):
        raise ValueError(f"{name!r}: {value!r} is not a valid header")
    return f"{name}: {value}\r\n".encode("latin-1")


class Backlog:
    """The requests of one connection in order of arrival, parsed no further ahead than necessary."""

    def __init__(self, reader: RequestReader) -> None:
        self.reader = reader
        self._unread: deque[bytes | memoryview] = deque()
        self._unread_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not (self.reader.arrivals or self._unread)

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to do for the connection when it has sent a response."""
        reader = self.reader
        return bool(reader.arrivals or self._unread or reader.awaits_continue)

    @property
    def is_full(self) -> bool:
        """Whether reading from the client should pause."""
        return self._unread_bytes > MAX_UNREAD_BYTES or len(self._unread) > MAX_UNREAD_PORTIONS

    def put(self, data: bytes) -> None:
        """Add received bytes."""
        if self.reader.has_ended:
            return
        size = len(data)
        self._unread_bytes += size
        if size <= PORTION_BYTES:
            self._unread.append(data)
        else:
            view = memoryview(data)
            self._unread.extend(view[at : at + PORTION_BYTES] for at in range(0, size, PORTION_BYTES))

    @property
    def has_unread(self) -> bool:
        """Whether received bytes are yet to be parsed."""
        return bool(self._unread)

    def next(self, now: float, until: float) -> Arrival | None:
        """Return the next complete request; None if there is none, or if parsing takes until `until`."""
        arrivals, unread = self.reader.arrivals, self._unread
        while unread and not arrivals:
            data = unread.popleft()
            self._unread_bytes -= len(data)
            self.reader.feed(data, now)
            if unread and monotonic() > until:
                break
        return arrivals.popleft() if arrivals else None

    def refuse(self, refusal: Refused) -> None:
        """Stop waiting for the rest of a request."""
        self.reader.end(refusal)

    def abandon(self) -> None:
        """Drop all requests."""
        self._unread.clear()
        self._unread_bytes = 0
        self.reader.abandon()


class Draining:
    """Samples how fast a client reads its pending responses."""

    __slots__ = ("_began_at", "_began_bytes", "_last_bytes", "_moved_at")

    def __init__(self) -> None:
        self._last_bytes = 0
        self._began_bytes = 0
        self._began_at = self._moved_at = 0.0

    def restart(self) -> None:
        """Start over: new responses are pending, and the client has read enough of the earlier ones."""
        self._last_bytes = 0

    def is_too_slow(self, unsent_bytes: int, now: float, grace: float) -> bool:
        """Return whether the client read nothing for `grace` seconds, or is slower than a minimum rate."""
        if not unsent_bytes:
            self._last_bytes = 0
            return False
        if not self._last_bytes:
            self._began_at = self._moved_at = now
            self._began_bytes = unsent_bytes
        elif unsent_bytes != self._last_bytes:
            self._moved_at = now
        self._last_bytes = unsent_bytes
        fair = grace + self._began_bytes / MIN_ANSWER_BYTES_PER_SECOND
        return now - self._moved_at > grace or now - self._began_at > fair


log = get_logger(__name__)

_NO_PLACE = problem(503, "too many connections", (("Retry-After", str(RETRY_AFTER_SECONDS)),))
_OVER_QUOTA = problem(
    429, "the quota of connections is exceeded", (("Retry-After", str(RETRY_AFTER_SECONDS)),)
)
_INTERNAL_ERROR = problem(500, "internal error; see the log of the broker")


class Shared:
    """State shared by the connections of one listener."""

    def __init__(
        self, name: str, app: App, limits: HttpLimits, tasks: asyncio.TaskGroup, stats: ListenerStats | None
    ) -> None:
        self.app = app
        self.refuse: Refuse = Refused.answer
        # None if metrics are disabled.
        self.stats = stats
        self.limits = limits
        self.tasks = tasks
        self.room = Room(limits.in_flight_bytes)
        self.known_heads = KnownHeads()
        self.date_line = DateLine()
        self.connections: set[Connection] = set()
        self.connection_limit = ConnectionLimit(name, self.connections, limits.max_connections, stats)


class Connection(asyncio.Protocol):
    """The asyncio protocol of one accepted socket."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, shared: Shared, authentication: bool | None = None
    ) -> None:
        self._loop = loop
        # Of the listener.
        self._authentication = authentication
        self._shared = shared
        self._stats = shared.stats
        self._out: list[bytes] = []
        self._out_bytes = 0
        # What is answering a request, and the request.
        self._task: asyncio.Task[None] | Later[Response] | None = None
        self._answering: Arrival | None = None
        # Set while pending responses exceed the limit; no further request is started.
        self._unsent_bytes = 0
        self._draining = Draining()
        self._is_paused = False
        self._turn_is_due = False
        self._lingers_until: float | None = None
        self._now = self._active_at = loop.time()
        self.has_asked = False
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)  # None: already disconnected
        self._host = client_host(str(host))
        self._peer = str(Address(self._host, port))
        self._has_tls = transport.get_extra_info("ssl_object") is not None
        self._principal = transport.get_extra_info("principal")
        self._principal_expires_ms = transport.get_extra_info("principal_expires_ms")
        shared = self._shared
        self._backlog = Backlog(
            RequestReader(self._peer, shared.limits.max_body_bytes, shared.room, shared.known_heads)
        )
        is_within_quota = shared.connection_limit.is_within_quota(self._host, transport)
        if not (is_within_quota and shared.connection_limit.has_place(self._now)):
            self._send(_NO_PLACE if is_within_quota else _OVER_QUOTA, Persistence.CLOSE)
            self._flush()
            self._end()
            self._transport.close()
            return
        self._transport.set_write_buffer_limits(MAX_UNSENT_BYTES)
        shared.connections.add(self)
        shared.connection_limit.opened(self._host)
        if self._stats is not None:
            self._stats.opened += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended is logged where it is known
        self._end()
        self._count_unsent(0)
        self._leave()

    def _leave(self) -> None:
        if self in self._shared.connections:
            self._shared.connections.discard(self)
            self._shared.connection_limit.closed(self._host, self)
            if self._stats is not None:
                self._stats.shut += 1

    @property
    def idle_since(self) -> float | None:
        """When the last response was sent or the last byte of a head came; None while a request is served."""
        if self.is_closed:
            return None
        if self._lingers_until is not None:
            return 0.0  # it has its last response, and goes before all others
        phase = self._backlog.reader.phase
        if self._is_busy or not self._backlog.is_empty or phase is Phase.BODY:
            return None
        return self._active_at if phase is Phase.BETWEEN else self._now

    def evict(self) -> None:
        """Close the connection in favour of another client."""
        self._end()
        self._leave()
        # close() waits until everything is sent, forever if the client does not read.
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def eof_received(self) -> bool:
        # A client that shuts down its sending side does not wait for more. Complete responses are still sent.
        self._end()
        return False

    def pause_writing(self) -> None:
        self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._count_unsent(0)
        self._turn()

    def data_received(self, data: bytes) -> None:
        if self._stats is not None:
            self._stats.received_bytes += len(data)
        self._backlog.put(data)
        self._turn()

    def close(self, reason: str) -> None:
        """Close after sending complete responses."""
        if not self.is_closed:
            log.info("connection_closed", peer=self._peer, reason=reason)
            self._end()
            self._transport.close()

    def shut_down(self) -> None:
        """Close because the broker stops; a client that waits for a response gets 503."""
        if self._task is not None:
            self._now = self._loop.time()
            self._send(problem(503, "the broker is shutting down"), Persistence.CLOSE)
            self._flush()
        self.close("the broker is shutting down")

    def check_timeouts(self, now: float) -> None:
        """Refuse a request that arrives too slowly; close an idle connection or one that does not read."""
        limits, reader = self._shared.limits, self._backlog.reader
        idle_timeout = limits.idle_timeout_ms / 1000
        if self._draining.is_too_slow(self._transport.get_write_buffer_size(), now, idle_timeout):
            self._abort("the client does not read its responses")
        if self._lingers_until is not None and now > self._lingers_until:
            self._abort("the client did not close after the last response")
        if self.is_closed or self._is_busy or self._is_paused or not self._backlog.is_empty:
            return
        if reader.phase is Phase.BETWEEN:
            if now - self._active_at > idle_timeout:
                self.close("no request for idle_timeout_ms")
            return
        overtime = now - reader.began_at - limits.header_timeout_ms / 1000
        if overtime > reader.body_bytes / MIN_BODY_BYTES_PER_SECOND:
            self._backlog.refuse(Refused(408, "the request did not arrive in time"))
            self._turn()

    @property
    def _is_busy(self) -> bool:
        """Whether the next request must wait."""
        return self._task is not None or self._unsent_bytes > 0 or self._lingers_until is not None

    def _turn(self) -> None:
        """Handle requests that are ready and send responses."""
        self._turn_is_due = False
        if self.is_closed:
            return
        self._now = self._loop.time()
        try:
            self._answer_requests()
            self._end_turn()
        except Exception:
            log.exception("connection_crashed", peer=self._peer)
            self._abort("internal error")

    def _turn_with(self, arrival: Arrival, request: Request, response: Response) -> None:
        """Send the response of a request that was awaited, and handle those behind it."""
        self._turn_is_due = False
        if self.is_closed:
            return
        self._now = self._loop.time()
        try:
            self._finish(arrival, request, response)
            if self._backlog.is_waiting:
                self._answer_requests()
            self._end_turn()
        except Exception:
            log.exception("connection_crashed", peer=self._peer)
            self._abort("internal error")

    def _end_turn(self) -> None:
        if self._out:
            self._flush()
        if not self.is_closed and self._backlog.is_full != self._is_paused:
            self._review_reading()

    def _answer_requests(self) -> None:
        backlog = self._backlog
        left = TURN_REQUESTS
        until = monotonic() + TURN_SECONDS
        while not self._is_busy and not self.is_closed:
            if not left:
                self._take_turn_soon()
                return
            left -= 1
            arrival = backlog.next(self._now, until)
            if arrival is None:
                if backlog.has_unread:
                    self._take_turn_soon()
                elif backlog.reader.awaits_continue:
                    backlog.reader.awaits_continue = False
                    self._out.append(CONTINUE)
                return
            self._answer(arrival)
            if self._task is not None:
                return
            if self._out_bytes > MAX_UNSENT_BYTES:
                self._flush()

    def _answer(self, arrival: Arrival) -> None:
        request = arrival.what
        self.has_asked = True
        if isinstance(request, Refused):
            self._refuse(request)
            return
        request.connection = self
        request.has_tls = self._has_tls
        request.principal = self._principal
        request.principal_expires_ms = self._principal_expires_ms
        request.authentication = self._authentication
        head = request.head
        app = self._shared.app if head is None or head.app is None else head.app
        try:
            answer = app(request)
        except Exception as error:  # noqa: BLE001 - a bug costs one request
            answer = self._failure(request, error)
        if isinstance(answer, Response):
            self._finish(arrival, request, answer)
        elif isinstance(answer, Later) and not answer.done():
            self._answering = arrival
            self._task = answer
            answer.when_done(partial(self._answered, arrival, request))
        else:
            self._answering = arrival
            self._task = self._shared.tasks.create_task(self._await_answer(arrival, request, answer))

    def _answered(
        self, arrival: Arrival, request: Request, result: Response | Exception | Coroutine[Any, Any, Response]
    ) -> None:
        """Send a response that came later; a coroutine returns it."""
        if isinstance(result, Exception):
            result = self._failure(request, result)
        if isinstance(result, Response):
            self._task = self._answering = None
            self._turn_with(arrival, request, result)
        else:
            self._task = self._shared.tasks.create_task(self._await_answer(arrival, request, result))

    async def _await_answer(self, arrival: Arrival, request: Request, answer: Awaitable[Response]) -> None:
        try:
            response = await answer
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            response = self._failure(request, error)
        except Exception as error:  # noqa: BLE001 - a bug costs one request
            response = self._failure(request, error)
        self._task = self._answering = None
        self._turn_with(arrival, request, response)

    def _failure(self, request: Request, error: BaseException) -> Response:
        if isinstance(error, Refused):
            return error.answer()
        log.error(
            "request_failed", peer=self._peer, request=f"{request.method} {request.path}", exception=error
        )
        return _INTERNAL_ERROR

    def _finish(self, arrival: Arrival, request: Request, response: Response) -> None:
        self._shared.room.give(arrival.held_bytes)
        persistence = Persistence.CLOSE if request.is_last else arrival.persistence
        self._send(response, persistence, with_body=request.method != "HEAD")
        if persistence is Persistence.CLOSE:
            self._linger()

    def _refuse(self, refusal: Refused) -> None:
        log.info("request_refused", peer=self._peer, status=refusal.status, reason=refusal.detail)
        self._send(self._shared.refuse(refusal), Persistence.CLOSE)
        self._linger()

    def _linger(self) -> None:
        """Handle no more requests. Closing while the client still sends could destroy its last response."""
        self._flush()
        self._backlog.abandon()
        self._lingers_until = self._now + LINGER_SECONDS
        if not self._transport.is_closing():
            self._transport.write_eof()

    def _send(self, response: Response, persistence: Persistence, *, with_body: bool = True) -> None:
        date_line = self._shared.date_line.at(self._now)
        try:
            pieces = encode(response, persistence, date_line, with_body=with_body)
        except ValueError as error:
            log.error("answer_not_sent", peer=self._peer, reason=str(error))
            pieces = encode(_INTERNAL_ERROR, persistence, date_line, with_body=with_body)
        self._out += pieces
        self._out_bytes += len(pieces[-1])

    def _flush(self) -> None:
        if self._out:
            self._active_at = self._now
            self._draining.restart()
            if self._stats is not None:
                self._stats.sent_bytes += sum(map(len, self._out))
            self._transport.writelines(self._out)
            self._out.clear()
            self._out_bytes = 0

    def _review_reading(self) -> None:
        """Pause reading, or resume it."""
        self._is_paused = not self._is_paused
        if self._is_paused:
            self._transport.pause_reading()
        else:
            self._backlog.reader.began_at = self._now  # sending failed
            self._transport.resume_reading()

    def _take_turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _count_unsent(self, size: int) -> None:
        self._shared.room.give(self._unsent_bytes)
        self._shared.room.occupy(size)
        self._unsent_bytes = size

    def _abort(self, reason: str) -> None:
        """Close immediately."""
        if not self.is_closed:
            log.info("connection_closed", peer=self._peer, reason=reason)
        self._end()
        self._transport.abort()

    def _end(self) -> None:
        """Start no further request, and release the memory that requests hold."""
        if self.is_closed:
            return
        self.is_closed = True
        self._backlog.abandon()
        if self._answering is not None:
            self._shared.room.give(self._answering.held_bytes)
        if isinstance(self._task, Later):
            self._task.cancel()
        elif self._task is not None:
            # Not immediately: a task that never started would leave its coroutine unawaited.
            self._loop.call_soon(self._task.cancel)
        self._task = self._answering = None


def remedy_of(section: str) -> str:
    """Return what to do if the first listener of an API cannot be bound."""
    return f"change {section}.listen (--{section} HOST:PORT), or disable this API ({section}.enabled = false)"


Refuse = Callable[[Refused], Response]

# Interval of checks for slow and idle connections; a fraction of the shortest timeout.
_MAX_SWEEP_SECONDS = 1.0


class HttpListener:
    """The listening sockets of one API, and every connection accepted on them."""

    def __init__(
        self,
        host: str,
        port: int,
        limits: HttpLimits,
        section: str = "http",
        stats: ListenerStats | None = None,
    ) -> None:
        first = ListenerSettings(name=section, address=Address(host, port), remedy=remedy_of(section))
        self._sockets = [ListeningSocket(first, stats)]
        # The section of its configuration.
        self._section = section
        self._limits = limits
        self._stats = stats
        self._shared: Shared | None = None
        self.listening = asyncio.Event()

    @classmethod
    def of(
        cls,
        listeners: Sequence[ListenerSettings],
        limits: HttpLimits,
        section: str,
        stats: ListenerStats | None,
    ) -> "HttpListener":
        """Return an API with several listeners."""
        made = cls("", 0, limits, section, stats)
        made._sockets = [ListeningSocket(each, stats) for each in listeners]
        return made

    def bind(self) -> tuple[str, int]:
        """Bind the addresses and return the first, with the actual port if 0 was requested."""
        self.addresses = {each.settings.name: each.bind() for each in self._sockets}
        first = self.addresses[self._sockets[0].settings.name]
        return first.host, first.port

    async def run(self, app: App) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            shared = self._shared = Shared(self._section, app, self._limits, tasks, self._stats)
            servers = []
            try:
                for each in self._sockets:
                    factory = partial(Connection, loop, shared, each.settings.authentication)
                    servers.append(await each.accept(factory, shared.connection_limit))
                self.listening.set()
                await self._watch_over(shared)
            finally:
                for server in servers:
                    server.close()
                for connection in list(shared.connections):
                    connection.shut_down()

    def switch_to(self, app: App, quotas: Quotas | None = None, refuse: Refuse = Refused.answer) -> None:
        """Pass all further requests to another app, and enforce the quotas of connections.

        `refuse` returns the response to a request that cannot be read.
        """
        assert self._shared is not None, "not running"
        self._shared.app = app
        self._shared.known_heads.clear()  # they may name the former one
        self._shared.refuse = refuse
        if quotas is not None:
            self._shared.connection_limit.enforce(quotas)

    async def _watch_over(self, shared: Shared) -> None:
        """Check for slow and idle connections until cancelled."""
        loop = asyncio.get_running_loop()
        shortest_ms = min(self._limits.idle_timeout_ms, self._limits.header_timeout_ms)
        while True:
            await asyncio.sleep(min(_MAX_SWEEP_SECONDS, shortest_ms / 4000))
            now = loop.time()
            for connection in list(shared.connections):
                connection.check_timeouts(now)
            shared.connection_limit.report(now)
