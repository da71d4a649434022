"""Whether the broker is well, which version it is, and what it holds in all."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

import msgspec

from alpacamq import __version__
from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import Degraded
from alpacamq.api.rest.lag import group_names
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.coordinator.transaction_messages import ListTransactions
from alpacamq.model.errors import AlpacaError
from alpacamq.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

from .transaction_list import all_transactions, stats_of

_TROUBLES_SHOWN = 20


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """All is well: `status` is ok."""

    status: str


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Which broker answers."""

    version: str
    node_id: int
    cluster_id: str


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The broker in a few numbers; null where a part cannot answer now."""

    version: str
    node_id: int
    uptime_ms: int
    topics: int
    partitions: int
    messages: int
    size_bytes: int
    groups: int | None
    queues: int
    delayed: int | None
    open_transactions: int | None
    requests: int


def healthz(call: Call[Nothing, Nothing]) -> Health:
    if troubles := list(islice(_troubles(call.backend), _TROUBLES_SHOWN)):
        raise Degraded("; ".join(troubles))
    return Health(status="ok")


def alive(_call: Call[Nothing, Nothing]) -> Health:
    """Whoever can answer is alive; and doors open once the broker has recovered, so it is ready, too."""
    return Health(status="ok")


def version(call: Call[Nothing, Nothing]) -> Version:
    broker = call.backend.broker
    return Version(version=__version__, node_id=broker.settings.node_id, cluster_id=broker.cluster_id)


async def stats(call: Call[Nothing, Nothing]) -> Stats:
    backend = call.backend
    broker = backend.broker
    groups = delayed = open_transactions = None
    topics = broker.topics.image.topics
    with suppress(AlpacaError):
        groups = len(await group_names(broker)) if OFFSETS_TOPIC in topics else 0
    with suppress(AlpacaError):
        delayed = (await broker.delays.figures()).pending
    with suppress(AlpacaError):
        open_transactions = 0
        if TRANSACTIONS_TOPIC in topics:
            found = stats_of(await all_transactions(broker, ListTransactions()))
            open_transactions = found.by_state["ongoing"]
    partitions = list(broker.topics.all_partitions())
    return Stats(
        version=__version__,
        node_id=broker.settings.node_id,
        uptime_ms=broker.clock.now_ms() - backend.started_ms,
        topics=len(topics),
        partitions=len(partitions),
        messages=sum(each.high_watermark - each.log.start_offset for each in partitions),
        size_bytes=sum(each.log.size_bytes for each in partitions),
        groups=groups,
        queues=len(broker.queues.figures()),
        delayed=delayed,
        open_transactions=open_transactions,
        requests=sum(count for _, count in backend.traffic),
    )


def _troubles(backend: Backend) -> Iterable[str]:
    for partition in backend.broker.topics.all_partitions():
        if partition.log.damage is not None:
            yield f"{partition.identity}: {partition.log.damage}"
        elif partition.log.in_doubt is not None:
            yield f"{partition.identity}: {partition.log.in_doubt}"


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/healthz",
        summary="Whether all partitions can be read and written; 503 if not",
        handler=healthz,
        parameters=Nothing,
        body=Nothing,
        answers=(Health,),
        errors=(Degraded,),
    ),
    Route(
        method="GET",
        path="/readyz",
        summary="Whether requests are served",
        handler=alive,
        parameters=Nothing,
        body=Nothing,
        answers=(Health,),
    ),
    Route(
        method="GET",
        path="/livez",
        summary="Whether the broker runs",
        handler=alive,
        parameters=Nothing,
        body=Nothing,
        answers=(Health,),
    ),
    Route(
        method="GET",
        path="/version",
        summary="Which broker this is",
        handler=version,
        parameters=Nothing,
        body=Nothing,
        answers=(Version,),
    ),
    Route(
        method="GET",
        path="/stats",
        summary="The broker in a few numbers",
        handler=stats,
        parameters=Nothing,
        body=Nothing,
        answers=(Stats,),
    ),
)
