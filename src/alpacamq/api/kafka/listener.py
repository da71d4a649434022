"""Accepts Kafka clients on one address and owns their connections."""

import asyncio
import socket

from alpacamq.model.errors import AlpacaError

from .connection import Connection, Requests, Shared
from .connection import Limits as Limits
from .inbox import SCRATCH_BYTES

_BACKLOG = 1024
# How often silent and slow connections are looked for; a fraction of the shortest time-out.
_MAX_SWEEP_SECONDS = 5.0


class CannotListen(AlpacaError):
    """The address is taken or is not ours."""


class Listener:
    """One listening socket and every connection accepted on it."""

    def __init__(self, host: str, port: int, limits: Limits) -> None:
        self._host = host
        self._port = port
        self._limits = limits
        self.listening = asyncio.Event()

    def bind(self) -> tuple[str, int]:
        """Take the address; who connects is served from `run` on. The port is real where 0 was asked for."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            # At once: an address that is only bound could be taken by another broker as well.
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {self._host}:{self._port}: {error.strerror or error}; "
                "change kafka.listen (--kafka HOST:PORT)"
            ) from error
        return self._host, self._socket.getsockname()[1]

    async def run(self, requests: Requests) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            shared = Shared(requests, self._limits, SCRATCH_BYTES, tasks)
            server = await loop.create_server(
                lambda: Connection(loop, shared), sock=self._socket, backlog=_BACKLOG
            )
            self.listening.set()
            try:
                await self._watch_over(shared)
            finally:
                server.close()
                for connection in list(shared.connections):
                    connection.close("the broker is shutting down")

    async def _watch_over(self, shared: Shared) -> None:
        """Look for silent and slow connections, for ever."""
        loop = asyncio.get_running_loop()
        shortest_ms = min(self._limits.idle_timeout_ms, self._limits.frame_timeout_ms)
        while True:
            await asyncio.sleep(min(_MAX_SWEEP_SECONDS, shortest_ms / 4000))
            now = loop.time()
            for connection in list(shared.connections):
                connection.check_timeouts(now)
