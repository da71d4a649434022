"""Accepts Kafka clients on one address and owns their connections."""

import asyncio
from time import monotonic

from alpacamq.api.listening import BACKLOG, take_address
from alpacamq.telemetry.metrics import ListenerStats

from .connection import Connection, Requests, Shared
from .connection import Limits as Limits
from .inbox import SCRATCH_BYTES

# Interval of checks for idle and slow connections; a fraction of the shortest timeout.
_MAX_SWEEP_SECONDS = 5.0


class Listener:
    """One listening socket and every connection accepted on it."""

    def __init__(self, host: str, port: int, limits: Limits, stats: ListenerStats | None = None) -> None:
        self._host = host
        self._port = port
        self._limits = limits
        self._stats = stats
        self.listening = asyncio.Event()

    def bind(self) -> tuple[str, int]:
        """Bind the address and return it, with the actual port if 0 was requested. `run` serves clients."""
        self._socket = take_address(self._host, self._port, "change kafka.listen (--kafka HOST:PORT)")
        return self._host, self._socket.getsockname()[1]

    async def run(self, requests: Requests) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            shared = Shared(loop, requests, self._limits, SCRATCH_BYTES, tasks, self._stats)
            server = await loop.create_server(
                lambda: Connection(loop, shared), sock=self._socket, backlog=BACKLOG
            )
            self.listening.set()
            try:
                await self._watch_over(shared)
            finally:
                server.close()
                for connection in list(shared.connections):
                    connection.close("the broker is shutting down")

    async def _watch_over(self, shared: Shared) -> None:
        """Check for idle and slow connections until cancelled."""
        shortest_ms = min(self._limits.idle_timeout_ms, self._limits.frame_timeout_ms)
        while True:
            await asyncio.sleep(min(_MAX_SWEEP_SECONDS, shortest_ms / 4000))
            now = monotonic()
            for connection in list(shared.connections):
                connection.check_timeouts(now)
            shared.connection_limit.report(now)
