"""Finding the route of a request by its path: a tree of path segments, literal ones before parameters."""

from collections.abc import Iterable
from inspect import iscoroutinefunction
from typing import NamedTuple
from urllib.parse import unquote

from .arguments import Arguments
from .errors import InvalidInput, MethodNotAllowed, UnknownPath
from .route import AnyRoute


class Endpoint:
    """A route, with what a request needs of it at hand."""

    __slots__ = ("arguments", "is_asynchronous", "path_names", "route")

    def __init__(self, route: AnyRoute) -> None:
        self.route = route
        self.path_names = route.path_names
        self.arguments = Arguments(route)
        self.is_asynchronous = iscoroutinefunction(route.handler)


class Match(NamedTuple):
    """An endpoint and what the path gives for its parameters."""

    endpoint: Endpoint
    values: dict[str, str]


class _Node:
    __slots__ = ("children", "endpoints", "parameter")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.endpoints: dict[str, Endpoint] = {}


class Router:
    """Every route, by path and method."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self._root = _Node()
        for route in routes:
            node = self._root
            for part in route.path.split("/")[1:]:
                if part.startswith("{"):
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
                else:
                    node = node.children.setdefault(part, _Node())
            assert route.method not in node.endpoints, f"two routes for {route.method} {route.path}"
            node.endpoints[route.method] = endpoint = Endpoint(route)
            if route.method == "GET" and not route.has_effects:
                node.endpoints["HEAD"] = endpoint

    def match(self, method: str, path: str) -> Match:
        """The endpoint for this, or UnknownPath, or MethodNotAllowed."""
        node = self._root
        segments: list[str] = []
        for part in path.split("/")[1:]:
            if (child := node.children.get(part)) is not None:
                node = child
            elif node.parameter is not None and part:
                segments.append(part)
                node = node.parameter
            else:
                raise UnknownPath(f"there is nothing at {path}")
        if (endpoint := node.endpoints.get(method)) is None:
            raise _not_served(node, method, path)
        if not segments:
            return Match(endpoint, {})
        return Match(endpoint, dict(zip(endpoint.path_names, map(_decoded, segments), strict=True)))


def _decoded(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"{segment!r} in the path is not percent-encoded UTF-8") from None


def _not_served(node: _Node, method: str, path: str) -> UnknownPath | MethodNotAllowed:
    if not node.endpoints:
        return UnknownPath(f"there is nothing at {path}")
    allowed = ", ".join(sorted(node.endpoints))
    return MethodNotAllowed(f"{path} takes {allowed}, not {method}", allowed)
