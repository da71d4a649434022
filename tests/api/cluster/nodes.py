"""Nodes for tests: a real listener on 127.0.0.1 and real links to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from alpacamq.api.cluster.listener import ClusterListener, Handler, PostHandler, Service
from alpacamq.api.tls import ListenerTls
from alpacamq.broker.peers.connection import DEFAULT_LIMITS, Limits
from alpacamq.broker.peers.handshake import LocalNode, Peer
from alpacamq.broker.peers.link import NO_EVENTS, Dialler, Events, Peers
from alpacamq.broker.peers.values import Values
from alpacamq.model.address import Address
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request

SECRET = b"a secret of the tests, long enough"
CLUSTER = "cluster-of-the-tests"
SOON_S = 10


class Pong(msgspec.Struct, frozen=True):
    """The reply to Ping."""

    text: str
    node_id: int


class Ping(Request[Pong], frozen=True, kw_only=True, tag="ping"):
    """Echoed."""

    text: str


class Numbers(Request[list[int]], frozen=True, kw_only=True, tag="numbers"):
    """A request whose reply is no struct."""

    count: int


class Hold(Request[str], frozen=True, kw_only=True, tag="hold"):
    """Waits until it is released by name."""

    name: str


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """Posted, and answered with itself when called."""

    data: bytes


class Unregistered(msgspec.Struct, frozen=True, tag="unregistered"):
    """Known to no node."""


VALUES = Values([Ping, Numbers, Hold, Note], bootstrap=[Numbers])


def local(node_id: int, cluster_id: str = CLUSTER, incarnation: int = 0) -> LocalNode:
    return LocalNode(BrokerId(node_id), cluster_id, bytes([node_id, incarnation]) * 8)


class Node:
    """A listening node whose handlers record what they see."""

    def __init__(
        self,
        node_id: int,
        *,
        port: int = 0,
        secret: bytes = SECRET,
        limits: Limits = DEFAULT_LIMITS,
        max_unauthenticated: int = 64,
        handlers: dict[type[msgspec.Struct], Handler] | None = None,
        posts: dict[type[msgspec.Struct], PostHandler] | None = None,
        on_fetch: Callable[[asyncio.Transport, Peer], None] | None = None,
        tls: ListenerTls | None = None,
    ) -> None:
        self.local = local(node_id)
        self.notes: list[bytes] = []
        self.callers: list[Peer] = []
        self.held: dict[str, asyncio.Future[str]] = {}
        self.cancelled: list[str] = []
        self.handed_over: list[Peer] = []
        called: dict[type[msgspec.Struct], Handler] = {
            Ping: self._ping,
            Numbers: self._numbers,
            Hold: self._hold,
            Note: self._note,
            **(handlers or {}),
        }
        posted: dict[type[msgspec.Struct], PostHandler] = {Note: self._noted, **(posts or {})}
        service = Service(VALUES, called, posted, on_fetch or self._fetch, limits)
        self.listener = ClusterListener(
            "127.0.0.1",
            port,
            lambda: self.local,
            secret,
            service,
            max_unauthenticated=max_unauthenticated,
            tls=tls,
        )
        host, bound = self.listener.bind()
        self.address = Address(host, bound)

    async def _ping(self, value: Ping, peer: Peer) -> Pong:
        self.callers.append(peer)
        return Pong(value.text, self.local.node_id)

    async def _numbers(self, value: Numbers, _peer: Peer) -> list[int]:
        return list(range(value.count))

    async def _hold(self, value: Hold, _peer: Peer) -> str:
        self.held[value.name] = asyncio.get_running_loop().create_future()
        try:
            return await self.held[value.name]
        except asyncio.CancelledError:
            self.cancelled.append(value.name)
            raise

    async def _note(self, value: Note, _peer: Peer) -> Note:
        return value

    def _noted(self, value: Note, _peer: Peer) -> None:
        self.notes.append(value.data)

    def _fetch(self, transport: asyncio.Transport, peer: Peer) -> None:
        self.handed_over.append(peer)
        transport.abort()


@asynccontextmanager
async def running(*runners: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Run until the block ends."""

    async def run(runner: Callable[[], Awaitable[Any]]) -> None:
        await runner()

    tasks = [asyncio.create_task(run(runner)) for runner in runners]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result


@asynccontextmanager
async def a_node(node_id: int, **options: Any) -> AsyncIterator[Node]:
    node = Node(node_id, **options)
    async with running(node.listener.run):
        await node.listener.listening.wait()
        yield node


def peers_of(
    node: LocalNode | Callable[[], LocalNode],
    *others: Node,
    secret: bytes = SECRET,
    limits: Limits = DEFAULT_LIMITS,
    events: Events = NO_EVENTS,
) -> Peers:
    provider = node if callable(node) else lambda: node
    peers = Peers(Dialler(provider, secret, VALUES, limits, random=lambda: 0.0), events)
    peers.update({other.local.node_id: other.address for other in others})
    return peers


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for a condition, turn by turn of the event loop."""
    async with asyncio.timeout(SOON_S):
        while not condition():  # noqa: ASYNC110 - any condition, not one that has an event
            await asyncio.sleep(0.001)
