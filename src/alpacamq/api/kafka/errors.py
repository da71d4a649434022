"""The mapping of our errors to Kafka's error codes."""

from collections.abc import Mapping

from alpacamq.model import errors as e
from alpacamq.model.compression import TooMuchData
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError

from .fetch_sessions import FetchSessionNotFound, InvalidFetchSessionEpoch
from .share.sessions import InvalidShareSessionEpoch, ShareSessionLimitReached, ShareSessionNotFound

MAX_TEXT = 1000

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
    e.PartitionNotReady: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    e.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    e.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    e.InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    e.InvalidPartitionCount: ErrorCode.INVALID_PARTITIONS,
    e.InvalidReplication: ErrorCode.INVALID_REPLICATION_FACTOR,
    e.InvalidReplicaAssignment: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    e.InvalidConfig: ErrorCode.INVALID_CONFIG,
    e.InvalidRequiredAcks: ErrorCode.INVALID_REQUIRED_ACKS,
    e.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    e.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    e.UnknownLeaderEpoch: ErrorCode.UNKNOWN_LEADER_EPOCH,
    e.NotLeader: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    e.NotController: ErrorCode.NOT_CONTROLLER,
    # As Kafka does outside of Metadata: its consumer does not expect LEADER_NOT_AVAILABLE from a fetch.
    e.LeaderNotAvailable: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    e.OffsetNotAvailable: ErrorCode.OFFSET_NOT_AVAILABLE,
    e.NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    e.NotEnoughReplicasAfterAppend: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    e.RequestTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    e.PeerUnavailable: ErrorCode.NETWORK_EXCEPTION,
    e.PeerFailed: ErrorCode.UNKNOWN_SERVER_ERROR,
    e.UnknownBroker: ErrorCode.BROKER_ID_NOT_REGISTERED,
    e.DuplicateBroker: ErrorCode.DUPLICATE_BROKER_REGISTRATION,
    e.StaleBrokerEpoch: ErrorCode.STALE_BROKER_EPOCH,
    e.InvalidUpdateVersion: ErrorCode.INVALID_UPDATE_VERSION,
    e.IneligibleReplica: ErrorCode.INELIGIBLE_REPLICA,
    e.ElectionNotNeeded: ErrorCode.ELECTION_NOT_NEEDED,
    e.PreferredLeaderNotAvailable: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    e.EligibleLeadersNotAvailable: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    e.NoReassignmentInProgress: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    e.InconsistentClusterId: ErrorCode.INCONSISTENT_CLUSTER_ID,
    e.InvalidVoters: ErrorCode.INCONSISTENT_VOTER_SET,
    e.FeatureUpdateFailed: ErrorCode.FEATURE_UPDATE_FAILED,
    e.FencedProducer: ErrorCode.INVALID_PRODUCER_EPOCH,
    e.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    e.StorageFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    e.DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    e.DataInDoubt: ErrorCode.KAFKA_STORAGE_ERROR,
    e.DataDirectoryInUse: ErrorCode.KAFKA_STORAGE_ERROR,
    e.PolicyViolation: ErrorCode.POLICY_VIOLATION,
    e.InvalidGroupId: ErrorCode.INVALID_GROUP_ID,
    e.GroupIdNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    e.TooManyGroups: ErrorCode.GROUP_MAX_SIZE_REACHED,
    e.GroupMaxSizeReached: ErrorCode.GROUP_MAX_SIZE_REACHED,
    e.NonEmptyGroup: ErrorCode.NON_EMPTY_GROUP,
    e.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    e.UnknownMember: ErrorCode.UNKNOWN_MEMBER_ID,
    e.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    e.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    e.InconsistentGroupProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    e.FencedInstanceId: ErrorCode.FENCED_INSTANCE_ID,
    e.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
    e.StaleMemberEpoch: ErrorCode.STALE_MEMBER_EPOCH,
    e.FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    e.UnreleasedInstanceId: ErrorCode.UNRELEASED_INSTANCE_ID,
    e.UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
    e.InvalidRegularExpression: ErrorCode.INVALID_REGULAR_EXPRESSION,
    e.StreamsInvalidTopology: ErrorCode.STREAMS_INVALID_TOPOLOGY,
    e.GroupSubscribedToTopic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    e.OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    e.UnstableOffsetCommit: ErrorCode.UNSTABLE_OFFSET_COMMIT,
    e.CorruptState: ErrorCode.KAFKA_STORAGE_ERROR,
    e.InvalidLane: ErrorCode.INVALID_RECORD,
    e.InvalidReceipt: ErrorCode.INVALID_REQUEST,
    e.StaleReceipt: ErrorCode.INVALID_RECORD_STATE,
    e.NotAcquired: ErrorCode.INVALID_RECORD_STATE,
    e.TooManyInFlight: ErrorCode.INVALID_RECORD_STATE,
    e.TooManyWaiting: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    e.InvalidDelay: ErrorCode.INVALID_RECORD,
    e.UnknownDelayed: ErrorCode.INVALID_REQUEST,
    e.TooManyDelayed: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    e.RateLimited: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    e.ProducerFenced: ErrorCode.PRODUCER_FENCED,
    e.TransactionCoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    e.InvalidProducerIdMapping: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    e.InvalidTransactionState: ErrorCode.INVALID_TXN_STATE,
    e.ConcurrentTransactions: ErrorCode.CONCURRENT_TRANSACTIONS,
    e.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    e.TransactionalIdNotFound: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    e.TransactionAbortable: ErrorCode.TRANSACTION_ABORTABLE,
    e.CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    e.CoordinatorUnavailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    e.NotCoordinator: ErrorCode.NOT_COORDINATOR,
    e.AuthenticationFailed: ErrorCode.SASL_AUTHENTICATION_FAILED,
    e.InvalidCredential: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    e.InvalidPrincipal: ErrorCode.INVALID_REQUEST,
    e.UnknownUser: ErrorCode.RESOURCE_NOT_FOUND,
    e.UnknownApiKey: ErrorCode.RESOURCE_NOT_FOUND,
    e.InvalidAcl: ErrorCode.INVALID_REQUEST,
    e.SecurityDisabled: ErrorCode.SECURITY_DISABLED,
    e.FeatureNotEnabled: ErrorCode.UNSUPPORTED_VERSION,
    e.TopicNotAuthorized: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    e.GroupNotAuthorized: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    e.ClusterNotAuthorized: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    e.TransactionalIdNotAuthorized: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ProtocolError: ErrorCode.INVALID_REQUEST,
    FetchSessionNotFound: ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    InvalidFetchSessionEpoch: ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ShareSessionNotFound: ErrorCode.SHARE_SESSION_NOT_FOUND,
    InvalidShareSessionEpoch: ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ShareSessionLimitReached: ErrorCode.SHARE_SESSION_LIMIT_REACHED,
}


def code_of(error: e.AlpacaError) -> ErrorCode:
    """Return Kafka's error code for one of our errors."""
    return CODES[type(error)]


def text_of(error: e.AlpacaError) -> str:
    """Return the text of an error for a response, truncated: it may contain long names from the client."""
    text = str(error)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
