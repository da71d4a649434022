"""OffsetCommit, OffsetFetch and OffsetDelete: committed offsets of groups."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    ZERO_UUID,
    Bool,
    GroupId,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    TopicName,
    Uuid,
    between,
    null_since,
    since,
    until,
)


class OffsetCommitRequestPartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, since(6)] = -1
    committed_metadata: String | None = None


class OffsetCommitRequestTopic(Message):
    name: Annotated[TopicName, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    partitions: Sequence[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Message, flexible_from=8):
    group_id: GroupId = ""
    generation_id_or_member_epoch: Annotated[Int32, since(1)] = -1
    member_id: Annotated[String, since(1)] = ""
    group_instance_id: Annotated[String | None, since(7)] = None
    retention_time_ms: Annotated[Int64, between(2, 4)] = -1
    topics: Sequence[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    name: Annotated[TopicName, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    partitions: Sequence[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Message, flexible_from=8):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    topics: Sequence[OffsetCommitResponseTopic] = []


class OffsetFetchRequestTopic(Message):
    name: TopicName
    partition_indexes: Sequence[Int32] = []


class OffsetFetchRequestTopics(Message):
    name: Annotated[TopicName, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    partition_indexes: Sequence[Int32] = []


class OffsetFetchRequestGroup(Message):
    group_id: GroupId
    member_id: Annotated[String | None, since(9)] = None
    member_epoch: Annotated[Int32, since(9)] = -1
    topics: Sequence[OffsetFetchRequestTopics] | None = None


class OffsetFetchRequest(Message, flexible_from=6):
    group_id: Annotated[GroupId, until(7)] = ""
    topics: Annotated[Sequence[OffsetFetchRequestTopic] | None, null_since(2), until(7)] = []
    groups: Annotated[Sequence[OffsetFetchRequestGroup], since(8)] = []
    require_stable: Annotated[Bool, since(7)] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Int32
    committed_offset: Int64 = -1
    committed_leader_epoch: Annotated[Int32, since(5)] = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message):
    name: TopicName
    partitions: Sequence[OffsetFetchResponsePartition] = []


class OffsetFetchResponseTopics(Message):
    name: Annotated[TopicName, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    partitions: Sequence[OffsetFetchResponsePartition] = []


class OffsetFetchResponseGroup(Message):
    group_id: GroupId
    topics: Sequence[OffsetFetchResponseTopics] = []
    error_code: Int16 = 0


class OffsetFetchResponse(Message, flexible_from=6):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    topics: Annotated[Sequence[OffsetFetchResponseTopic], until(7)] = []
    error_code: Annotated[Int16, between(2, 7)] = 0
    groups: Annotated[Sequence[OffsetFetchResponseGroup], since(8)] = []


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32


class OffsetDeleteRequestTopic(Message):
    name: TopicName
    partitions: Sequence[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Message):
    group_id: GroupId = ""
    topics: Sequence[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    name: TopicName
    partitions: Sequence[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Message):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetDeleteResponseTopic] = []
