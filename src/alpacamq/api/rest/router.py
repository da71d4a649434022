"""Finds the endpoint of a request by its path and method, and checks what requests of every path need."""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from alpacamq.api.http.hosts import foreign_page
from alpacamq.api.http.messages import Request

from .errors import CrossOrigin, InvalidInput, MethodNotAllowed, UnknownPath, UnsupportedMediaType

# curl's default content type; the body must be JSON nevertheless.
_CURL_DEFAULT = "application/x-www-form-urlencoded"


class Routed(Protocol):
    """A method on a path."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def has_effects(self) -> bool: ...


class Served(Protocol):
    """An endpoint of a route."""

    @property
    def route(self) -> Routed: ...

    @property
    def path_names(self) -> tuple[str, ...]: ...


E = TypeVar("E", bound=Served)


class Match(NamedTuple, Generic[E]):
    """An endpoint and the parameters in the path."""

    endpoint: E
    values: dict[str, str]


class _Node(Generic[E]):
    __slots__ = ("children", "endpoints", "parameter")

    def __init__(self) -> None:
        self.children: dict[str, _Node[E]] = {}
        self.parameter: _Node[E] | None = None
        self.endpoints: dict[str, E] = {}


class Router(Generic[E]):
    """Every route, by path and method."""

    def __init__(self, endpoints: Iterable[E]) -> None:
        self._root: _Node[E] = _Node()
        for endpoint in endpoints:
            route, node = endpoint.route, self._root
            for part in route.path.split("/")[1:]:
                if part.startswith("{"):
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
                else:
                    node = node.children.setdefault(part, _Node())
            assert route.method not in node.endpoints, f"two routes for {route.method} {route.path}"
            node.endpoints[route.method] = endpoint
            if route.method == "GET" and not route.has_effects:
                node.endpoints["HEAD"] = endpoint

    def match(self, method: str, path: str) -> Match[E]:
        """Return the endpoint for a request; raise UnknownPath or MethodNotAllowed."""
        node = self._root
        segments: list[str] = []
        for part in path.split("/")[1:]:
            if (child := node.children.get(part)) is not None:
                node = child
            elif node.parameter is not None and part:
                segments.append(part)
                node = node.parameter
            else:
                raise UnknownPath(f"unknown path {path}")
        if (endpoint := node.endpoints.get(method)) is None:
            raise _not_served(node, method, path)
        if not segments:
            return Match(endpoint, {})
        return Match(endpoint, dict(zip(endpoint.path_names, map(decoded, segments), strict=True)))


def decoded(segment: str) -> str:
    """Return a part of a path without percent-encoding. Raises InvalidInput."""
    if "%" not in segment:
        return segment
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"{segment!r} in the path is not percent-encoded UTF-8") from None


def _not_served(node: _Node[Any], method: str, path: str) -> UnknownPath | MethodNotAllowed:
    if not node.endpoints:
        return UnknownPath(f"unknown path {path}")
    allowed = ", ".join(sorted(node.endpoints))
    return MethodNotAllowed(f"{path} allows {allowed}, not {method}", allowed)


def check_origin(request: Request, route: Routed) -> None:
    """Refuse requests of pages of other sites, except links to routes without effects."""
    page = foreign_page(request)
    if page is not None and not _is_followed_link(request, route):
        raise CrossOrigin(f"{page} may not use this broker")


def _is_followed_link(request: Request, route: Routed) -> bool:
    headers = request.headers
    return (
        request.method == "GET"
        and not route.has_effects
        and "origin" not in headers
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def check_media_type(headers: Mapping[str, str]) -> None:
    if (given := headers.get("content-type")) is None:
        return
    media_type = given.partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or media_type.endswith("+json")
    if not is_json and media_type != _CURL_DEFAULT:
        raise UnsupportedMediaType(f"the content type must be application/json, not {media_type}")
