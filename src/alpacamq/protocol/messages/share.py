"""Share groups: membership, fetching and acknowledging records, start offsets."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    ZERO_UUID,
    Bool,
    ErrorText,
    GroupId,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    TopicName,
    Uuid,
    since,
)

from .consumer_groups import DescribedAssignment, HeartbeatAssignment
from .leadership import LeaderIdAndEpoch, NodeEndpoint
from .metadata import OPERATIONS_NOT_ASKED_FOR


class AcknowledgementBatch(Message):
    first_offset: Int64
    last_offset: Int64
    # One per offset, or one for all.
    acknowledge_types: Sequence[Int8] = []


class SharePartition(Message):
    partition_index: Int32
    acknowledgement_batches: Sequence[AcknowledgementBatch] = []


class ShareTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[SharePartition] = []


class ForgottenShareTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[Int32] = []


class ShareFetchRequest(Message, flexible_from=0):
    group_id: GroupId | None = None
    member_id: String | None = None
    share_session_epoch: Int32 = -1
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, since(2)] = 0
    is_renew_ack: Annotated[Bool, since(2)] = False
    topics: Sequence[ShareTopic] = []
    forgotten_topics_data: Sequence[ForgottenShareTopic] = []


class AcquiredRecords(Message):
    first_offset: Int64
    last_offset: Int64
    delivery_count: Int16


class ShareFetchedPartition(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: ErrorText | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    records: Records = b""
    acquired_records: Sequence[AcquiredRecords] = []


class ShareFetchedTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[ShareFetchedPartition] = []


class ShareFetchResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: Sequence[ShareFetchedTopic] = []
    node_endpoints: Sequence[NodeEndpoint] = []


class ShareAcknowledgeRequest(Message, flexible_from=0):
    group_id: GroupId | None = None
    member_id: String | None = None
    share_session_epoch: Int32 = -1
    is_renew_ack: Annotated[Bool, since(2)] = False
    topics: Sequence[ShareTopic] = []


class ShareAcknowledgedPartition(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()


class ShareAcknowledgedTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[ShareAcknowledgedPartition] = []


class ShareAcknowledgeResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, since(2)] = 0
    responses: Sequence[ShareAcknowledgedTopic] = []
    node_endpoints: Sequence[NodeEndpoint] = []


class ShareGroupHeartbeatRequest(Message, flexible_from=0):
    group_id: GroupId = ""
    member_id: String = ""
    member_epoch: Int32 = -1
    rack_id: String | None = None
    subscribed_topic_names: Sequence[TopicName] | None = None


class ShareGroupHeartbeatResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: HeartbeatAssignment | None = None


class ShareGroupDescribeRequest(Message, flexible_from=0):
    group_ids: Sequence[GroupId] = []
    include_authorized_operations: Bool = False


class DescribedShareMember(Message):
    member_id: String
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: Sequence[TopicName] = []
    assignment: DescribedAssignment = DescribedAssignment()


class DescribedShareGroup(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    group_id: GroupId
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: Sequence[DescribedShareMember] = []
    authorized_operations: Int32 = OPERATIONS_NOT_ASKED_FOR


class ShareGroupDescribeResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedShareGroup] = []


class DescribeShareGroupOffsetsRequestTopic(Message):
    topic_name: TopicName
    partitions: Sequence[Int32] = []


class DescribeShareGroupOffsetsRequestGroup(Message):
    group_id: GroupId
    topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = None


class DescribeShareGroupOffsetsRequest(Message, flexible_from=0):
    groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = []


class DescribeShareGroupOffsetsResponsePartition(Message):
    partition_index: Int32
    start_offset: Int64 = -1
    leader_epoch: Int32 = -1
    lag: Annotated[Int64, since(1)] = -1
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class DescribeShareGroupOffsetsResponseTopic(Message):
    topic_name: TopicName
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = []


class DescribeShareGroupOffsetsResponseGroup(Message):
    group_id: GroupId
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = []
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class DescribeShareGroupOffsetsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = []


class AlterShareGroupOffsetsRequestPartition(Message):
    partition_index: Int32
    start_offset: Int64


class AlterShareGroupOffsetsRequestTopic(Message):
    topic_name: TopicName
    partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = []


class AlterShareGroupOffsetsRequest(Message, flexible_from=0):
    group_id: GroupId = ""
    topics: Sequence[AlterShareGroupOffsetsRequestTopic] = []


class AlterShareGroupOffsetsResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class AlterShareGroupOffsetsResponseTopic(Message):
    topic_name: TopicName
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = []


class AlterShareGroupOffsetsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    responses: Sequence[AlterShareGroupOffsetsResponseTopic] = []


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: TopicName


class DeleteShareGroupOffsetsRequest(Message, flexible_from=0):
    group_id: GroupId = ""
    topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = []


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: TopicName
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class DeleteShareGroupOffsetsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = []
