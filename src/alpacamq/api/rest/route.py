"""An entry of the route table, which dispatches requests and describes the API."""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec

from alpacamq.api.http.messages import Request
from alpacamq.model.errors import AlpacaError

from .backend import Backend

P = TypeVar("P")
B = TypeVar("B")


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters, or no body."""


class Call(Generic[P, B]):
    """A request with parsed parameters and body, and the backend."""

    __slots__ = ("backend", "body", "parameters", "request")

    def __init__(self, backend: Backend, request: Request, parameters: P, body: B) -> None:
        self.backend = backend
        self.request = request
        self.parameters = parameters
        self.body = body


# Returns a value to send as JSON, a Response, None (no content), or an awaitable of one of these.
Handler = Callable[[Call[P, B]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[P, B]):
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

    @property
    def path_names(self) -> tuple[str, ...]:
        """The parameters in the path, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    @property
    def tag(self) -> str:
        """The noun that the path begins with."""
        return self.path.split("/")[1]


AnyRoute = Route[Any, Any]
