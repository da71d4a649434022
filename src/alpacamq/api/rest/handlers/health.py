"""Health checks, version, addresses, totals and metrics of the broker."""

from contextlib import suppress
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from alpacamq.api.http.messages import PROBLEM_JSON, Response
from alpacamq.api.metrics.exposition import CONTENT_TYPE
from alpacamq.api.metrics.stats import stats_of
from alpacamq.api.rest.errors import LINE_END, Degraded, MetricsDisabled, problem_of
from alpacamq.api.rest.partition_reading import bounds_of_topics
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.health import ALL, READY, Check, Checks, reads
from alpacamq.coordinator.transactions.transaction import ListTransactions
from alpacamq.model.errors import AlpacaError
from alpacamq.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from alpacamq.model.version import VERSION
from alpacamq.security.acls import Operation
from alpacamq.wire.stats import ClusterDescription, Stats, Version

_encode = msgspec.json.Encoder().encode


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All checks pass: `status` is ok, or degraded if something outside of the broker needs attention.

    Otherwise the response is a problem with the same `checks`.
    """

    status: str
    checks: dict[str, Check] = {}


class Needs(StrEnum):
    """What a client needs from the broker."""

    READS = "reads"
    WRITES = "writes"


class ReadyQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requirements of the client."""

    needs: Annotated[Needs, Meta(description="writes: 503 also while writes are refused")] = Needs.READS


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is ok, or read-only with the reason in `writes`."""

    status: str
    reads: str
    writes: str
    checks: dict[str, Check]


def healthz(call: Call[Nothing, Nothing]) -> Health | Response:
    return _checked(call, ALL)


def readyz(call: Call[ReadyQuery, Nothing]) -> Readiness | Response:
    found = _run(call, {**READY, "reads": reads})
    can_read, can_write = found.pop("reads"), found["disk"]
    fields = {"reads": _served(can_read), "writes": _served(can_write)}
    needed = can_write if call.parameters.needs is Needs.WRITES else can_read
    if not found["cluster"].is_ok:
        return _degraded(f"cluster: {_why(found['cluster'])}", {**fields, "checks": found})
    if not needed.is_ok:
        return _degraded(f"disk: {_why(needed)}", {**fields, "checks": found})
    return Readiness(status="ok" if can_write.is_ok else "read-only", **fields, checks=found)


def livez(_call: Call[Nothing, Nothing]) -> Health:
    """Return ok: a blocked event loop would not respond."""
    return Health(status="ok")


def version(call: Call[Nothing, Nothing]) -> Version:
    broker = call.backend.broker
    return Version(version=VERSION, node_id=broker.settings.node_id, cluster_id=broker.cluster_id)


async def stats(call: Call[Nothing, Nothing]) -> Stats:
    backend = call.backend
    broker = backend.broker
    groups = delayed = open_transactions = None
    topics = broker.topics.image.topics
    with suppress(AlpacaError):
        members = await broker.groups.group_ids() if OFFSETS_TOPIC in topics else ()
        # As in lists of groups: a name is one group, whether it has members, queues or both.
        groups = len({*members, *(queue.group for queue in await broker.queues.queues())})
    with suppress(AlpacaError):
        delayed = (await broker.delays.stats()).pending
    with suppress(AlpacaError):
        open_transactions = 0
        if TRANSACTIONS_TOPIC in topics:
            found = stats_of(await broker.transactions.find(ListTransactions()))
            open_transactions = found.by_state["ongoing"]
    bounds = [
        each for found in (await bounds_of_topics(broker, list(topics.values()))).values() for each in found
    ]
    known = [each for each in bounds if each is not None]
    return Stats(
        version=VERSION,
        node_id=broker.settings.node_id,
        uptime_ms=broker.clock.now_ms() - backend.started_ms,
        topics=len(topics),
        partitions=len(bounds),
        messages=sum(each.messages for each in known),
        size_bytes=sum(each.size_bytes for each in known),
        groups=groups,
        queues=broker.queues.queue_count,
        delayed=delayed,
        open_transactions=open_transactions,
        requests=sum(count for _, count in backend.traffic),
    )


def _run(call: Call[Any, Nothing], checks: Checks) -> dict[str, Check]:
    """Run checks. Details name partitions, and are for clients that may see the cluster."""
    broker = call.backend.broker
    found = {name: check(broker) for name, check in checks.items()}
    if broker.access.sees_cluster(call.caller, Operation.DESCRIBE):
        return found
    return {name: Check(status=check.status) for name, check in found.items()}


def _checked(call: Call[Any, Nothing], checks: Checks) -> Health | Response:
    found = _run(call, checks)
    troubles = [f"{name}: {_why(check)}" for name, check in found.items() if not check.is_ok]
    if not troubles:
        is_degraded = any(check.is_degraded for check in found.values())
        return Health(status="degraded" if is_degraded else "ok", checks=found)
    return _degraded("; ".join(troubles), {"checks": found})


def _degraded(detail: str, fields: dict[str, object]) -> Response:
    told = msgspec.structs.asdict(problem_of(Degraded(detail)))
    return Response(HTTPStatus.SERVICE_UNAVAILABLE, _encode({**told, **fields}) + LINE_END, PROBLEM_JSON)


def _served(check: Check) -> str:
    return "ok" if check.is_ok else f"refused: {_why(check)}"


def _why(check: Check) -> str:
    return check.detail or check.status


def describe_cluster(call: Call[Nothing, Nothing]) -> ClusterDescription:
    backend = call.backend
    return ClusterDescription(
        cluster_id=backend.broker.cluster_id,
        node_id=backend.broker.settings.node_id,
        version=VERSION,
        addresses={name: str(address) for name, address in backend.addresses.items()},
    )


async def metrics(call: Call[Nothing, Nothing]) -> Response:
    if (collector := call.backend.collector) is None:
        raise MetricsDisabled("metrics are disabled (metrics.enabled = false)")
    tenant = call.backend.broker.access.tenant_of(call.caller)
    text = await (collector.text() if tenant is None else collector.text_of_tenant(tenant))
    return Response(HTTPStatus.OK, text, CONTENT_TYPE)


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/healthz",
        summary="Run all health checks; 503 with the failed ones if any fails",
        handler=healthz,
        parameters=Nothing,
        body=Nothing,
        answers=(Health,),
        errors=(Degraded,),
    ),
    Route(
        method="GET",
        path="/readyz",
        summary="Check that the broker has recovered and serves reads and writes; 503 if not",
        handler=readyz,
        parameters=ReadyQuery,
        body=Nothing,
        answers=(Readiness,),
        errors=(Degraded,),
    ),
    Route(
        method="GET",
        path="/livez",
        summary="Check that the broker runs",
        handler=livez,
        parameters=Nothing,
        body=Nothing,
        answers=(Health,),
    ),
    Route(
        method="GET",
        path="/version",
        summary="Show version and identity of the broker",
        handler=version,
        parameters=Nothing,
        body=Nothing,
        answers=(Version,),
    ),
    Route(
        method="GET",
        path="/stats",
        summary="Show totals of the broker",
        handler=stats,
        parameters=Nothing,
        body=Nothing,
        answers=(Stats,),
    ),
    Route(
        method="GET",
        path="/cluster",
        summary="Show the identity of the broker and the addresses of its APIs",
        handler=describe_cluster,
        parameters=Nothing,
        body=Nothing,
        answers=(ClusterDescription,),
    ),
    Route(
        method="GET",
        path="/metrics",
        summary="Metrics for Prometheus; to a tenant, those of its topics, groups and queues",
        handler=metrics,
        parameters=Nothing,
        body=Nothing,
        answers=(str,),
        content_type=CONTENT_TYPE,
        errors=(MetricsDisabled,),
    ),
)
