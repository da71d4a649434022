"""The door for AWS SDKs that speak SQS."""

from collections.abc import Awaitable

from alpacamq.api.http.messages import Request, Response, problem
from alpacamq.broker.broker import Broker

from .settings import SqsSettings


class SqsDoor:
    """Answers SQS requests; an App of the HTTP listener."""

    def __init__(self, broker: Broker, settings: SqsSettings) -> None:
        self._broker = broker
        self._settings = settings

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        return problem(404, f"there is nothing at {request.path}")
