"""Groups: which there are, and who is in them."""

from http import HTTPStatus
from itertools import chain
from operator import attrgetter
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.coordination import ask_group
from alpacamq.api.rest.membership import partitions_by_topic
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.api.slices import first_names, in_slices
from alpacamq.broker.broker import Broker
from alpacamq.coordinator.consumer.messages import ConsumerGroupDescription, ConsumerMemberDescription
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import DeleteGroupRequest, DescribeRequest, GroupDescription
from alpacamq.coordinator.share.messages import ShareGroupDescription, ShareMemberDescription
from alpacamq.model.errors import (
    GroupIdNotFound,
    NonEmptyGroup,
)
from alpacamq.queues.messages import QueueId

from .names import OfGroup

QUEUE = "queue"


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. `type` is consumer, classic, share or queue; of a queue, `topics` are known."""

    group: str
    type: str
    state: str | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET


class GroupsWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which groups to list."""

    prefix: Annotated[str, Meta(description="of their names")] = ""
    after: Annotated[str, Meta(description="go on after this name")] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000, description="names at most")] = 1000


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    """Groups by name, which may be that of a group of members and of queues; after `next` there are more."""

    groups: list[ListedGroup]
    next: str | None


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member. Partitions are by topic: what it has, and what it is to have."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET
    pattern: str | UnsetType = UNSET
    assignment: dict[str, list[int]] | UnsetType = UNSET
    target: dict[str, list[int]] | UnsetType = UNSET


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A group, its members, and the topics it uses as queues."""

    group: str
    type: str
    queues: list[str]
    members: list[MemberDescription]
    state: str | UnsetType = UNSET
    epoch: int | UnsetType = UNSET
    assignor: str | UnsetType = UNSET


async def list_groups(call: Call[GroupsWanted, Nothing]) -> GroupList:
    broker, wanted = call.backend.broker, call.parameters
    by_group: dict[str, list[str]] = {}
    for group, topic in await broker.queues.queues():
        by_group.setdefault(group, []).append(topic)
    names = await first_names(
        chain(await broker.coordinators.group_ids(), by_group),
        wanted.limit + 1,
        prefix=wanted.prefix,
        after=wanted.after,
    )
    shown = names[: wanted.limit]
    known = {each.group: each for each in await broker.coordinators.list_groups(shown)}
    groups: list[ListedGroup] = []
    async for some in in_slices(shown):
        for name in some:
            if (found := known.get(name)) is not None:
                groups.append(ListedGroup(group=name, type=found.type, state=found.state))
            if (topics := by_group.get(name)) is not None:
                groups.append(ListedGroup(group=name, type=QUEUE, topics=sorted(topics)))
    return GroupList(
        groups=sorted(groups, key=attrgetter("group", "type")),
        next=shown[-1] if len(names) > wanted.limit else None,
    )


async def describe_group(call: Call[OfGroup, Nothing]) -> GroupAnswer:
    broker, group = call.backend.broker, call.parameters.group
    queues = sorted(each.topic for each in await _queues_of(broker, group))
    try:
        found = await ask_group(broker, GroupCoordinator.describe, DescribeRequest(group=group))
    except GroupIdNotFound:
        if not queues:
            raise
        return GroupAnswer(group=group, type=QUEUE, queues=queues, members=[])
    if isinstance(found, ConsumerGroupDescription):
        return GroupAnswer(
            group=group,
            type="consumer",
            queues=queues,
            members=[_consumer(broker, each) for each in found.members],
            state=found.state,
            epoch=found.epoch,
            assignor=found.assignor,
        )
    if isinstance(found, ShareGroupDescription):
        return GroupAnswer(
            group=group,
            type="share",
            queues=queues,
            members=[_sharer(broker, each) for each in found.members],
            state=found.state,
            epoch=found.epoch,
            assignor=found.assignor,
        )
    assert isinstance(found, GroupDescription)
    return GroupAnswer(
        group=group, type="classic", queues=queues, members=_classic_members(found), state=found.state
    )


async def delete_group(call: Call[OfGroup, Nothing]) -> None:
    broker, group = call.backend.broker, call.parameters.group
    queues = await _queues_of(broker, group)
    try:
        await ask_group(broker, GroupCoordinator.delete_group, DeleteGroupRequest(group=group))
    except GroupIdNotFound:
        if not queues:
            raise
    for queue in queues:
        await broker.queues.delete(queue)


async def _queues_of(broker: Broker, group: str) -> list[QueueId]:
    return [queue for queue in await broker.queues.queues() if queue.group == group]


def _consumer(broker: Broker, found: ConsumerMemberDescription) -> MemberDescription:
    return MemberDescription(
        member_id=found.member_id,
        instance_id=found.instance_id,
        client_id=found.client_id,
        client_host=found.client_host,
        member_epoch=found.member_epoch,
        topics=list(found.subscribed_topics),
        pattern=found.subscribed_regex,
        assignment=dict(partitions_by_topic(broker, found.assignment)),
        target=dict(partitions_by_topic(broker, found.target_assignment)),
    )


def _sharer(broker: Broker, found: ShareMemberDescription) -> MemberDescription:
    return MemberDescription(
        member_id=found.member_id,
        instance_id=None,
        client_id=found.client_id,
        client_host=found.client_host,
        member_epoch=found.member_epoch,
        topics=list(found.subscribed_topics),
        assignment=dict(partitions_by_topic(broker, found.assignment)),
    )


def _classic_members(found: GroupDescription) -> list[MemberDescription]:
    return [
        MemberDescription(
            member_id=each.member_id,
            instance_id=each.instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
        )
        for each in found.members
    ]


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/groups",
        summary="List groups",
        handler=list_groups,
        parameters=GroupsWanted,
        body=Nothing,
        answers=(GroupList,),
    ),
    Route(
        method="GET",
        path="/groups/{group}",
        summary="Describe a group and its members",
        handler=describe_group,
        parameters=OfGroup,
        body=Nothing,
        answers=(GroupAnswer,),
        errors=(GroupIdNotFound,),
    ),
    Route(
        method="DELETE",
        path="/groups/{group}",
        summary="Delete a group without members: its offsets and its queues",
        handler=delete_group,
        parameters=OfGroup,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=(GroupIdNotFound, NonEmptyGroup),
    ),
)
