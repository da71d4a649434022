"""Figures of queues: how reliable deliveries are."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.metrics.stats import QueueTotals, totals_of
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.queues.messages import DescribeReply

from .names import GroupText, TopicText

MAX_QUEUES = 1000


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
        for each in broker.queues.stats()
        if wanted.group in (UNSET, each.queue.group) and wanted.topic in (UNSET, each.queue.topic)
    ]
    return sorted(found, key=lambda each: each.queue)[: wanted.limit]


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/reliability/stats",
        summary="AnalyticsResults of deliveries, acknowledgements, retries and dead letters",
        handler=reliability_stats,
        parameters=QueuesWanted,
        body=Nothing,
        answers=(ReliabilityStats,),
    ),
)
