"""Every route of the JSON API."""

from functools import cache
from typing import Any

import msgspec

from alpacamq.api.http.messages import Response

from .handlers import (
    cluster,
    dead_letters,
    delayed,
    figures,
    finding,
    groups,
    health,
    history,
    lane_figures,
    members,
    metrics,
    offsets,
    pipelines,
    polling,
    producers,
    publishing,
    queue_figures,
    queues,
    reading,
    settling,
    topics,
    traces,
    transaction_list,
    transactions,
)
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
    *figures.ROUTES,
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
