"""Redrives: moving dead letters back to their topics."""

from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.errors import UnknownTask
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.queue.service import RedriveTask
from alpacamq.model.errors import (
    InvalidRequest,
    PolicyViolation,
    TooManyGroups,
    TooManyInFlight,
    UnknownTopic,
)
from alpacamq.model.topics import INT32_MAX
from alpacamq.wire.queues import RedriveDescription, RedriveList

from .names import OfTopic, TopicText


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
    task = await call.backend.broker.queues.start_redrive(
        call.parameters.topic,
        target=None if body.target is UNSET else body.target,
        messages_per_second=None if body.messages_per_second is UNSET else body.messages_per_second,
        max_messages=None if body.max_messages is UNSET else body.max_messages,
    )
    return _shown(task)


def list_redrives(call: Call[RedrivesQuery, Nothing]) -> RedriveList:
    source = None if call.parameters.topic is UNSET else call.parameters.topic
    return RedriveList(redrives=[_shown(each) for each in call.backend.broker.queues.redrives(source)])


def show_redrive(call: Call[OfTask, Nothing]) -> RedriveDescription:
    return _shown(_task(call.backend, call.parameters.id))


def cancel_redrive(call: Call[OfTask, Nothing]) -> RedriveDescription:
    task = _task(call.backend, call.parameters.id)
    return _shown(call.backend.broker.queues.cancel_redrive(task.id))


def _task(backend: Backend, task_id: str) -> RedriveTask:
    for task in backend.broker.queues.redrives():
        if task.id == task_id:
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
