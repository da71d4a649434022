"""Classic groups: finding the coordinator, joining, syncing, heartbeats, leaving, describing, deleting."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.notation import (
    Bool,
    Bytes,
    ErrorText,
    GroupId,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    between,
    null_since,
    since,
    until,
)
from alpacamq.protocol.schema import decode

from .metadata import OPERATIONS_NOT_ASKED_FOR


class FindCoordinatorRequest(Message, flexible_from=3):
    key: Annotated[GroupId, until(3)] = ""
    key_type: Annotated[Int8, since(1)] = 0
    coordinator_keys: Annotated[Sequence[GroupId], since(4)] = []


class Coordinator(Message):
    key: GroupId
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class FindCoordinatorResponse(Message, flexible_from=3):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Annotated[Int16, until(3)] = 0
    error_message: Annotated[ErrorText | None, between(1, 3)] = None
    node_id: Annotated[Int32, until(3)] = -1
    host: Annotated[String, until(3)] = ""
    port: Annotated[Int32, until(3)] = -1
    coordinators: Annotated[Sequence[Coordinator], since(4)] = []


class JoinGroupRequestProtocol(Message):
    name: String
    metadata: Bytes


class JoinGroupRequest(Message, flexible_from=6):
    group_id: GroupId = ""
    session_timeout_ms: Int32 = -1
    rebalance_timeout_ms: Annotated[Int32, since(1)] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, since(5)] = None
    protocol_type: String = ""
    protocols: Sequence[JoinGroupRequestProtocol] = []
    reason: Annotated[String | None, since(8)] = None


class JoinGroupResponseMember(Message):
    member_id: String
    group_instance_id: Annotated[String | None, since(5)] = None
    metadata: Bytes


class JoinGroupResponse(Message, flexible_from=6):
    throttle_time_ms: Annotated[Int32, since(2)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, since(7)] = None
    protocol_name: Annotated[String | None, null_since(7)] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, since(9)] = False
    member_id: String = ""
    members: Sequence[JoinGroupResponseMember] = []


class SyncGroupRequestAssignment(Message):
    member_id: String
    assignment: Bytes


class SyncGroupRequest(Message, flexible_from=4):
    group_id: GroupId = ""
    generation_id: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, since(3)] = None
    protocol_type: Annotated[String | None, since(5)] = None
    protocol_name: Annotated[String | None, since(5)] = None
    assignments: Sequence[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Message, flexible_from=4):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, since(5)] = None
    protocol_name: Annotated[String | None, since(5)] = None
    assignment: Bytes = b""


class HeartbeatRequest(Message, flexible_from=4):
    group_id: GroupId = ""
    generation_id: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, since(3)] = None


class HeartbeatResponse(Message, flexible_from=4):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0


class MemberIdentity(Message):
    member_id: String
    group_instance_id: String | None = None
    reason: Annotated[String | None, since(5)] = None


class LeaveGroupRequest(Message, flexible_from=4):
    group_id: GroupId = ""
    member_id: Annotated[String, until(2)] = ""
    members: Annotated[Sequence[MemberIdentity], since(3)] = []


class MemberResponse(Message):
    member_id: String = ""
    group_instance_id: String | None = None
    error_code: Int16 = 0


class LeaveGroupResponse(Message, flexible_from=4):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    members: Annotated[Sequence[MemberResponse], since(3)] = []


class DescribeGroupsRequest(Message, flexible_from=5):
    groups: Sequence[GroupId] = []
    include_authorized_operations: Annotated[Bool, since(3)] = False


class DescribedGroupMember(Message):
    member_id: String
    group_instance_id: Annotated[String | None, since(4)] = None
    client_id: String
    client_host: String
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[ErrorText | None, since(6)] = None
    group_id: GroupId
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: Sequence[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, since(3)] = OPERATIONS_NOT_ASKED_FOR


class DescribeGroupsResponse(Message, flexible_from=5):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    groups: Sequence[DescribedGroup] = []


class ListGroupsRequest(Message, flexible_from=3):
    states_filter: Annotated[Sequence[String], since(4)] = []
    types_filter: Annotated[Sequence[String], since(5)] = []


class ListedGroup(Message):
    group_id: GroupId
    protocol_type: String
    group_state: Annotated[String, since(4)] = ""
    group_type: Annotated[String, since(5)] = ""


class ListGroupsResponse(Message, flexible_from=3):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    groups: Sequence[ListedGroup] = []


class DeleteGroupsRequest(Message, flexible_from=2):
    groups_names: Sequence[GroupId] = []


class DeletableGroupResult(Message):
    group_id: GroupId
    error_code: Int16 = 0


class DeleteGroupsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    results: Sequence[DeletableGroupResult] = []


class ConsumerAssignmentTopic(Message):
    topic: String
    partitions: Sequence[Int32] = []


class ConsumerAssignment(Message):
    """The assignment that the leader of a classic group writes for a consumer; brokers pass it on unread."""

    version: Int16
    topics: Sequence[ConsumerAssignmentTopic] = []
    user_data: Bytes | None = None


def assigned_partitions(assignment: bytes) -> dict[str, list[int]]:
    """Return the partitions of a member by topic; none for groups of other protocols than consumers'."""
    try:
        topics = decode(ConsumerAssignment, 0, memoryview(assignment)).topics if assignment else ()
    except ProtocolError:
        return {}
    return {each.topic: sorted(each.partitions) for each in sorted(topics, key=lambda each: each.topic)}
