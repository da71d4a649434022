"""Counters of many topics and groups per request, for computing rates."""

from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.slices import in_slices
from alpacamq.model.topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from alpacamq.wire.stats import GroupsStats, GroupStats, TopicsStats, TopicStats

Prefix = Annotated[str, Meta(description="of their names")]


class TopicStatsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics; internal topics are left out."""

    prefix: Prefix = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class GroupStatsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which groups."""

    prefix: Prefix = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


def topic_stats(call: Call[TopicStatsQuery, Nothing]) -> TopicsStats:
    topics, query = call.backend.broker.topics, call.parameters
    names = sorted(
        name for name in topics.image.topics if name.startswith(query.prefix) and name not in INTERNAL_TOPICS
    )
    stats = []
    for name in islice(names, query.limit):
        partitions = topics.partitions_of(name)
        stats.append(
            TopicStats(
                topic=name,
                partitions=len(partitions),
                messages=sum(each.high_watermark - each.start_offset for each in partitions),
                size_bytes=sum(each.size_bytes for each in partitions),
                written_total=sum(each.high_watermark for each in partitions),
                written_bytes_total=sum(each.written_bytes for each in partitions),
                fetched_total=sum(each.fetched_messages for each in partitions),
                fetched_bytes_total=sum(each.fetched_bytes for each in partitions),
            )
        )
    return TopicsStats(topics=stats, total=len(names))


async def group_stats(call: Call[GroupStatsQuery, Nothing]) -> GroupsStats:
    broker, query = call.backend.broker, call.parameters
    if OFFSETS_TOPIC not in broker.topics.image.topics:
        return GroupsStats(groups=[], total=0)
    total = 0
    async for some in in_slices(await broker.groups.group_ids()):
        total += sum(name.startswith(query.prefix) for name in some)
    names = await broker.lags.group_names(query.limit, query.prefix)
    return GroupsStats(
        groups=[
            GroupStats(group=each.group, topic=each.topic, lag=each.messages, committed_total=each.reached)
            for each in await broker.lags.of(names)
        ],
        total=total,
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/stats/topics",
        summary="Show counters of topics",
        handler=topic_stats,
        parameters=TopicStatsQuery,
        body=Nothing,
        answers=(TopicsStats,),
    ),
    Route(
        method="GET",
        path="/stats/groups",
        summary="Show lag and committed offsets of groups",
        handler=group_stats,
        parameters=GroupStatsQuery,
        body=Nothing,
        answers=(GroupsStats,),
    ),
)
