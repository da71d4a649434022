"""Fetch: record batches from partitions. The hot path reads and writes these by hand; see fetch_codec."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    ZERO_UUID,
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
    tag,
    until,
)

from .leadership import LeaderIdAndEpoch, NodeEndpoint


class ReplicaState(Message):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message):
    partition: Int32
    current_leader_epoch: Annotated[Int32, since(9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, since(12)] = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[Uuid, tag(0, since=17)] = ZERO_UUID


class FetchTopic(Message):
    topic: Annotated[TopicName, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partitions: Sequence[FetchPartition] = []


class ForgottenTopic(Message):
    topic: Annotated[TopicName, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partitions: Sequence[Int32] = []


class FetchRequest(Message, flexible_from=12):
    cluster_id: Annotated[String | None, tag(0, since=12)] = None
    replica_id: Annotated[Int32, until(14)] = -1
    replica_state: Annotated[ReplicaState, tag(1, since=15)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, since(7)] = 0
    session_epoch: Annotated[Int32, since(7)] = -1
    topics: Sequence[FetchTopic] = []
    forgotten_topics_data: Annotated[Sequence[ForgottenTopic], since(7)] = []
    rack_id: Annotated[String, since(11)] = ""


class EpochEndOffset(Message):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(Message):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64
    first_offset: Int64


class PartitionData(Message):
    partition_index: Int32
    error_code: Int16 = 0
    high_watermark: Int64 = -1
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset, tag(0, since=12)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, tag(1, since=12)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, tag(2, since=12)] = SnapshotId()
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: Annotated[Int32, since(11)] = -1
    records: Records | None = None


class FetchableTopicResponse(Message):
    topic: Annotated[TopicName, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partitions: Sequence[PartitionData] = []


class FetchResponse(Message, flexible_from=12):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(7)] = 0
    session_id: Annotated[Int32, since(7)] = 0
    responses: Sequence[FetchableTopicResponse] = []
    node_endpoints: Annotated[Sequence[NodeEndpoint], tag(0, since=16)] = []
