"""The only place where our errors meet Kafka's numbers."""

from collections.abc import Mapping

from alpacamq.model import errors as e
from alpacamq.model.compression import TooMuchData
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError

from .fetch_sessions import FetchSessionNotFound, InvalidFetchSessionEpoch

CODES: Mapping[type[e.AlpacaError], ErrorCode] = {
    e.InvalidRequest: ErrorCode.INVALID_REQUEST,
    e.CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    TooMuchData: ErrorCode.MESSAGE_TOO_LARGE,
    e.DamagedLog: ErrorCode.CORRUPT_MESSAGE,
    e.InvalidRecord: ErrorCode.INVALID_RECORD,
    e.InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    e.BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    e.UnsupportedCompression: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    e.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    e.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    e.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    e.InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    e.InvalidPartitionCount: ErrorCode.INVALID_PARTITIONS,
    e.InvalidReplication: ErrorCode.INVALID_REPLICATION_FACTOR,
    e.InvalidConfig: ErrorCode.INVALID_CONFIG,
    e.InvalidRequiredAcks: ErrorCode.INVALID_REQUIRED_ACKS,
    e.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    e.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    e.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    e.UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    e.FencedProducer: ErrorCode.INVALID_PRODUCER_EPOCH,
    e.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    e.StorageFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    e.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    e.DataInDoubt: ErrorCode.KAFKA_STORAGE_ERROR,
    e.DataDirectoryInUse: ErrorCode.KAFKA_STORAGE_ERROR,
    e.PolicyViolation: ErrorCode.POLICY_VIOLATION,
    ProtocolError: ErrorCode.INVALID_REQUEST,
    FetchSessionNotFound: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    InvalidFetchSessionEpoch: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
}


def code_of(error: e.AlpacaError) -> ErrorCode:
    """Kafka's number for one of our errors."""
    return CODES[type(error)]
