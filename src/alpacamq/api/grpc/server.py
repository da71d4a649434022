"""What the connections of the gRPC API share; made when the first client connects."""

import asyncio
from collections.abc import Mapping

from alpacamq.api.http.login import Login
from alpacamq.api.http.reader import Room
from alpacamq.api.listening import ConnectionLimit
from alpacamq.api.rest.app import RestApi
from alpacamq.broker.broker import Broker
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.metrics import ListenerStats

from .call import Backend
from .errors import ShuttingDown, code_of
from .listener import GrpcConnection, GrpcLimits
from .services import handlers

# How long calls go on after the broker began to stop, and how long they may take to end then.
GRACE_SECONDS = 1.0
END_SECONDS = 1.0
CANCELLED = "CANCELLED"
OK = "OK"


class Server:
    """The services, the limits and the connections."""

    def __init__(
        self,
        broker: Broker,
        rest: RestApi,
        addresses: Mapping[str, Address],
        limits: GrpcLimits,
        tasks: asyncio.TaskGroup,
        connections: set[GrpcConnection],
        connection_limit: ConnectionLimit[GrpcConnection],
        stats: ListenerStats | None,
    ) -> None:
        self.backend = Backend(broker, rest, addresses)
        self.handlers = handlers(self.backend)
        self.limits = limits
        self.tasks = tasks
        self.connections = connections
        self.connection_limit = connection_limit
        # None if metrics are disabled.
        self.stats = stats
        self.room = Room(limits.in_flight_bytes)
        self.login = Login(broker.access, broker.sessions, broker.cluster_id)
        self.access = broker.access
        self.audit = broker.audit
        self.quotas = broker.quotas

    @property
    def is_stopping(self) -> bool:
        return self.backend.stopping.is_set()

    def started(self) -> None:
        """Count a call that has begun."""
        if self.stats is not None:
            self.stats.calls_open += 1

    def finished(
        self, method: str, error: AlpacaError | None, *, was_cancelled: bool, seconds: float
    ) -> None:
        """Count a call that has ended."""
        if self.stats is not None:
            self.stats.calls_open -= 1
            stats = self.stats.of(method)
            stats.seconds.observe(seconds)
            code = CANCELLED if was_cancelled else OK if error is None else code_of(error).name
            stats.refused(code)

    async def drain(self) -> None:
        """Let calls end, and close the connections."""
        self.backend.stopping.set()
        for connection in list(self.connections):
            connection.go_away()
        await self._wait_for_calls(GRACE_SECONDS)
        for connection in list(self.connections):
            connection.fail_all(ShuttingDown("the broker is shutting down"))
        await self._wait_for_calls(END_SECONDS)
        for connection in list(self.connections):
            connection.close("the broker is shutting down")

    async def _wait_for_calls(self, seconds: float) -> None:
        calls = {task for each in self.connections for task in each.calls}
        if calls:
            await asyncio.wait(calls, timeout=seconds)
