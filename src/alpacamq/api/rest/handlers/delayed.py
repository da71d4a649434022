"""Messages that wait for their time: looking at them and cancelling them."""

from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.delay.service import DelayCounts, Waiting
from alpacamq.model.errors import UnknownDelayed, UnknownTopic
from alpacamq.model.topics import INTERNAL_TOPICS
from alpacamq.telemetry.tracing import ClientApi

from .names import OffsetNumber, OfPartition, OfTopic, PartitionIndex


class DelayedWanted(OfTopic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which delayed messages to list."""

    partition: PartitionIndex | UnsetType = UNSET
    after: (
        Annotated[str, Meta(pattern="^[0-9]{1,10}:[0-9]{1,18}$", description="go on after partition:id")]
        | UnsetType
    ) = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class OfDelayed(OfPartition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A delayed message, by its id."""

    offset: Annotated[OffsetNumber, Meta(description="the delayed_id that publishing answered")]


class DelayedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits; `id` is unique within its partition."""

    topic: str
    partition: int
    id: int
    deliver_at: int
    scheduled: int
    size_bytes: int


class DelayedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages by partition and id; `next` is what to go on after where there may be more."""

    messages: list[DelayedMessage]
    next: str | None


class DelayTopicsWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics to look at."""

    after: Annotated[str, Meta(description="go on after this name")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="topics looked at, at most")] = 1000


class DelayTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that messages wait for, and when the first of them is due."""

    topic: str
    pending: int
    next_deliver_at: int | None


class DelayTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Topics by name; `next` is the name to go on after where there are more to look at."""

    topics: list[DelayTopic]
    next: str | None


class DelayStats(msgspec.Struct, frozen=True, kw_only=True):
    """Delayed messages of all topics. Totals count since the broker started."""

    pending: int
    next_deliver_at: int | None
    scheduled_total: int
    delivered_total: int
    cancelled_total: int
    dropped_total: int
    late_ms_p99: float


async def list_delayed(call: Call[DelayedWanted, Nothing]) -> DelayedMessages:
    wanted, broker = call.parameters, call.backend.broker
    topic = broker.topics.image.topic(wanted.topic)
    first, after_id = 0, -1
    if wanted.after is not UNSET:
        first, after_id = map(int, wanted.after.split(":"))
    partitions = range(first, topic.partitions)
    if wanted.partition is not UNSET:
        broker.topics.partition(wanted.topic, wanted.partition)
        partitions = range(wanted.partition, wanted.partition + 1)
    found: list[DelayedMessage] = []
    for partition in partitions:
        waiting = await broker.delays.waiting(
            wanted.topic,
            partition=partition,
            after_id=after_id if partition == first else -1,
            limit=wanted.limit - len(found),
        )
        found += map(_shown, waiting)
        if len(found) >= wanted.limit:
            return DelayedMessages(messages=found, next=f"{found[-1].partition}:{found[-1].id}")
    return DelayedMessages(messages=found, next=None)


async def cancel_delayed(call: Call[OfDelayed, Nothing]) -> DelayedMessage:
    wanted = call.parameters
    cancelled = await call.backend.broker.delays.cancel(
        wanted.topic, wanted.partition, wanted.offset, ClientApi.HTTP
    )
    return _shown(cancelled)


async def delay_topics(call: Call[DelayTopicsWanted, Nothing]) -> DelayTopics:
    broker, wanted = call.backend.broker, call.parameters
    names = sorted(
        name for name in broker.topics.image.topics if name > wanted.after and name not in INTERNAL_TOPICS
    )
    found: list[DelayTopic] = []
    for name in names[: wanted.limit]:
        with suppress(UnknownTopic):  # deleted meanwhile
            stats = await broker.delays.stats(name)
            if stats.pending:
                found.append(DelayTopic(topic=name, pending=stats.pending, next_deliver_at=stats.next_due_ms))
    return DelayTopics(topics=found, next=names[wanted.limit - 1] if len(names) > wanted.limit else None)


async def delay_stats(call: Call[Nothing, Nothing]) -> DelayStats:
    return stats_of(await call.backend.broker.delays.stats())


def stats_of(stats: DelayCounts) -> DelayStats:
    return DelayStats(
        pending=stats.pending,
        next_deliver_at=stats.next_due_ms,
        scheduled_total=stats.scheduled_total,
        delivered_total=stats.fired_total,
        cancelled_total=stats.cancelled_total,
        dropped_total=stats.dropped_total,
        late_ms_p99=stats.late_ms_p99,
    )


def _shown(waiting: Waiting) -> DelayedMessage:
    return DelayedMessage(
        topic=waiting.topic,
        partition=waiting.partition,
        id=waiting.id,
        deliver_at=waiting.due_ms,
        scheduled=waiting.scheduled_ms,
        size_bytes=waiting.size_bytes,
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/topics/{topic}/delayed",
        summary="List messages that wait for their time",
        handler=list_delayed,
        parameters=DelayedWanted,
        body=Nothing,
        answers=(DelayedMessages,),
        errors=(UnknownTopic,),
    ),
    Route(
        method="DELETE",
        path="/topics/{topic}/delayed/{partition}/{offset}",
        summary="Cancel a message that waits for its time",
        handler=cancel_delayed,
        parameters=OfDelayed,
        body=Nothing,
        answers=(DelayedMessage,),
        errors=(UnknownDelayed, UnknownTopic),
    ),
    Route(
        method="GET",
        path="/delay/topics",
        summary="List topics that delayed messages wait for",
        handler=delay_topics,
        parameters=DelayTopicsWanted,
        body=Nothing,
        answers=(DelayTopics,),
    ),
    Route(
        method="GET",
        path="/delay/stats",
        summary="AnalyticsResults of delayed messages",
        handler=delay_stats,
        parameters=Nothing,
        body=Nothing,
        answers=(DelayStats,),
    ),
)
