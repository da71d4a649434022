"""Describe, alter and delete the start offsets of share groups."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import ZERO_UUID, Int16, Int32, Int64, Message, String, Uuid, since


class DescribeShareGroupOffsetsRequestTopic(Message):
    topic_name: String
    partitions: Sequence[Int32] = []


class DescribeShareGroupOffsetsRequestGroup(Message):
    group_id: String
    topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = None


class DescribeShareGroupOffsetsRequest(Message, flexible_from=0):
    groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = []


class DescribeShareGroupOffsetsResponsePartition(Message):
    partition_index: Int32
    start_offset: Int64 = -1
    leader_epoch: Int32 = -1
    lag: Annotated[Int64, since(1)] = -1
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponseTopic(Message):
    topic_name: String
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = []


class DescribeShareGroupOffsetsResponseGroup(Message):
    group_id: String
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = []
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = []


class AlterShareGroupOffsetsRequestPartition(Message):
    partition_index: Int32
    start_offset: Int64


class AlterShareGroupOffsetsRequestTopic(Message):
    topic_name: String
    partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = []


class AlterShareGroupOffsetsRequest(Message, flexible_from=0):
    group_id: String = ""
    topics: Sequence[AlterShareGroupOffsetsRequestTopic] = []


class AlterShareGroupOffsetsResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class AlterShareGroupOffsetsResponseTopic(Message):
    topic_name: String
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = []


class AlterShareGroupOffsetsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Sequence[AlterShareGroupOffsetsResponseTopic] = []


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: String


class DeleteShareGroupOffsetsRequest(Message, flexible_from=0):
    group_id: String = ""
    topics: Sequence[DeleteShareGroupOffsetsRequestTopic] = []


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: String
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteShareGroupOffsetsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Sequence[DeleteShareGroupOffsetsResponseTopic] = []
