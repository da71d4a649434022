"""An entry of the route table, which dispatches requests and describes the API."""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec

from alpacamq.api.http.messages import Request
from alpacamq.broker.access import ANONYMOUS_CALLER, Caller
from alpacamq.broker.quotas import Limit
from alpacamq.model.errors import AlpacaError
from alpacamq.queues.messages import QueueId
from alpacamq.security.acls import Operation, ResourceType
from alpacamq.security.quotas import QuotaKey

from .backend import Backend

P = TypeVar("P")
B = TypeVar("B")


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or no body."""


class Call(Generic[P, B]):
    """A request with parsed parameters and body, and the backend."""

    __slots__ = ("backend", "body", "caller", "parameters", "request")

    def __init__(
        self, backend: Backend, request: Request, parameters: P, body: B, caller: Caller = ANONYMOUS_CALLER
    ) -> None:
        self.backend = backend
        self.request = request
        self.parameters = parameters
        self.body = body
        self.caller = caller

    @property
    def sees_all(self) -> bool:
        """Whether the client may do everything, so that lists need not be filtered."""
        return not self.backend.broker.access.limits(self.caller)

    def sees_topic(self, topic: str, operation: Operation = Operation.DESCRIBE) -> bool:
        """Return whether the client may know of a topic."""
        return self.backend.broker.access.sees(self.caller, operation, ResourceType.TOPIC, topic)

    def sees_group(self, group: str) -> bool:
        """Return whether the client may know of a group."""
        return self.backend.broker.access.sees(self.caller, Operation.DESCRIBE, ResourceType.GROUP, group)

    def visible_groups(self, groups: Iterable[str]) -> Iterable[str]:
        """Return the groups that the client may know of."""
        return groups if self.sees_all else filter(self.sees_group, groups)

    def sees_transactional_id(self, name: str) -> bool:
        """Return whether the client may know of a transactional id."""
        access = self.backend.broker.access
        return access.sees(self.caller, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)

    def sees_queue(self, queue: QueueId) -> bool:
        """Return whether the client may know of a queue."""
        return self.sees_group(queue.group) and self.sees_topic(queue.topic)

    @property
    def mutations(self) -> Limit | None:
        """The client's quota of created and deleted partitions, if it has one."""
        limits = self.backend.broker.quotas.of_user(self.caller)
        return None if limits is None else limits.mutation

    def check_topic(self, operation: Operation, topic: str) -> None:
        """Raise TopicNotAuthorized unless the client may do something to a topic."""
        self.backend.broker.access.check_topic(self.caller, operation, topic)

    def check_cluster(self, operation: Operation) -> None:
        """Raise ClusterNotAuthorized unless the client may do something to the cluster."""
        self.backend.broker.access.check_cluster(self.caller, operation)


# Returns a value to send as JSON, a Response, None (no content), or an awaitable of one of these.
Handler = Callable[[Call[P, B]], object]


class Route(msgspec.Struct, Generic[P, B], frozen=True, kw_only=True):
    """A method on a path: its parameters, handler, responses and errors.

    Fields of `parameters` that the path contains are read from there, the others from the query.
    """

    method: str
    path: str
    summary: str
    handler: Handler[P, B]
    parameters: type[P]
    body: type[B]
    # The documented body types if `body` is one type for several shapes.
    body_shapes: tuple[Any, ...] = ()
    # The types of the response; several are alternatives, none means no content.
    answers: tuple[Any, ...] = ()
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "application/json"
    # Errors beyond invalid input and those that any request may return.
    errors: tuple[type[AlpacaError], ...] = ()
    # A GET with side effects, which HEAD must not have.
    has_effects: bool = False
    # The quota against which its bytes count: those of the request, or those of the response.
    quota: QuotaKey | None = None

    @property
    def path_names(self) -> tuple[str, ...]:
        """The parameters in the path, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def tag(self) -> str:
        """The noun that the path begins with."""
        return self.path.split("/")[1]


AnyRoute = Route[Any, Any]
