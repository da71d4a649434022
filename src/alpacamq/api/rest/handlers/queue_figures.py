"""Figures of queues: how reliable deliveries are."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.queues.messages import DescribeReply, LaneFigures, PartitionFigures

from .names import GroupText, TopicText

MAX_QUEUES = 1000


class LaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """One lane. Totals count since the broker started."""

    ready: int
    in_flight: int
    resting: int
    enqueued_total: int
    delivered_total: int


class QueueTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue holds, and what has happened since the broker started."""

    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    received_total: int
    acked_total: int
    nacked_total: int
    rejected_total: int
    expired_leases_total: int
    dead_lettered_total: int
    redelivered_total: int
    waiting_receives: int


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """One queue in short."""

    group: str
    topic: str
    totals: QueueTotals


class ReliabilityStats(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries, acknowledgements, retries and dead letters of these queues together, and of each."""

    totals: QueueTotals
    queues: list[QueueStats]


class QueuesWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which queues to look at."""

    group: GroupText | UnsetType = UNSET
    topic: TopicText | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_QUEUES, description="queues at most")] = 100


def reliability_stats(call: Call[QueuesWanted, Nothing]) -> ReliabilityStats:
    found = queues_wanted(call.backend.broker, call.parameters)
    return ReliabilityStats(
        totals=totals_of(found),
        queues=[
            QueueStats(group=each.queue.group, topic=each.queue.topic, totals=totals_of([each]))
            for each in found
        ],
    )


def queues_wanted(broker: Broker, wanted: QueuesWanted) -> list[DescribeReply]:
    """The queues that are asked for, in order, as many as are asked for."""
    found = [
        each
        for each in broker.queues.figures()
        if wanted.group in (UNSET, each.queue.group) and wanted.topic in (UNSET, each.queue.topic)
    ]
    return sorted(found, key=lambda each: each.queue)[: wanted.limit]


def totals_of(queues: Iterable[DescribeReply]) -> QueueTotals:
    """The figures of some queues, added up."""
    queues = list(queues)
    partitions = [partition for queue in queues for partition in queue.partitions]
    return QueueTotals(
        ready=sum(each.ready for each in partitions),
        in_flight=sum(each.in_flight for each in partitions),
        resting=sum(each.resting for each in partitions),
        dead_lettering=sum(each.dead_lettering for each in partitions),
        received_total=sum(each.received_total for each in queues),
        acked_total=sum(each.acked_total for each in queues),
        nacked_total=sum(each.nacked_total for each in queues),
        rejected_total=sum(each.rejected_total for each in queues),
        expired_leases_total=sum(each.expired_leases_total for each in queues),
        dead_lettered_total=sum(each.dead_lettered_total for each in queues),
        redelivered_total=sum(each.redelivered_total for each in queues),
        waiting_receives=sum(each.waiting_receives for each in queues),
    )


def lanes_of(partitions: Iterable[PartitionFigures]) -> dict[str, LaneStats]:
    """The lanes of some partitions, added up by name."""
    by_name: dict[str, list[LaneFigures]] = {}
    for partition in partitions:
        for name, figures in partition.lanes.items():
            by_name.setdefault(name, []).append(figures)
    return {
        name: LaneStats(
            ready=sum(each.ready for each in figures),
            in_flight=sum(each.in_flight for each in figures),
            resting=sum(each.resting for each in figures),
            enqueued_total=sum(each.enqueued_total for each in figures),
            delivered_total=sum(each.delivered_total for each in figures),
        )
        for name, figures in by_name.items()
    }


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/reliability/stats",
        summary="Figures of deliveries, acknowledgements, retries and dead letters",
        handler=reliability_stats,
        parameters=QueuesWanted,
        body=Nothing,
        answers=(ReliabilityStats,),
    ),
)
