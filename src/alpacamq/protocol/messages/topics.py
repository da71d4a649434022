"""Creating, deleting, widening and describing topics, and deleting the records at their start."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    ZERO_UUID,
    Bool,
    ErrorText,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    TopicName,
    Uuid,
    null_since,
    since,
    tag,
    until,
)

from .metadata import OPERATIONS_NOT_ASKED_FOR


class CreatableReplicaAssignment(Message):
    partition_index: Int32
    broker_ids: Sequence[Int32] = []


class CreatableTopicConfig(Message):
    name: String
    value: String | None = None


class CreatableTopic(Message):
    name: TopicName
    num_partitions: Int32 = -1
    replication_factor: Int16 = -1
    assignments: Sequence[CreatableReplicaAssignment] = []
    configs: Sequence[CreatableTopicConfig] = []


class CreateTopicsRequest(Message, flexible_from=5):
    topics: Sequence[CreatableTopic] = []
    timeout_ms: Int32 = 60_000
    validate_only: Bool = False


class CreatableTopicConfigs(Message):
    name: String
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Message):
    name: TopicName
    topic_id: Annotated[Uuid, since(7)] = ZERO_UUID
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    topic_config_error_code: Annotated[Int16, tag(0, since=5)] = 0
    num_partitions: Annotated[Int32, since(5)] = -1
    replication_factor: Annotated[Int16, since(5)] = -1
    configs: Annotated[Sequence[CreatableTopicConfigs] | None, since(5)] = None


class CreateTopicsResponse(Message, flexible_from=5):
    throttle_time_ms: Int32 = 0
    topics: Sequence[CreatableTopicResult] = []


class DeleteTopicState(Message):
    name: TopicName | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message, flexible_from=4):
    topics: Annotated[Sequence[DeleteTopicState], since(6)] = []
    topic_names: Annotated[Sequence[TopicName], until(5)] = []
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    name: Annotated[TopicName | None, null_since(6)] = None
    topic_id: Annotated[Uuid, since(6)] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[ErrorText | None, since(5)] = None


class DeleteTopicsResponse(Message, flexible_from=4):
    throttle_time_ms: Int32 = 0
    responses: Sequence[DeletableTopicResult] = []


class CreatePartitionsAssignment(Message):
    broker_ids: Sequence[Int32] = []


class CreatePartitionsTopic(Message):
    name: TopicName
    count: Int32
    assignments: Sequence[CreatePartitionsAssignment] | None = None


class CreatePartitionsRequest(Message, flexible_from=2):
    topics: Sequence[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message):
    name: TopicName
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class CreatePartitionsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    results: Sequence[CreatePartitionsTopicResult] = []


class DeleteRecordsPartition(Message):
    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(Message):
    name: TopicName
    partitions: Sequence[DeleteRecordsPartition] = []


class DeleteRecordsRequest(Message, flexible_from=2):
    topics: Sequence[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Message):
    partition_index: Int32
    low_watermark: Int64 = -1
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message):
    name: TopicName
    partitions: Sequence[DeleteRecordsPartitionResult] = []


class DeleteRecordsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    topics: Sequence[DeleteRecordsTopicResult] = []


class TopicRequest(Message):
    name: TopicName


class Cursor(Message):
    topic_name: TopicName
    partition_index: Int32


class DescribeTopicPartitionsRequest(Message, flexible_from=0):
    topics: Sequence[TopicRequest] = []
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: Sequence[Int32] = []
    isr_nodes: Sequence[Int32] = []
    eligible_leader_replicas: Sequence[Int32] | None = None
    last_known_elr: Sequence[Int32] | None = None
    offline_replicas: Sequence[Int32] = []


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: Int16 = 0
    name: TopicName | None = None
    topic_id: Uuid = ZERO_UUID
    is_internal: Bool = False
    partitions: Sequence[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: Int32 = OPERATIONS_NOT_ASKED_FOR


class DescribeTopicPartitionsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    topics: Sequence[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None
