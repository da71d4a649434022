"""Metadata: brokers, topics and the leaders of their partitions."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    ZERO_UUID,
    Bool,
    Int16,
    Int32,
    Message,
    String,
    TopicName,
    Uuid,
    between,
    null_since,
    since,
)

# The value of allowed operations that were not requested.
OPERATIONS_NOT_ASKED_FOR = -(2**31)


class MetadataRequestTopic(Message):
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    name: Annotated[TopicName | None, null_since(10)] = None


class MetadataRequest(Message, flexible_from=9):
    topics: Annotated[Sequence[MetadataRequestTopic] | None, null_since(1)] = []
    allow_auto_topic_creation: Annotated[Bool, since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, between(8, 10)] = False
    include_topic_authorized_operations: Annotated[Bool, since(8)] = False


class MetadataResponseBroker(Message):
    node_id: Int32
    host: String
    port: Int32
    rack: Annotated[String | None, since(1)] = None


class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, since(7)] = -1
    replica_nodes: Sequence[Int32] = []
    isr_nodes: Sequence[Int32] = []
    offline_replicas: Annotated[Sequence[Int32], since(5)] = []


class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[TopicName | None, null_since(12)] = None
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    is_internal: Annotated[Bool, since(1)] = False
    partitions: Sequence[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[Int32, since(8)] = OPERATIONS_NOT_ASKED_FOR


class MetadataResponse(Message, flexible_from=9):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    brokers: Sequence[MetadataResponseBroker] = []
    cluster_id: Annotated[String | None, since(2)] = None
    controller_id: Annotated[Int32, since(1)] = -1
    topics: Sequence[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[Int32, between(8, 10)] = OPERATIONS_NOT_ASKED_FOR
    error_code: Annotated[Int16, since(13)] = 0
