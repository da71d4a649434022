"""ListOffsets and OffsetForLeaderEpoch: where a partition's log begins, ends, or was at a time or epoch."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import Int8, Int16, Int32, Int64, Message, TopicName, since


class ListOffsetsPartition(Message):
    partition_index: Int32
    current_leader_epoch: Annotated[Int32, since(4)] = -1
    timestamp: Int64


class ListOffsetsTopic(Message):
    name: TopicName
    partitions: Sequence[ListOffsetsPartition] = []


class ListOffsetsRequest(Message, flexible_from=6):
    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, since(2)] = 0
    topics: Sequence[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, since(10)] = 0


class ListOffsetsPartitionResponse(Message):
    partition_index: Int32
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, since(4)] = -1


class ListOffsetsTopicResponse(Message):
    name: TopicName
    partitions: Sequence[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Message, flexible_from=6):
    throttle_time_ms: Annotated[Int32, since(2)] = 0
    topics: Sequence[ListOffsetsTopicResponse] = []


class OffsetForLeaderPartition(Message):
    partition: Int32
    current_leader_epoch: Annotated[Int32, since(2)] = -1
    leader_epoch: Int32


class OffsetForLeaderTopic(Message):
    topic: TopicName
    partitions: Sequence[OffsetForLeaderPartition] = []


class OffsetForLeaderEpochRequest(Message, flexible_from=4):
    replica_id: Annotated[Int32, since(3)] = -2
    topics: Sequence[OffsetForLeaderTopic] = []


class EpochEndOffset(Message):
    error_code: Int16 = 0
    partition: Int32
    leader_epoch: Annotated[Int32, since(1)] = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: TopicName
    partitions: Sequence[EpochEndOffset] = []


class OffsetForLeaderEpochResponse(Message, flexible_from=4):
    throttle_time_ms: Annotated[Int32, since(2)] = 0
    topics: Sequence[OffsetForLeaderTopicResult] = []
