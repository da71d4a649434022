"""InitProducerId, and transactions: adding to them, ending them, their markers, describing them."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    Bool,
    ErrorText,
    GroupId,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    TopicName,
    TransactionalId,
    since,
    until,
)


class TransactionTopic(Message):
    name: TopicName
    partitions: Sequence[Int32] = []


class AddPartitionsToTxnTransaction(Message):
    transactional_id: TransactionalId
    producer_id: Int64
    producer_epoch: Int16
    verify_only: Bool = False
    topics: Sequence[TransactionTopic] = []


class AddPartitionsToTxnRequest(Message, flexible_from=3):
    transactions: Annotated[Sequence[AddPartitionsToTxnTransaction], since(4)] = []
    v3_and_below_transactional_id: Annotated[TransactionalId, until(3)] = ""
    v3_and_below_producer_id: Annotated[Int64, until(3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, until(3)] = 0
    v3_and_below_topics: Annotated[Sequence[TransactionTopic], until(3)] = []


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: Int32
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Message):
    name: TopicName
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = []


class AddPartitionsToTxnResult(Message):
    transactional_id: TransactionalId
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = []


class AddPartitionsToTxnResponse(Message, flexible_from=3):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(4)] = 0
    results_by_transaction: Annotated[Sequence[AddPartitionsToTxnResult], since(4)] = []
    results_by_topic_v3_and_below: Annotated[Sequence[AddPartitionsToTxnTopicResult], until(3)] = []


class AddOffsetsToTxnRequest(Message, flexible_from=3):
    transactional_id: TransactionalId = ""
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    group_id: GroupId = ""


class AddOffsetsToTxnResponse(Message, flexible_from=3):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


class EndTxnRequest(Message, flexible_from=3):
    transactional_id: TransactionalId = ""
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    committed: Bool = False


class EndTxnResponse(Message, flexible_from=3):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, since(5)] = -1
    producer_epoch: Annotated[Int16, since(5)] = -1


class WritableTxnMarkerTopic(Message):
    name: TopicName
    partition_indexes: Sequence[Int32] = []


class WritableTxnMarker(Message):
    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: Sequence[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32


class WriteTxnMarkersRequest(Message, flexible_from=1):
    markers: Sequence[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Message):
    partition_index: Int32
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    name: TopicName
    partitions: Sequence[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Message):
    producer_id: Int64
    topics: Sequence[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(Message, flexible_from=1):
    markers: Sequence[WritableTxnMarkerResult] = []


class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, since(2)] = -1
    committed_metadata: String | None = None


class TxnOffsetCommitRequestTopic(Message):
    name: TopicName
    partitions: Sequence[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Message, flexible_from=3):
    transactional_id: TransactionalId = ""
    group_id: GroupId = ""
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    generation_id: Annotated[Int32, since(3)] = -1
    member_id: Annotated[String, since(3)] = ""
    group_instance_id: Annotated[String | None, since(3)] = None
    topics: Sequence[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    name: TopicName
    partitions: Sequence[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Message, flexible_from=3):
    throttle_time_ms: Int32 = 0
    topics: Sequence[TxnOffsetCommitResponseTopic] = []


class DescribeProducersTopic(Message):
    name: TopicName
    partition_indexes: Sequence[Int32] = []


class DescribeProducersRequest(Message, flexible_from=0):
    topics: Sequence[DescribeProducersTopic] = []


class ProducerState(Message):
    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = -1
    current_txn_start_offset: Int64 = -1


class DescribeProducersPartitionResult(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    active_producers: Sequence[ProducerState] = []


class DescribeProducersTopicResult(Message):
    name: TopicName
    partitions: Sequence[DescribeProducersPartitionResult] = []


class DescribeProducersResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    topics: Sequence[DescribeProducersTopicResult] = []


class DescribeTransactionsRequest(Message, flexible_from=0):
    transactional_ids: Sequence[TransactionalId] = []


class DescribedTransactionTopic(Message):
    topic: TopicName
    partitions: Sequence[Int32] = []


class DescribedTransaction(Message):
    error_code: Int16 = 0
    transactional_id: TransactionalId
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = -1
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    topics: Sequence[DescribedTransactionTopic] = []


class DescribeTransactionsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    transaction_states: Sequence[DescribedTransaction] = []


class ListTransactionsRequest(Message, flexible_from=0):
    state_filters: Sequence[String] = []
    producer_id_filters: Sequence[Int64] = []
    duration_filter: Annotated[Int64, since(1)] = -1


class ListedTransaction(Message):
    transactional_id: TransactionalId
    producer_id: Int64
    transaction_state: String


class ListTransactionsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: Sequence[String] = []
    transaction_states: Sequence[ListedTransaction] = []


class InitProducerIdRequest(Message, flexible_from=2):
    transactional_id: TransactionalId | None = None
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, since(3)] = -1
    producer_epoch: Annotated[Int16, since(3)] = -1


class InitProducerIdResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
