"""Whether the broker is well, which version it is, and what it holds in all."""

from contextlib import suppress
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq import __version__
from alpacamq.api.http.messages import PROBLEM_JSON, Response
from alpacamq.api.metrics.stats import all_transactions, stats_of
from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import LINE_END, Degraded, problem_of
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.health import ALL, READY, Check, Checks, reads
from alpacamq.coordinator.transactions.transaction import ListTransactions
from alpacamq.model.errors import AlpacaError
from alpacamq.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

_encode = msgspec.json.Encoder().encode


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All is well: `status` is ok. Where it is not, the answer is a problem with the same `checks`."""

    status: str
    checks: dict[str, Check] = {}


class Needs(StrEnum):
    """What a client of the broker wants to do."""

    READS = "reads"
    WRITES = "writes"


class ReadyWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom the question is asked for."""

    needs: Annotated[Needs, Meta(description="writes: 503 also while only reads are served")] = Needs.READS


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is ok, or read-only while `writes` says why they are refused."""

    status: str
    reads: str
    writes: str
    checks: dict[str, Check]


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


def healthz(call: Call[Nothing, Nothing]) -> Health | Response:
    return _checked(call.backend, ALL)


def readyz(call: Call[ReadyWanted, Nothing]) -> Readiness | Response:
    broker = call.backend.broker
    found = {name: check(broker) for name, check in READY.items()}
    can_read, can_write = reads(broker), found["disk"]
    fields = {"reads": _served(can_read), "writes": _served(can_write)}
    needed = can_write if call.parameters.needs is Needs.WRITES else can_read
    if not needed.is_ok:
        return _degraded(f"disk: {needed.detail}", {**fields, "checks": found})
    return Readiness(status="ok" if can_write.is_ok else "read-only", **fields, checks=found)


def livez(_call: Call[Nothing, Nothing]) -> Health:
    """Whoever can answer is alive: a loop that stands still does not answer."""
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
        groups = len(await broker.coordinators.group_ids()) if OFFSETS_TOPIC in topics else 0
    with suppress(AlpacaError):
        delayed = (await broker.delays.stats()).pending
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
        queues=len(broker.queues.stats()),
        delayed=delayed,
        open_transactions=open_transactions,
        requests=sum(count for _, count in backend.traffic),
    )


def _checked(backend: Backend, checks: Checks) -> Health | Response:
    found = {name: check(backend.broker) for name, check in checks.items()}
    troubles = [f"{name}: {check.detail}" for name, check in found.items() if not check.is_ok]
    if not troubles:
        return Health(status="ok", checks=found)
    return _degraded("; ".join(troubles), {"checks": found})


def _degraded(detail: str, fields: dict[str, object]) -> Response:
    told = msgspec.structs.asdict(problem_of(Degraded(detail)))
    return Response(HTTPStatus.SERVICE_UNAVAILABLE, _encode({**told, **fields}) + LINE_END, PROBLEM_JSON)


def _served(check: Check) -> str:
    return "ok" if check.is_ok else f"refused: {check.detail}"


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/healthz",
        summary="Whether every check of the broker's health passes; 503 if not, with those that fail",
        handler=healthz,
        parameters=Nothing,
        body=Nothing,
        answers=(Health,),
        errors=(Degraded,),
    ),
    Route(
        method="GET",
        path="/readyz",
        summary="Whether the broker has recovered and serves reads, and whether it takes writes; 503 if not",
        handler=readyz,
        parameters=ReadyWanted,
        body=Nothing,
        answers=(Readiness,),
        errors=(Degraded,),
    ),
    Route(
        method="GET",
        path="/livez",
        summary="Whether the broker runs",
        handler=livez,
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
