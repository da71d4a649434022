"""Every route of the JSON API."""

from functools import cache
from typing import Any

import msgspec

from alpacamq.api.http.messages import Response

from .handlers import (
    cluster,
    dead_letters,
    delayed,
    finding,
    groups,
    health,
    history,
    members,
    metrics,
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
    transaction_list,
    transactions,
)
from .handlers import lane_stats as lane_figures
from .handlers import queue_stats as queue_figures
from .openapi import document
from .route import AnyRoute, Call, Nothing, Route


def openapi(_call: Call[Nothing, Nothing]) -> Response:
    return Response(200, encoded_document())


@cache
def encoded_document() -> bytes:
    """The description of the API, made from the table below when it is first asked for."""
    return msgspec.json.encode(document(ROUTES))


ROUTES: tuple[AnyRoute, ...] = (
    *topics.ROUTES,
    *publishing.ROUTES,
    *reading.ROUTES,
    *finding.ROUTES,
    *delayed.ROUTES,
    *groups.ROUTES,
    *members.ROUTES,
    *polling.ROUTES,
    *offsets.ROUTES,
    *settling.ROUTES,
    *queues.ROUTES,
    *dead_letters.ROUTES,
    *producers.ROUTES,
    *transactions.ROUTES,
    *transaction_list.ROUTES,
    *traces.ROUTES,
    *queue_figures.ROUTES,
    *lane_figures.ROUTES,
    *cluster.ROUTES,
    *stats.ROUTES,
    *history.ROUTES,
    *pipelines.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
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
