"""The consumer protocol with server-side assignment: ConsumerGroupHeartbeat and ConsumerGroupDescribe."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    Bool,
    ErrorText,
    GroupId,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    TopicName,
    Uuid,
    since,
)

from .metadata import OPERATIONS_NOT_ASKED_FOR


class HeartbeatTopicPartitions(Message):
    topic_id: Uuid
    partitions: Sequence[Int32] = []


class ConsumerGroupHeartbeatRequest(Message, flexible_from=0):
    group_id: GroupId = ""
    member_id: String = ""
    member_epoch: Int32 = -1
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: Sequence[TopicName] | None = None
    subscribed_topic_regex: Annotated[String | None, since(1)] = None
    server_assignor: String | None = None
    topic_partitions: Sequence[HeartbeatTopicPartitions] | None = None


class HeartbeatAssignment(Message):
    topic_partitions: Sequence[HeartbeatTopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: HeartbeatAssignment | None = None


class ConsumerGroupDescribeRequest(Message, flexible_from=0):
    group_ids: Sequence[GroupId] = []
    include_authorized_operations: Bool = False


class DescribedTopicPartitions(Message):
    topic_id: Uuid
    topic_name: TopicName
    partitions: Sequence[Int32] = []


class DescribedAssignment(Message):
    topic_partitions: Sequence[DescribedTopicPartitions] = []


class DescribedConsumer(Message):
    member_id: String
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: Sequence[TopicName] = []
    subscribed_topic_regex: String | None = None
    assignment: DescribedAssignment = DescribedAssignment()
    target_assignment: DescribedAssignment = DescribedAssignment()
    member_type: Annotated[Int8, since(1)] = -1


class DescribedConsumerGroup(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    group_id: GroupId
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: Sequence[DescribedConsumer] = []
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED_FOR


class ConsumerGroupDescribeResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedConsumerGroup] = []
