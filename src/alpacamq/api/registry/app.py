"""The schema registry's API: finds the route of a request, checks its rights and answers it as JSON."""

from collections.abc import Awaitable
from functools import lru_cache
from http import HTTPStatus
from time import monotonic
from typing import Any, Final

import msgspec

from alpacamq.api.http import throttling
from alpacamq.api.http.login import Login
from alpacamq.api.http.messages import App, Refused, Request, Response
from alpacamq.api.rest.errors import LINE_END, CsrfTokenMissing, InvalidInput
from alpacamq.api.rest.router import Router, check_media_type, check_origin, decoded
from alpacamq.broker.access import Caller
from alpacamq.broker.broker import Broker
from alpacamq.model.errors import AlpacaError
from alpacamq.registry.errors import InvalidSubject
from alpacamq.registry.subjects import DEFAULT_CONTEXT
from alpacamq.telemetry.logs import get_logger

from . import schemas, settings, subjects
from .errors import CODES, V1_JSON, NotAcceptable, failure, refusal
from .names import Names
from .route import AnyRoute, Call, Nothing

log = get_logger(__name__)

ROUTES: tuple[AnyRoute, ...] = (*subjects.ROUTES, *schemas.ROUTES, *settings.ROUTES)
# Where the HTTP API has it. Ids are also there without the second `/schemas`.
MOUNT: Final = "/schemas"
_UNDER_SCHEMAS: Final = frozenset({"ids", "types", "guids"})
_IN_CONTEXT: Final = "/contexts/"
# In the order in which they are preferred.
_CONTENT_TYPES: Final = (V1_JSON, "application/vnd.schemaregistry+json", "application/json")
_ANYTHING: Final = frozenset({"*/*", "application/*"})
# The name under which requests are counted whose path is unknown or whose sender is refused.
UNREADABLE: Final = "(unreadable)"

_encode = msgspec.json.Encoder().encode
_NOTHING: Final = Nothing()


class Endpoint:
    """A route with its parsers."""

    __slots__ = ("_decode", "_lists", "path_names", "route")

    def __init__(self, route: AnyRoute) -> None:
        self.route = route
        self.path_names = route.path_names
        self._decode = msgspec.json.Decoder(route.body).decode
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(route.parameters)}
        self._lists = frozenset(name for name, kind in fields.items() if kind == tuple[str, ...])

    def parameters(self, in_path: dict[str, str], request: Request) -> Any:
        """Parse the parameters of path and query."""
        values: dict[str, Any] = {}
        for name, given in request.query.items():
            if name in self._lists:
                values[name] = given
            elif given[-1]:
                values[name] = given[-1]
        try:
            return msgspec.convert({**values, **in_path}, self.route.parameters, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"invalid parameter: {error}") from None

    def body(self, request: Request) -> Any:
        """Parse the body."""
        if self.route.body is Nothing:
            return _NOTHING
        check_media_type(request.headers)
        try:
            return self._decode(request.body or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"the body is invalid: {error}") from None


class RegistryApi:
    """Serves requests of schema registry clients; an App of the HTTP listener."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._access = broker.access
        self._audit = broker.audit
        self._quotas = broker.quotas
        self._login = Login(broker.access, broker.sessions, broker.cluster_id)
        self._router = Router(map(Endpoint, ROUTES))
        self._stats = None if broker.metrics is None else broker.metrics.listeners["registry"]

    def __call__(self, request: Request) -> Awaitable[Response]:
        return self.serve(request, request.path)

    def refuse_host(self, _request: Request, detail: str) -> Response:
        """Return the response to a request with a foreign Host header."""
        return failure(HTTPStatus.MISDIRECTED_REQUEST, detail)

    def refuse(self, refused: Refused) -> Response:
        """Return the response to a request that cannot be read, such as one with too large a body."""
        return failure(HTTPStatus(refused.status), refused.detail, refused.headers)

    async def serve(self, request: Request, path: str) -> Response:
        """Answer a request as if it had this path."""
        began_at = monotonic()
        route: AnyRoute | None = None
        tenant: str | None = None
        try:
            content_type = _content_type(request.headers.get("accept", ""))
            context, path = _split_context(path)
            caller = request.caller or self._login.known(request)
            if caller is None:
                caller = await self._login.authenticate(request)
            endpoint, in_path = self._router.match(request.method, path)
            route = endpoint.route
            check_origin(request, route)
            if self._access.requires_login(request.authentication):
                self._login.check_authenticated(caller)
            self._check_csrf(request, route, caller)
            if self._audit is not None:
                headers = request.headers
                client, request_id = headers.get("user-agent", ""), headers.get("x-request-id", "")
                self._audit.enter("registry", route.key, client, request_id, caller)
            if (tenant := self._access.tenant_of(caller)) is not None:
                self._access.check_active(caller)
            parameters, body = endpoint.parameters(in_path, request), endpoint.body(request)
            call = Call(self._broker, caller, Names(tenant, context), parameters, body)
            response = await self._within_quotas(call, route, request, content_type)
            if caller.session is not None and (renewal := self._login.renewal(caller)):
                response = response._replace(headers=(*response.headers, *renewal))
        except AlpacaError as error:
            code = CODES[type(error)]
            self._count(route, began_at, code.error_code)
            message = Names(tenant).local_text(str(error))
            return refusal(error, request, message, _error_type(request))
        except Refused as refused:
            self._count(route, began_at, refused.status)
            return self.refuse(refused)
        except Exception:
            self._count(route, began_at, HTTPStatus.INTERNAL_SERVER_ERROR)
            log.exception("registry_request_failed", request=f"{request.method} {request.path}")
            return failure(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed inside the broker")
        self._count(route, began_at, None)
        return response

    def _check_csrf(self, request: Request, route: AnyRoute, caller: Caller) -> None:
        """Refuse a request that changes something if it is not of a page of the console."""
        if caller.session is None or not route.has_effects:
            return
        if not self._login.has_csrf_token(request, caller.session):
            raise CsrfTokenMissing(
                "a request with the cookie of the console needs the X-CSRF-Token that GET /session returns"
            )

    async def _within_quotas(
        self, call: Call[Any, Any], route: AnyRoute, request: Request, content_type: str
    ) -> Response:
        limits = self._quotas.of_user(call.caller) if self._quotas.is_active else None
        if limits is None:
            return await self._answer(call, route, content_type)
        throttling.check_connection(self._quotas, request, call.caller)
        throttling.check(limits, None)
        response, seconds = await throttling.measured(self._answer(call, route, content_type))
        throttling.charge(limits, None, len(request.body), len(response.body), seconds)
        return response

    async def _answer(self, call: Call[Any, Any], route: AnyRoute, content_type: str) -> Response:
        if route.right is not None:
            await call.check(route.right, call.names.scope(getattr(call.parameters, "subject", None)))
        answer = await route.handler(call)
        body = answer.encode() if isinstance(answer, str) else _encode(answer) + LINE_END
        return Response(route.status, body, content_type)

    def _count(self, route: AnyRoute | None, began_at: float, error_code: int | None) -> None:
        if self._stats is None:
            return
        stats = self._stats.of(UNREADABLE if route is None else route.key)
        stats.seconds.observe(monotonic() - began_at)
        if error_code is not None:
            stats.refused(str(error_code))


class MountedRegistry:
    """An App of the HTTP listener: the registry under `/schemas`, in front of the HTTP API."""

    def __init__(self, api: App, registry: RegistryApi) -> None:
        self._api = api
        self._registry = registry

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        path = request.path
        if not path.startswith(MOUNT) or path[len(MOUNT) : len(MOUNT) + 1] not in ("", "/"):
            return self._api(request)
        inner = path.removeprefix(MOUNT)
        if not inner or inner.split("/", 2)[1] in _UNDER_SCHEMAS:
            inner = path
        return self._registry.serve(request, inner)


def _split_context(path: str) -> tuple[str, str]:
    """Return the context that a path begins with, and the rest of the path."""
    if not path.startswith(_IN_CONTEXT):
        return DEFAULT_CONTEXT, path
    segment, slash, rest = path.removeprefix(_IN_CONTEXT).partition("/")
    name = decoded(segment).removeprefix(":").removesuffix(":")
    if not slash or not name or ":" in name:
        raise InvalidSubject(f"invalid context {name!r} in the path")
    return name if name.startswith(".") else f".{name}", f"/{rest}"


@lru_cache(256)
def _content_type(accepted: str) -> str:
    """Return the content type of a response by the Accept header. Raises NotAcceptable."""
    types = {each.partition(";")[0].strip().lower() for each in accepted.split(",")}
    if not accepted or types & _ANYTHING:
        return V1_JSON
    for each in _CONTENT_TYPES:
        if each in types:
            return each
    raise NotAcceptable(f"the registry can send {', '.join(_CONTENT_TYPES)}")


def _error_type(request: Request) -> str:
    try:
        return _content_type(request.headers.get("accept", ""))
    except NotAcceptable:
        return V1_JSON


def routes_page() -> str:
    """Return all routes as a Markdown table."""
    lines = ["| request | effect | query |", "|---|---|---|"]
    for route in ROUTES:
        fields = [field.encode_name for field in msgspec.structs.fields(route.parameters)]
        query = ", ".join(f"`{name}`" for name in fields if name not in route.path_names)
        lines.append(f"| `{route.key}` | {route.summary} | {query} |")
    return "\n".join(lines) + "\n"


def rights_page() -> str:
    """Return the table of rights in Markdown."""
    lines = ["| request | rights |", "|---|---|"]
    for route in ROUTES:
        words = []
        if route.right is not None:
            has_subject = "subject" in route.path_names
            right = route.right
            on_cluster = (right.on_cluster or right.operation).name
            words.append(str(right) if has_subject else f"{on_cluster} cluster")
        if route.in_handler:
            words.append(route.in_handler)
        lines.append(f"| `{route.key}` | {'; '.join(words) or 'none'} |")
    return "\n".join(lines) + "\n"
