"""`grpc.health.v1`: whether the broker, or one of its services, is ready."""

import asyncio
from typing import Any

from grpclib.health.v1.health_grpc import HealthBase
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from alpacamq.broker.health import READY, reads

from .call import Backend, Call
from .errors import UnknownService

# How soon a watch notices that the broker has become ready, or is no longer.
WATCH_SECONDS = 1.0
OVERALL = ""

_SERVING = HealthCheckResponse.ServingStatus.SERVING
_NOT_SERVING = HealthCheckResponse.ServingStatus.NOT_SERVING
_UNKNOWN = HealthCheckResponse.ServingStatus.SERVICE_UNKNOWN


class HealthService(HealthBase):  # type: ignore[misc]
    """Readiness as `/readyz` of the HTTP API: the broker can read, and the cluster counts on it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # Names of all services; complete when the first call comes.
        self.services: frozenset[str] = frozenset()

    async def Check(self, call: Call[HealthCheckRequest, HealthCheckResponse]) -> None:  # noqa: N802
        request: Any = await call.only_message()
        if (status := self._status(request.service)) == _UNKNOWN:
            raise UnknownService(f"unknown service {request.service!r}")
        await call.send_message(HealthCheckResponse(status=status))

    async def Watch(self, call: Call[HealthCheckRequest, HealthCheckResponse]) -> None:  # noqa: N802
        request: Any = await call.only_message()
        sent = None
        while True:
            if (status := self._status(request.service)) != sent:
                await call.send_message(HealthCheckResponse(status=status))
                sent = status
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._backend.stopping.wait()
            except TimeoutError:
                continue
            if sent != _UNKNOWN:
                await call.send_message(HealthCheckResponse(status=_NOT_SERVING))
            return

    def _status(self, service: str) -> Any:
        if service != OVERALL and service not in self.services:
            return _UNKNOWN
        broker = self._backend.broker
        is_ready = (
            not self._backend.stopping.is_set() and reads(broker).is_ok and READY["cluster"](broker).is_ok
        )
        return _SERVING if is_ready else _NOT_SERVING
