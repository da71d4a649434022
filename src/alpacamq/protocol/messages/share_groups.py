"""Membership of share groups: ShareGroupHeartbeat and ShareGroupDescribe."""

from collections.abc import Sequence

from alpacamq.protocol.notation import Bool, Int16, Int32, Message, String

from .consumer_groups import DescribedAssignment, HeartbeatAssignment
from .metadata import OPERATIONS_NOT_ASKED_FOR


class ShareGroupHeartbeatRequest(Message, flexible_from=0):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = -1
    rack_id: String | None = None
    subscribed_topic_names: Sequence[String] | None = None


class ShareGroupHeartbeatResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: HeartbeatAssignment | None = None


class ShareGroupDescribeRequest(Message, flexible_from=0):
    group_ids: Sequence[String] = []
    include_authorized_operations: Bool = False


class DescribedShareMember(Message):
    member_id: String
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: Sequence[String] = []
    assignment: DescribedAssignment = DescribedAssignment()


class DescribedShareGroup(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: Sequence[DescribedShareMember] = []
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED_FOR


class ShareGroupDescribeResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedShareGroup] = []
