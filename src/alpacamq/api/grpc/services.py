"""The table of services."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpclib.reflection._deprecated import ServerReflection as ServerReflectionV1Alpha
from grpclib.reflection.service import ServerReflection

from .call import Backend
from .cluster import ClusterService
from .health import HealthService
from .queue import QueueService

# Each is a subclass of a generated base class, and is made with the backend.
SERVICES: Sequence[Callable[[Backend], Any]] = (
    HealthService,
    QueueService,
    ClusterService,
)


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
        found |= reflection(_service_names=names).__mapping__()
    return found
