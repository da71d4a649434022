"""One client's connection: frames in, answers out, in order, with bounds on everything between.

Requests of a connection start in the order they came and are answered in that order. Producing
and fetching overlap; any other request that has to wait holds up those behind it. A turn is
everything that one receive brought: its appends are written together, then its answers are sent
together. A turn that takes long is cut short, and goes on when others have had theirs.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from time import monotonic
from typing import Protocol, cast

from alpacamq.api.listening import ConnectionLimit
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ListenerStats, RequestStats

from .inbox import LARGE_BYTES, Buffers, Inbox, InFlight
from .outbox import Outbox, Piece, release, size_of
from .turns import Abandoned, Turns


class Answer:
    """A request's place in the order of answers; `fill` may come at any time."""

    __slots__ = ("_connection", "began_at", "pieces", "size", "stats")

    def __init__(self, connection: "Connection", stats: RequestStats | None, began_at: float) -> None:
        self._connection = connection
        # Where its duration is counted, if it is, and since when it runs.
        self.stats = stats
        self.began_at = began_at
        self.pieces: Sequence[Piece] | None = None
        self.size = 0

    def fill(self, pieces: Sequence[Piece]) -> None:
        """The answer is known."""
        if self._connection.is_closed:
            release(pieces)
            return
        self.pieces = pieces
        self.size = sum(map(size_of, pieces))
        self._connection.answered(self.size)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is still there to get it."""
        return not self._connection.is_closed

    def begin_now(self) -> None:
        """Count its duration from now on: the client asked to wait for what came before."""
        if self.stats is not None:
            self.began_at = monotonic()

    def refused(self, code: int) -> None:
        """Count an error that it tells of."""
        if self.stats is not None:
            self.stats.refused(ErrorCode(code).name)


def send_known(answers: deque[Answer], outbox: Outbox) -> int:
    """Send the answers that are known and have none before them that is not; their size."""
    sent_bytes = alike = 0
    stats: RequestStats | None = None
    began_at = 0.0
    # Requests that came together and are of one kind are counted together; of others there are few.
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
    if stats is not None:
        now = monotonic()
        stats.seconds.observe(now - began_at, alike)
        if earlier is not None:
            for stats, began_at, alike in earlier:
                stats.seconds.observe(now - began_at, alike)
    return sent_bytes


log = get_logger(__name__)

# A large frame may take longer than the time every frame has, as long as it comes at this rate.
MIN_BYTES_PER_SECOND = 64 << 10
# While others wait for room, one that takes up room has to come at this rate after the first second.
HURRIED_BYTES_PER_SECOND = 1 << 20
HURRIED_AFTER_SECONDS = 1.0
# How much of a large frame there is room for at first; from then on it doubles.
FIRST_ROOM_BYTES = 2 * LARGE_BYTES
# A turn starts on no further request after this long.
TURN_SECONDS = 0.004


class Limits(Protocol):
    """What a connection may use."""

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
    """Who understands frames."""

    def handle(self, connection: "Connection", frame: memoryview) -> None:
        """Start on a request: reserve its answer, and fill it now or later."""
        ...

    def end_turn(self) -> None:
        """Write what the turn's requests staged."""
        ...


class Shared:
    """What the connections of one listener share."""

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
        # None where nothing is to be counted.
        self.stats = stats
        self.tasks = tasks
        self.limits = limits
        self.scratch = bytearray(scratch_bytes)
        self.buffers = Buffers()
        self.in_flight = InFlight(limits.in_flight_bytes)
        self.turns = Turns(loop)
        self.connections: set[Connection] = set()
        self.connection_limit = ConnectionLimit("kafka", self.connections, limits.max_connections, stats)
        self._is_hurrying = False

    def hurry(self) -> None:
        """See that those who take up room finish or give it back, for as long as others wait for it."""
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
    """The protocol of one accepted socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        self._loop = loop
        self._shared = shared
        self._limits = shared.limits
        self._inbox = Inbox(shared.scratch, shared.limits.max_request_bytes)
        self._answers: deque[Answer] = deque()
        # Of answers that are known but have to wait for one before them.
        self._answered_bytes = 0
        self._held = False
        self._awaits_room = False
        self._paused = False
        self._in_turn = False
        self._send_due = False
        self._large: mmap | None = None
        self._room_bytes = 0
        self._close_listeners: list[Callable[[], None]] = []
        # By the clock itself: the loop's own stands still for as long as a turn of it takes.
        self._active_at = self._frame_began_at = monotonic()
        self._progress_seen = 0
        self._stats = shared.stats
        # Where the request that is being handled is counted, and when it came.
        self.request_stats: RequestStats | None = None
        self.received_at = 0.0
        self.has_asked = False
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)  # none: it has gone already
        self.peer_host = str(host)
        self.peer = f"{host}:{port}"
        if not self._shared.connection_limit.has_place(self._active_at):
            self._refuse()
            return
        descriptor = transport.get_extra_info("socket").fileno()
        try:
            self._outbox = Outbox(self._loop, descriptor, drained=self._review, broken=self._send_failed)
        except OSError:  # no descriptor is left for the duplicate
            self._shared.connection_limit.refused()
            self._refuse()
            return
        self._shared.connections.add(self)
        if self._stats is not None:
            self._stats.opened += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended is logged where it is known
        if self in self._shared.connections:
            self._release()

    def _refuse(self) -> None:
        self.is_closed = True
        self._transport.abort()

    @property
    def idle_since(self) -> float | None:
        """When the client last sent something; None while it waits for an answer or has just got one."""
        if self.is_closed or self._answers or self._held or self._awaits_room or self._outbox.is_blocked:
            return None
        return self._active_at if self._outbox.sent_bytes == self._progress_seen else None

    def evict(self) -> None:
        """Hang up to make place for another client."""
        self._release()
        self._transport.abort()

    def eof_received(self) -> bool:
        return False  # close: a client that has finished sending does not wait for answers

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._inbox.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_closed:
            return
        self._active_at = self.received_at = monotonic()
        if self._stats is not None:
            self._stats.received_bytes += nbytes
        if not self._inbox.is_inside_frame:
            self._frame_began_at = self._active_at
        self._inbox.received(nbytes)
        self._turn()

    def reserve(self) -> Answer:
        """The next place in the order of answers."""
        answer = Answer(self, self.request_stats, self.received_at)
        self._answers.append(answer)
        return answer

    def answered(self, size: int) -> None:
        """Some answer is known; what can be sent is sent at the end of the turn."""
        self._answered_bytes += size
        if not self._in_turn and not self._send_due:
            self._send_due = True
            self._loop.call_soon(self._send_answers)

    def hold(self) -> None:
        """Start on no further request until `proceed`."""
        self._held = True

    def proceed(self) -> None:
        """The request that held up the others is done."""
        self._held = False
        self._continue()

    @property
    def turns(self) -> Turns:
        return self._shared.turns

    def is_wanted(self) -> bool:
        """Whether somebody is still there to be answered."""
        return not self.is_closed

    def kept(self, frame: memoryview) -> memoryview:
        """The frame being handled, for work that outlives the turn while the connection is held."""
        return frame if self._large is not None else memoryview(bytearray(frame))

    def free_frame(self) -> None:
        """The frame of the request that holds up the others is not needed any more."""
        if not self._inbox.frame_bytes:
            self._give_back_room()

    @contextmanager
    def cancelling_on_close(self) -> Iterator[None]:
        """Cancel the current task if the connection ends meanwhile."""
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
        """Run the rest of a request as a task; a bug in it costs this connection, not the broker."""
        self._shared.tasks.create_task(self._guarded(work))

    def spawn_while_open(self, work: Awaitable[None]) -> None:
        """Like `spawn`, for what nobody needs once the connection has ended: it ends then, too."""
        task = self._shared.tasks.create_task(self._guarded(work))

        def end() -> None:
            # Not at once: a task must have begun, or what it was to await never is.
            self._loop.call_soon(task.cancel)

        self.on_close(end)
        task.add_done_callback(lambda _: self.forget_on_close(end))

    def on_close(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the connection ends."""
        self._close_listeners.append(listener)

    def forget_on_close(self, listener: Callable[[], None]) -> None:
        if listener in self._close_listeners:
            self._close_listeners.remove(listener)

    def close(self, reason: str) -> None:
        """Hang up."""
        if not self.is_closed:
            log.info("connection_closed", peer=self.peer, reason=reason)
            self._release()
            self._transport.abort()

    def check_timeouts(self, now: float) -> None:
        """Hang up on a client that is gone or silent, sends a frame too slowly or has stopped reading."""
        limits = self._limits
        if self._outbox.sent_bytes != self._progress_seen:
            self._count_sent()
            self._active_at = now
        if now - self._active_at > limits.idle_timeout_ms / 1000 and (
            not self._answers or self._outbox.is_blocked
        ):
            self.close(f"nothing happened for {limits.idle_timeout_ms} ms (kafka.idle_timeout_ms)")
        elif self._inbox.is_inside_frame and not (self._held or self._paused):
            overtime = now - self._frame_began_at - limits.frame_timeout_ms / 1000
            if overtime > self._inbox.received_bytes / MIN_BYTES_PER_SECOND:
                self.close("a request did not arrive in time (kafka.frame_timeout_ms)")
        elif self._held and self._outbox.is_abandoned:
            self.close("the client hung up while it waited")

    def check_pace(self, now: float) -> None:
        """Hang up on a client that takes up room others wait for and does not send.

        One that is not read from because it does not read its answers counts as such.
        """
        if self._inbox.frame_bytes and not (self._held or self._awaits_room):
            hurried_seconds = now - self._frame_began_at - HURRIED_AFTER_SECONDS
            if self._inbox.received_bytes < hurried_seconds * HURRIED_BYTES_PER_SECOND:
                self.close("others wait for the room its request takes up (kafka.in_flight_bytes)")

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Abandoned:
            pass  # the connection is closed already
        except ProtocolError as error:
            self.close(str(error))
        except Exception:
            log.exception("connection_crashed", peer=self.peer)
            self.close("internal error")

    def _continue(self) -> None:
        """Go on with frames that arrived while the connection was held or over a limit."""
        if not (self.is_closed or self._held):
            self._inbox.reopen()
            self._turn()

    def _turn(self) -> None:
        self._in_turn = True
        try:
            # Sending answers makes room for requests that a limit kept from being started.
            while self._handle_frames():
                pass
        except ProtocolError as error:
            self.close(str(error))
        except Exception:
            log.exception("connection_crashed", peer=self.peer)
            self.close("internal error")
        self._end_turn()
        self._in_turn = False
        if self.is_closed:
            return
        if not self._awaits_room:
            self._make_room()
        self._inbox.park()
        self._review()

    def _end_turn(self) -> None:
        """Whatever became of the turn: staged batches lie in the buffer that the next turn overwrites."""
        try:
            self._shared.requests.end_turn()
        except Exception:
            log.exception("connection_crashed", peer=self.peer)
            self.close("internal error")

    def _handle_frames(self) -> bool:
        """Handle what has arrived; true if a limit stopped it that no longer does."""
        over_limit = False
        until = monotonic() + TURN_SECONDS
        while not self._held:
            if over_limit := self._is_over_limit():
                break
            if (frame := self._inbox.next_frame()) is None:
                break
            self._frame_began_at = self._active_at  # what follows it is the next one
            self.has_asked = True
            self._shared.requests.handle(self, frame)
            if self.is_closed:
                return False
            if monotonic() > until and not self._held:
                self.hold()
                self._shared.turns.call(self.proceed)
        self._shared.requests.end_turn()
        self._give_back_large()
        self._drain_answers()
        return over_limit and not (self.is_closed or self._is_over_limit())

    def _make_room(self) -> None:
        """Have room for more of a large frame: as much again as has arrived, so that it grows with that."""
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
            # Not closed here, where the connection that gave the room back is at work.
            self._loop.call_soon(self.close, f"no memory for a request of {size} bytes: {error}")
            self._awaits_room = True
            return
        self._inbox.receive_into(self._large, taken)
        self._frame_began_at = monotonic()

    def _give_back_large(self) -> None:
        """The large frame received last has been handled, unless a held request still reads it."""
        if not (self._held or self._inbox.frame_bytes):
            self._give_back_room()

    def _give_back_room(self) -> None:
        if self._large is not None:
            self._shared.buffers.give(self._large)
            self._large = None
            room_bytes, self._room_bytes = self._room_bytes, 0
            self._shared.in_flight.give(self, room_bytes)

    def _send_answers(self) -> None:
        self._send_due = False
        if not self.is_closed:
            self._drain_answers()
            self._review()

    def _drain_answers(self) -> None:
        self._answered_bytes -= send_known(self._answers, self._outbox)

    def _is_over_limit(self) -> bool:
        limits = self._limits
        return (
            len(self._answers) + self._outbox.queued_pieces >= limits.connection_in_flight_requests
            or self._answered_bytes + self._outbox.queued_bytes >= limits.connection_in_flight_bytes
        )

    def _review(self) -> None:
        """Read on or stop reading, as the limits say."""
        if self.is_closed:
            return
        pause = self._held or self._awaits_room or self._is_over_limit()
        if pause == self._paused:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._frame_began_at = monotonic()  # what it could not send meanwhile is not late
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
        if self._stats is not None:
            self._stats.shut += 1
            self._count_sent()
        # Memory is freed here and now: this object lives until the garbage collector finds its cycles.
        self._inbox.drop()
        self._large = None
        room_bytes, self._room_bytes = self._room_bytes, 0
        self._shared.in_flight.leave(self, room_bytes)
        for answer in self._answers:
            release(answer.pieces or ())
        self._answers.clear()
        self._outbox.close()
        # Taken away first: a listener may take itself out, and the one behind it would not be called.
        listeners, self._close_listeners = self._close_listeners, []
        for listener in listeners:
            listener()
