"""The table of services, and the two that every server has: its health and the cluster."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor_pool import Default
from grpclib.health.v1.health_grpc import HealthBase
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpclib.reflection._deprecated import ServerReflection as ServerReflectionV1Alpha
from grpclib.reflection.service import ServerReflection

from alpacamq.broker.health import READY, reads
from alpacamq.cluster.brokers import BrokerRegistration
from alpacamq.model.address import Address
from alpacamq.v1 import (
    acls_pb2,
    admin_pb2,
    dead_letters_pb2,
    delays_pb2,
    groups_pb2,
    keys_pb2,
    quotas_pb2,
    schemas_pb2,
    tenants_pb2,
    traces_pb2,
    transactions_pb2,
    users_pb2,
)
from alpacamq.v1 import cluster_pb2 as c
from alpacamq.v1.cluster_grpc import ClusterBase

from .call import Backend, Call
from .errors import UnknownService
from .producing import ProducerService
from .queue import QueueService
from .reading import LogService
from .transcoding import transcoded

# The listeners that have sections of their own, which are fields of the response.
APIS = ("kafka", "http", "grpc", "sqs", "registry")


class ClusterService(ClusterBase):
    """Discovery of nodes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def Endpoints(self, call: Call[c.EndpointsRequest, c.EndpointsResponse]) -> None:  # noqa: N802
        await call.only_message()
        broker = self._backend.broker
        response = c.EndpointsResponse(cluster_id=broker.cluster_id, node_id=broker.settings.node_id)
        for node_id, registration in sorted(broker.metadata.image.brokers.items()):
            if registration.is_running and not registration.is_shutting_down:
                response.nodes.append(_endpoints(node_id, registration, call.listener))
        await call.send_message(response)


def _endpoints(node_id: int, registration: BrokerRegistration, listener: str) -> c.NodeEndpoints:
    """Return the addresses of a node; that of its gRPC listener of the same name as the client's, if any."""
    found = c.NodeEndpoints(node_id=node_id, rack=registration.rack)
    for api in APIS:
        endpoint = registration.endpoint(api)
        if api == "grpc":
            endpoint = registration.endpoint(listener) or endpoint
        if endpoint is not None:
            setattr(found, api, str(Address(endpoint.host, endpoint.port)))
    return found


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


# Services whose methods are routes of the HTTP API.
TRANSCODED = tuple(
    service
    for module in (
        admin_pb2,
        groups_pb2,
        delays_pb2,
        dead_letters_pb2,
        transactions_pb2,
        schemas_pb2,
        traces_pb2,
        keys_pb2,
        tenants_pb2,
        users_pb2,
        acls_pb2,
        quotas_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
)
# What the names of their methods begin with.
TRANSCODED_METHODS = tuple(f"{service.full_name}/" for service in TRANSCODED)

# Each is a subclass of a generated base class, and is made with the backend.
SERVICES: Sequence[Callable[[Backend], Any]] = (
    HealthService,
    QueueService,
    ClusterService,
    ProducerService,
    LogService,
    *map(transcoded, TRANSCODED),
)


class Descriptors:
    """The descriptors that reflection shows. Finds methods too, which tools such as ghz ask for."""

    def __init__(self) -> None:
        self._pool: Any = Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802 - Protobuf's name
        """Return the file of a service, method, message or extension. Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def handlers(backend: Backend) -> Mapping[str, Any]:
    """Return the handlers of all services by path, as `/alpacamq.v1.Queue/Work`."""
    services = [make(backend) for make in SERVICES]
    found: dict[str, Any] = {}
    for service in services:
        found |= service.__mapping__()
    names = sorted({path.split("/")[1] for path in found})
    for service in services:
        if isinstance(service, HealthService):
            service.services = frozenset(names)
    for reflection in (ServerReflection, ServerReflectionV1Alpha):
        found |= reflection(_service_names=names, _pool=Descriptors()).__mapping__()
    return found
