"""Figures of queues: how reliable deliveries are, and how the lanes fare."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.model.errors import GroupIdNotFound, UnknownTopic
from alpacamq.queues.messages import DescribeReply, LaneFigures, PartitionFigures, QueueId

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


class PartitionLanes(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of one partition of a queue."""

    group: str
    topic: str
    partition: int
    lanes: dict[str, LaneStats]


class PriorityStats(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of these queues together, and of each partition of each queue."""

    lanes: dict[str, LaneStats]
    partitions: list[PartitionLanes]


class QueuesWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which queues to look at."""

    group: GroupText | UnsetType = UNSET
    topic: TopicText | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_QUEUES, description="queues at most")] = MAX_QUEUES


async def reliability_stats(call: Call[QueuesWanted, Nothing]) -> ReliabilityStats:
    found = await _wanted(call)
    return ReliabilityStats(
        totals=totals_of(found),
        queues=[
            QueueStats(group=each.queue.group, topic=each.queue.topic, totals=totals_of([each]))
            for each in found
        ],
    )


async def priority_stats(call: Call[QueuesWanted, Nothing]) -> PriorityStats:
    found = await _wanted(call)
    return PriorityStats(
        lanes=lanes_of(partition for each in found for partition in each.partitions),
        partitions=[
            PartitionLanes(
                group=each.queue.group,
                topic=each.queue.topic,
                partition=partition.partition,
                lanes=lanes_of([partition]),
            )
            for each in found
            for partition in each.partitions
        ],
    )


async def described_queues(broker: Broker, queues: Iterable[QueueId]) -> list[DescribeReply]:
    """These queues, save those that are deleted meanwhile."""
    found = []
    for queue in queues:
        with suppress(GroupIdNotFound, UnknownTopic):
            found.append(await broker.queues.describe(queue))
    return found


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


async def _wanted(call: Call[QueuesWanted, Nothing]) -> list[DescribeReply]:
    broker, wanted = call.backend.broker, call.parameters
    queues = sorted(
        queue
        for queue in await broker.queues.queues()
        if wanted.group in (UNSET, queue.group) and wanted.topic in (UNSET, queue.topic)
    )
    return await described_queues(broker, queues[: wanted.limit])


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
    Route(
        method="GET",
        path="/priority/stats",
        summary="Figures of priority lanes",
        handler=priority_stats,
        parameters=QueuesWanted,
        body=Nothing,
        answers=(PriorityStats,),
    ),
)
