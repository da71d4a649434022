"""Groups: listing, describing and deleting them."""

from http import HTTPStatus
from itertools import chain
from operator import attrgetter
from typing import Annotated
from uuid import uuid4

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.membership import Membership, join_group, member, partitions_by_topic, send_heartbeat
from alpacamq.api.rest.parameters import MemberText, OfGroup, TopicText
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.broker import Broker
from alpacamq.broker.slices import first_names, in_slices
from alpacamq.coordinator.consumer.messages import (
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeatRequest,
    ConsumerMemberDescription,
)
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.coordinator.messages import (
    DeleteGroupRequest,
    GroupDescription,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
)
from alpacamq.coordinator.rebalances import RebalancesRequest
from alpacamq.coordinator.share.messages import ShareGroupDescription, ShareMemberDescription
from alpacamq.coordinator.streams.messages import (
    StreamsGroupDescription,
    StreamsMemberDescription,
    TaskIds,
)
from alpacamq.model.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRegularExpression,
    InvalidRequest,
    NonEmptyGroup,
    StaleMemberEpoch,
    TooManyGroups,
    UnknownMember,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from alpacamq.model.topics import INT32_MAX
from alpacamq.protocol.messages.groups import assigned_partitions
from alpacamq.queues.messages import QueueId
from alpacamq.wire.groups import GroupRebalance, GroupRebalances

QUEUE = "queue"


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A listed group. `type` is consumer, classic, share, streams or queue; `topics` is set for queues."""

    group: str
    type: str
    state: str | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET


class GroupsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which groups to list."""

    prefix: Annotated[str, Meta(description="of their names")] = ""
    after: Annotated[str, Meta(description="continue after this name")] = ""
    limit: Annotated[int, Meta(ge=1, le=10_000, description="names at most")] = 1000


class GroupList(msgspec.Struct, frozen=True, kw_only=True):
    """Groups by name; one name may occur as a group of members and of queues. More follow after `next`."""

    groups: list[ListedGroup]
    next: str | None


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member, with its current and target partitions by topic.

    Members of streams groups have tasks instead: partitions by subtopology.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET
    pattern: str | UnsetType = UNSET
    assignment: dict[str, list[int]] | UnsetType = UNSET
    target: dict[str, list[int]] | UnsetType = UNSET
    process_id: str | UnsetType = UNSET
    active_tasks: dict[str, list[int]] | UnsetType = UNSET
    standby_tasks: dict[str, list[int]] | UnsetType = UNSET


class GroupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A group, its members, and the topics it uses as queues."""

    group: str
    type: str
    queues: list[str]
    members: list[MemberDescription]
    state: str | UnsetType = UNSET
    epoch: int | UnsetType = UNSET
    assignor: str | UnsetType = UNSET


async def list_groups(call: Call[GroupsQuery, Nothing]) -> GroupList:
    broker, query = call.backend.broker, call.parameters
    by_group: dict[str, list[str]] = {}
    for group, topic in await broker.queues.queues():
        by_group.setdefault(group, []).append(topic)
    names = await first_names(
        call.visible_groups(chain(await broker.groups.group_ids(), by_group)),
        query.limit + 1,
        prefix=query.prefix,
        after=query.after,
    )
    shown = names[: query.limit]
    known = {each.group: each for each in await broker.groups.list_groups(shown)}
    groups: list[ListedGroup] = []
    async for some in in_slices(shown):
        for name in some:
            if (found := known.get(name)) is not None:
                groups.append(ListedGroup(group=name, type=found.type, state=found.state))
            if (topics := by_group.get(name)) is not None:
                groups.append(ListedGroup(group=name, type=QUEUE, topics=sorted(topics)))
    return GroupList(
        groups=sorted(groups, key=attrgetter("group", "type")),
        next=shown[-1] if len(names) > query.limit else None,
    )


async def describe_group(call: Call[OfGroup, Nothing]) -> GroupAnswer:
    broker, group = call.backend.broker, call.parameters.group
    queues = sorted(each.topic for each in await _queues_of(broker, group))
    try:
        found = await broker.groups.ask(DescribeRequest(group=group))
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
    if isinstance(found, StreamsGroupDescription):
        return GroupAnswer(
            group=group,
            type="streams",
            queues=queues,
            members=[_streams_member(each) for each in found.members],
            state=found.state,
            epoch=found.epoch,
        )
    assert isinstance(found, GroupDescription)
    return GroupAnswer(
        group=group,
        type="classic",
        queues=queues,
        members=_classic_members(found),
        state=found.state,
        assignor=found.protocol_name or UNSET,
    )


async def list_rebalances(call: Call[OfGroup, Nothing]) -> GroupRebalances:
    group = call.parameters.group
    reply = await call.backend.broker.groups.ask(RebalancesRequest(group=group))
    return GroupRebalances(
        group=group,
        rebalances=[
            GroupRebalance(
                started=each.started_ms,
                ended=each.ended_ms,
                duration_ms=None if each.ended_ms is None else each.ended_ms - each.started_ms,
                state=each.state,
                cause=each.cause,
                members=list(each.members),
                generation=each.generation,
                member_count=each.member_count,
            )
            for each in reply.rebalances
        ],
    )


async def delete_group(call: Call[OfGroup, Nothing]) -> None:
    broker, group = call.backend.broker, call.parameters.group
    queues = await _queues_of(broker, group)
    try:
        await broker.groups.ask(DeleteGroupRequest(group=group))
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


def _streams_member(found: StreamsMemberDescription) -> MemberDescription:
    return MemberDescription(
        member_id=found.member_id,
        instance_id=found.instance_id,
        client_id=found.client_id,
        client_host=found.client_host,
        member_epoch=found.member_epoch,
        process_id=found.process_id,
        active_tasks=_task_lists(found.assignment.active),
        standby_tasks=_task_lists(found.assignment.standby),
    )


def _task_lists(tasks: TaskIds) -> dict[str, list[int]]:
    return {subtopology: sorted(indexes) for subtopology, indexes in sorted(tasks.items())}


def _classic_members(found: GroupDescription) -> list[MemberDescription]:
    return [
        MemberDescription(
            member_id=each.member_id,
            instance_id=each.instance_id,
            client_id=each.client_id,
            client_host=each.client_host,
            assignment=assigned_partitions(each.assignment),
        )
        for each in found.members
    ]


_GROUP_ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/groups",
        summary="List groups",
        handler=list_groups,
        parameters=GroupsQuery,
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
        method="GET",
        path="/groups/{group}/rebalances",
        summary="List the recent rebalances of a group with their causes",
        handler=list_rebalances,
        parameters=OfGroup,
        body=Nothing,
        answers=(GroupRebalances,),
        errors=(GroupIdNotFound, InvalidRequest),
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


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new member and its subscription: topics by name, by pattern, or both."""

    topics: Annotated[list[TopicText], Meta(max_length=1000)] | UnsetType = UNSET
    pattern: (
        Annotated[str, Meta(min_length=1, max_length=1000, description="a regular expression (RE2)")]
        | UnsetType
    ) = UNSET
    member_id: MemberText | UnsetType = UNSET
    instance_id: MemberText | UnsetType = UNSET
    client_id: Annotated[str, Meta(max_length=255)] = ""
    assignor: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    rebalance_timeout_ms: Annotated[int, Meta(ge=1, le=INT32_MAX)] = 60_000


class OfMember(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A heartbeat. With an epoch, a member that missed a change is refused."""

    member_id: MemberText
    member_epoch: Annotated[int, Meta(ge=0, le=INT32_MAX)] | UnsetType = UNSET


class Leave(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member that leaves."""

    member_id: MemberText


class MembershipAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a member and its partitions by topic. It must heartbeat or poll in time."""

    group: str
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignment: dict[str, list[int]]


async def join(call: Call[OfGroup, Join]) -> MembershipAnswer:
    body = call.body
    request = ConsumerHeartbeatRequest(
        group=call.parameters.group,
        member_epoch=JOIN_EPOCH,
        # With an id, a join whose reply was lost can be repeated without adding a second member.
        member_id=str(uuid4()) if body.member_id is UNSET else body.member_id,
        instance_id=None if body.instance_id is UNSET else body.instance_id,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        subscribed_topics=None if body.topics is UNSET else tuple(body.topics),
        subscribed_regex=None if body.pattern is UNSET else body.pattern,
        assignor=None if body.assignor is UNSET else body.assignor,
        owned={},
        client_id=body.client_id,
        client_host=call.request.peer.rpartition(":")[0],
    )
    return membership_answer(
        call.backend, call.parameters.group, await join_group(call.backend.broker, request)
    )


async def heartbeat(call: Call[OfGroup, OfMember]) -> MembershipAnswer:
    broker, group, body = call.backend.broker, call.parameters.group, call.body
    epoch = None if body.member_epoch is UNSET else body.member_epoch
    known = await member(broker, group, body.member_id, epoch)
    return membership_answer(call.backend, group, await send_heartbeat(broker, group, known))


async def leave(call: Call[OfGroup, Leave]) -> None:
    leaving = LeavingMember(member_id=call.body.member_id)
    request = LeaveRequest(group=call.parameters.group, members=(leaving,))
    reply: LeaveReply = await call.backend.broker.groups.ask(request)
    if (error := reply.members[0].error) is not None:
        raise error


def membership_answer(backend: Backend, group: str, membership: Membership) -> MembershipAnswer:
    assignment: dict[str, list[int]] = {}
    for topic, partition in membership.assigned:
        assignment.setdefault(topic, []).append(partition)
    return MembershipAnswer(
        group=group,
        member_id=membership.member_id,
        member_epoch=membership.member_epoch,
        heartbeat_interval_ms=membership.heartbeat_interval_ms,
        session_timeout_ms=backend.broker.settings.coordination.consumer_groups.session_timeout_ms,
        assignment=assignment,
    )


_MEMBER_ERRORS = (
    InvalidRequest,
    UnknownMember,
    GroupIdNotFound,
    StaleMemberEpoch,
    FencedMemberEpoch,
    FencedInstanceId,
)

ROUTES: tuple[AnyRoute, ...] = (
    *_GROUP_ROUTES,
    Route(
        method="POST",
        path="/groups/{group}/join",
        summary="Join a group",
        handler=join,
        parameters=OfGroup,
        body=Join,
        answers=(MembershipAnswer,),
        errors=(
            *_MEMBER_ERRORS,
            TooManyGroups,
            GroupMaxSizeReached,
            UnreleasedInstanceId,
            UnsupportedAssignor,
            InvalidRegularExpression,
        ),
    ),
    Route(
        method="POST",
        path="/groups/{group}/heartbeat",
        summary="Send a heartbeat and get the assigned partitions",
        handler=heartbeat,
        parameters=OfGroup,
        body=OfMember,
        answers=(MembershipAnswer,),
        errors=_MEMBER_ERRORS,
    ),
    Route(
        method="POST",
        path="/groups/{group}/leave",
        summary="Leave a group, so that its partitions are reassigned immediately",
        handler=leave,
        parameters=OfGroup,
        body=Leave,
        status=HTTPStatus.NO_CONTENT,
        errors=_MEMBER_ERRORS,
    ),
)
