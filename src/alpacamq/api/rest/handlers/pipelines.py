"""Data pipelines and their latest progress."""

import msgspec

from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.model.errors import DamagedLog, StorageFailed
from alpacamq.model.pipelines import PipelineProgress, PipelineState

# A running pipeline reports every ten seconds.
SILENT_AFTER_MS = 60_000


class ListedPipeline(PipelineProgress, frozen=True, kw_only=True):
    """A pipeline; `silent` if it was running and has not reported for a minute."""

    silent: bool


class PipelineList(msgspec.Struct, frozen=True, kw_only=True):
    """Pipelines by name, with their latest reports."""

    pipelines: list[ListedPipeline]


async def list_pipelines(call: Call[Nothing, Nothing]) -> PipelineList:
    latest_ms = call.backend.broker.clock.now_ms() - SILENT_AFTER_MS
    return PipelineList(
        pipelines=[
            ListedPipeline(
                **msgspec.structs.asdict(each),
                silent=each.state is PipelineState.RUNNING and each.updated < latest_ms,
            )
            for each in await call.backend.pipelines.latest()
        ]
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/pipelines",
        summary="List data pipelines and their progress",
        handler=list_pipelines,
        parameters=Nothing,
        body=Nothing,
        answers=(PipelineList,),
        errors=(DamagedLog, StorageFailed),
    ),
)
