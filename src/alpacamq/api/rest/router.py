"""Finding the route of a request by its path: a tree of path segments, literal ones before parameters."""

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

from .errors import InvalidInput, MethodNotAllowed, UnknownPath
from .route import AnyRoute


class Match(NamedTuple):
    """A route and what the path gives for its parameters."""

    route: AnyRoute
    values: dict[str, str]


class _Node:
    __slots__ = ("children", "parameter", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, AnyRoute] = {}


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
            assert route.method not in node.routes, f"two routes for {route.method} {route.path}"
            node.routes[route.method] = route
            if route.method == "GET" and not route.has_effects:
                node.routes["HEAD"] = route

    def match(self, method: str, path: str) -> Match:
        """The route for this, or UnknownPath, or MethodNotAllowed."""
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
        if (route := node.routes.get(method)) is None:
            raise _not_served(node, method, path)
        if not segments:
            return Match(route, {})
        return Match(route, dict(zip(route.path_names, map(_decoded, segments), strict=True)))


def _decoded(segment: str) -> str:
    if "%" not in segment:
        return segment
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"{segment!r} in the path is not percent-encoded UTF-8") from None


def _not_served(node: _Node, method: str, path: str) -> UnknownPath | MethodNotAllowed:
    if not node.routes:
        return UnknownPath(f"there is nothing at {path}")
    allowed = ", ".join(sorted(node.routes))
    return MethodNotAllowed(f"{path} takes {allowed}, not {method}", allowed)
