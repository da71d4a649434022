"""The table of services."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .call import Backend
from .health import HealthService
from .queue import QueueService

# Each is a subclass of a generated base class, and is made with the backend.
SERVICES: Sequence[Callable[[Backend], Any]] = (
    HealthService,
    QueueService,
)


def handlers(backend: Backend) -> Mapping[str, Any]:
    """Return the handlers of all services by path, as `/alpacamq.v1.Queue/Work`."""
    found: dict[str, Any] = {}
    for service in SERVICES:
        found |= service(backend).__mapping__()
    return found
