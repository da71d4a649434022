"""Queues: describing, configuring, resetting, purging and deleting them; redrives of dead letters."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.metrics.stats import lanes_of, totals_of
from alpacamq.api.rest.errors import UnknownTask
from alpacamq.api.rest.message_json import ReadMessage, Values
from alpacamq.api.rest.parameters import Decode, GroupText, OfQueue, OfTopic, TopicText
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.broker.queue.service import RedriveTask
from alpacamq.broker.sampling import LaneKey
from alpacamq.model.errors import (
    GroupIdNotFound,
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    OffsetOutOfRange,
    PolicyViolation,
    TooManyGroups,
    TooManyInFlight,
    UnknownTopic,
)
from alpacamq.model.topics import INT32_MAX
from alpacamq.queues.messages import DescribeReply, QueueId
from alpacamq.security.acls import Operation
from alpacamq.security.quotas import QuotaKey
from alpacamq.wire.queues import (
    LaneStats,
    QueueDescription,
    QueuePartition,
    QueueStats,
    RedriveDescription,
    RedriveList,
    ReliabilityStats,
)

from .offsets import ResetPlace, reset_places
from .topics import SettingValue, setting_text


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Overrides of a topic's settings for a group; null removes one."""

    settings: Annotated[
        dict[str, SettingValue | None],
        Meta(max_length=100, examples=[{"queue.visibility.timeout.ms": 60_000}]),
    ]


class Peek(OfQueue, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many messages of a queue to return."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="messages at most")] = 10
    values: Values = Values.TEXT
    decode: Decode = False


class QueueMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Unprocessed messages, partition by partition, in order within each."""

    group: str
    topic: str
    messages: list[ReadMessage]


async def describe_queue(call: Call[OfQueue, Nothing]) -> QueueDescription:
    return _described(await call.backend.broker.queues.describe(_queue(call.parameters)))


async def configure_queue(call: Call[OfQueue, QueueSettings]) -> QueueDescription:
    overrides = {
        name: None if value is None else setting_text(value) for name, value in call.body.settings.items()
    }
    return _described(await call.backend.broker.queues.configure(_queue(call.parameters), overrides))


async def delete_queue(call: Call[OfQueue, Nothing]) -> None:
    await call.backend.broker.queues.delete(_queue(call.parameters))


async def reset_queue(call: Call[OfQueue, ResetPlace]) -> QueueDescription:
    broker, queue = call.backend.broker, _queue(call.parameters)
    places = await reset_places(broker, queue.topic, call.body, "")
    await broker.reset_queue(queue, {each.partition: each.offset for each in places})
    return _described(await broker.queues.describe(queue))


async def purge_queue(call: Call[OfQueue, Nothing]) -> QueueDescription:
    broker, queue = call.backend.broker, _queue(call.parameters)
    await broker.purge_queue(queue)
    return _described(await broker.queues.describe(queue))


async def peek_queue(call: Call[Peek, Nothing]) -> QueueMessages:
    query = call.parameters
    found = await call.backend.broker.queues.peek(_queue(query), query.limit)
    return QueueMessages(
        group=query.group,
        topic=query.topic,
        messages=await call.backend.decoding.messages(
            call.caller, query.topic, found, query.values, decode=query.decode
        ),
    )


def _queue(parameters: OfQueue) -> QueueId:
    return QueueId(parameters.group, parameters.topic)


def _described(reply: DescribeReply) -> QueueDescription:
    return QueueDescription(
        group=reply.queue.group,
        topic=reply.queue.topic,
        generation=reply.generation,
        settings=dict(reply.overrides),
        dead_letter_topic=reply.dead_letter_topic,
        totals=totals_of([reply]),
        partitions=[
            QueuePartition(
                partition=each.partition,
                start_offset=each.start_offset,
                end_offset=each.end_offset,
                oldest_offset=each.oldest_offset,
                ready=each.ready,
                in_flight=each.in_flight,
                resting=each.backoff,
                dead_lettering=each.dead_lettering,
                lanes=lanes_of([each]),
            )
            for each in reply.partitions
        ],
    )


_PATH = "/groups/{group}/queues/{topic}"
_ERRORS = (GroupIdNotFound, UnknownTopic)
# Errors of requests that create a missing queue.
_MAKING_ERRORS = (*_ERRORS, InvalidGroupId, InvalidRequest, PolicyViolation, TooManyGroups)

_QUEUE_ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path=_PATH,
        summary="Describe a queue",
        handler=describe_queue,
        parameters=OfQueue,
        body=Nothing,
        answers=(QueueDescription,),
        errors=_ERRORS,
    ),
    Route(
        method="PUT",
        path=_PATH,
        summary="Override settings of a topic for a group; creates the queue if it does not exist",
        handler=configure_queue,
        parameters=OfQueue,
        body=QueueSettings,
        answers=(QueueDescription,),
        errors=(*_MAKING_ERRORS, InvalidConfig),
    ),
    Route(
        method="DELETE",
        path=_PATH,
        summary="Delete a queue; the topic and its messages remain",
        handler=delete_queue,
        parameters=OfQueue,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path=f"{_PATH}/reset",
        summary="Reset a queue to other offsets, such as those of a timestamp",
        handler=reset_queue,
        parameters=OfQueue,
        body=ResetPlace,
        answers=(QueueDescription,),
        errors=(*_MAKING_ERRORS, OffsetOutOfRange),
    ),
    Route(
        method="POST",
        path=f"{_PATH}/purge",
        summary="Purge a queue: mark all current messages as processed",
        handler=purge_queue,
        parameters=OfQueue,
        body=Nothing,
        answers=(QueueDescription,),
        errors=_MAKING_ERRORS,
    ),
    Route(
        method="GET",
        path=f"{_PATH}/messages",
        summary="Show the next unprocessed messages without leasing them",
        handler=peek_queue,
        parameters=Peek,
        body=Nothing,
        answers=(QueueMessages,),
        errors=_ERRORS,
        quota=QuotaKey.FETCH,
    ),
)


MAX_QUEUES = 1000


class QueuesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which queues to show."""

    group: GroupText | UnsetType = UNSET
    topic: TopicText | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_QUEUES, description="queues at most")] = 100


async def reliability_stats(call: Call[QueuesQuery, Nothing]) -> ReliabilityStats:
    found = await matching_queues(call)
    return ReliabilityStats(
        totals=totals_of(found),
        queues=[
            QueueStats(group=each.queue.group, topic=each.queue.topic, totals=totals_of([each]))
            for each in found
        ],
    )


async def matching_queues(call: Call[QueuesQuery, Nothing]) -> list[DescribeReply]:
    """Return the requested queues, in order, up to the limit."""
    query = call.parameters
    found = [
        each
        for each in await call.backend.broker.queues.describe_all()
        if query.group in (UNSET, each.queue.group)
        and query.topic in (UNSET, each.queue.topic)
        and call.sees_queue(each.queue)
    ]
    return sorted(found, key=lambda each: each.queue)[: query.limit]


class LaneFlow(LaneStats, frozen=True, kw_only=True):
    """A lane and its rates over the last ten to twenty seconds; null on the first request."""

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


async def priority_stats(call: Call[QueuesQuery, Nothing]) -> PriorityStats:
    found = await matching_queues(call)
    partitions = _with_rates(call.backend.broker, found)
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


def _with_rates(broker: Broker, queues: Iterable[DescribeReply]) -> list[PartitionLanes]:
    by_place = {
        (*queue.queue, partition.partition): lanes_of([partition])
        for queue in queues
        for partition in queue.partitions
    }
    lanes = {
        LaneKey(*place, name): lane for place, of_place in by_place.items() for name, lane in of_place.items()
    }
    rates, now = broker.lane_rates, broker.clock.monotonic()
    enqueued = rates.enqueued.per_second({key: lane.enqueued_total for key, lane in lanes.items()}, now)
    delivered = rates.delivered.per_second({key: lane.delivered_total for key, lane in lanes.items()}, now)
    return [
        PartitionLanes(
            group=group,
            topic=topic,
            partition=partition,
            lanes={
                name: LaneFlow(
                    **msgspec.structs.asdict(lane),
                    enqueued_per_second=enqueued[LaneKey(group, topic, partition, name)],
                    delivered_per_second=delivered[LaneKey(group, topic, partition, name)],
                )
                for name, lane in of_place.items()
            },
        )
        for (group, topic, partition), of_place in by_place.items()
    ]


def _sum(rates: Iterable[float | None]) -> float | None:
    """Add up known rates; None if none is known."""
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 3) if known else None


class Redrive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to move the messages of a dead-letter topic: each to its original topic, or all to one."""

    target: TopicText | UnsetType = UNSET
    messages_per_second: Annotated[int, Meta(ge=1, le=INT32_MAX)] | UnsetType = UNSET
    max_messages: Annotated[int, Meta(ge=1, le=INT32_MAX)] | UnsetType = UNSET


class OfTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A redrive."""

    id: Annotated[str, Meta(min_length=1, max_length=255)]


class RedrivesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which redrives to list."""

    topic: Annotated[TopicText, Meta(description="the dead-letter topic")] | UnsetType = UNSET


async def start_redrive(call: Call[OfTopic, Redrive]) -> RedriveDescription:
    body = call.body
    if body.target is UNSET:
        # Each message says where it came from, which its writer may have made up.
        call.backend.broker.access.check_whole(call.caller, Operation.ALTER)
    task = await call.backend.broker.queues.start_redrive(
        call.parameters.topic,
        target=None if body.target is UNSET else body.target,
        messages_per_second=None if body.messages_per_second is UNSET else body.messages_per_second,
        max_messages=None if body.max_messages is UNSET else body.max_messages,
    )
    return _shown(task)


async def list_redrives(call: Call[RedrivesQuery, Nothing]) -> RedriveList:
    source = None if call.parameters.topic is UNSET else call.parameters.topic
    redrives = await call.backend.broker.queues.redrives(source)
    return RedriveList(
        redrives=[_shown(each) for each in redrives if call.sees_topic(each.source, Operation.READ)]
    )


async def show_redrive(call: Call[OfTask, Nothing]) -> RedriveDescription:
    return _shown(await _task(call))


async def cancel_redrive(call: Call[OfTask, Nothing]) -> RedriveDescription:
    task = await _task(call)
    return _shown(await call.backend.broker.queues.cancel_redrive(task.id))


async def _task(call: Call[OfTask, Nothing]) -> RedriveTask:
    task_id = call.parameters.id
    for task in await call.backend.broker.queues.redrives():
        if task.id == task_id and call.sees_topic(task.source, Operation.READ):
            return task
    raise UnknownTask(f"unknown redrive {task_id!r}; the last hundred are kept")


def _shown(task: RedriveTask) -> RedriveDescription:
    return RedriveDescription(
        id=task.id,
        source=task.source,
        target=task.target,
        state=task.state,
        started=task.started_ms,
        moved=task.moved,
        to_move=task.to_move,
        messages_per_second=task.messages_per_second,
        failure=task.failure,
    )


ROUTES: tuple[AnyRoute, ...] = (
    *_QUEUE_ROUTES,
    Route(
        method="GET",
        path="/reliability/stats",
        summary="Show statistics of deliveries, acknowledgements, retries and dead letters",
        handler=reliability_stats,
        parameters=QueuesQuery,
        body=Nothing,
        answers=(ReliabilityStats,),
    ),
    Route(
        method="GET",
        path="/priority/stats",
        summary="Show statistics of priority lanes",
        handler=priority_stats,
        parameters=QueuesQuery,
        body=Nothing,
        answers=(PriorityStats,),
    ),
    Route(
        method="POST",
        path="/topics/{topic}/dead-letters/redrive",
        summary="Move the messages of a dead-letter topic back to their original topics",
        handler=start_redrive,
        parameters=OfTopic,
        body=Redrive,
        answers=(RedriveDescription,),
        status=HTTPStatus.ACCEPTED,
        errors=(UnknownTopic, InvalidRequest, PolicyViolation, TooManyInFlight, TooManyGroups),
    ),
    Route(
        method="GET",
        path="/redrives",
        summary="List redrives",
        handler=list_redrives,
        parameters=RedrivesQuery,
        body=Nothing,
        answers=(RedriveList,),
    ),
    Route(
        method="GET",
        path="/redrives/{id}",
        summary="Show the progress of a redrive",
        handler=show_redrive,
        parameters=OfTask,
        body=Nothing,
        answers=(RedriveDescription,),
        errors=(UnknownTask,),
    ),
    Route(
        method="DELETE",
        path="/redrives/{id}",
        summary="Cancel a redrive; messages that were moved stay moved",
        handler=cancel_redrive,
        parameters=OfTask,
        body=Nothing,
        answers=(RedriveDescription,),
        errors=(UnknownTask,),
    ),
)
