"""A group on a topic as a queue: what it is like and holds, its settings, beginning again, emptying it."""

from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.api.metrics.stats import LaneStats, QueueTotals, lanes_of, totals_of
from alpacamq.api.rest.message_json import StoredMessage, Values, stored_message
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.model.errors import (
    GroupIdNotFound,
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    OffsetOutOfRange,
    PolicyViolation,
    TooManyGroups,
    UnknownTopic,
)
from alpacamq.queues.messages import DescribeReply, QueueId

from .names import OfQueue
from .offsets import ResetPlace, reset_places
from .topics import SettingValue, setting_text


class QueuePartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a queue. Everything before `start_offset` is done."""

    partition: int
    start_offset: int
    end_offset: int
    oldest_offset: int | None
    ready: int
    in_flight: int
    resting: int
    dead_lettering: int
    lanes: dict[str, LaneStats]


class QueueDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group on a topic; `settings` are those that the group has of its own there."""

    group: str
    topic: str
    generation: int
    settings: dict[str, str]
    totals: QueueTotals
    partitions: list[QueuePartition]


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that a group has of its own on a topic; null goes back to the topic's."""

    settings: Annotated[
        dict[str, SettingValue | None],
        Meta(max_length=100, examples=[{"queue.visibility.timeout.ms": 60_000}]),
    ]


class Peek(OfQueue, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a queue to look at."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="messages at most")] = 10
    values: Values = Values.TEXT


class QueueMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that are not done, partition by partition, each partition's in order."""

    group: str
    topic: str
    messages: list[StoredMessage]


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
    await broker.queues.reset(queue, {each.partition: each.offset for each in places})
    return _described(await broker.queues.describe(queue))


async def purge_queue(call: Call[OfQueue, Nothing]) -> QueueDescription:
    broker, queue = call.backend.broker, _queue(call.parameters)
    await broker.queues.purge(queue)
    return _described(await broker.queues.describe(queue))


async def peek_queue(call: Call[Peek, Nothing]) -> QueueMessages:
    wanted = call.parameters
    found = await call.backend.broker.queues.peek(_queue(wanted), wanted.limit)
    return QueueMessages(
        group=wanted.group,
        topic=wanted.topic,
        messages=[stored_message(partition, record, wanted.values) for partition, record in found],
    )


def _queue(parameters: OfQueue) -> QueueId:
    return QueueId(parameters.group, parameters.topic)


def _described(reply: DescribeReply) -> QueueDescription:
    return QueueDescription(
        group=reply.queue.group,
        topic=reply.queue.topic,
        generation=reply.generation,
        settings=dict(reply.overrides),
        totals=totals_of([reply]),
        partitions=[
            QueuePartition(
                partition=each.partition,
                start_offset=each.start_offset,
                end_offset=each.end_offset,
                oldest_offset=each.oldest_offset,
                ready=each.ready,
                in_flight=each.in_flight,
                resting=each.resting,
                dead_lettering=each.dead_lettering,
                lanes=lanes_of([each]),
            )
            for each in reply.partitions
        ],
    )


_PATH = "/groups/{group}/queues/{topic}"
_ERRORS = (GroupIdNotFound, UnknownTopic)
# Of what makes the queue where there is none.
_MAKING_ERRORS = (*_ERRORS, InvalidGroupId, InvalidRequest, PolicyViolation, TooManyGroups)

ROUTES: tuple[AnyRoute, ...] = (
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
        summary="Give a group settings of its own on a topic; makes the queue if there is none",
        handler=configure_queue,
        parameters=OfQueue,
        body=QueueSettings,
        answers=(QueueDescription,),
        errors=(*_MAKING_ERRORS, InvalidConfig),
    ),
    Route(
        method="DELETE",
        path=_PATH,
        summary="Forget a queue; the topic and its messages stay",
        handler=delete_queue,
        parameters=OfQueue,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=_ERRORS,
    ),
    Route(
        method="POST",
        path=f"{_PATH}/reset",
        summary="Let a queue begin again elsewhere, such as from a point in time",
        handler=reset_queue,
        parameters=OfQueue,
        body=ResetPlace,
        answers=(QueueDescription,),
        errors=(*_MAKING_ERRORS, OffsetOutOfRange),
    ),
    Route(
        method="POST",
        path=f"{_PATH}/purge",
        summary="Empty a queue: everything there is now is done",
        handler=purge_queue,
        parameters=OfQueue,
        body=Nothing,
        answers=(QueueDescription,),
        errors=_MAKING_ERRORS,
    ),
    Route(
        method="GET",
        path=f"{_PATH}/messages",
        summary="Look at the next messages that are not done, without taking them",
        handler=peek_queue,
        parameters=Peek,
        body=Nothing,
        answers=(QueueMessages,),
        errors=_ERRORS,
    ),
)
