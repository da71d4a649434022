"""The HTTP API: routes requests, parses their input and sends the results as JSON."""

from collections.abc import Awaitable, Mapping
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from alpacamq.api.http.hosts import foreign_page
from alpacamq.api.http.messages import Refused, Request, Response
from alpacamq.broker.broker import Broker
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError

from .backend import Backend
from .errors import LINE_END, CrossOrigin, refusal
from .route import AnyRoute, Call
from .router import Router
from .table import ROUTES

if TYPE_CHECKING:
    from alpacamq.telemetry.metrics import ListenerStats


from alpacamq.api.http.limits import RETRY_AFTER_SECONDS
from alpacamq.api.http.messages import PROBLEM_JSON
from alpacamq.broker.health import failing
from alpacamq.broker.partition.loading import RecoveryProgress

from .errors import Recovering, problem_of
from .handlers.health import Health


def check_origin(request: Request, route: AnyRoute) -> None:
    """Refuse requests of pages of other sites, except links to routes without effects."""
    page = foreign_page(request)
    if page is not None and not _is_followed_link(request, route):
        raise CrossOrigin(f"{page} may not use this broker")


def _is_followed_link(request: Request, route: AnyRoute) -> bool:
    headers = request.headers
    return (
        request.method == "GET"
        and not route.has_effects
        and "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


_encode = msgspec.json.Encoder().encode
_NO_CONTENT = Response(HTTPStatus.NO_CONTENT)


class RestApi:
    """Serves JSON requests; an App of the HTTP listener."""

    def __init__(self, broker: Broker, addresses: Mapping[str, Address]) -> None:
        self._backend = Backend(broker, addresses)
        self._stats: ListenerStats | None = None
        if broker.metrics is not None:
            self._stats = broker.metrics.listeners["http"]
        self._router = Router(ROUTES)

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        route: AnyRoute | None = None
        began_at = monotonic()
        try:
            endpoint, in_path = self._router.match(request.method, request.path)
            route, arguments = endpoint.route, endpoint.arguments
            check_origin(request, route)
            parameters = arguments.parameters(in_path, request)
            call = Call(self._backend, request, parameters, arguments.body(request))
            answer = route.handler(call)
            if endpoint.is_asynchronous:
                return self._awaited(route, answer, began_at)
            response = _response(route, answer)
        except AlpacaError as error:
            response = refusal(error)
        except Exception as error:
            self._count(route, _status_of(error), began_at)
            raise
        self._count(route, response.status, began_at)
        return response

    async def _awaited(self, route: AnyRoute, answer: Any, began_at: float) -> Response:
        try:
            response = _response(route, await answer)
        except AlpacaError as error:
            response = refusal(error)
        except Exception as error:
            self._count(route, _status_of(error), began_at)
            raise
        self._count(route, response.status, began_at)
        return response

    def _count(self, route: AnyRoute | None, status: int, began_at: float) -> None:
        if route is not None:
            self._backend.traffic.count(route.method, route.path, status)
            if self._stats is not None:
                self._stats.of(f"{route.method} {route.path}").seconds.observe(monotonic() - began_at)


def _response(route: AnyRoute, answer: object) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return _NO_CONTENT
    return Response(route.status, _encode(answer) + LINE_END)


def _status_of(error: Exception) -> int:
    """Return the status of the connection's response to an unexpected error."""
    return error.status if isinstance(error, Refused) else HTTPStatus.INTERNAL_SERVER_ERROR


_LATER = (("Retry-After", str(RETRY_AFTER_SECONDS)),)


class RecoveryApp:
    """An App of the HTTP listener during recovery."""

    def __init__(self, progress: RecoveryProgress) -> None:
        self._progress = progress

    def __call__(self, request: Request) -> Response:
        if request.path == "/livez" and request.method in ("GET", "HEAD"):
            return Response(HTTPStatus.OK, _encode(Health(status="ok")) + LINE_END)
        detail = f"the broker is recovering: {self._progress}"
        told = msgspec.structs.asdict(problem_of(Recovering(detail)))
        refused = "refused: recovering"
        body = {
            **told,
            "reads": refused,
            "writes": refused,
            "checks": {"recovery": failing(detail)},
        }
        return Response(HTTPStatus.SERVICE_UNAVAILABLE, _encode(body) + LINE_END, PROBLEM_JSON, _LATER)
