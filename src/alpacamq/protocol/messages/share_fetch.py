"""ShareFetch and ShareAcknowledge: fetch and acknowledge records of share groups."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    ZERO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uuid,
    since,
)

from .leadership import LeaderIdAndEpoch, NodeEndpoint


class AcknowledgementBatch(Message):
    first_offset: Int64
    last_offset: Int64
    # One per offset, or one for all.
    acknowledge_types: Sequence[Int8] = []


class SharePartition(Message):
    partition_index: Int32
    acknowledgement_batches: Sequence[AcknowledgementBatch] = []


class ShareTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[SharePartition] = []


class ForgottenShareTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[Int32] = []


class ShareFetchRequest(Message, flexible_from=0):
    group_id: String | None = None
    member_id: String | None = None
    share_session_epoch: Int32 = -1
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, since(2)] = 0
    is_renew_ack: Annotated[Bool, since(2)] = False
    topics: Sequence[ShareTopic] = []
    forgotten_topics_data: Sequence[ForgottenShareTopic] = []


class AcquiredRecords(Message):
    first_offset: Int64
    last_offset: Int64
    delivery_count: Int16


class ShareFetchedPartition(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    records: Records = b""
    acquired_records: Sequence[AcquiredRecords] = []


class ShareFetchedTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[ShareFetchedPartition] = []


class ShareFetchResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: Sequence[ShareFetchedTopic] = []
    node_endpoints: Sequence[NodeEndpoint] = []


class ShareAcknowledgeRequest(Message, flexible_from=0):
    group_id: String | None = None
    member_id: String | None = None
    share_session_epoch: Int32 = -1
    is_renew_ack: Annotated[Bool, since(2)] = False
    topics: Sequence[ShareTopic] = []


class ShareAcknowledgedPartition(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()


class ShareAcknowledgedTopic(Message):
    topic_id: Uuid = ZERO_UUID
    partitions: Sequence[ShareAcknowledgedPartition] = []


class ShareAcknowledgeResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, since(2)] = 0
    responses: Sequence[ShareAcknowledgedTopic] = []
    node_endpoints: Sequence[NodeEndpoint] = []
