"""Links to the other nodes: connections that are opened on demand and kept, one per node.

A link reconnects at once after a loss, then with growing, randomised pauses. The first attempt after a loss
is also a probe: if it is refused, the process at the other end has ended, and the owner is notified.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar, overload

import msgspec

from alpacamq.model.address import Address
from alpacamq.model.errors import PeerUnavailable, UnknownBroker
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.logs import get_logger

from .connection import DEFAULT_LIMITS, CallConnection, Late, Limits, PeerTls, dial
from .handshake import HandshakeFailed, LocalNodeProvider, Peer, Purpose
from .values import Values

log = get_logger(__name__)

R = TypeVar("R")
P = TypeVar("P", bound=asyncio.BaseProtocol)

FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 1.0
# A connection that ended sooner counts as a failed attempt, so that a flapping one is not retried at once.
STABLE_SECONDS: Final = 1.0


class LinkState(Enum):
    """The state of a link."""

    IDLE = "idle"  # nothing was sent yet
    CONNECTING = "connecting"
    CONNECTED = "connected"
    BACKOFF = "backoff"
    CLOSED = "closed"


class LinkStatus(NamedTuple):
    """A link, for status pages and failure detection.

    `is_refused`: the connection was lost, and the last attempt to open it again was refused.
    """

    node_id: BrokerId
    address: Address
    state: LinkState
    is_refused: bool
    last_error: str
    calls_in_flight: int
    queued_bytes: int
    dropped_posts: int


class Events(NamedTuple):
    """Notifications to the owner of links.

    `on_lost(node_id, refused)` is called with False when an established connection ends, and with True when
    the attempt to open it again is refused: then nothing listens at the address any more.
    """

    on_lost: Callable[[BrokerId, bool], None] = lambda _node_id, _refused: None
    on_connected: Callable[[Peer], None] = lambda _peer: None


NO_EVENTS: Final = Events()


class Dialler(NamedTuple):
    """Everything that opening a connection needs, except the address."""

    local: LocalNodeProvider
    secret: bytes
    values: Values
    limits: Limits = DEFAULT_LIMITS
    random: Callable[[], float] = random.random
    # None: connections are plain.
    tls: PeerTls | None = None

    async def open(
        self, address: Address, node_id: BrokerId, purpose: Purpose, follow: Callable[[Peer], P]
    ) -> P:
        """Connect to a node. Raises HandshakeFailed, OSError or TimeoutError."""
        return await dial(address, self.local(), node_id, purpose, self.secret, follow, tls=self.tls)


class PeerLink:
    """The link to one node. `run` keeps it connected once something was sent."""

    def __init__(self, node_id: BrokerId, address: Address, dialler: Dialler, events: Events) -> None:
        self.node_id = node_id
        self._address = address
        self._dialler = dialler
        self._events = events
        self._state = LinkState.IDLE
        self._connection: CallConnection | None = None
        self._wanted = asyncio.Event()
        self._retry_now = asyncio.Event()
        # Calls that wait for the attempt in progress, or for the next one.
        self._waiting: set[asyncio.Future[CallConnection]] = set()
        self._was_lost = self._is_refused = self._is_dropped = False
        self._last_error = ""
        self._logged_error = ""
        self._dropped_posts = 0

    @property
    def address(self) -> Address:
        return self._address

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def state(self) -> LinkState:
        return self._state

    def status(self) -> LinkStatus:
        """Return what status pages show."""
        connection = self._connection
        return LinkStatus(
            self.node_id,
            self._address,
            self._state,
            self._is_refused,
            self._last_error,
            connection.calls_in_flight if connection else 0,
            connection.queued_bytes if connection else 0,
            self._dropped_posts + (connection.dropped_posts if connection else 0),
        )

    @overload
    async def call(self, value: Request[R], timeout_ms: int, late: Late = None) -> R: ...
    @overload
    async def call(self, value: msgspec.Struct, timeout_ms: int, late: Late = None) -> Any: ...
    async def call(self, value: msgspec.Struct, timeout_ms: int, late: Late = None) -> Any:
        """Send a request and return the reply; connect first if necessary. See `CallConnection.call`.

        PeerUnavailable: the request was not sent, because the next attempt to connect failed or the limits
        of the link are reached. RequestTimedOut: it may have taken effect.
        """
        connection = self._connection
        if connection is None:
            loop = asyncio.get_running_loop()
            until = loop.time() + timeout_ms / 1000
            connection = await self._wait_until_connected(timeout_ms)
            timeout_ms = int((until - loop.time()) * 1000)
        return await connection.call(value, timeout_ms, late)

    def post(self, value: msgspec.Struct) -> None:
        """Send a value without a reply; drop it if the link is down."""
        if self._connection is not None:
            self._connection.post(value)
        else:
            self._dropped_posts += 1
            self._wanted.set()

    def connect(self) -> None:
        """Open the connection without waiting for a first call."""
        self._wanted.set()

    def move(self, address: Address) -> None:
        """Use another address; an open connection to the old one is closed."""
        if address != self._address:
            self._address = address
            self._retry_now.set()
            self._drop("its address changed")

    def identity_changed(self) -> None:
        """Reconnect if the connection was opened under another cluster id than this node has now."""
        if (
            self._connection is not None
            and self._connection.peer.cluster_id != self._dialler.local().cluster_id
        ):
            self._drop("this node has joined a cluster")
        self._retry_now.set()

    async def run(self) -> None:
        """Keep the link connected until cancelled, from the first use on."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            await self._wanted.wait()
            while True:
                if failures:
                    self._state = LinkState.BACKOFF
                    await self._pause(failures)
                self._state = LinkState.CONNECTING
                closed: asyncio.Future[str] = loop.create_future()
                try:
                    connection = await self._open(loop, closed)
                except (OSError, HandshakeFailed) as error:  # TimeoutError is an OSError
                    failures += 1
                    self._attempt_failed(error)
                    continue
                connected_at = loop.time()
                if not closed.done():  # it may have ended in the turn in which it began
                    self._connected(connection)
                reason = await closed
                self._dropped_posts += connection.dropped_posts
                if self._is_dropped:
                    # This side closed it. A refusal at the new address says nothing about the node.
                    self._is_dropped = False
                    failures = 0
                    continue
                self._lost(reason)
                failures = 0 if loop.time() - connected_at >= STABLE_SECONDS else failures + 1
        finally:
            self._state = LinkState.CLOSED
            self._last_error = self._last_error or "the link is closed"
            self._drop("the link is closed")
            self._fail_waiting()

    async def _open(self, loop: asyncio.AbstractEventLoop, closed: asyncio.Future[str]) -> CallConnection:
        def ended(connection: CallConnection, reason: str) -> None:
            if self._connection is connection:
                self._connection = None  # at once: a call in this turn must not use it
            if not closed.done():
                closed.set_result(reason)

        dialler = self._dialler
        return await dialler.open(
            self._address,
            self.node_id,
            Purpose.CALLS,
            lambda peer: CallConnection(loop, peer, dialler.values, dialler.limits, ended),
        )

    async def _pause(self, failures: int) -> None:
        most = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(failures - 1, 10))
        self._retry_now.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(most * (0.5 + self._dialler.random() / 2)):
                await self._retry_now.wait()

    async def _wait_until_connected(self, timeout_ms: int) -> CallConnection:
        if self._state is LinkState.CLOSED or len(self._waiting) >= self._dialler.limits.max_calls:
            raise PeerUnavailable(self._unavailable())
        self._wanted.set()
        waiting: asyncio.Future[CallConnection] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiting
        except TimeoutError:
            raise PeerUnavailable(self._unavailable()) from None
        finally:
            self._waiting.discard(waiting)

    def _connected(self, connection: CallConnection) -> None:
        self._connection = connection
        self._state = LinkState.CONNECTED
        self._was_lost = self._is_refused = False
        self._last_error = self._logged_error = ""
        log.info("peer_connected", node=self.node_id, address=str(self._address))
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(connection)
        self._events.on_connected(connection.peer)

    def _lost(self, reason: str) -> None:
        self._last_error = reason
        self._was_lost = True
        log.warning("peer_lost", node=self.node_id, address=str(self._address), reason=reason)
        self._events.on_lost(self.node_id, False)

    def _attempt_failed(self, error: OSError | HandshakeFailed) -> None:
        self._last_error = _text(error)
        # Once per reason, not once per attempt; the text of a refusal names the port of the attempt.
        reason = str(error.refusal) if isinstance(error, HandshakeFailed) else self._last_error
        if reason != self._logged_error:
            self._logged_error = reason
            log.warning(
                "peer_handshake_failed" if isinstance(error, HandshakeFailed) else "peer_unreachable",
                node=self.node_id,
                address=str(self._address),
                reason=self._last_error,
                **({"refusal": str(error.refusal)} if isinstance(error, HandshakeFailed) else {}),
            )
        self._fail_waiting()
        if is_process_gone(was_connected=self._was_lost, error=error):
            if not self._is_refused:
                self._is_refused = True
                self._events.on_lost(self.node_id, True)
        elif isinstance(error, HandshakeFailed):
            # Something listens there again. An unknown name or silence says nothing: name and address of a
            # container go soon after its process.
            self._is_refused = False

    def _fail_waiting(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(PeerUnavailable(self._unavailable()))

    def _unavailable(self) -> str:
        return (
            f"node {self.node_id} at {self._address} cannot be reached: {self._last_error or 'no answer yet'}"
        )

    def _drop(self, reason: str) -> None:
        if self._connection is not None:
            self._is_dropped = True
            self._connection.close(reason)


def is_process_gone(*, was_connected: bool, error: Exception) -> bool:
    """Return whether a node that was connected has ended: its machine answers that nothing listens there."""
    return was_connected and isinstance(error, ConnectionRefusedError)


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


class Peers:
    """The links to all other nodes. Addresses come with the image and may change at any time."""

    def __init__(self, dialler: Dialler, events: Events = NO_EVENTS) -> None:
        self._dialler = dialler
        self._events = events
        self._links: dict[BrokerId, PeerLink] = {}
        self._tasks: dict[BrokerId, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Keep the links connected until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for link in self._links.values():
                    self._start(link)
                await asyncio.Event().wait()
        finally:
            self._group = None
            self._tasks.clear()

    def update(self, addresses: Mapping[BrokerId, Address]) -> None:
        """Set the nodes and their addresses: open, move and close links. This node itself is skipped."""
        own = self._dialler.local().node_id
        for node_id in self._links.keys() - addresses.keys():
            del self._links[node_id]
            if (task := self._tasks.pop(node_id, None)) is not None:
                task.cancel()
        for node_id, address in addresses.items():
            if node_id == own:
                continue
            if (link := self._links.get(node_id)) is not None:
                link.move(address)
                continue
            link = self._links[node_id] = PeerLink(node_id, address, self._dialler, self._events)
            if self._group is not None:
                self._start(link)

    def identity_changed(self) -> None:
        """Reconnect under the cluster id that this node has now."""
        for link in self._links.values():
            link.identity_changed()

    def link(self, node_id: BrokerId) -> PeerLink:
        """Return the link to a node. Raises UnknownBroker."""
        found = self._links.get(node_id)
        if found is None:
            raise UnknownBroker(f"no address is known for node {node_id}")
        return found

    @overload
    async def call(self, node_id: BrokerId, value: Request[R], timeout_ms: int, late: Late = None) -> R: ...
    @overload
    async def call(
        self, node_id: BrokerId, value: msgspec.Struct, timeout_ms: int, late: Late = None
    ) -> Any: ...
    async def call(self, node_id: BrokerId, value: msgspec.Struct, timeout_ms: int, late: Late = None) -> Any:
        """Call a node; see `PeerLink.call`."""
        return await self.link(node_id).call(value, timeout_ms, late)

    def post(self, node_id: BrokerId, value: msgspec.Struct) -> None:
        """Post to a node; dropped if there is no link or it is down."""
        if (link := self._links.get(node_id)) is not None:
            link.post(value)

    async def open_fetch(self, node_id: BrokerId, follow: Callable[[Peer], P]) -> P:
        """Open a connection for replica fetches; `follow` creates its protocol. Raises PeerUnavailable."""
        link = self.link(node_id)
        try:
            return await self._dialler.open(link.address, node_id, Purpose.FETCH, follow)
        except (OSError, HandshakeFailed) as error:
            raise PeerUnavailable(
                f"node {node_id} at {link.address} cannot be reached: {_text(error)}"
            ) from error

    def statuses(self) -> list[LinkStatus]:
        """Return the status of each link, by node id."""
        return [self._links[node_id].status() for node_id in sorted(self._links)]

    def _start(self, link: PeerLink) -> None:
        assert self._group is not None
        self._tasks[link.node_id] = self._group.create_task(link.run())
