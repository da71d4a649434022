"""The listener of the gRPC API.

grpclib and protobuf take a quarter of a second to import. They are imported in a thread when the first client
connects, which waits for it; the broker starts without them.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Protocol, cast

from alpacamq.api.listening import Connection, ConnectionLimit, ListenerSettings, ListeningSocket
from alpacamq.api.rest.app import RestApi
from alpacamq.broker.broker import Broker
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.metrics import ListenerStats

SECTION = "grpc"
# Interval of checks for slow and idle connections.
SWEEP_SECONDS = 1.0


class GrpcLimits(Protocol):
    """The configured limits."""

    @property
    def max_connections(self) -> int: ...
    @property
    def idle_timeout_ms(self) -> int: ...
    @property
    def header_timeout_ms(self) -> int: ...
    @property
    def max_message_bytes(self) -> int: ...
    @property
    def in_flight_bytes(self) -> int: ...


class GrpcConnection(Connection, Protocol):
    """A connection, whose module is not imported before there is one."""

    @property
    def calls(self) -> Sequence["asyncio.Task[None]"]:
        """The tasks of open calls."""
        ...

    def check_timeouts(self, now: float) -> None:
        """Close it if it is idle, dead or too slow."""
        ...

    def go_away(self) -> None:
        """Ask the client to start no more calls here."""
        ...

    def fail_all(self, error: AlpacaError) -> None:
        """End all calls with an error."""
        ...

    def close(self, reason: str) -> None:
        """Close after sending what is to be sent."""
        ...


class GrpcListener:
    """The listening sockets of the gRPC API, and every connection accepted on them."""

    def __init__(
        self, listeners: Sequence[ListenerSettings], limits: GrpcLimits, stats: ListenerStats | None = None
    ) -> None:
        self._sockets = [ListeningSocket(each, stats) for each in listeners]
        self._limits = limits
        self._stats = stats
        self.listening = asyncio.Event()
        self._connections: set[GrpcConnection] = set()
        self._connection_limit: ConnectionLimit[GrpcConnection] = ConnectionLimit(
            SECTION, self._connections, limits.max_connections, stats
        )
        self._accepting: list[asyncio.AbstractServer] = []
        # Makes connections, and lets calls end; None until the first client connects.
        self._make_connection: Callable[..., asyncio.Protocol] | None = None
        self._drain: Callable[[], Awaitable[None]] | None = None
        self._load: asyncio.Task[None] | None = None
        # Connections until then.
        self._waiting: set[_Waiting] = set()

    def bind(self) -> Address:
        """Bind the addresses and return the first, with the actual port if 0 was requested."""
        self.addresses = {each.settings.name: each.bind() for each in self._sockets}
        return self.addresses[self._sockets[0].settings.name]

    async def run(
        self, broker: Broker, addresses: Mapping[str, Address], rest: Callable[[], RestApi]
    ) -> None:
        """Serve until cancelled; `addresses` are those of all APIs by name, `rest` returns the HTTP API."""
        loop = asyncio.get_running_loop()
        self._connection_limit.enforce(broker.quotas)
        async with asyncio.TaskGroup() as tasks:
            self._start_loading = partial(self._begin_load, tasks, broker, addresses, rest)
            try:
                for each in self._sockets:
                    factory = partial(self._protocol, loop, each.settings)
                    self._accepting.append(await each.accept(factory, self._connection_limit))
                self.listening.set()
                while True:
                    await asyncio.sleep(min(SWEEP_SECONDS, self._limits.header_timeout_ms / 4000))
                    now = loop.time()
                    for connection in list(self._connections):
                        connection.check_timeouts(now)
                    self._connection_limit.report(now)
            finally:
                self._stop_accepting()
                for waiting in list(self._waiting):
                    waiting.transport.abort()
                for connection in list(self._connections):
                    connection.close("the broker is shutting down")

    def _stop_accepting(self) -> None:
        for server in self._accepting:
            server.close()
        self._accepting.clear()

    async def drain(self) -> None:
        """Accept no more connections, and let calls end: those that could go on end with UNAVAILABLE."""
        self._stop_accepting()
        if self._drain is not None:
            await self._drain()

    def _protocol(self, loop: asyncio.AbstractEventLoop, settings: ListenerSettings) -> asyncio.BaseProtocol:
        if self._make_connection is not None:
            return self._make_connection(loop, settings)
        return _Waiting(self._arrived, self._waiting.discard, settings)

    def _arrived(self, waiting: "_Waiting") -> None:
        if len(self._waiting) >= self._limits.max_connections:
            self._connection_limit.refused()
            waiting.transport.abort()
            return
        self._waiting.add(waiting)
        if self._load is None:
            self._load = self._start_loading()

    def _begin_load(
        self,
        tasks: asyncio.TaskGroup,
        broker: Broker,
        addresses: Mapping[str, Address],
        rest: Callable[[], RestApi],
    ) -> "asyncio.Task[None]":
        return tasks.create_task(self._load_server(tasks, broker, addresses, rest))

    async def _load_server(
        self,
        tasks: asyncio.TaskGroup,
        broker: Broker,
        addresses: Mapping[str, Address],
        rest: Callable[[], RestApi],
    ) -> None:
        loop = asyncio.get_running_loop()
        module: Any = await loop.run_in_executor(None, import_module, "alpacamq.api.grpc.connection")
        server = module.Server(
            broker,
            rest(),
            addresses,
            self._limits,
            tasks,
            self._connections,
            self._connection_limit,
            self._stats,
        )
        gc.freeze()  # what was loaded is permanent: the next full collection need not scan it
        self._drain = server.drain
        self._make_connection = partial(module.Connection, server)
        for waiting in list(self._waiting):
            waiting.hand_over(self._make_connection(loop, waiting.settings))
        self._waiting.clear()


class _Waiting(asyncio.Protocol):
    """A connection before the stack is loaded. No more is read from it than it sends at first."""

    def __init__(
        self,
        arrived: "Callable[[_Waiting], None]",
        left: "Callable[[_Waiting], None]",
        settings: ListenerSettings,
    ) -> None:
        self._arrived = arrived
        self._left = left
        self.settings = settings
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._arrived(self)

    def data_received(self, data: bytes) -> None:
        # The event loop reads once before it can be paused.
        self._received += data
        self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._left(self)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Leave the connection to its protocol."""
        if not self.transport.is_closing():
            self.transport.set_protocol(protocol)
            protocol.connection_made(self.transport)
            if self._received and not self.transport.is_closing():
                protocol.data_received(self._received)
                self.transport.resume_reading()
