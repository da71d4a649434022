"""The door for HTTP clients that speak JSON."""

from collections.abc import Awaitable

from alpacamq.api.http.messages import Request, Response, problem
from alpacamq.broker.broker import Broker


class RestDoor:
    """Answers JSON requests; an App of the HTTP listener."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        return problem(404, f"there is nothing at {request.path}")
