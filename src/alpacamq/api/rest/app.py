"""The HTTP API: routes requests, parses their input and sends the results as JSON."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Sized
from difflib import get_close_matches
from functools import cache, partial
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import inspect

from alpacamq.api.http import throttling
from alpacamq.api.http.login import AUTHORIZATION
from alpacamq.api.http.messages import Refused, Request, Response
from alpacamq.broker.access import ANONYMOUS_CALLER, Caller
from alpacamq.broker.broker import Broker
from alpacamq.broker.later import Later
from alpacamq.broker.quotas import ClientLimits
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from alpacamq.security.acls import ResourceType
from alpacamq.security.sessions import Session

from . import rights, tenancy
from .backend import Backend
from .errors import (
    LINE_END,
    CsrfTokenMissing,
    InvalidInput,
    refusal,
)
from .route import AnyRoute, Call, Nothing
from .router import Router, check_media_type, check_origin
from .table import ROUTES

if TYPE_CHECKING:
    from alpacamq.telemetry.metrics import Histogram, ListenerStats


from alpacamq.api.http.messages import PROBLEM_JSON
from alpacamq.api.http.reader import RETRY_AFTER_SECONDS
from alpacamq.broker.broker import StartStep
from alpacamq.broker.health import failing

from .errors import Recovering, problem_of
from .handlers.health import Health
from .handlers.publishing import PublishedMessage, PublishedMessages

# Messages of msgspec: error and path. For keys: "... - at `key` in `$.settings`".
_PLACED = re.compile(r"^(.*?) - at (?:`key` in )?`\$([^`]*)`$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+|\.\.\.)\]")
_INVALID_CHOICE = re.compile(r"^Invalid enum value (.*)$", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING_FIELD = re.compile(r"^Object missing required field `(.*)`$")


class Arguments:
    """Parses parameters and body for one route."""

    __slots__ = ("_body", "_decode", "_decode_leniently", "_in_path", "_parameters")

    def __init__(self, route: AnyRoute) -> None:
        self._parameters = route.parameters
        self._in_path = route.path_names
        self._body = route.body
        self._decode = msgspec.json.Decoder(route.body).decode
        self._decode_leniently = msgspec.json.Decoder(route.body, strict=False).decode

    def check_media_type(self, request: Request) -> None:
        """Refuse a body that is not JSON."""
        if self._body is not Nothing:
            check_media_type(request.headers)

    def parameters(self, in_path: dict[str, str], request: Request) -> Any:
        """Parse the parameters of path and query."""
        values = in_path
        if request.query_string:
            for name, given in request.query.items():
                if name in self._in_path:
                    raise InvalidInput(f"{name} is part of the path and must not be in the query", name)
                if len(given) > 1:
                    raise InvalidInput(f"{name} is given {len(given)} times", name)
                values[name] = given[0]
        if not values and self._parameters is Nothing:
            return _NOTHING
        try:
            return msgspec.convert(values, self._parameters, strict=False)
        except msgspec.ValidationError as error:
            raise _explained(error, self._parameters, is_body=False) from None

    def body(self, request: Request) -> Any:
        """Parse the body; a missing one is an empty object. Its media type has been checked."""
        if self._body is Nothing:
            return _NOTHING
        try:
            try:
                return self._decode(request.body or b"{}")
            except msgspec.ValidationError as error:
                if "got `float`" not in str(error):
                    raise
            return self._with_whole_floats(request.body)
        except msgspec.ValidationError as error:
            raise _explained(error, self._body, is_body=True) from None
        except msgspec.DecodeError as error:
            raise InvalidInput(f"the body is not JSON: {error}") from None
        except UnicodeDecodeError:
            raise InvalidInput("the body is not UTF-8") from None
        except RecursionError:
            raise InvalidInput("the body is nested too deeply") from None

    def _with_whole_floats(self, body: bytes) -> Any:
        """Parse a body that has floats in place of integers; whole ones such as 1.0 are accepted."""
        found = self._decode_leniently(body)
        # The lenient decoder also takes text for numbers, and more.
        _check_types(msgspec.json.decode(body), found, "")
        return found


def _check_types(given: Any, found: Any, pointer: str) -> None:
    """Refuse a parsed value whose type is not the given one, unless it is an integer for a whole float."""
    if isinstance(found, msgspec.Raw):
        return
    if isinstance(found, msgspec.Struct):
        parsed: msgspec.Struct = found
        names = _names(type(parsed))
        for name, value in given.items():
            _check_types(value, getattr(found, names[name]), f"{pointer}/{_pointer_step(name)}")
    elif isinstance(given, dict):
        if given != found:  # most often headers, which are as given
            for name, value in given.items():
                _check_types(value, found[name], f"{pointer}/{_pointer_step(name)}")
    elif isinstance(given, list):
        for index, value in enumerate(given):
            _check_types(value, found[index], f"{pointer}/{index}")
    elif isinstance(given, float) and isinstance(found, int):
        return
    elif isinstance(given, str):
        # Timestamps, bytes and words of an enumeration are text in JSON.
        if found is None or isinstance(found, int | float):
            raise InvalidInput(f"{pointer}: unexpected text", pointer)
    elif type(given) is not type(found):
        raise InvalidInput(f"{pointer}: unexpected {msgspec.json.encode(given).decode()}", pointer)


@cache
def _names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the attributes of a type by their names in JSON."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(kind)}


def _pointer_step(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


_NOTHING = Nothing()


def _explained(error: msgspec.ValidationError, expected: Any, *, is_body: bool) -> InvalidInput:
    """Return the error with its JSON pointer and, for an unknown name, the closest known one."""
    text, steps = str(error), []
    if (placed := _PLACED.match(text)) is not None:
        text = placed[1]
        for name, index in _STEP.findall(placed[2]):
            if index == "...":  # a key of a mapping; msgspec does not say which
                break
            steps.append(name or index)
    if (unknown := _UNKNOWN_FIELD.match(text)) is not None:
        steps.append(unknown[1])
        near = get_close_matches(unknown[1], sorted(_field_names(expected) - {unknown[1]}), n=1)
        text = f"there is no {unknown[1]!r} here" + (f"; did you mean {near[0]!r}?" if near else "")
    elif (missing := _MISSING_FIELD.match(text)) is not None:
        steps.append(missing[1])
        text = "is missing"
    elif (invalid := _INVALID_CHOICE.match(text)) is not None:
        choices = _choices(inspect.type_info(expected), steps)
        text = f"{invalid[1]} is not one of {', '.join(choices)}"
    else:
        text = text[:1].lower() + text[1:].replace("`", "")
    field = (steps or [""])[0]
    if is_body:
        field = "".join(f"/{_pointer_step(step)}" for step in steps)
    return InvalidInput(f"{field or 'the body'}: {text}", field)


def _choices(kind: inspect.Type, steps: Sequence[str]) -> list[str]:
    """Return the values of the enumeration at a place in a type; none if there is no enumeration."""
    match kind:
        case inspect.Metadata(type=inner):
            return _choices(inner, steps)
        case inspect.UnionType(types=types):
            return next((found for each in types if (found := _choices(each, steps))), [])
        case inspect.EnumType(cls=cls) if not steps:
            return [str(each.value) for each in cls]
        case inspect.LiteralType(values=values) if not steps:
            return [str(each) for each in values]
        case inspect.StructType(fields=fields) if steps:
            named = [each.type for each in fields if each.encode_name == steps[0]]
            return _choices(named[0], steps[1:]) if named else []
        case inspect.ListType(item_type=item) if steps:
            return _choices(item, steps[1:])
        case _:
            return []


def _field_names(expected: Any) -> set[str]:
    """Return the names of all fields of a type and of nested types."""
    names: set[str] = set()
    found = [msgspec.inspect.type_info(expected)]
    while found:
        kind = found.pop()
        if isinstance(kind, msgspec.inspect.StructType):
            names.update(field.encode_name for field in kind.fields)
            found += [field.type for field in kind.fields]
        elif isinstance(kind, msgspec.inspect.UnionType):
            found += kind.types
        elif isinstance(kind, msgspec.inspect.ListType):
            found.append(kind.item_type)
        elif isinstance(kind, msgspec.inspect.Metadata):
            found.append(kind.type)
    return names


class Endpoint:
    """A route with its parsers."""

    __slots__ = (
        "answered",
        "arguments",
        "is_open",
        "may_wait",
        "path_names",
        "rights",
        "route",
        "seconds",
        "topics",
        "uses_session",
    )

    def __init__(self, route: AnyRoute) -> None:
        self.route = route
        self.path_names = route.path_names
        self.arguments = Arguments(route)
        self.rights = rights.RIGHTS.get(rights.key_of(route), rights.UNLISTED)
        self.is_open = rights.key_of(route) in rights.OPEN
        self.may_wait = "wait_ms" in getattr(route.parameters, "__struct_fields__", ())
        # Logging in does not use the rights of the user that the browser was logged in as.
        self.uses_session = rights.key_of(route) != rights.LOG_IN
        # The topics that a request names.
        self.topics = tuple(right.names for right in self.rights if right.kind is ResourceType.TOPIC)
        # Metrics, from the first response on: the number by status, and how long they took.
        self.answered: Counter[int] | None = None
        self.seconds: Histogram | None = None


class Routed(NamedTuple):
    """The endpoint of a request and the parameters in its head, which has been checked."""

    endpoint: Endpoint
    parameters: Any


_encode = msgspec.json.Encoder().encode
_NO_CONTENT = Response(HTTPStatus.NO_CONTENT)


class RestApi:
    """Serves JSON requests; an App of the HTTP listener."""

    def __init__(self, broker: Broker, addresses: Mapping[str, Address]) -> None:
        self._backend = Backend(broker, addresses)
        self._stats: ListenerStats | None = None
        if broker.metrics is not None:
            self._stats = broker.metrics.listeners["http"]
        self._router = Router(map(Endpoint, ROUTES))
        self._access = broker.access
        self._audit = broker.audit
        self._metadata = broker.metadata
        self._login = self._backend.login
        self._quotas = broker.quotas

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        if request.caller is not None:
            return self._limited(request, request.caller)
        access = self._access
        if (
            access.requires_login(request.authentication)
            or access.is_enforced
            or request.principal is not None
            or AUTHORIZATION in request.headers
        ):
            return self._authenticated(request)
        if self._quotas.is_active:
            return self._limited(request, ANONYMOUS_CALLER)
        return self._served(request, ANONYMOUS_CALLER)

    def _authenticated(self, request: Request) -> Response | Awaitable[Response]:
        """Serve a request whose client has to say who it is, or does so."""
        try:
            caller = self._login.known(request)
        except AlpacaError as error:
            return refusal(error, request)
        if caller is None:
            return self._served_later(request)
        response = self._limited(request, caller)
        if caller.session is not None and (renewal := self._login.renewal(caller)):
            return _with_headers(response, renewal)
        return response

    async def _served_later(self, request: Request) -> Response:
        """Serve a request whose password or token has to be checked."""
        try:
            caller = await self._login.authenticate(request)
        except AlpacaError as error:
            return refusal(error, request)
        response = self._limited(request, caller)
        return response if isinstance(response, Response) else await response

    def _limited(self, request: Request, caller: Caller) -> Response | Awaitable[Response]:
        """Serve a request within the quotas of its client."""
        limits = self._quotas.of_user(caller) if self._quotas.is_active else None
        if limits is None:
            return self._served(request, caller)
        began_at = monotonic()
        try:
            endpoint = self._router.match(request.method, request.path).endpoint
        except AlpacaError as error:
            return refusal(error, request)
        if endpoint.is_open:
            return self._served(request, caller)
        route = endpoint.route
        try:
            throttling.check_connection(self._quotas, request, caller)
            throttling.check(limits, route.quota)
        except AlpacaError as error:
            self._count(endpoint, HTTPStatus.TOO_MANY_REQUESTS, began_at)
            return refusal(error, request)
        response = self._served(request, caller)
        if not isinstance(response, Response):
            return _charged(limits, route, request, response, monotonic() - began_at)
        seconds = monotonic() - began_at
        throttling.charge(limits, route.quota, len(request.body), len(response.body), seconds)
        return response

    def _served(self, request: Request, caller: Caller) -> Response | Awaitable[Response]:
        endpoint: Endpoint | None = None
        tenant: str | None = None
        began_at = monotonic()
        try:
            head = request.head
            routed = None if head is None else head.routed
            if isinstance(routed, Routed):
                endpoint, parameters = routed
                route = endpoint.route
            else:
                endpoint, in_path = self._router.match(request.method, request.path)
                route = endpoint.route
                check_origin(request, route)
            if not endpoint.is_open and self._access.requires_login(request.authentication):
                self._login.check_authenticated(caller)
            if caller.session is not None:
                self._check_csrf(request, endpoint, caller.session)
            if self._audit is not None:
                self._audit.enter("http", rights.key_of(route), *_sender(request), caller)
            if routed is None:
                parameters = endpoint.arguments.parameters(in_path, request)
                endpoint.arguments.check_media_type(request)
                if head is not None:
                    head.app, head.routed = self, Routed(endpoint, parameters)
            body = endpoint.arguments.body(request)
            if (tenant := self._access.tenant_of(caller)) is not None:
                if not endpoint.is_open:
                    self._access.check_active(caller)
                stored = tenancy.to_stored(tenant)
                parameters, body = stored(parameters), stored(body)
            call = Call(self._backend, request, parameters, body, caller)
            is_limited = self._access.limits(caller)
            if is_limited and endpoint.rights:
                rights.check(self._access, endpoint.rights, call)
            if self._metadata.may_be_behind and self._is_topic_unknown(endpoint, call):
                late = self._after_catching_up(endpoint, call)
                return self._awaited(endpoint, call, late, began_at, tenant)
            answer = route.handler(call)
            if isinstance(answer, Later) and not (is_limited and endpoint.may_wait):
                return answer.then(partial(self._answered, endpoint, call, began_at, tenant))
            if isinstance(answer, Awaitable):
                return self._awaited(endpoint, call, answer, began_at, tenant)
            response = _response(route, answer, tenant)
        except AlpacaError as error:
            response = refusal(error, request, tenant)
        except Exception as error:
            self._count(endpoint, _status_of(error), began_at)
            raise
        self._count(endpoint, response.status, began_at)
        return response

    def _check_csrf(self, request: Request, endpoint: Endpoint, session: Session) -> None:
        """Refuse a request that changes something if it is not of a page of the console."""
        route = endpoint.route
        if route.method == "GET" and not route.has_effects:
            return
        if endpoint.uses_session and not self._login.has_csrf_token(request, session):
            raise CsrfTokenMissing(
                "a request with the cookie of the console needs the X-CSRF-Token that GET /session returns"
            )

    def _is_topic_unknown(self, endpoint: Endpoint, call: Call[Any, Any]) -> bool:
        known = self._metadata.image.topics
        return any(name not in known for names in endpoint.topics for name in names(call))

    async def _after_catching_up(self, endpoint: Endpoint, call: Call[Any, Any]) -> object:
        """Handle a request about a topic that may have been created through another node."""
        await self._metadata.catch_up()
        answer: Any = endpoint.route.handler(call)
        return await answer if isinstance(answer, Awaitable) else answer

    async def _awaited(
        self,
        endpoint: Endpoint,
        call: Call[Any, Any],
        work: Awaitable[Any],
        began_at: float,
        tenant: str | None,
    ) -> Response:
        answer: Any
        try:
            if endpoint.may_wait and not call.sees_all:
                check = partial(rights.check, self._access, endpoint.rights, call)
                work = self._access.while_allowed(work, call.caller, check)
            answer = await work
        except AlpacaError as error:
            answer = error.with_traceback(None)
        except Exception as error:
            self._count(endpoint, _status_of(error), began_at)
            raise
        answered = self._answered(endpoint, call, began_at, tenant, answer)
        return answered if isinstance(answered, Response) else await answered

    def _answered(
        self,
        endpoint: Endpoint,
        call: Call[Any, Any],
        began_at: float,
        tenant: str | None,
        answer: Any,
    ) -> Response | Coroutine[Any, Any, Response]:
        """Return the response for what a handler has returned or raised; a coroutine does the rest."""
        if isinstance(answer, Coroutine):
            return self._awaited(endpoint, call, answer, began_at, tenant)
        route = endpoint.route
        try:
            if isinstance(answer, AlpacaError):
                response = refusal(answer, call.request, tenant)
            elif isinstance(answer, Exception):
                raise answer
            else:
                if route.quota is not None and self._quotas.is_active:
                    self._charge_messages(call.caller, route, answer)
                response = _response(route, answer, tenant)
                if route.method == "GET" and endpoint.rights and not call.sees_all:
                    # It may have waited, and a right may have been withdrawn meanwhile.
                    rights.check(self._access, endpoint.rights, call)
        except AlpacaError as error:
            response = refusal(error, call.request, tenant)
        except Exception as error:
            self._count(endpoint, _status_of(error), began_at)
            raise
        self._count(endpoint, response.status, began_at)
        return response

    def _charge_messages(self, caller: Caller, route: AnyRoute, answer: object) -> None:
        """Count the messages that a request has written or read."""
        if (limits := self._quotas.of_user(caller)) is not None:
            throttling.charge_messages(limits, route.quota, _messages_in(answer))

    def _count(self, endpoint: Endpoint | None, status: int, began_at: float) -> None:
        if endpoint is None:
            return
        if (answered := endpoint.answered) is None:
            route = endpoint.route
            answered = endpoint.answered = self._backend.traffic.of(route.method, route.path)
            if self._stats is not None:
                endpoint.seconds = self._stats.of(f"{route.method} {route.path}").seconds
        answered[status] += 1
        if endpoint.seconds is not None:
            endpoint.seconds.observe(monotonic() - began_at)


def _sender(request: Request) -> tuple[str, str]:
    """Return what a client calls itself, and its request."""
    return request.headers.get("user-agent", ""), request.headers.get("x-request-id", "")


def _with_headers(
    response: Response | Awaitable[Response], headers: tuple[tuple[str, str], ...]
) -> Response | Awaitable[Response]:
    """Add headers to a response that does not set cookies itself."""
    if not isinstance(response, Response):
        return _later_with_headers(response, headers)
    if any(name == "Set-Cookie" for name, _ in response.headers):
        return response
    return response._replace(headers=(*response.headers, *headers))


async def _later_with_headers(
    response: Awaitable[Response], headers: tuple[tuple[str, str], ...]
) -> Response:
    found = _with_headers(await response, headers)
    assert isinstance(found, Response)
    return found


async def _charged(
    limits: ClientLimits, route: AnyRoute, request: Request, work: Awaitable[Response], seconds: float
) -> Response:
    """Await a response, and count what the request has used."""
    response, more_seconds = await throttling.measured(work)
    seconds += more_seconds
    throttling.charge(limits, route.quota, len(request.body), len(response.body), seconds)
    return response


def _messages_in(answer: object) -> int:
    """Return how many messages an answer reports as written, or contains."""
    if isinstance(answer, PublishedMessage):
        return 1
    if isinstance(answer, PublishedMessages):
        return len(answer.results) - answer.errors
    messages: Sized = getattr(answer, "messages", ())
    return len(messages)


def _response(route: AnyRoute, answer: object, tenant: str | None) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return _NO_CONTENT
    if tenant is not None:
        answer = tenancy.to_local(tenant)(answer)
    return Response(route.status, _encode(answer) + LINE_END)


def _status_of(error: Exception) -> int:
    """Return the status of the connection's response to an unexpected error."""
    return error.status if isinstance(error, Refused) else HTTPStatus.INTERNAL_SERVER_ERROR


_LATER = (("Retry-After", str(RETRY_AFTER_SECONDS)),)


class RecoveryApp:
    """An App of the HTTP listener while the broker starts."""

    def __init__(self, waits_for: Callable[[], StartStep]) -> None:
        """`waits_for` returns what the broker waits for."""
        self._waits_for = waits_for

    def __call__(self, request: Request) -> Response:
        if request.path == "/livez" and request.method in ("GET", "HEAD"):
            return Response(HTTPStatus.OK, _encode(Health(status="ok")) + LINE_END)
        step = self._waits_for()
        detail = f"the broker is {step.doing}: {step.detail}"
        told = msgspec.structs.asdict(problem_of(Recovering(detail)))
        refused = "refused: recovering"
        body = {
            **told,
            "reads": refused,
            "writes": refused,
            "checks": {step.check: failing(detail)},
        }
        return Response(HTTPStatus.SERVICE_UNAVAILABLE, _encode(body) + LINE_END, PROBLEM_JSON, _LATER)
