"""How far data pipelines are: what each of them told last."""

import msgspec

from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.model.errors import DamagedLog, StorageFailed
from alpacamq.model.pipelines import PipelineProgress, PipelineState

# A pipeline that runs tells so every ten seconds, whatever it does.
SILENT_AFTER_MS = 60_000


class ListedPipeline(PipelineProgress, frozen=True, kw_only=True):
    """One pipeline. Of one that is `silent` nothing has been heard for a minute, although it was running."""

    silent: bool


class PipelineList(msgspec.Struct, frozen=True, kw_only=True):
    """Pipelines by name, as they were when they last told."""

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
        summary="List data pipelines and how far they are",
        handler=list_pipelines,
        parameters=Nothing,
        body=Nothing,
        answers=(PipelineList,),
        errors=(DamagedLog, StorageFailed),
    ),
)
