"""Produce: record batches for partitions. The hot path reads and writes these by hand; see produce_codec."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    ZERO_UUID,
    ErrorText,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    TopicName,
    TransactionalId,
    Uuid,
    since,
    tag,
    until,
)

from .leadership import LeaderIdAndEpoch, NodeEndpoint


class PartitionProduceData(Message):
    index: Int32
    records: Records | None = None


class TopicProduceData(Message):
    name: Annotated[TopicName, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partition_data: Sequence[PartitionProduceData] = []


class ProduceRequest(Message, flexible_from=9):
    transactional_id: TransactionalId | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: Sequence[TopicProduceData] = []


class BatchIndexAndErrorMessage(Message):
    batch_index: Int32
    batch_index_error_message: ErrorText | None = None


class PartitionProduceResponse(Message):
    index: Int32
    error_code: Int16 = 0
    base_offset: Int64 = -1
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    record_errors: Annotated[Sequence[BatchIndexAndErrorMessage], since(8)] = []
    error_message: Annotated[ErrorText | None, since(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, tag(0, since=10)] = LeaderIdAndEpoch()


class TopicProduceResponse(Message):
    name: Annotated[TopicName, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partition_responses: Sequence[PartitionProduceResponse] = []


class ProduceResponse(Message, flexible_from=9):
    responses: Sequence[TopicProduceResponse] = []
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], tag(0, since=10)] = []
