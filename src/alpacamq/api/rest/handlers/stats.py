"""Counters of topics and groups all at once, for whoever watches them: rates are what they grow by."""

from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.api.metrics.lag import group_names, lags
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.api.slices import in_slices
from alpacamq.model.topics import INTERNAL_TOPICS, OFFSETS_TOPIC

Prefix = Annotated[str, Meta(description="of their names")]


class TopicsWatched(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics; those that only the broker writes to are left out."""

    prefix: Prefix = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. `written_total` counts since it was made, the other totals since the broker started."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    written_total: int
    written_bytes_total: int
    fetched_total: int
    fetched_bytes_total: int


class TopicsStats(msgspec.Struct, frozen=True, kw_only=True):
    """Topics by name, and how many there are in all."""

    topics: list[TopicStats]
    total: int


class GroupsWatched(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which groups."""

    prefix: Prefix = ""
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """A group in a topic: how far behind, and the sum of the offsets it has committed."""

    group: str
    topic: str
    lag: int
    committed_total: int


class GroupsStats(msgspec.Struct, frozen=True, kw_only=True):
    """Groups with committed offsets by name, and how many groups there are in all."""

    groups: list[GroupStats]
    total: int


def topic_stats(call: Call[TopicsWatched, Nothing]) -> TopicsStats:
    topics, wanted = call.backend.broker.topics, call.parameters
    names = sorted(
        name for name in topics.image.topics if name.startswith(wanted.prefix) and name not in INTERNAL_TOPICS
    )
    stats = []
    for name in islice(names, wanted.limit):
        partitions = topics.partitions_of(name)
        stats.append(
            TopicStats(
                topic=name,
                partitions=len(partitions),
                messages=sum(each.high_watermark - each.log.start_offset for each in partitions),
                size_bytes=sum(each.log.size_bytes for each in partitions),
                written_total=sum(each.high_watermark for each in partitions),
                written_bytes_total=sum(each.written_bytes for each in partitions),
                fetched_total=sum(each.fetched_messages for each in partitions),
                fetched_bytes_total=sum(each.fetched_bytes for each in partitions),
            )
        )
    return TopicsStats(topics=stats, total=len(names))


async def group_stats(call: Call[GroupsWatched, Nothing]) -> GroupsStats:
    broker, wanted = call.backend.broker, call.parameters
    if OFFSETS_TOPIC not in broker.topics.image.topics:
        return GroupsStats(groups=[], total=0)
    total = 0
    async for some in in_slices(await broker.coordinators.group_ids()):
        total += sum(name.startswith(wanted.prefix) for name in some)
    names = await group_names(broker, wanted.limit, wanted.prefix)
    return GroupsStats(
        groups=[
            GroupStats(group=each.group, topic=each.topic, lag=each.messages, committed_total=each.reached)
            for each in await lags(broker, names)
        ],
        total=total,
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/stats/topics",
        summary="Counters of topics",
        handler=topic_stats,
        parameters=TopicsWatched,
        body=Nothing,
        answers=(TopicsStats,),
    ),
    Route(
        method="GET",
        path="/stats/groups",
        summary="Lag of groups and how far they have come",
        handler=group_stats,
        parameters=GroupsWatched,
        body=Nothing,
        answers=(GroupsStats,),
    ),
)
