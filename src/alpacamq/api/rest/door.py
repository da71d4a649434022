"""The door for HTTP clients that speak JSON: finds the route, reads what was sent, sends what is answered."""

from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from alpacamq.api.http.messages import Request, Response
from alpacamq.broker.broker import Broker
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError

from .backend import Backend
from .errors import LINE_END, refusal
from .origins import check_origin
from .route import AnyRoute, Call
from .router import Router
from .sampling import Sampler
from .table import ROUTES

_encode = msgspec.json.Encoder().encode
_NO_CONTENT = Response(HTTPStatus.NO_CONTENT)


class RestDoor:
    """Answers JSON requests; an App of the HTTP listener."""

    def __init__(self, broker: Broker, doors: Mapping[str, Address]) -> None:
        self._backend = Backend(broker, doors)
        self._router = Router(ROUTES)

    async def run(self) -> None:
        """Keep the history until cancelled."""
        await Sampler(self._backend.broker, self._backend.history).run()

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        route: AnyRoute | None = None
        try:
            endpoint, in_path = self._router.match(request.method, request.path)
            route, arguments = endpoint.route, endpoint.arguments
            check_origin(request, route)
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
