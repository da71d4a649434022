"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup; listing and describing groups of any protocol."""

from base64 import urlsafe_b64decode

from alpacamq.api.kafka.brokers import live_node
from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.api.kafka.operations import group_operations
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.coordinator.messages import (
    GroupDescription,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
    ListRequest,
    MemberAssignment,
    Protocol,
    SyncReply,
    SyncRequest,
)
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    MemberIdRequired,
    UnknownMember,
)
from alpacamq.model.ids import TopicId
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import groups as wire
from alpacamq.queues.messages import QueueId
from alpacamq.security.acls import Operation, ResourceType

from .share_groups import delete_group, unlisted_share_groups

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_COORDINATED = (_GROUP, _TRANSACTION, _SHARE)
_COORDINATORS_BY_THE_LIST_FROM = 4
_REBALANCE_TIMEOUT_FROM = 1
_MEMBER_ID_REQUIRED_FROM = 4
_SKIP_ASSIGNMENT_FROM = 9
_PROTOCOL_NAMED_FROM = 5
_MEMBERS_LEAVE_FROM = 3
_NOT_FOUND_FROM = 6
_DEAD = "Dead"
# Metadata of a member. Kafka stores it in one record, which is limited to 1 MiB too.
_MAX_PROTOCOLS = 100
_MAX_PROTOCOL_BYTES = 1 << 20
# Members and states in a request: more than a group, or the protocol, can have.
_MAX_MEMBERS = 10_000
_MAX_FILTERS = 100


async def find_coordinator(
    backend: Backend, request: wire.FindCoordinatorRequest, call: Call
) -> wire.FindCoordinatorResponse:
    keys = request.coordinator_keys if call.version >= _COORDINATORS_BY_THE_LIST_FROM else [request.key]
    if request.key_type not in _COORDINATED:
        reason = f"unknown coordinator type {request.key_type}"
        failed = []
        for key in keys:
            failed.append(
                wire.Coordinator(key=key, error_code=ErrorCode.INVALID_REQUEST, error_message=reason)
            )
            await call.pause()
        return wire.FindCoordinatorResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message=reason, coordinators=failed
        )
    found = []
    for key in keys:
        found.append(await _coordinator(backend, request.key_type, key, call))
        await call.pause()
    first = found[0] if found else wire.Coordinator(key="", node_id=-1)
    return wire.FindCoordinatorResponse(
        error_code=first.error_code,
        error_message=first.error_message,
        node_id=first.node_id,
        host=first.host,
        port=first.port,
        coordinators=found,
    )


async def _coordinator(backend: Backend, key_type: int, key: str, call: Call) -> wire.Coordinator:
    broker = backend.broker
    try:
        _check_coordinated(backend, key_type, key, call)
    except AlpacaError as error:
        return wire.Coordinator(key=key, node_id=-1, error_code=code_of(error), error_message=text_of(error))
    try:
        if key_type == _GROUP:
            broker_id = await broker.groups.coordinator_of(key)
        elif key_type == _TRANSACTION:
            broker_id = await broker.transactions.coordinator_of(key)
        else:
            broker_id = await broker.queues.broker_of(_shared_queue(backend, key))
    except AlpacaError as error:
        # Whatever the reason: clients retry on this code and give up on most others.
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return wire.Coordinator(key=key, node_id=-1, error_code=code, error_message=text_of(error))
    if (node := live_node(backend, broker_id, call.listener)) is None:
        reason = f"broker {broker_id} has no address for Kafka clients, or is not running"
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return wire.Coordinator(key=key, node_id=-1, error_code=code, error_message=reason)
    return wire.Coordinator(key=key, node_id=node.id, host=node.host, port=node.port)


def _check_coordinated(backend: Backend, key_type: int, key: str, call: Call) -> None:
    """Raise unless the client may know the coordinator."""
    access = backend.broker.access
    if key_type == _GROUP:
        access.check_group(call.caller, Operation.DESCRIBE, key)
    elif key_type == _TRANSACTION:
        access.check_transactional_id(call.caller, Operation.DESCRIBE, key)
    else:
        # Of the state of a share group, which brokers look for.
        access.check_cluster(call.caller, Operation.CLUSTER_ACTION)


def _shared_queue(backend: Backend, key: str) -> QueueId:
    """Return the queue of a key GROUP:TOPIC_ID:PARTITION, with the id in base64."""
    group, _, topic_id = key.rpartition(":")[0].rpartition(":")
    try:
        topic = backend.broker.topics.image.topic_by_id(TopicId(bytes=urlsafe_b64decode(topic_id + "==")))
    except ValueError:
        topic = None
    return QueueId(group, topic_id if topic is None else topic.name)


async def join_group(backend: Backend, request: wire.JoinGroupRequest, call: Call) -> wire.JoinGroupResponse:
    if (
        len(request.protocols) > _MAX_PROTOCOLS
        or sum(len(each.name) + len(each.metadata) for each in request.protocols) > _MAX_PROTOCOL_BYTES
    ):
        return wire.JoinGroupResponse(error_code=ErrorCode.INVALID_REQUEST, member_id=request.member_id)
    knows_rebalance_timeout = call.version >= _REBALANCE_TIMEOUT_FROM
    asked = JoinRequest(
        group=request.group_id,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(each.name, each.metadata) for each in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if knows_rebalance_timeout else request.session_timeout_ms
        ),
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=call.caller.host,
        require_known_member_id=call.version >= _MEMBER_ID_REQUIRED_FROM,
        knows_skip_assignment=call.version >= _SKIP_ASSIGNMENT_FROM,
    )
    try:
        _check_member(backend, request.group_id, call)
        reply: JoinReply = await backend.broker.groups.ask_here(asked)
    except MemberIdRequired as error:
        return wire.JoinGroupResponse(error_code=code_of(error), member_id=error.member_id)
    except AlpacaError as error:
        return wire.JoinGroupResponse(error_code=code_of(error), member_id=request.member_id)
    return wire.JoinGroupResponse(
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=[
            wire.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in reply.members
        ],
    )


async def sync_group(backend: Backend, request: wire.SyncGroupRequest, call: Call) -> wire.SyncGroupResponse:
    if len(request.assignments) > _MAX_MEMBERS:
        return wire.SyncGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
    asked = SyncRequest(
        group=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple(
            MemberAssignment(member_id=each.member_id, assignment=each.assignment)
            for each in request.assignments
        ),
    )
    try:
        _check_member(backend, request.group_id, call)
        if call.version >= _PROTOCOL_NAMED_FROM and None in (request.protocol_type, request.protocol_name):
            raise InconsistentGroupProtocol("a member must name a protocol type and a protocol")
        reply: SyncReply = await backend.broker.groups.ask_here(asked)
    except AlpacaError as error:
        return wire.SyncGroupResponse(error_code=code_of(error))
    return wire.SyncGroupResponse(
        protocol_type=reply.protocol_type, protocol_name=reply.protocol_name, assignment=reply.assignment
    )


async def heartbeat(backend: Backend, request: wire.HeartbeatRequest, call: Call) -> wire.HeartbeatResponse:
    asked = HeartbeatRequest(
        group=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )
    try:
        _check_member(backend, request.group_id, call)
        await backend.broker.groups.ask_here(asked)
    except CoordinatorLoading:
        # Loading the group restarts its sessions, and the client could only retry.
        return wire.HeartbeatResponse()
    except AlpacaError as error:
        return wire.HeartbeatResponse(error_code=code_of(error))
    return wire.HeartbeatResponse()


async def leave_group(
    backend: Backend, request: wire.LeaveGroupRequest, call: Call
) -> wire.LeaveGroupResponse:
    if len(request.members) > _MAX_MEMBERS:
        return wire.LeaveGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
    if call.version < _MEMBERS_LEAVE_FROM:
        leaving = [LeavingMember(member_id=request.member_id)]
    else:
        leaving = [
            LeavingMember(member_id=each.member_id, instance_id=each.group_instance_id)
            for each in request.members
        ]
    asked = LeaveRequest(group=request.group_id, members=tuple(leaving))
    try:
        _check_member(backend, request.group_id, call)
        reply: LeaveReply = await backend.broker.groups.ask_here(asked)
        results = [(each, each.error) for each in reply.members]
    except UnknownMember as error:
        # An unknown group is an error of each member, not of the request.
        results = [(each, error) for each in leaving]  # type: ignore[misc]
    except AlpacaError as error:
        return wire.LeaveGroupResponse(error_code=code_of(error))
    members = [
        wire.MemberResponse(
            member_id=each.member_id,
            group_instance_id=each.instance_id,
            error_code=ErrorCode.NONE if error is None else code_of(error),
        )
        for each, error in results
    ]
    if call.version < _MEMBERS_LEAVE_FROM:
        return wire.LeaveGroupResponse(error_code=members[0].error_code)
    return wire.LeaveGroupResponse(members=members)


def _check_member(backend: Backend, group: str, call: Call) -> None:
    """Raise GroupNotAuthorized unless the client may be a member of a group."""
    backend.broker.access.check_group(call.caller, Operation.READ, group)


async def describe_groups(
    backend: Backend, request: wire.DescribeGroupsRequest, call: Call
) -> wire.DescribeGroupsResponse:
    groups = []
    for group in await call.each_once(request.groups, str):
        groups.append(await _described(backend, request, group, call))
        await call.pause()
    return wire.DescribeGroupsResponse(groups=groups)


async def list_groups(
    backend: Backend, request: wire.ListGroupsRequest, call: Call
) -> wire.ListGroupsResponse:
    if len(request.states_filter) + len(request.types_filter) > _MAX_FILTERS:
        return wire.ListGroupsResponse(error_code=ErrorCode.INVALID_REQUEST)
    asked = ListRequest(states=frozenset(request.states_filter), types=frozenset(request.types_filter))
    known = backend.broker.groups
    try:
        listed = await known.list_groups(await known.group_ids_here())
        listed += await unlisted_share_groups(backend, {each.group for each in listed})
    except AlpacaError as error:
        return wire.ListGroupsResponse(error_code=code_of(error))
    groups = []
    access = backend.broker.access
    lists_all = access.sees_cluster(call.caller, Operation.DESCRIBE)
    for each in listed:
        await call.pause()
        if not (lists_all or access.sees(call.caller, Operation.DESCRIBE, ResourceType.GROUP, each.group)):
            continue
        if asked.matches(each):
            groups.append(
                wire.ListedGroup(
                    group_id=each.group,
                    protocol_type=each.protocol_type,
                    group_state=each.state,
                    group_type=each.type,
                )
            )
    return wire.ListGroupsResponse(groups=groups)


async def delete_groups(
    backend: Backend, request: wire.DeleteGroupsRequest, call: Call
) -> wire.DeleteGroupsResponse:
    results = []
    for group in await call.each_once(request.groups_names, str):
        await call.pause()
        code = ErrorCode.NONE
        try:
            backend.broker.access.check_group(call.caller, Operation.DELETE, group)
            await delete_group(backend, group)
        except AlpacaError as error:
            code = code_of(error)
        results.append(wire.DeletableGroupResult(group_id=group, error_code=code))
    return wire.DeleteGroupsResponse(results=results)


async def _described(
    backend: Backend, request: wire.DescribeGroupsRequest, group: str, call: Call
) -> wire.DescribedGroup:
    allowed = group_operations(backend, call, group, asked=request.include_authorized_operations)
    try:
        backend.broker.access.check_group(call.caller, Operation.DESCRIBE, group)
        found = await backend.broker.groups.ask_here(DescribeRequest(group=group))
        if not isinstance(found, GroupDescription):
            raise GroupIdNotFound(f"group {group!r} does not use the classic protocol")
    except GroupIdNotFound as error:
        # Earlier versions have no error for this: an unknown group is Dead.
        if call.version < _NOT_FOUND_FROM:
            return wire.DescribedGroup(group_id=group, group_state=_DEAD, authorized_operations=allowed)
        return wire.DescribedGroup(
            group_id=group, group_state=_DEAD, error_code=code_of(error), error_message=text_of(error)
        )
    except AlpacaError as error:
        return wire.DescribedGroup(group_id=group, error_code=code_of(error), error_message=text_of(error))
    return wire.DescribedGroup(
        group_id=group,
        group_state=found.state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol_name,
        members=[
            wire.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in found.members
        ],
        authorized_operations=allowed,
    )
