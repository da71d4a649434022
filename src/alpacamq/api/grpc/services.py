"""The table of services."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor_pool import Default
from grpclib.reflection._deprecated import ServerReflection as ServerReflectionV1Alpha
from grpclib.reflection.service import ServerReflection

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

from .call import Backend
from .cluster import ClusterService
from .health import HealthService
from .producing import ProducerService
from .queue import QueueService
from .reading import LogService
from .transcoding import transcoded

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
