"""ApiVersions, DescribeCluster, DescribeLogDirs and AlterReplicaLogDirs: brokers and their disks."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    Bool,
    ErrorText,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    TopicName,
    since,
    tag,
)

from .metadata import OPERATIONS_NOT_ASKED_FOR


class DescribeClusterRequest(Message, flexible_from=0):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, since(1)] = 1
    include_fenced_brokers: Annotated[Bool, since(2)] = False


class DescribeClusterBroker(Message):
    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None
    is_fenced: Annotated[Bool, since(2)] = False


class DescribeClusterResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    endpoint_type: Annotated[Int8, since(1)] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: Sequence[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = OPERATIONS_NOT_ASKED_FOR


class DescribableLogDirTopic(Message):
    topic: TopicName
    partitions: Sequence[Int32] = []


class DescribeLogDirsRequest(Message, flexible_from=2):
    topics: Sequence[DescribableLogDirTopic] | None = None


class DescribeLogDirsPartition(Message):
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Message):
    name: TopicName
    partitions: Sequence[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Message):
    error_code: Int16 = 0
    log_dir: String
    topics: Sequence[DescribeLogDirsTopic] = []
    total_bytes: Annotated[Int64, since(4)] = -1
    usable_bytes: Annotated[Int64, since(4)] = -1


class DescribeLogDirsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(3)] = 0
    results: Sequence[DescribeLogDirsResult] = []


class AlterReplicaLogDirTopic(Message):
    name: TopicName
    partitions: Sequence[Int32] = []


class AlterReplicaLogDir(Message):
    path: String
    topics: Sequence[AlterReplicaLogDirTopic] = []


class AlterReplicaLogDirsRequest(Message, flexible_from=2):
    dirs: Sequence[AlterReplicaLogDir] = []


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: Int32
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Message):
    topic_name: TopicName
    partitions: Sequence[AlterReplicaLogDirPartitionResult] = []


class AlterReplicaLogDirsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    results: Sequence[AlterReplicaLogDirTopicResult] = []


class ApiVersionsRequest(Message, flexible_from=3):
    client_software_name: Annotated[String, since(3)] = ""
    client_software_version: Annotated[String, since(3)] = ""


class ApiVersion(Message):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Message):
    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Message):
    name: String
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Message, flexible_from=3):
    error_code: Int16 = 0
    api_keys: Sequence[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    supported_features: Annotated[Sequence[SupportedFeatureKey], tag(0, since=3)] = []
    finalized_features_epoch: Annotated[Int64, tag(1, since=3)] = -1
    finalized_features: Annotated[Sequence[FinalizedFeatureKey], tag(2, since=3)] = []
    zk_migration_ready: Annotated[Bool, tag(3, since=3)] = False
