"""The route table of the HTTP API, also as a page of the guide."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec

from alpacamq.api.http.messages import Response

from .handlers import (
    acls,
    cluster,
    delayed,
    groups,
    health,
    keys,
    offsets,
    polling,
    publishing,
    queues,
    quotas,
    reading,
    sessions,
    stats,
    tenants,
    topics,
    traces,
    transactions,
    users,
)
from .openapi import document
from .route import AnyRoute, Call, Nothing, Route


def openapi(_call: Call[Nothing, Nothing]) -> Response:
    return Response(200, encoded_document())


@cache
def encoded_document() -> bytes:
    """Return the OpenAPI document, generated on first use."""
    return msgspec.json.encode(document(ROUTES))


ROUTES: tuple[AnyRoute, ...] = (
    *topics.ROUTES,
    *publishing.ROUTES,
    *reading.ROUTES,
    *delayed.ROUTES,
    *groups.ROUTES,
    *polling.ROUTES,
    *offsets.ROUTES,
    *queues.ROUTES,
    *transactions.ROUTES,
    *traces.ROUTES,
    *stats.ROUTES,
    *health.ROUTES,
    *cluster.ROUTES,
    *users.ROUTES,
    *acls.ROUTES,
    *quotas.ROUTES,
    *keys.ROUTES,
    *tenants.ROUTES,
    *sessions.ROUTES,
    Route(
        method="GET",
        path="/openapi.json",
        summary="This description",
        handler=openapi,
        parameters=Nothing,
        body=Nothing,
        answers=(dict[str, Any],),
    ),
)


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
