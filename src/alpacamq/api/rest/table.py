"""The route table of the HTTP API."""

from functools import cache
from typing import Any

import msgspec

from alpacamq.api.http.messages import Response

from .handlers import (
    dead_letters,
    delayed,
    groups,
    health,
    history,
    offsets,
    pipelines,
    polling,
    producers,
    publishing,
    queues,
    reading,
    settling,
    stats,
    topics,
    traces,
    transactions,
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
    *settling.ROUTES,
    *queues.ROUTES,
    *dead_letters.ROUTES,
    *producers.ROUTES,
    *transactions.ROUTES,
    *traces.ROUTES,
    *stats.ROUTES,
    *history.ROUTES,
    *pipelines.ROUTES,
    *health.ROUTES,
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
