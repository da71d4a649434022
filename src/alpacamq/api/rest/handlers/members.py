"""Members of groups: joining, staying and leaving."""

from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.backend import Backend
from alpacamq.api.rest.coordination import ask_group
from alpacamq.api.rest.membership import Membership, heard, joined, member
from alpacamq.api.rest.route import AnyRoute, Call, Route
from alpacamq.coordinator.consumer.messages import JOIN_EPOCH, ConsumerHeartbeatRequest
from alpacamq.coordinator.groups import GroupCoordinator
from alpacamq.coordinator.messages import LeaveReply, LeaveRequest, LeavingMember
from alpacamq.model.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InvalidRegularExpression,
    InvalidRequest,
    StaleMemberEpoch,
    TooManyGroups,
    UnknownMember,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from alpacamq.model.topics import INT32_MAX

from .names import MemberText, OfGroup, TopicText


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who joins, and what it wants to read: topics by name, by pattern, or both."""

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
    """A member that is alive. With its epoch, it is refused if it missed a change."""

    member_id: MemberText
    member_epoch: Annotated[int, Meta(ge=0, le=INT32_MAX)] | UnsetType = UNSET


class Leave(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member that leaves."""

    member_id: MemberText


class MembershipAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a member stands, and the partitions it has, by topic. It is to heartbeat or poll in time."""

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
        member_id="" if body.member_id is UNSET else body.member_id,
        instance_id=None if body.instance_id is UNSET else body.instance_id,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        subscribed_topics=None if body.topics is UNSET else tuple(body.topics),
        subscribed_regex=None if body.pattern is UNSET else body.pattern,
        assignor=None if body.assignor is UNSET else body.assignor,
        owned={},
        client_id=body.client_id,
        client_host=call.request.peer.rpartition(":")[0],
    )
    return membership_answer(call.backend, call.parameters.group, await joined(call.backend.broker, request))


async def heartbeat(call: Call[OfGroup, OfMember]) -> MembershipAnswer:
    broker, group, body = call.backend.broker, call.parameters.group, call.body
    epoch = None if body.member_epoch is UNSET else body.member_epoch
    known = await member(broker, group, body.member_id, epoch)
    return membership_answer(call.backend, group, await heard(broker, group, known))


async def leave(call: Call[OfGroup, Leave]) -> None:
    leaving = LeavingMember(member_id=call.body.member_id)
    request = LeaveRequest(group=call.parameters.group, members=(leaving,))
    reply: LeaveReply = await ask_group(call.backend.broker, GroupCoordinator.leave, request)
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
    Route(
        method="POST",
        path="/groups/{group}/join",
        summary="Become a member of a group",
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
        summary="Stay a member, and learn which partitions one has",
        handler=heartbeat,
        parameters=OfGroup,
        body=OfMember,
        answers=(MembershipAnswer,),
        errors=_MEMBER_ERRORS,
    ),
    Route(
        method="POST",
        path="/groups/{group}/leave",
        summary="Leave a group, so that others take over at once",
        handler=leave,
        parameters=OfGroup,
        body=Leave,
        status=HTTPStatus.NO_CONTENT,
        errors=_MEMBER_ERRORS,
    ),
)
