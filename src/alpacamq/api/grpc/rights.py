"""The rights that methods of the gRPC API need, for readers.

Services check them; methods that the HTTP API serves too need the rights of the route.
"""

from collections.abc import Mapping
from typing import NamedTuple

from alpacamq.security.acls import Operation, ResourceType


class Right(NamedTuple):
    """An operation on a resource that a call names; `resource` says which."""

    operation: Operation
    kind: ResourceType
    resource: str

    def __str__(self) -> str:
        kind = self.kind.name.lower().replace("_", " ")
        return f"{self.operation.name} {kind} {self.resource}".strip()


_O, _TOPIC, _GROUP = Operation, ResourceType.TOPIC, ResourceType.GROUP
_RECEIVE = (Right(_O.READ, _GROUP, "of the queue"), Right(_O.READ, _TOPIC, "of the queue"))
_REJECT = Right(_O.WRITE, _TOPIC, "for dead letters, to reject")
_WRITE = (
    Right(_O.WRITE, _TOPIC, "in the request"),
    Right(_O.CREATE, _TOPIC, "if it does not exist, or the same on the cluster"),
    Right(_O.WRITE, ResourceType.TRANSACTIONAL_ID, "of a transaction"),
)

RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "alpacamq.v1.Cluster/Endpoints": (),
    "alpacamq.v1.Producer/Produce": _WRITE,
    "alpacamq.v1.Producer/Send": _WRITE,
    "alpacamq.v1.Log/Read": (Right(_O.READ, _TOPIC, "in the request"),),
    "alpacamq.v1.Log/Subscribe": (
        Right(_O.READ, _GROUP, "in the request"),
        Right(_O.READ, _TOPIC, "of each subscription and assignment"),
    ),
    "alpacamq.v1.Queue/Work": (*_RECEIVE, _REJECT),
    "alpacamq.v1.Queue/Receive": _RECEIVE,
    "alpacamq.v1.Queue/Settle": (*_RECEIVE, _REJECT),
    "grpc.health.v1.Health/Check": (),
    "grpc.health.v1.Health/Watch": (),
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": (),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (),
}
# Methods that clients may call without authentication.
OPEN = frozenset({"grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"})


def rights_page() -> str:
    """Return the table of rights in Markdown."""
    lines = ["| method | rights |", "|---|---|"]
    for method, rights in RIGHTS.items():
        words = [str(right) for right in rights]
        if method in OPEN:
            words.append("none, also without authentication")
        lines.append(f"| `{method}` | {'; '.join(words) or 'none'} |")
    return "\n".join(lines) + "\n"
