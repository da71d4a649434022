"""The door for HTTP clients that speak JSON: finds the route, reads what was sent, sends what is answered."""

from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any

import msgspec

from alpacamq.api.http.messages import Request, Response
from alpacamq.broker.broker import Broker
from alpacamq.model.errors import AlpacaError

from .backend import Backend
from .errors import LINE_END, CrossOrigin, refusal
from .route import AnyRoute, Call
from .router import Router
from .table import ROUTES

_encode = msgspec.json.Encoder().encode
_NO_CONTENT = Response(HTTPStatus.NO_CONTENT)


class RestDoor:
    """Answers JSON requests; an App of the HTTP listener."""

    def __init__(self, broker: Broker) -> None:
        self._backend = Backend(broker)
        self._router = Router(ROUTES)

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        route: AnyRoute | None = None
        try:
            if "origin" in request.headers:
                _check_origin(request)
            endpoint, in_path = self._router.match(request.method, request.path)
            route, arguments = endpoint.route, endpoint.arguments
            parameters = arguments.parameters(in_path, request)
            call = Call(self._backend, request, parameters, arguments.body(request))
            answer = route.handler(call)
        except AlpacaError as error:
            return self._counted(route, refusal(error))
        if endpoint.is_asynchronous:
            return self._awaited(route, answer)
        return self._counted(route, _response(route, answer))

    async def _awaited(self, route: AnyRoute, answer: Any) -> Response:
        try:
            result = await answer
        except AlpacaError as error:
            return self._counted(route, refusal(error))
        return self._counted(route, _response(route, result))

    def _counted(self, route: AnyRoute | None, response: Response) -> Response:
        if route is not None:
            self._backend.traffic.count(route.method, route.path, response.status)
        return response


def _response(route: AnyRoute, answer: object) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return _NO_CONTENT
    return Response(route.status, _encode(answer) + LINE_END)


def _check_origin(request: Request) -> None:
    """Refuse what a page of another site sends: browsers let any page try, also on the local network."""
    origin = request.headers["origin"]
    if origin.partition("://")[2].lower() != request.host.lower():
        raise CrossOrigin(f"a page of {origin} may not use this broker")
