"""Metrics for Prometheus."""

from http import HTTPStatus

from alpacamq.api.http.messages import Response
from alpacamq.api.metrics.exposition import CONTENT_TYPE
from alpacamq.api.rest.errors import MetricsDisabled
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route


async def metrics(call: Call[Nothing, Nothing]) -> Response:
    if (collector := call.backend.collector) is None:
        raise MetricsDisabled("metrics are switched off (metrics.enabled = false)")
    return Response(HTTPStatus.OK, await collector.text(), CONTENT_TYPE)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/metrics",
        summary="Metrics for Prometheus",
        handler=metrics,
        parameters=Nothing,
        body=Nothing,
        answers=(str,),
        content_type=CONTENT_TYPE,
        errors=(MetricsDisabled,),
    ),
)
