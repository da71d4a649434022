"""Accepts HTTP clients on one address and owns their connections, and every task that answers them."""

import asyncio

from alpacamq.api.listening import BACKLOG, take_address
from alpacamq.telemetry.metrics import ListenerStats

from .connection import Connection, Shared
from .limits import HttpLimits as HttpLimits
from .messages import App

# How often slow and silent connections are looked for; a fraction of the shortest time-out.
_MAX_SWEEP_SECONDS = 1.0


class HttpListener:
    """One listening socket and every connection accepted on it."""

    def __init__(
        self,
        host: str,
        port: int,
        limits: HttpLimits,
        section: str = "http",
        stats: ListenerStats | None = None,
    ) -> None:
        self._host = host
        self._port = port
        # Where it is configured.
        self._section = section
        self._limits = limits
        self._stats = stats
        self._shared: Shared | None = None
        self.listening = asyncio.Event()

    def bind(self) -> tuple[str, int]:
        """Take the address; who connects is served from `run` on. The port is real where 0 was asked for."""
        self._socket = take_address(
            self._host,
            self._port,
            f"change {self._section}.listen (--{self._section} HOST:PORT), "
            f"or do without this API ({self._section}.enabled = false)",
        )
        return self._host, self._socket.getsockname()[1]

    async def run(self, app: App) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            shared = self._shared = Shared(self._section, app, self._limits, tasks, self._stats)
            server = await loop.create_server(
                lambda: Connection(loop, shared), sock=self._socket, backlog=BACKLOG
            )
            self.listening.set()
            try:
                await self._watch_over(shared)
            finally:
                server.close()
                for connection in list(shared.connections):
                    connection.shut_down()

    def switch_to(self, app: App) -> None:
        """Have requests from now on answered by another app."""
        assert self._shared is not None, "it does not run"
        self._shared.app = app

    async def _watch_over(self, shared: Shared) -> None:
        """Look for slow and silent connections, for ever."""
        loop = asyncio.get_running_loop()
        shortest_ms = min(self._limits.idle_timeout_ms, self._limits.header_timeout_ms)
        while True:
            await asyncio.sleep(min(_MAX_SWEEP_SECONDS, shortest_ms / 4000))
            now = loop.time()
            for connection in list(shared.connections):
                connection.check_timeouts(now)
            shared.connection_limit.report(now)
