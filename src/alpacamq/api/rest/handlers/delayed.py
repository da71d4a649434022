"""Delayed messages: listing and cancelling them."""

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.message_json import Base64Bytes, StoredHeaders, Values, show_content
from alpacamq.api.rest.parameters import OffsetNumber, OfPartition, OfTopic, PartitionIndex
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.delay.service import DelayCounts, Waiting
from alpacamq.model.errors import UnknownDelayed, UnknownTopic
from alpacamq.model.topics import INTERNAL_TOPICS
from alpacamq.telemetry.tracing import ClientApi
from alpacamq.wire.messages import DelayedMessage, DelayedMessages


class DelayedQuery(OfTopic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which delayed messages to list."""

    partition: PartitionIndex | UnsetType = UNSET
    after: (
        Annotated[str, Meta(pattern="^[0-9]{1,10}:[0-9]{1,18}$", description="continue after partition:id")]
        | UnsetType
    ) = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class OfDelayed(OfPartition, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A delayed message, by its id."""

    offset: Annotated[OffsetNumber, Meta(description="the delayed_id in the response to publishing")]


class DelayedMessageQuery(OfTopic, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A delayed message of a topic, by its id."""

    id: Annotated[OffsetNumber, Meta(description="the delayed_id in the response to publishing")]
    values: Values = Values.TEXT


class DelayedContent(DelayedMessage, frozen=True, kw_only=True):
    """A delayed message with its key, value and headers."""

    key: Any | UnsetType = UNSET
    key_base64: Base64Bytes | UnsetType = UNSET
    value: Any | UnsetType = UNSET
    value_base64: Base64Bytes | UnsetType = UNSET
    headers: StoredHeaders | UnsetType = UNSET


class DelayTopicsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics to list."""

    after: Annotated[str, Meta(description="continue after this name")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000, description="maximum number of topics to check")] = 1000


class DelayTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with delayed messages, and when the first of them is due."""

    topic: str
    pending: int
    next_deliver_at: int | None


class DelayTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Topics by name. If there may be more, `next` is the name to continue after."""

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


async def list_delayed(call: Call[DelayedQuery, Nothing]) -> DelayedMessages:
    query, broker = call.parameters, call.backend.broker
    topic = broker.topics.image.topic(query.topic)
    first, after_id = 0, -1
    if query.after is not UNSET:
        first, after_id = map(int, query.after.split(":"))
    partitions = range(first, topic.partitions)
    if query.partition is not UNSET:
        broker.topics.place(query.topic, query.partition)  # raises UnknownTopic
        partitions = range(query.partition, query.partition + 1)
    found: list[DelayedMessage] = []
    for partition in partitions:
        waiting = await broker.delays.waiting(
            query.topic,
            partition=partition,
            after_id=after_id if partition == first else -1,
            limit=query.limit - len(found),
        )
        found += map(_shown, waiting)
        if len(found) >= query.limit:
            return DelayedMessages(messages=found, next=f"{found[-1].partition}:{found[-1].id}")
    return DelayedMessages(messages=found, next=None)


async def show_delayed(call: Call[DelayedMessageQuery, Nothing]) -> DelayedContent:
    query = call.parameters
    waiting, message = await call.backend.broker.delays.message(query.topic, query.id)
    fields = msgspec.structs.asdict(_shown(waiting))
    show_content(fields, message.key, message.value, message.headers, query.values)
    return DelayedContent(**fields)


async def cancel_delayed(call: Call[OfDelayed, Nothing]) -> DelayedMessage:
    query = call.parameters
    cancelled = await call.backend.broker.delays.cancel(
        query.topic, query.partition, query.offset, ClientApi.HTTP
    )
    return _shown(cancelled)


async def delay_topics(call: Call[DelayTopicsQuery, Nothing]) -> DelayTopics:
    broker, query = call.backend.broker, call.parameters
    names = sorted(
        name
        for name in broker.topics.image.topics
        if name > query.after and name not in INTERNAL_TOPICS and call.sees_topic(name)
    )
    found: list[DelayTopic] = []
    for name in names[: query.limit]:
        with suppress(UnknownTopic):  # deleted meanwhile
            stats = await broker.delays.stats(name)
            if stats.pending:
                found.append(DelayTopic(topic=name, pending=stats.pending, next_deliver_at=stats.next_due_ms))
    return DelayTopics(topics=found, next=names[query.limit - 1] if len(names) > query.limit else None)


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
        summary="List delayed messages of a topic",
        handler=list_delayed,
        parameters=DelayedQuery,
        body=Nothing,
        answers=(DelayedMessages,),
        errors=(UnknownTopic,),
    ),
    Route(
        method="GET",
        path="/topics/{topic}/delayed/{id}",
        summary="Show a delayed message",
        handler=show_delayed,
        parameters=DelayedMessageQuery,
        body=Nothing,
        answers=(DelayedContent,),
        errors=(UnknownDelayed, UnknownTopic),
    ),
    Route(
        method="DELETE",
        path="/topics/{topic}/delayed/{partition}/{offset}",
        summary="Cancel a delayed message",
        handler=cancel_delayed,
        parameters=OfDelayed,
        body=Nothing,
        answers=(DelayedMessage,),
        errors=(UnknownDelayed, UnknownTopic),
    ),
    Route(
        method="GET",
        path="/delay/topics",
        summary="List topics with delayed messages",
        handler=delay_topics,
        parameters=DelayTopicsQuery,
        body=Nothing,
        answers=(DelayTopics,),
    ),
    Route(
        method="GET",
        path="/delay/stats",
        summary="Show statistics of delayed messages",
        handler=delay_stats,
        parameters=Nothing,
        body=Nothing,
        answers=(DelayStats,),
    ),
)
