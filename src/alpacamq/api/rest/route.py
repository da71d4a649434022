"""One entry of the table that both dispatches requests and describes the API."""

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
    """A request whose parameters and body have been read, and what it may work with."""

    __slots__ = ("backend", "body", "parameters", "request")

    def __init__(self, backend: Backend, request: Request, parameters: P, body: B) -> None:
        self.backend = backend
        self.request = request
        self.parameters = parameters
        self.body = body


# Returns what is to be sent as JSON, a Response, None (no content), or an awaitable of one of these.
Handler = Callable[[Call[P, B]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Generic[P, B]):
    """A method on a path: what it takes, who handles it, what it answers.

    Fields of `parameters` that the path names come from there, the others from the query.
    """

    method: str
    path: str
    summary: str
    handler: Handler[P, B]
    parameters: type[P]
    body: type[B]
    # What the body is shown as where the type that reads it is one for several shapes.
    body_shapes: tuple[Any, ...] = ()
    # The types of the answer; several are alternatives, none is an answer without content.
    answers: tuple[Any, ...] = ()
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "application/json"
    # What can go wrong beyond bad input, and beyond what can always go wrong.
    errors: tuple[type[AlpacaError], ...] = ()
    # A GET that changes something, which HEAD must not do.
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
