"""The listening sockets of the Kafka API."""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic

from alpacamq.api.listening import ListenerSettings, ListeningSocket
from alpacamq.broker.quotas import Quotas
from alpacamq.model.address import Address
from alpacamq.telemetry.metrics import ListenerStats

from .call import KAFKA_LISTENER
from .connection import Connection, Limits, Requests, Shared
from .inbox import SCRATCH_BYTES

# Interval of checks for idle and slow connections; a fraction of the shortest timeout.
_MAX_SWEEP_SECONDS = 5.0


class Listener:
    """The listening sockets of the Kafka API, and every connection accepted on them."""

    def __init__(self, host: str, port: int, limits: Limits, stats: ListenerStats | None = None) -> None:
        remedy = "change kafka.listen (--kafka HOST:PORT)"
        first = ListenerSettings(name=KAFKA_LISTENER, address=Address(host, port), remedy=remedy)
        self._sockets = [ListeningSocket(first, stats)]
        self._limits = limits
        self._stats = stats
        self.listening = asyncio.Event()

    @classmethod
    def of(
        cls, listeners: Sequence[ListenerSettings], limits: Limits, stats: ListenerStats | None
    ) -> "Listener":
        """Return the API with several listeners."""
        made = cls("", 0, limits, stats)
        made._sockets = [ListeningSocket(each, stats) for each in listeners]
        return made

    def bind(self) -> tuple[str, int]:
        """Bind the addresses and return the first, with the actual port if 0 was requested."""
        self.addresses = {each.settings.name: each.bind() for each in self._sockets}
        first = self.addresses[self._sockets[0].settings.name]
        return first.host, first.port

    async def run(self, requests: Requests, quotas: Quotas | None = None) -> None:
        """Serve until cancelled, connections within their quotas if they are given."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            shared = Shared(loop, requests, self._limits, SCRATCH_BYTES, tasks, self._stats)
            if quotas is not None:
                shared.connection_limit.enforce(quotas)
            servers = []
            try:
                for each in self._sockets:
                    factory = partial(Connection, loop, shared, each.settings)
                    servers.append(await each.accept(factory, shared.connection_limit))
                self.listening.set()
                await self._watch_over(shared)
            finally:
                for server in servers:
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
