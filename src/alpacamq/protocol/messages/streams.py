"""Streams groups: StreamsGroupHeartbeat and StreamsGroupDescribe (KIP-1071)."""

from collections.abc import Sequence

from alpacamq.protocol.notation import (
    Bool,
    ErrorText,
    GroupId,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    TopicName,
    Uint16,
)

from .metadata import OPERATIONS_NOT_ASKED_FOR


class KeyValue(Message):
    key: String
    value: String


class TopicInfo(Message):
    name: TopicName
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: Sequence[KeyValue] = []


class Endpoint(Message):
    host: String
    port: Uint16


class TaskOffset(Message):
    subtopology_id: String
    partition: Int32
    offset: Int64


class TaskIds(Message):
    subtopology_id: String
    partitions: Sequence[Int32] = []


class CopartitionGroup(Message):
    source_topics: Sequence[Int16] = []
    source_topic_regex: Sequence[Int16] = []
    repartition_source_topics: Sequence[Int16] = []


class HeartbeatSubtopology(Message):
    subtopology_id: String
    source_topics: Sequence[TopicName] = []
    source_topic_regex: Sequence[String] = []
    state_changelog_topics: Sequence[TopicInfo] = []
    repartition_sink_topics: Sequence[TopicName] = []
    repartition_source_topics: Sequence[TopicInfo] = []
    copartition_groups: Sequence[CopartitionGroup] = []


class HeartbeatTopology(Message):
    epoch: Int32 = 0
    subtopologies: Sequence[HeartbeatSubtopology] = []


class StreamsGroupHeartbeatRequest(Message, flexible_from=0):
    group_id: GroupId = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: HeartbeatTopology | None = None
    active_tasks: Sequence[TaskIds] | None = None
    standby_tasks: Sequence[TaskIds] | None = None
    warmup_tasks: Sequence[TaskIds] | None = None
    process_id: String | None = None
    user_endpoint: Endpoint | None = None
    client_tags: Sequence[KeyValue] | None = None
    task_offsets: Sequence[TaskOffset] | None = None
    task_end_offsets: Sequence[TaskOffset] | None = None
    shutdown_application: Bool = False


class GroupStatus(Message):
    status_code: Int8
    status_detail: ErrorText


class EndpointTopicPartitions(Message):
    topic: TopicName
    partitions: Sequence[Int32] = []


class EndpointToPartitions(Message):
    user_endpoint: Endpoint
    active_partitions: Sequence[EndpointTopicPartitions] = []
    standby_partitions: Sequence[EndpointTopicPartitions] = []


class StreamsGroupHeartbeatResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    member_id: String = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int32 = 0
    task_offset_interval_ms: Int32 = 0
    status: Sequence[GroupStatus] | None = None
    active_tasks: Sequence[TaskIds] | None = None
    standby_tasks: Sequence[TaskIds] | None = None
    warmup_tasks: Sequence[TaskIds] | None = None
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: Sequence[EndpointToPartitions] | None = None


class StreamsGroupDescribeRequest(Message, flexible_from=0):
    group_ids: Sequence[GroupId] = []
    include_authorized_operations: Bool = False


class DescribedSubtopology(Message):
    subtopology_id: String
    source_topics: Sequence[TopicName] = []
    repartition_sink_topics: Sequence[TopicName] = []
    state_changelog_topics: Sequence[TopicInfo] = []
    repartition_source_topics: Sequence[TopicInfo] = []


class DescribedTopology(Message):
    epoch: Int32 = 0
    subtopologies: Sequence[DescribedSubtopology] | None = None


class DescribedTasks(Message):
    active_tasks: Sequence[TaskIds] = []
    standby_tasks: Sequence[TaskIds] = []
    warmup_tasks: Sequence[TaskIds] = []


class DescribedStreamsMember(Message):
    member_id: String
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = None
    client_tags: Sequence[KeyValue] = []
    task_offsets: Sequence[TaskOffset] = []
    task_end_offsets: Sequence[TaskOffset] = []
    assignment: DescribedTasks = DescribedTasks()
    target_assignment: DescribedTasks = DescribedTasks()
    is_classic: Bool = False


class DescribedStreamsGroup(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    group_id: GroupId
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: DescribedTopology | None = None
    members: Sequence[DescribedStreamsMember] = []
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED_FOR


class StreamsGroupDescribeResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedStreamsGroup] = []
