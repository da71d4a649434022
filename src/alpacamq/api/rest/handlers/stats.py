"""Counters of many topics and groups per request; rates and lag of the last hour, for charts."""

from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.parameters import GroupText, TimestampText, TopicText, parse_epoch_ms
from alpacamq.api.rest.partition_reading import bounds_of_topics
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.pipelines import is_silent
from alpacamq.broker.remote.history import ReadHistory
from alpacamq.broker.remote.read_values import Bounds
from alpacamq.broker.sampling import INTERVAL_S
from alpacamq.broker.slices import first_names, in_slices
from alpacamq.model.errors import DamagedLog, StorageFailed
from alpacamq.model.pipelines import PipelineProgress
from alpacamq.model.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, Topic
from alpacamq.security.acls import Operation
from alpacamq.telemetry.history import SLOTS, Measure
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


async def topic_stats(call: Call[TopicStatsQuery, Nothing]) -> TopicsStats:
    broker, query = call.backend.broker, call.parameters
    topics = broker.topics.image.topics
    names = sorted(
        name
        for name in topics
        if name.startswith(query.prefix) and name not in INTERNAL_TOPICS and call.sees_topic(name)
    )
    shown = [topics[name] for name in islice(names, query.limit)]
    bounds = await bounds_of_topics(broker, shown)
    return TopicsStats(topics=[_topic_stats(each, bounds[each.name]) for each in shown], total=len(names))


def _topic_stats(topic: Topic, bounds: Sequence[Bounds | None]) -> TopicStats:
    known = [each for each in bounds if each is not None]
    return TopicStats(
        topic=topic.name,
        partitions=topic.partitions,
        messages=sum(each.messages for each in known),
        size_bytes=sum(each.size_bytes for each in known),
        written_total=sum(each.high_watermark for each in known),
        written_bytes_total=sum(each.written_bytes for each in known),
        fetched_total=sum(each.fetched_messages for each in known),
        fetched_bytes_total=sum(each.fetched_bytes for each in known),
    )


async def group_stats(call: Call[GroupStatsQuery, Nothing]) -> GroupsStats:
    broker, query = call.backend.broker, call.parameters
    if OFFSETS_TOPIC not in broker.topics.image.topics:
        return GroupsStats(groups=[], total=0)
    total = 0
    groups = list(call.visible_groups(await broker.groups.group_ids()))
    async for some in in_slices(groups):
        total += sum(name.startswith(query.prefix) for name in some)
    names = await first_names(groups, query.limit, prefix=query.prefix)
    return GroupsStats(
        groups=[
            GroupStats(group=each.group, topic=each.topic, lag=each.messages, committed_total=each.reached)
            for each in await broker.lags.of(names)
            if call.sees_topic(each.topic)
        ],
        total=total,
    )


MAX_POINTS = SLOTS


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which series: those of a topic, a group or a measure, or by default of the whole broker."""

    topic: TopicText | UnsetType = UNSET
    group: GroupText | UnsetType = UNSET
    measure: Annotated[Measure, Meta(description="for all topics and groups")] | UnsetType = UNSET
    after: Annotated[TimestampText, Meta(description="only samples after this time")] | UnsetType = UNSET
    points: Annotated[int, Meta(ge=1, le=MAX_POINTS, description="maximum number; each is a mean")] = 300


class HistorySeries(msgspec.Struct, frozen=True, kw_only=True):
    """A time series. Rates are in messages per second; null is an unknown value."""

    measure: Measure
    topic: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    values: list[float | None]


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Series with common timestamps. A broker keeps one sample every `interval_ms`, for an hour.

    Values are sums over all nodes; `missing_nodes` did not answer. A node keeps the 250 largest series of a
    measure; `omitted` is the number of the others.
    """

    interval_ms: int
    times: list[int]
    series: list[HistorySeries]
    omitted: int
    missing_nodes: list[int] | UnsetType = UNSET


async def history(call: Call[HistoryQuery, Nothing]) -> HistoryAnswer:
    query = call.parameters
    _check_history(call)
    request = ReadHistory(
        topic=None if query.topic is UNSET else query.topic,
        group=None if query.group is UNSET else query.group,
        measure=None if query.measure is UNSET else query.measure,
        after_ms=0 if query.after is UNSET else _epoch_ms(query.after),
        points=query.points,
    )
    found, missing = await call.backend.broker.history.read(request)
    return HistoryAnswer(
        interval_ms=int(INTERVAL_S * 1000),
        times=found.times_ms,
        series=[
            HistorySeries(
                measure=key.measure, topic=key.topic or UNSET, group=key.group or UNSET, values=values
            )
            for key, values in zip(found.keys, found.values, strict=True)
        ],
        omitted=found.omitted,
        missing_nodes=[int(each) for each in missing] or UNSET,
    )


def _check_history(call: Call[HistoryQuery, Nothing]) -> None:
    query, access = call.parameters, call.backend.broker.access
    if query.topic is not UNSET:
        call.check_topic(Operation.DESCRIBE, query.topic)
    if query.group is not UNSET:
        access.check_group(call.caller, Operation.DESCRIBE, query.group)
    if query.topic is UNSET and query.group is UNSET:
        call.check_cluster(Operation.DESCRIBE)


def _epoch_ms(after: str) -> int:
    try:
        return parse_epoch_ms(after)
    except ValueError:
        raise ConflictingInput(f"after: invalid date {after}", "after") from None


class ListedPipeline(PipelineProgress, frozen=True, kw_only=True):
    """A pipeline; `silent` if it was running and has not reported for a minute."""

    silent: bool


class PipelineList(msgspec.Struct, frozen=True, kw_only=True):
    """Pipelines by name, with their latest reports."""

    pipelines: list[ListedPipeline]


async def list_pipelines(call: Call[Nothing, Nothing]) -> PipelineList:
    now_ms = call.backend.broker.clock.now_ms()
    return PipelineList(
        pipelines=[
            ListedPipeline(**msgspec.structs.asdict(each), silent=is_silent(each, now_ms))
            for each in await call.backend.pipelines.latest()
        ]
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
    Route(
        method="GET",
        path="/history",
        summary="Show rates and lag of the last hour",
        handler=history,
        parameters=HistoryQuery,
        body=Nothing,
        answers=(HistoryAnswer,),
    ),
    Route(
        method="GET",
        path="/pipelines",
        summary="List data pipelines and their progress",
        handler=list_pipelines,
        parameters=Nothing,
        body=Nothing,
        answers=(PipelineList,),
        errors=(DamagedLog, StorageFailed),
    ),
)
