"""DescribeQuorum, AddRaftVoter, RemoveRaftVoter, UnregisterBroker and UpdateFeatures: nodes."""

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
    Uint16,
    Uuid,
    since,
    until,
)


class QuorumPartition(Message):
    partition_index: Int32


class QuorumTopic(Message):
    topic_name: TopicName
    partitions: Sequence[QuorumPartition] = []


class DescribeQuorumRequest(Message, flexible_from=0):
    topics: Sequence[QuorumTopic] = []


class ReplicaState(Message):
    replica_id: Int32
    replica_directory_id: Annotated[Uuid, since(2)] = ZERO_UUID
    log_end_offset: Int64 = -1
    last_fetch_timestamp: Annotated[Int64, since(1)] = -1
    last_caught_up_timestamp: Annotated[Int64, since(1)] = -1


class DescribedQuorumPartition(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: Annotated[ErrorText | None, since(2)] = None
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    high_watermark: Int64 = -1
    current_voters: Sequence[ReplicaState] = []
    observers: Sequence[ReplicaState] = []


class DescribedQuorumTopic(Message):
    topic_name: TopicName
    partitions: Sequence[DescribedQuorumPartition] = []


class Listener(Message):
    name: String
    host: String
    port: Uint16


class QuorumNode(Message):
    node_id: Int32
    listeners: Sequence[Listener] = []


class DescribeQuorumResponse(Message, flexible_from=0):
    error_code: Int16 = 0
    error_message: Annotated[ErrorText | None, since(2)] = None
    topics: Sequence[DescribedQuorumTopic] = []
    nodes: Annotated[Sequence[QuorumNode], since(2)] = []


class AddRaftVoterRequest(Message, flexible_from=0):
    cluster_id: String | None = None
    timeout_ms: Int32 = 0
    voter_id: Int32 = -1
    voter_directory_id: Uuid = ZERO_UUID
    listeners: Sequence[Listener] = []
    ack_when_committed: Annotated[Bool, since(1)] = True


class AddRaftVoterResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class RemoveRaftVoterRequest(Message, flexible_from=0):
    cluster_id: String | None = None
    voter_id: Int32 = -1
    voter_directory_id: Uuid = ZERO_UUID


class RemoveRaftVoterResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class UnregisterBrokerRequest(Message, flexible_from=0):
    broker_id: Int32 = -1


class UnregisterBrokerResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class FeatureUpdateKey(Message):
    feature: String
    max_version_level: Int16
    allow_downgrade: Annotated[Bool, until(0)] = False
    upgrade_type: Annotated[Int8, since(1)] = 1


class UpdateFeaturesRequest(Message, flexible_from=0):
    timeout_ms: Int32 = 60_000
    feature_updates: Sequence[FeatureUpdateKey] = []
    validate_only: Annotated[Bool, since(1)] = False


class UpdatableFeatureResult(Message):
    feature: String
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class UpdateFeaturesResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    results: Annotated[Sequence[UpdatableFeatureResult], until(1)] = []
