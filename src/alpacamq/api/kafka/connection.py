"""One client connection: frames in, responses out, in order, with bounds on all buffers.

Requests of a connection start in order of arrival and are answered in that order. Producing
and fetching overlap; any other request that has to wait blocks those behind it. A turn handles
all requests of one receive. Turns whose requests have appended end together, when every connection that
has sent something has had its turn: their appends are written together, then their responses are sent. A long
turn is interrupted, and continues after the turns of other connections.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from mmap import mmap
from time import monotonic
from typing import Protocol, cast

from alpacamq.api.listening import ConnectionLimit, ListenerSettings
from alpacamq.broker.access import Caller
from alpacamq.broker.quotas import ClientLimits
from alpacamq.model.address import Address, client_host
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError
from alpacamq.security.principals import ANONYMOUS
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ListenerStats, RequestStats

from .call import KAFKA_LISTENER
from .inbox import LARGE_BYTES, Buffers, Inbox, InFlight
from .metering import SETTLE_SECONDS, Meter
from .operations import AllowedTopics
from .outbox import Outbox, Piece, SocketOutbox, TransportOutbox, release, size_of
from .turns import Abandoned, Turns, Work


class Answer:
    """The position of a request in the order of responses; `fill` may be called at any time."""

    __slots__ = ("_connection", "began_at", "pieces", "size", "stats")

    def __init__(self, connection: "Connection", stats: RequestStats | None, began_at: float) -> None:
        self._connection = connection
        # Where its duration is recorded, None if metrics are disabled; and its start time.
        self.stats = stats
        self.began_at = began_at
        self.pieces: Sequence[Piece] | None = None
        self.size = 0

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Set the response."""
        if self._connection.is_closed:
            release(pieces)
            return
        self.pieces = pieces
        self.size = sum(map(size_of, pieces))
        self._connection.answered(self.size)

    @property
    def is_wanted(self) -> bool:
        """Return whether the client is still connected."""
        return not self._connection.is_closed

    def begin_now(self) -> None:
        """Measure its duration from now: the time before was spent on earlier requests."""
        if self.stats is not None:
            self.began_at = monotonic()

    def refused(self, code: int) -> None:
        """Count an error in the response."""
        if self.stats is not None:
            self.stats.refused(ErrorCode(code).name)


log = get_logger(__name__)

# A large frame may take longer than the frame timeout if it arrives at this rate.
MIN_BYTES_PER_SECOND = 64 << 10
# While other requests wait for memory, a request that holds some must arrive at this rate after one second.
HURRIED_BYTES_PER_SECOND = 1 << 20
HURRIED_AFTER_SECONDS = 1.0
# Initial buffer space of a large frame; then it doubles.
FIRST_ROOM_BYTES = 2 * LARGE_BYTES
# A turn starts on no further request after this long.
TURN_SECONDS = 0.004
# How long a connection stays open after the response that ends it.
LAST_RESPONSE_SECONDS = 0.3
# Of a client that has yet to authenticate: its largest messages are those of SASL.
MAX_UNAUTHENTICATED_BYTES = 64 << 10
# How soon a throttled connection learns that quotas have changed.
MUTE_CHECK_SECONDS = 5.0
# Connections that are charged for small requests in one iteration of the event loop.
SETTLED_AT_ONCE = 500


_FIRST = ListenerSettings(name=KAFKA_LISTENER, address=Address("", 0))


class Limits(Protocol):
    """Limits of connections."""

    @property
    def max_connections(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int: ...
    @property
    def frame_timeout_ms(self) -> int: ...
    @property
    def max_request_bytes(self) -> int: ...
    @property
    def connection_in_flight_bytes(self) -> int: ...
    @property
    def connection_in_flight_requests(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...


class Requests(Protocol):
    """Handles frames."""

    def opened(self, connection: "Connection") -> None:
        """Decide what a client may send first."""
        ...

    def handle(self, connection: "Connection", frame: memoryview) -> None:
        """Start a request: reserve its response, and fill it now or later."""
        ...

    def end_turn(self) -> None:
        """Write the appends staged by the requests of the turn."""
        ...


class Shared:
    """State shared by the connections of one listener."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Requests,
        limits: Limits,
        scratch_bytes: int,
        tasks: asyncio.TaskGroup,
        stats: ListenerStats | None,
    ) -> None:
        self._loop = loop
        self.requests = requests
        # None if metrics are disabled.
        self.stats = stats
        self.tasks = tasks
        self.limits = limits
        self.scratch = bytearray(scratch_bytes)
        # How much of it frames occupy whose turns have not ended.
        self.scratch_used = 0
        self._scratch_limit = scratch_bytes - 3 * LARGE_BYTES
        self._ending: list[Connection] = []
        self._unsettled: list[Connection] = []
        self.buffers = Buffers()
        self.in_flight = InFlight(limits.in_flight_bytes)
        self.turns = Turns(loop)
        self.connections: set[Connection] = set()
        self.connection_limit = ConnectionLimit("kafka", self.connections, limits.max_connections, stats)
        self._is_hurrying = False

    def end_soon(self, connection: "Connection", frame_bytes: int) -> None:
        """End a turn, whose frames occupy so much of the scratch buffer, together with those of others."""
        self.scratch_used += frame_bytes
        self._ending.append(connection)
        if self.scratch_used > self._scratch_limit:
            self._end_turns()
        elif len(self._ending) == 1:
            self._loop.call_soon(self._end_turns)

    def _end_turns(self) -> None:
        """Write what the requests of several turns have staged, then send their responses."""
        connections, self._ending = self._ending, []
        self.scratch_used = 0
        try:
            self.requests.end_turn()
        except Exception:
            log.exception("connections_crashed", peers=[each.peer for each in connections])
            for connection in connections:
                connection.close("internal error")
        for connection in connections:
            connection.send_answers()

    def settle_soon(self, connection: "Connection") -> None:
        """Charge a connection, together with others, for the small requests until then."""
        self._unsettled.append(connection)
        if len(self._unsettled) == 1:
            self._loop.call_later(SETTLE_SECONDS, self._settle)

    def _settle(self) -> None:
        connections, self._unsettled = self._unsettled, []
        self._settle_some(deque(connections))

    def _settle_some(self, connections: deque["Connection"]) -> None:
        for _ in range(min(len(connections), SETTLED_AT_ONCE)):
            connections.popleft().settle()
        if connections:
            self._loop.call_soon(self._settle_some, connections)

    def hurry(self) -> None:
        """Close slow connections that hold request memory while others wait for it, until cancelled."""
        if not self._is_hurrying:
            self._is_hurrying = True
            self._loop.call_later(HURRIED_AFTER_SECONDS, self._close_slow)

    def _close_slow(self) -> None:
        self._is_hurrying = False
        if self.in_flight.is_short:
            now = monotonic()
            for connection in list(self.connections):
                connection.check_pace(now)
            self.hurry()


class Connection(asyncio.BufferedProtocol):
    """The asyncio protocol of one accepted socket."""

    # More attributes than instances with a dictionary can find quickly.
    __slots__ = (
        "__weakref__",
        "_active_at",
        "_answered_bytes",
        "_answers",
        "_awaits_room",
        "_client_left",
        "_close_listeners",
        "_close_reason",
        "_ends_with_others",
        "_frame_began_at",
        "_held",
        "_inbox",
        "_is_unsettled",
        "_large",
        "_limits",
        "_loop",
        "_mute_timer",
        "_muted_until",
        "_outbox",
        "_paused",
        "_progress_seen",
        "_room_bytes",
        "_send_due",
        "_shared",
        "_stats",
        "_tls_outbox",
        "_transport",
        "_unauthenticated_since",
        "_uncounted_since",
        "admitted_until",
        "caller",
        "has_asked",
        "in_turn",
        "is_closed",
        "listener",
        "meter",
        "now",
        "peer",
        "peer_host",
        "readable",
        "received_at",
        "request_stats",
        "writable",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, shared: Shared, listener: ListenerSettings = _FIRST
    ) -> None:
        self._loop = loop
        self._shared = shared
        # The listener that the client came through.
        self.listener = listener
        self._limits = shared.limits
        self._inbox = Inbox(shared.scratch, shared.limits.max_request_bytes)
        self._answers: deque[Answer] = deque()
        # Size of complete responses that wait for an earlier one.
        self._answered_bytes = 0
        self._held = False
        self._awaits_room = False
        self._paused = False
        self.in_turn = False
        self._send_due = False
        self._ends_with_others = False
        self._large: mmap | None = None
        self._tls_outbox: TransportOutbox | None = None
        self._room_bytes = 0
        self._close_listeners: list[Callable[[], None]] = []
        # By the system clock: the loop's own clock stands still during a turn.
        self._active_at = self._frame_began_at = monotonic()
        self._progress_seen = 0
        self._stats = shared.stats
        # Where the current request is counted, and when it arrived.
        self.request_stats: RequestStats | None = None
        self.received_at = 0.0
        self.has_asked = False
        self.is_closed = False
        # Until when requests are served; afterwards only those that authenticate the client.
        self.admitted_until = inf
        # Since when the client has to authenticate; None if it has.
        self._unauthenticated_since: float | None = None
        # Why it is closed once its responses are sent.
        self._close_reason: str | None = None
        # Topics that its client was allowed to write and to read; None before the first.
        self.writable: AllowedTopics | None = None
        self.readable: AllowedTopics | None = None
        # What its client uses of its quotas; None if there were none at the last request.
        self.meter: Meter | None = None
        self._is_unsettled = False
        # When the turn began, or its last request or response was done.
        self.now = 0.0
        # Since when its time has not been counted.
        self._uncounted_since = 0.0
        # While it is throttled: the timer that ends it, and when it is over.
        self._mute_timer: asyncio.TimerHandle | None = None
        self._muted_until = 0.0
        # Whether it has left meanwhile, and is not throttled any more.
        self._client_left = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)  # None: already disconnected
        self.peer_host = client_host(str(host))
        # Who the client is: by its certificate, or it may say so later.
        self.caller = Caller(transport.get_extra_info("principal") or ANONYMOUS, self.peer_host)
        self.peer = f"{host}:{port}"
        limit = self._shared.connection_limit
        if not (limit.is_within_quota(self.peer_host, transport) and limit.has_place(self._active_at)):
            self._refuse()
            return
        try:
            self._outbox = self._make_outbox()
        except OSError:  # no descriptor left for the duplicate
            limit.refused()
            self._refuse()
            return
        self._shared.connections.add(self)
        limit.opened(self.peer_host)
        if self._stats is not None:
            self._stats.opened += 1
        self._shared.requests.opened(self)

    def _make_outbox(self) -> Outbox:
        if self._transport.get_extra_info("ssl_object") is not None:
            self._tls_outbox = TransportOutbox(
                self._loop, self._transport, drained=self._review, broken=self._send_failed
            )
            return self._tls_outbox
        descriptor = self._transport.get_extra_info("socket").fileno()
        return SocketOutbox(self._loop, descriptor, drained=self._review, broken=self._send_failed)

    def pause_writing(self) -> None:
        if self._tls_outbox is not None:
            self._tls_outbox.blocked()

    def resume_writing(self) -> None:
        if self._tls_outbox is not None:
            self._tls_outbox.writable()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended is logged where it is known
        if self in self._shared.connections:
            self._release()

    def _refuse(self) -> None:
        self.is_closed = True
        self._transport.abort()

    @property
    def idle_since(self) -> float | None:
        """When the client last sent bytes; None while a request is in progress."""
        if self.is_closed or self._answers or self._held or self._awaits_room or self._outbox.is_blocked:
            return None
        return self._active_at if self._outbox.sent_bytes == self._progress_seen else None

    def evict(self) -> None:
        """Close the connection in favour of another client."""
        self._release()
        self._transport.abort()

    def eof_received(self) -> bool:
        return False  # close: a client that shuts down its sending side does not wait for responses

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._inbox.buffer(self._shared.scratch_used)

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        self._active_at = self.received_at = monotonic()
        if self._stats is not None:
            self._stats.received_bytes += nbytes
        if not self._inbox.is_inside_frame:
            self._frame_began_at = self._active_at
        self._inbox.received(nbytes)
        if not self._inbox.is_filling:
            self._turn()

    def reserve(self) -> Answer:
        """Reserve the next position in the order of responses."""
        answer = Answer(self, self.request_stats, self.received_at)
        self._answers.append(answer)
        return answer

    def answered(self, size: int) -> None:
        """Schedule sending of complete responses at the end of the turn."""
        self._answered_bytes += size
        if not self.in_turn and not self._send_due:
            self._send_due = True
            self._loop.call_soon(self.send_answers)

    def hold(self) -> None:
        """Start no further request until `proceed`."""
        self._held = True

    def proceed(self) -> None:
        """Resume after the request that called `hold` is done."""
        self._held = False
        self._continue()

    def mute(self, milliseconds: int) -> None:
        """Read and start no request for some time, because of a quota. Responses are sent."""
        if self.is_closed or not milliseconds or self._client_left:
            return
        self._muted_until = max(self._muted_until, self._loop.time() + milliseconds / 1000)
        if self._mute_timer is None:
            self._set_mute_timer()
            if not self.in_turn:
                self._review()

    def _set_mute_timer(self) -> None:
        at = min(self._muted_until, self._loop.time() + MUTE_CHECK_SECONDS)
        self._mute_timer = self._loop.call_at(at, self._check_mute)

    def _check_mute(self) -> None:
        self._mute_timer = None
        if self.is_closed:
            return
        meter = self.meter
        if self._loop.time() < self._muted_until and meter is not None and meter.limits.is_current:
            self._set_mute_timer()
            return
        self._end_mute()

    def _end_mute(self) -> None:
        self._muted_until = 0.0
        self._active_at = monotonic()
        self._review()

    def _serve_rest(self) -> None:
        """Serve what a throttled client has sent before it left, and close the connection."""
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._client_left = True
        self._end_mute()

    def charge_due(self) -> int:
        """Charge the client for what is due; return for how long it is throttled, in milliseconds."""
        meter = self.meter
        if meter is None:
            return 0
        if meter.is_time_due and self.in_turn:
            # Reading the clock takes long: if there is much time, the end of the last request will do.
            self._count_time(monotonic() if meter.is_time_scarce else self.now)
        throttle_ms = meter.charge_due()
        if throttle_ms:
            self.mute(throttle_ms)
        if not (self.in_turn or self._is_unsettled):
            self._settle_soon()  # waited for: there may be no turn soon
        return throttle_ms

    def fetch_wait_ms(self) -> int:
        """Return how long the client has to wait for what has been fetched."""
        return 0 if self.meter is None else self.meter.fetch_wait_ms()

    def _count_time(self, until: float) -> None:
        """Count the time of the turn that was not counted yet."""
        if self.meter is not None:
            self.meter.used_seconds += until - self._uncounted_since
        self._uncounted_since = until

    def _settle_soon(self) -> None:
        self._is_unsettled = True
        self._shared.settle_soon(self)

    def settle(self) -> None:
        """Charge the client for its small requests."""
        self._is_unsettled = False
        if self.meter is not None:
            self.mute(self.meter.settle())

    def set_limits(self, limits: ClientLimits | None) -> None:
        """Charge the client by other quotas from now on."""
        if self.meter is not None:
            if self.in_turn:
                self._count_time(monotonic())
            self.mute(self.meter.settle())
        self.meter = None if limits is None else Meter(limits)
        self._uncounted_since = monotonic()

    def require_authentication(self) -> None:
        """Serve only requests that authenticate the client, and only small ones."""
        self.admitted_until = -inf
        self._unauthenticated_since = monotonic()
        most = min(MAX_UNAUTHENTICATED_BYTES, self._limits.max_request_bytes)
        self._inbox.limit(most, "the limit before authentication is")

    def admit(self, caller: Caller, until: float) -> None:
        """Serve requests of `caller` that arrive before `until`."""
        self.caller = caller
        self.set_limits(None)  # those of the new caller are found with its next request
        self.admitted_until = until
        self._unauthenticated_since = None
        self._inbox.limit(self._limits.max_request_bytes, "kafka.max_request_bytes is")

    def work(self, frame: memoryview) -> Work:
        """Return the work on a request that is completed even if the client disconnects, such as a commit."""
        return Work(self._shared.turns, lambda: True, len(frame))

    def work_while_open(self, frame: memoryview) -> Work:
        """Return the work on a request that is abandoned if the client disconnects."""
        return Work(self._shared.turns, self.is_wanted, len(frame))

    def is_wanted(self) -> bool:
        """Return whether the client is still connected."""
        return not self.is_closed

    def kept(self, frame: memoryview) -> memoryview:
        """Return the current frame, valid after the turn while the connection is held."""
        return frame if self._large is not None else memoryview(bytearray(frame))

    def free_frame(self) -> None:
        """Free the frame of the request that holds the connection."""
        if not self._inbox.frame_bytes:
            self._give_back_room()

    @contextmanager
    def cancelling_on_close(self) -> Iterator[None]:
        """Cancel the current task if the connection closes inside the block."""
        task = asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            task.cancel()

        self.on_close(cancel)
        try:
            yield
        finally:
            self.forget_on_close(cancel)

    def spawn(self, work: Awaitable[None]) -> None:
        """Run the rest of a request as a task; an unexpected error closes this connection only."""
        self._shared.tasks.create_task(self._guarded(work))

    def spawn_while_open(self, work: Awaitable[None]) -> None:
        """Like `spawn`, but the task is cancelled when the connection closes."""
        task = self._shared.tasks.create_task(self._guarded(work))

        def end() -> None:
            # Not immediately: a task that never started would leave its coroutine unawaited.
            self._loop.call_soon(task.cancel)

        self.on_close(end)
        task.add_done_callback(lambda _: self.forget_on_close(end))

    def on_close(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the connection closes."""
        self._close_listeners.append(listener)

    def forget_on_close(self, listener: Callable[[], None]) -> None:
        if listener in self._close_listeners:
            self._close_listeners.remove(listener)

    def close(self, reason: str) -> None:
        """Close the connection."""
        if not self.is_closed:
            log.info("connection_closed", peer=self.peer, reason=reason)
            self._release()
            self._transport.abort()

    def close_after_responses(self, reason: str) -> None:
        """Close the connection when the responses so far are sent, and start no further request."""
        self._close_reason = reason
        self.hold()
        self._close_if_sent()

    def _close_if_sent(self) -> None:
        if self._close_reason is not None and not (self._answers or self._outbox.queued_pieces):
            # Some clients drop a response that they read together with the end of the connection.
            reason, self._close_reason = self._close_reason, None
            self._loop.call_later(LAST_RESPONSE_SECONDS, self.close, reason)

    def check_timeouts(self, now: float) -> None:
        """Close a connection that is dead or idle, sends a frame too slowly or has stopped reading."""
        limits = self._limits
        if self._outbox.sent_bytes != self._progress_seen:
            self._count_sent()
            self._active_at = now
        if now - self._active_at > limits.idle_timeout_ms / 1000 and (
            not (self._answers or self._mute_timer) or self._outbox.is_blocked
        ):
            self.close(f"idle for {limits.idle_timeout_ms} ms (kafka.idle_timeout_ms)")
        elif self._inbox.is_inside_frame and not (self._held or self._paused):
            overtime = now - self._frame_began_at - limits.frame_timeout_ms / 1000
            if overtime > self._inbox.received_bytes / MIN_BYTES_PER_SECOND:
                self.close("a request did not arrive in time (kafka.frame_timeout_ms)")
        elif self._is_overdue(now):
            self.close("the client did not authenticate in time (kafka.frame_timeout_ms)")
        elif self._held and self._outbox.is_abandoned:
            self.close("the client disconnected while it waited")
        elif self._mute_timer is not None and self._outbox.has_left:
            self._serve_rest()

    def _is_overdue(self, now: float) -> bool:
        """Return whether a client has not authenticated in time. Not while its password is checked."""
        since = self._unauthenticated_since
        return since is not None and not self._held and now - since > self._limits.frame_timeout_ms / 1000

    def check_pace(self, now: float) -> None:
        """Close a connection that holds request memory others wait for and does not send.

        A connection that is not read from because it does not read its responses counts as such.
        """
        if self._inbox.frame_bytes and not (self._held or self._awaits_room):
            hurried_seconds = now - self._frame_began_at - HURRIED_AFTER_SECONDS
            if self._inbox.received_bytes < hurried_seconds * HURRIED_BYTES_PER_SECOND:
                self.close("other requests wait for the memory of its request (kafka.in_flight_bytes)")

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Abandoned:
            pass  # already closed
        except ProtocolError as error:
            self.close(str(error))
        except Exception:
            log.exception("connection_crashed", peer=self.peer)
            self.close("internal error")

    def _continue(self) -> None:
        """Continue with frames that arrived while the connection was held or over a limit."""
        if not (self.is_closed or self._held or self._mute_timer is not None):
            self._inbox.reopen()
            self._turn()

    def _turn(self) -> None:
        self.in_turn = True
        self.now = self._uncounted_since = monotonic()
        try:
            # Sending responses allows requests to start that a limit held back.
            while self._handle_frames():
                pass
        except ProtocolError as error:
            self.close(str(error))
        except Exception:
            log.exception("connection_crashed", peer=self.peer)
            self.close("internal error")
        if self.is_closed:
            self._end_turn()
        self.in_turn = False
        if (meter := self.meter) is not None:
            # As `_count_time`, without the call.
            meter.used_seconds += self.now - self._uncounted_since
            if meter.used_seconds >= meter.time_grain:
                meter.is_time_due = True
            if not self._is_unsettled:
                self._settle_soon()
        if self.is_closed:
            return
        if not (self._awaits_room or self._mute_timer is not None):
            self._make_room()
        frame_bytes = self._inbox.park()
        if self._ends_with_others:
            self._ends_with_others = False
            self._send_due = True
            self._shared.end_soon(self, frame_bytes)
            if self._mute_timer is not None or self._awaits_room:
                # At once: the event loop may read again before the turns end, and there is no room.
                self._review()
        else:
            self._review()

    def _end_turn(self) -> None:
        """Commit staged batches after an error: the next turn overwrites their buffer."""
        try:
            self._shared.requests.end_turn()
        except Exception:
            log.exception("connection_crashed", peer=self.peer)
            self.close("internal error")

    def _handle_frames(self) -> bool:
        """Handle arrived frames; return True if a limit stopped it that no longer applies."""
        over_limit = False
        until = self.now + TURN_SECONDS
        while not (self._held or self._mute_timer is not None):
            if over_limit := self._is_over_limit():
                break
            if (frame := self._inbox.next_frame()) is None:
                break
            self._frame_began_at = self._active_at  # the next frame follows
            self.has_asked = self.admitted_until > 0  # not as long as the client has yet to log in
            self._shared.requests.handle(self, frame)
            if self.is_closed:
                return False
            self.now = monotonic()
            if self.now > until and not self._held:
                self.hold()
                self._shared.turns.call(self.proceed)
        # Responses that are not complete may wait for the end of the turn.
        if (
            self._answers
            and self._answers[-1].pieces is None
            and not (over_limit or self._held or self._large is not None)
        ):
            self._ends_with_others = True
            return False
        self._shared.requests.end_turn()
        self._give_back_large()
        self._drain_answers()
        return over_limit and not (self.is_closed or self._is_over_limit())

    def _make_room(self) -> None:
        """Reserve memory for more of a large frame: as much as has arrived, so that it doubles."""
        inbox = self._inbox
        if inbox.wanted_bytes is not None:
            rest_bytes, size = inbox.wanted_bytes, max(FIRST_ROOM_BYTES, 2 * inbox.begun_bytes)
        elif inbox.is_full:
            rest_bytes, size = inbox.frame_bytes - inbox.received_bytes, inbox.received_bytes
        else:
            return
        taken = self._shared.in_flight.take(self, min(size, rest_bytes), rest_bytes, self._has_room)
        if taken:
            self._receive_large(taken)
        else:
            self._awaits_room = True
            self._shared.hurry()

    def _has_room(self, taken: int) -> None:
        self._awaits_room = False
        self._receive_large(taken)
        self._frame_began_at = monotonic()
        self._review()

    def _receive_large(self, taken: int) -> None:
        """Receive `taken` more bytes of a large frame."""
        self._room_bytes += taken
        size = self._inbox.wanted_bytes
        if size is None:
            self._inbox.extend(taken)
            return
        try:
            self._large = self._shared.buffers.take(size)
        except (OSError, MemoryError) as error:
            # Not closed here: the caller is the connection that released the memory.
            self._loop.call_soon(self.close, f"no memory for a request of {size} bytes: {error}")
            self._awaits_room = True
            return
        self._inbox.receive_into(self._large, taken)
        self._frame_began_at = monotonic()

    def _give_back_large(self) -> None:
        """Free the last large frame, unless a held request still reads it."""
        if not (self._held or self._inbox.frame_bytes):
            self._give_back_room()

    def _give_back_room(self) -> None:
        if self._large is not None:
            self._shared.buffers.give(self._large)
            self._large = None
            room_bytes, self._room_bytes = self._room_bytes, 0
            self._shared.in_flight.give(self, room_bytes)

    def send_answers(self) -> None:
        """Send complete responses."""
        self._send_due = False
        if not self.is_closed:
            self._drain_answers()
            self._review()

    def _drain_answers(self) -> None:
        """Send complete responses up to the first incomplete one."""
        answers, outbox = self._answers, self._outbox
        sent_bytes = alike = 0
        stats: RequestStats | None = None
        began_at = 0.0
        # Requests of one kind that arrived together are counted together; others are few.
        earlier: list[tuple[RequestStats, float, int]] | None = None
        while answers and (pieces := answers[0].pieces) is not None:
            answer = answers.popleft()
            sent_bytes += answer.size
            outbox.put(pieces)
            if answer.stats is stats and answer.began_at == began_at:
                alike += 1
                continue
            if stats is not None:
                if earlier is None:
                    earlier = []
                earlier.append((stats, began_at, alike))
            stats, began_at, alike = answer.stats, answer.began_at, 1
        outbox.flush()
        self._answered_bytes -= sent_bytes
        if stats is not None:
            self.now = now = monotonic()
            stats.seconds.observe(now - began_at, alike)
            if earlier is not None:
                for stats, began_at, alike in earlier:
                    stats.seconds.observe(now - began_at, alike)
        elif sent_bytes and self.meter is not None:
            self.now = monotonic()

    def _is_over_limit(self) -> bool:
        limits = self._limits
        requests, answered_bytes = len(self._answers), self._answered_bytes
        if queued_bytes := self._outbox.queued_bytes:
            requests += self._outbox.queued_pieces
            answered_bytes += queued_bytes
        return (
            requests >= limits.connection_in_flight_requests
            or answered_bytes >= limits.connection_in_flight_bytes
        )

    def _review(self) -> None:
        """Pause or resume reading, depending on the limits."""
        if self.is_closed:
            return
        if self._close_reason is not None:
            self._close_if_sent()
        pause = self._held or self._awaits_room or self._mute_timer is not None or self._is_over_limit()
        if pause == self._paused:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._frame_began_at = monotonic()  # restart its timeouts: it could not send meanwhile
            self._transport.resume_reading()
            self._loop.call_soon(self._continue)

    def _count_sent(self) -> None:
        if self._stats is not None:
            self._stats.sent_bytes += self._outbox.sent_bytes - self._progress_seen
        self._progress_seen = self._outbox.sent_bytes

    def _send_failed(self, error: OSError) -> None:
        self.close(f"cannot send: {error}")

    def _release(self) -> None:
        self.is_closed = True
        self._shared.connections.discard(self)
        self._shared.connection_limit.closed(self.peer_host, self)
        if self._stats is not None:
            self._stats.shut += 1
            self._count_sent()
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        if self.meter is not None:
            if self.in_turn:
                self._count_time(self.now)
            self.meter.settle()
            self.meter = None
        # Free memory now: requests in progress may keep this object.
        self._inbox.drop()
        self._large = None
        room_bytes, self._room_bytes = self._room_bytes, 0
        self._shared.in_flight.leave(self, room_bytes)
        for answer in self._answers:
            release(answer.pieces or ())
        self._answers.clear()
        self._outbox.close()
        # Detached first: a listener may remove itself, and the next one would be skipped.
        listeners, self._close_listeners = self._close_listeners, []
        for listener in listeners:
            listener()
