"""The route table as a page of the guide."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from .route import AnyRoute, Nothing
from .table import ROUTES


def routes_page() -> str:
    """Return all routes with their parameters as a Markdown table."""
    rows = [f"| `{route.method} {route.path}` | {route.summary} | {_taken(route)} |" for route in ROUTES]
    return "| request | effect | parameters |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _taken(route: AnyRoute) -> str:
    query = _fields(route.parameters, without=route.path_names)
    parts = []
    if query:
        parts.append(f"query: {_listed(query)}")
    if route.body is not Nothing:
        shapes = route.body_shapes or (route.body,)
        parts.append(f"body: {' or '.join(_listed(_fields(shape)) for shape in shapes)}")
    return "; ".join(parts)


def _fields(kind: Any, without: Sequence[str] = ()) -> list[str]:
    """Return the fields of a struct; required ones first, in bold."""
    fields = sorted(
        (field for field in msgspec.structs.fields(kind) if field.encode_name not in without),
        key=lambda field: not field.required,
    )
    return [f"**{field.encode_name}**" if field.required else field.encode_name for field in fields]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
