"""Figures of priority lanes: what waits in each, and how fast they fill and empty."""

from collections.abc import Iterable

import msgspec

from alpacamq.api.metrics.stats import LaneStats, lanes_of
from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.queues.messages import DescribeReply

from .queue_stats import QueuesWanted, queues_wanted


class LaneFlow(LaneStats, frozen=True, kw_only=True):
    """One lane and its rates, over the last ten to twenty seconds; null when nobody has looked before."""

    enqueued_per_second: float | None
    delivered_per_second: float | None


class PartitionLanes(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of one partition of a queue."""

    group: str
    topic: str
    partition: int
    lanes: dict[str, LaneFlow]


class PriorityStats(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of these queues together, and of each partition of each queue."""

    lanes: dict[str, LaneFlow]
    partitions: list[PartitionLanes]


def priority_stats(call: Call[QueuesWanted, Nothing]) -> PriorityStats:
    found = queues_wanted(call.backend.broker, call.parameters)
    partitions = _with_rates(call.backend, found)
    return PriorityStats(
        lanes={
            name: LaneFlow(
                **msgspec.structs.asdict(lane),
                enqueued_per_second=_sum(
                    each.lanes[name].enqueued_per_second for each in partitions if name in each.lanes
                ),
                delivered_per_second=_sum(
                    each.lanes[name].delivered_per_second for each in partitions if name in each.lanes
                ),
            )
            for name, lane in lanes_of(part for each in found for part in each.partitions).items()
        },
        partitions=partitions,
    )


def _with_rates(backend: Backend, queues: Iterable[DescribeReply]) -> list[PartitionLanes]:
    by_place = {
        (*queue.queue, partition.partition): lanes_of([partition])
        for queue in queues
        for partition in queue.partitions
    }
    lanes = {(*place, name): lane for place, of_place in by_place.items() for name, lane in of_place.items()}
    now = backend.broker.clock.monotonic()
    enqueued = backend.enqueue_rates.per_second({at: lane.enqueued_total for at, lane in lanes.items()}, now)
    delivered = backend.delivery_rates.per_second(
        {at: lane.delivered_total for at, lane in lanes.items()}, now
    )
    return [
        PartitionLanes(
            group=group,
            topic=topic,
            partition=partition,
            lanes={
                name: LaneFlow(
                    **msgspec.structs.asdict(lane),
                    enqueued_per_second=enqueued[group, topic, partition, name],
                    delivered_per_second=delivered[group, topic, partition, name],
                )
                for name, lane in of_place.items()
            },
        )
        for (group, topic, partition), of_place in by_place.items()
    ]


def _sum(rates: Iterable[float | None]) -> float | None:
    """All that are known; None if none is."""
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 3) if known else None


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/priority/stats",
        summary="AnalyticsResults of priority lanes",
        handler=priority_stats,
        parameters=QueuesWanted,
        body=Nothing,
        answers=(PriorityStats,),
    ),
)
