"""The cluster listener: authenticates other nodes and serves their calls.

Before the handshake is complete a connection may send frames of 1 KiB, has 5 seconds, and counts against a
small limit at which the oldest such connection is closed. After it, a connection for calls is served here;
one for fetches is handed over to its owner.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, Final, cast

import msgspec

from alpacamq.api.listening import ListenerSettings, ListeningSocket
from alpacamq.api.tls import ListenerTls
from alpacamq.broker.peers import handshake
from alpacamq.broker.peers.connection import (
    CALL,
    CANCEL,
    DEFAULT_LIMITS,
    FAILURE,
    KIND_AND_ID,
    KIND_ID_TIMEOUT,
    POST,
    REPLY,
    FramedConnection,
    FrameSplitter,
    Limits,
    ProtocolViolated,
    detect_dead_peer,
    frames_of,
    is_frame_length_allowed,
    with_length,
)
from alpacamq.broker.peers.handshake import (
    HandshakeFailed,
    LocalNodeProvider,
    Peer,
    Purpose,
    Refusal,
    ServerHandshake,
    encode_refusal,
)
from alpacamq.broker.peers.values import InvalidValue, Values, error_to_bytes
from alpacamq.model.address import Address
from alpacamq.model.errors import (
    AlpacaError,
    InconsistentClusterId,
    InvalidRequest,
    PeerFailed,
)
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ListenerStats

log = get_logger(__name__)

MAX_UNAUTHENTICATED: Final = 64
# Connections of one node: its calls, its fetches, and those that it has given up but this side still holds.
MAX_PER_NODE: Final = 32
# Replies that wait to be sent before no further call is read, and the interval of checks.
_UNREAD_BYTES: Final = 4 << 20
_SWEEP_SECONDS: Final = 1.0
# The caller's clock ends a call; this side ends it later, in case the cancellation is not read.
_GRACE_SECONDS: Final = 2.0
# Failed handshakes of one kind from one host are logged once in this time.
_LOG_AGAIN_SECONDS: Final = 60.0
_MAX_LOGGED: Final = 256

Handler = Callable[[Any, Peer], Awaitable[object]]
PostHandler = Callable[[Any, Peer], None]
# Takes over an authenticated transport: sets its protocol and calls that protocol's connection_made.
OnFetchConnection = Callable[[asyncio.Transport, Peer], None]


class Service:
    """What the listener serves: handlers by type of value, and the owner of fetch connections."""

    def __init__(
        self,
        values: Values,
        handlers: Mapping[type[msgspec.Struct], Handler],
        posts: Mapping[type[msgspec.Struct], PostHandler],
        on_fetch_connection: OnFetchConnection,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.values = values
        self.handlers = handlers
        self.posts = posts
        self.on_fetch_connection = on_fetch_connection
        self.limits = limits


class ServedConnection(FramedConnection):
    """The serving side of a connection for calls."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        peer: Peer,
        service: Service,
        tasks: asyncio.TaskGroup,
        on_closed: Callable[["ServedConnection"], None],
    ) -> None:
        super().__init__(loop, peer, service.limits.max_frame_bytes)
        self._service = service
        self._group = tasks
        self._on_closed = on_closed
        # Calls in progress, with the loop time at which their callers give up.
        self._calls: dict[int, tuple[asyncio.Task[None], float]] = {}
        self._call_bytes = 0
        self._replies: list[bytes] = []
        self._reply_bytes = 0
        self._is_reading_paused = False

    @property
    def calls(self) -> int:
        """The number of calls in progress."""
        return len(self._calls)

    @property
    def call_bytes(self) -> int:
        """The size of the calls in progress."""
        return self._call_bytes

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._review()

    def cancel_overdue(self, now: float) -> None:
        """Cancel calls whose callers gave up a while ago."""
        for task, deadline in list(self._calls.values()):
            if is_overdue(deadline, now):
                task.cancel()

    def _received(self, frame: memoryview) -> None:
        if len(frame) < KIND_AND_ID.size:
            raise ProtocolViolated(f"a frame of {len(frame)} bytes")
        kind, request_id = KIND_AND_ID.unpack_from(frame)
        if kind == CALL:
            self._begin(frame, request_id)
        elif kind == POST:
            self._post(frame[KIND_AND_ID.size :])
        elif kind == CANCEL:
            if (found := self._calls.get(request_id)) is not None:
                found[0].cancel()
        else:
            raise ProtocolViolated(f"a frame of kind {kind}")

    def _begin(self, frame: memoryview, request_id: int) -> None:
        if len(frame) < KIND_ID_TIMEOUT.size:
            raise ProtocolViolated(f"a call of {len(frame)} bytes")
        if request_id in self._calls:
            raise ProtocolViolated(f"request id {request_id} is in use")
        _, _, timeout_ms = KIND_ID_TIMEOUT.unpack_from(frame)
        try:
            value = self._decode(frame[KIND_ID_TIMEOUT.size :])
            handler = self._service.handlers.get(type(value))
            if handler is None:
                raise InvalidRequest(f"{type(value).__name__} cannot be called")
        except AlpacaError as error:
            self._reply(FAILURE, request_id, error_to_bytes(error))
            return
        size = len(frame)
        self._call_bytes += size
        deadline = self._loop.time() + timeout_ms / 1000
        peer = self.peer
        caller = Peer(peer.node_id, peer.incarnation, peer.cluster_id, peer.version, peer.address, deadline)
        task = self._group.create_task(self._handle(handler, value, caller, request_id))
        self._calls[request_id] = task, deadline
        # Not a `finally` of the task: one that is cancelled before it begins has none.
        task.add_done_callback(lambda _: self._call_ended(request_id, size))

    def _call_ended(self, request_id: int, size: int) -> None:
        self._calls.pop(request_id, None)
        self._call_bytes -= size
        if self._is_reading_paused:
            self._review()

    async def _handle(self, handler: Handler, value: Any, caller: Peer, request_id: int) -> None:
        try:
            body = self._service.values.encode_reply(await handler(value, caller))
            if is_frame_length_allowed(len(body) + KIND_AND_ID.size, self._service.limits.max_frame_bytes):
                self._reply(REPLY, request_id, body)
            else:
                raise PeerFailed(f"the reply to {type(value).__name__} has {len(body)} bytes, too many")
        except AlpacaError as error:
            self._reply(FAILURE, request_id, error_to_bytes(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if task.cancelling():
                raise  # by the caller, who no longer waits
            self._reply(
                FAILURE, request_id, error_to_bytes(PeerFailed(f"{type(value).__name__} was cancelled"))
            )
        except Exception as error:
            log.exception("peer_call_crashed", node=caller.node_id, request=type(value).__name__)
            failure = PeerFailed(f"{type(value).__name__} failed with {type(error).__name__}")
            self._reply(FAILURE, request_id, error_to_bytes(failure))

    def _post(self, body: memoryview) -> None:
        try:
            value = self._decode(body)
            handler = self._service.posts.get(type(value))
            if handler is None:
                raise InvalidRequest(f"{type(value).__name__} cannot be posted")
            handler(value, self.peer)
        except AlpacaError as error:
            # A post has no reply. A newer node may post what this version does not know.
            log.debug("peer_post_dropped", node=self.peer.node_id, reason=str(error))

    def _decode(self, body: memoryview) -> Any:
        values = self._service.values
        try:
            value = values.decode(body)
        except InvalidValue as error:
            # Not the client's fault: the other node may have a newer version.
            raise PeerFailed(
                f"the request cannot be read; do the nodes run different versions? {error}"
            ) from error
        if not self.peer.cluster_id and not values.may_be_sent_without_cluster(type(value)):
            raise InconsistentClusterId(
                f"{type(value).__name__} is not accepted before both nodes know their cluster"
            )
        return value

    def _reply(self, kind: int, request_id: int, body: bytes) -> None:
        if self.is_closed:
            return
        self._replies += frames_of(kind, request_id, body)
        self._reply_bytes += len(body)
        if self._reply_bytes > 2 * self._service.limits.max_call_bytes:
            self.close("it does not read its replies")
            return
        self._schedule_flush()

    def _unsent(self) -> list[bytes]:
        replies, self._replies = self._replies, []
        self._reply_bytes = 0
        if self._is_reading_paused:
            self._loop.call_soon(self._review)
        return replies

    def _review(self) -> None:
        """Pause or resume reading, depending on the limits."""
        pause = self._is_over_limit()
        if self.is_closed or pause == self._is_reading_paused:
            return
        self._is_reading_paused = pause
        assert self._transport is not None
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _is_over_limit(self) -> bool:
        limits = self._service.limits
        return (
            len(self._calls) >= 2 * limits.max_calls
            or self._call_bytes >= 2 * limits.max_call_bytes
            or self._reply_bytes >= _UNREAD_BYTES
        )

    def _ended(self, reason: str) -> None:
        log.info("peer_disconnected", node=self.peer.node_id, peer=self.peer.address, reason=reason)
        self._replies.clear()
        self._reply_bytes = 0
        for task, _ in list(self._calls.values()):
            task.cancel()
        self._on_closed(self)


def is_overdue(deadline: float, now: float) -> bool:
    """Return whether a call's caller has certainly given up."""
    return now > deadline + _GRACE_SECONDS


class _Arrival(asyncio.Protocol):
    """An accepted connection until its handshake is complete."""

    def __init__(self, listener: "ClusterListener", loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._splitter = FrameSplitter(handshake.MAX_FRAME_BYTES)
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.host = str(host)
        self.address = f"{host}:{port}"
        self._handshake = self._listener.arrived(self)
        self._timer = self._loop.call_later(handshake.TIMEOUT_SECONDS, self._time_out)
        detect_dead_peer(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            frames = self._splitter.split(data)
            for index, frame in enumerate(frames):
                answer, accepted = self._handshake.received(bytes(frame), self.address)
                self._transport.write(with_length(answer))
                if accepted is not None:
                    if index + 1 < len(frames) or self._splitter.is_inside_frame:
                        # A node of this cluster waits for our proof before it sends more.
                        raise HandshakeFailed(Refusal.MALFORMED, "bytes behind the handshake")
                    self._leave()
                    self._listener.authenticated(self._transport, *accepted)
                    return
        except ProtocolViolated as error:
            self.refuse(HandshakeFailed(Refusal.MALFORMED, str(error)))
        except HandshakeFailed as failure:
            self.refuse(failure)
        except Exception:
            log.exception("peer_connection_crashed", peer=self.address)
            self._leave()
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - nothing was agreed yet
        self._leave()

    def refuse(self, failure: HandshakeFailed) -> None:
        """Tell the client why, and close."""
        if not self._is_over:
            self._listener.failed(self, failure)
            self._leave()
            self._transport.write(with_length(encode_refusal(failure)))
            self._transport.close()
            # A client that does not read the refusal must not keep the connection.
            self._loop.call_later(handshake.TIMEOUT_SECONDS, self._transport.abort)

    def drop(self) -> None:
        """Close without a word."""
        self._leave()
        self._transport.abort()

    def _time_out(self) -> None:
        self.refuse(
            HandshakeFailed(Refusal.TIMED_OUT, f"no handshake within {handshake.TIMEOUT_SECONDS:.0f} s")
        )

    def _leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._timer.cancel()
            self._splitter = FrameSplitter(0)
            self._listener.left(self)


class _RecentlyLogged:
    """Remembers a bounded number of log events, so that a repeated one is written once a minute."""

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()

    def is_new(self, key: tuple[str, str], now: float) -> bool:
        if self._until.get(key, 0.0) > now:
            return False
        self._until[key] = now + _LOG_AGAIN_SECONDS
        self._until.move_to_end(key)
        if len(self._until) > _MAX_LOGGED:
            self._until.popitem(last=False)
        return True


class ClusterListener:
    """One listening socket and every connection accepted on it."""

    def __init__(
        self,
        host: str,
        port: int,
        local: LocalNodeProvider,
        secret: bytes,
        service: Service,
        stats: ListenerStats | None = None,
        max_unauthenticated: int = MAX_UNAUTHENTICATED,
        tls: ListenerTls | None = None,
    ) -> None:
        address = Address(host, port)
        settings = ListenerSettings(name="cluster", address=address, tls=tls, remedy="change cluster.listen")
        self._listening = ListeningSocket(settings, stats)
        self._local = local
        self._secret = secret
        self._service = service
        self._stats = stats if stats is not None else ListenerStats()
        self._max_unauthenticated = max_unauthenticated
        self._arrivals: OrderedDict[_Arrival, None] = OrderedDict()
        self._served: OrderedDict[ServedConnection, None] = OrderedDict()
        self._logged = _RecentlyLogged()
        self._tasks: asyncio.TaskGroup | None = None
        self.listening = asyncio.Event()

    @property
    def unauthenticated(self) -> int:
        """Number of connections whose handshake is not complete."""
        return len(self._arrivals)

    @property
    def peers(self) -> list[Peer]:
        """The nodes whose connections for calls are open, one entry per connection."""
        return [connection.peer for connection in self._served]

    def bind(self) -> tuple[str, int]:
        """Bind the address and return it, with the actual port if 0 was requested. `run` serves nodes."""
        bound = self._listening.bind()
        return bound.host, bound.port

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            server = await self._listening.accept(lambda: _Arrival(self, loop))
            self.listening.set()
            try:
                while True:
                    await asyncio.sleep(_SWEEP_SECONDS)
                    for connection in list(self._served):
                        connection.cancel_overdue(loop.time())
            finally:
                server.close()
                for arrival in list(self._arrivals):
                    arrival.drop()
                for connection in list(self._served):
                    connection.close("the broker is shutting down")

    def identity_changed(self) -> None:
        """Close connections under another cluster id than this node has now; their nodes connect again."""
        cluster_id = self._local().cluster_id
        for connection in list(self._served):
            if connection.peer.cluster_id != cluster_id:
                connection.close("this node has joined a cluster")

    def arrived(self, arrival: _Arrival) -> ServerHandshake:
        """Count an unauthenticated connection; at the limit, the oldest makes room.

        The oldest, not the newest: a node completes its handshake in milliseconds, and is not kept out by
        clients that only connect and wait.
        """
        self._stats.opened += 1
        if len(self._arrivals) >= self._max_unauthenticated:
            self._stats.evicted += 1
            if self._logged.is_new(("connections_evicted", ""), monotonic()):
                log.warning("connections_evicted", listener="cluster", limit=self._max_unauthenticated)
            next(iter(self._arrivals)).drop()
        self._arrivals[arrival] = None
        return ServerHandshake(self._local(), self._secret)

    def left(self, arrival: _Arrival) -> None:
        """Forget a connection whose handshake is over."""
        self._arrivals.pop(arrival, None)

    def failed(self, arrival: _Arrival, failure: HandshakeFailed) -> None:
        """Log a failed handshake, once a minute per host and reason."""
        self._stats.refused += 1
        if self._logged.is_new((arrival.host, failure.refusal), monotonic()):
            log.warning(
                "peer_refused", peer=arrival.address, refusal=str(failure.refusal), reason=str(failure)
            )

    def authenticated(self, transport: asyncio.Transport, peer: Peer, purpose: Purpose) -> None:
        """Give the connection the protocol of its purpose."""
        assert self._tasks is not None
        self._warn_about_duplicates(peer)
        if purpose is Purpose.FETCH:
            self._service.on_fetch_connection(transport, peer)
            return
        same_node = [connection for connection in self._served if connection.peer.node_id == peer.node_id]
        if len(same_node) >= MAX_PER_NODE:
            same_node[0].close("the node has opened too many connections")
        connection = ServedConnection(
            asyncio.get_running_loop(), peer, self._service, self._tasks, self._closed
        )
        self._served[connection] = None
        transport.set_protocol(connection)
        connection.connection_made(transport)

    def _closed(self, connection: ServedConnection) -> None:
        self._stats.shut += 1
        self._served.pop(connection, None)

    def _warn_about_duplicates(self, peer: Peer) -> None:
        # Either the node was restarted and its old connection is not closed yet, or there are two of them.
        # Registration decides (DuplicateBroker); an operator who reads this knows where to look.
        for connection in self._served:
            other = connection.peer
            if other.node_id == peer.node_id and other.incarnation != peer.incarnation:
                log.warning(
                    "peer_connected_again",
                    node=peer.node_id,
                    peer=peer.address,
                    earlier=other.address,
                    hint="restarted, or two nodes with the same id",
                )
                return
