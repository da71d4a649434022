"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders: replicas and their leaders."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import Bool, ErrorText, Int8, Int16, Int32, Message, TopicName, since


class ReassignablePartition(Message):
    partition_index: Int32
    replicas: Sequence[Int32] | None = None


class ReassignableTopic(Message):
    name: TopicName
    partitions: Sequence[ReassignablePartition] = []


class AlterPartitionReassignmentsRequest(Message, flexible_from=0):
    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[Bool, since(1)] = True
    topics: Sequence[ReassignableTopic] = []


class ReassignablePartitionResponse(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class ReassignableTopicResponse(Message):
    name: TopicName
    partitions: Sequence[ReassignablePartitionResponse] = []


class AlterPartitionReassignmentsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, since(1)] = True
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    responses: Sequence[ReassignableTopicResponse] = []


class ListPartitionReassignmentsTopics(Message):
    name: TopicName
    partition_indexes: Sequence[Int32] = []


class ListPartitionReassignmentsRequest(Message, flexible_from=0):
    timeout_ms: Int32 = 60_000
    topics: Sequence[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Message):
    partition_index: Int32
    replicas: Sequence[Int32] = []
    adding_replicas: Sequence[Int32] = []
    removing_replicas: Sequence[Int32] = []


class OngoingTopicReassignment(Message):
    name: TopicName
    partitions: Sequence[OngoingPartitionReassignment] = []


class ListPartitionReassignmentsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    topics: Sequence[OngoingTopicReassignment] = []


class TopicPartitions(Message):
    topic: TopicName
    partitions: Sequence[Int32] = []


class ElectLeadersRequest(Message, flexible_from=2):
    election_type: Annotated[Int8, since(1)] = 0
    topic_partitions: Sequence[TopicPartitions] | None = None
    timeout_ms: Int32 = 60_000


class PartitionResult(Message):
    partition_id: Int32
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class ReplicaElectionResult(Message):
    topic: TopicName
    partition_result: Sequence[PartitionResult] = []


class ElectLeadersResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(1)] = 0
    replica_election_results: Sequence[ReplicaElectionResult] = []
