"""The errors of SQS as AWS documents them, and the mapping of our errors to them.

An error has two names: a type for the JSON protocol, and an older code for the query protocol and SDKs that
used it first.
"""

import re
from collections.abc import Mapping

import msgspec

from alpacamq.model import errors as e
from alpacamq.model.compression import TooMuchData

_SQS = "com.amazonaws.sqs#"
_COMMON = "com.amazon.coral.service#"
_QUERY = "AWS.SimpleQueueService."


class Kind(msgspec.Struct, frozen=True):
    """One kind of error, as AWS names it."""

    type: str
    code: str
    status: int = 400

    @property
    def is_senders(self) -> bool:
        """Whether the client caused the error."""
        return self.status < 500


QUEUE_DOES_NOT_EXIST = Kind(_SQS + "QueueDoesNotExist", _QUERY + "NonExistentQueue")
QUEUE_NAME_EXISTS = Kind(_SQS + "QueueNameExists", "QueueAlreadyExists")
PURGE_IN_PROGRESS = Kind(_SQS + "PurgeQueueInProgress", _QUERY + "PurgeQueueInProgress", 403)
OVER_LIMIT = Kind(_SQS + "OverLimit", "OverLimit", 403)
EMPTY_BATCH = Kind(_SQS + "EmptyBatchRequest", _QUERY + "EmptyBatchRequest")
TOO_MANY_ENTRIES = Kind(_SQS + "TooManyEntriesInBatchRequest", _QUERY + "TooManyEntriesInBatchRequest")
ENTRY_IDS_NOT_DISTINCT = Kind(_SQS + "BatchEntryIdsNotDistinct", _QUERY + "BatchEntryIdsNotDistinct")
INVALID_ENTRY_ID = Kind(_SQS + "InvalidBatchEntryId", _QUERY + "InvalidBatchEntryId")
BATCH_TOO_LONG = Kind(_SQS + "BatchRequestTooLong", _QUERY + "BatchRequestTooLong")
INVALID_ATTRIBUTE_NAME = Kind(_SQS + "InvalidAttributeName", "InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE = Kind(_SQS + "InvalidAttributeValue", "InvalidAttributeValue")
INVALID_CONTENTS = Kind(_SQS + "InvalidMessageContents", "InvalidMessageContents")
INVALID_RECEIPT = Kind(_SQS + "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid")
NOT_IN_FLIGHT = Kind(_SQS + "MessageNotInflight", _QUERY + "MessageNotInflight")
UNSUPPORTED_OPERATION = Kind(_SQS + "UnsupportedOperation", _QUERY + "UnsupportedOperation")
RESOURCE_NOT_FOUND = Kind(_SQS + "ResourceNotFoundException", "ResourceNotFoundException", 404)
INVALID_ADDRESS = Kind(_SQS + "InvalidAddress", "InvalidAddress", 404)
THROTTLED = Kind(_SQS + "RequestThrottled", "RequestThrottled", 403)

INVALID_PARAMETER = Kind(_COMMON + "InvalidParameterValueException", "InvalidParameterValue")
MISSING_PARAMETER = Kind(_COMMON + "MissingRequiredParameterException", "MissingParameter")
INVALID_ACTION = Kind(_COMMON + "UnknownOperationException", "InvalidAction")
# The query protocol without an action.
NO_ACTION = Kind(_COMMON + "MissingActionException", "UnknownOperationException", 404)
MALFORMED = Kind(_COMMON + "SerializationException", "MalformedInput")
MISSING_TOKEN = Kind(_COMMON + "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403)
INCOMPLETE_SIGNATURE = Kind(_COMMON + "IncompleteSignatureException", "IncompleteSignature")
UNKNOWN_KEY = Kind(_COMMON + "UnrecognizedClientException", "InvalidClientTokenId", 403)
WRONG_SIGNATURE = Kind(_COMMON + "InvalidSignatureException", "SignatureDoesNotMatch", 403)
ACCESS_DENIED = Kind(_COMMON + "AccessDeniedException", "AccessDenied", 403)
MISDIRECTED = Kind(_COMMON + "MisdirectedRequestException", "MisdirectedRequest", 421)
INTERNAL_FAILURE = Kind(_COMMON + "InternalFailure", "InternalFailure", 500)
UNAVAILABLE = Kind(_COMMON + "ServiceUnavailableException", "ServiceUnavailable", 503)


class Fault(Exception):
    """The error of a request, or of one entry of a batch."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def invalid_value(value: object, parameter: str, reason: str) -> Fault:
    """Return the error for an invalid parameter value, in the words of SQS."""
    return Fault(INVALID_PARAMETER, f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> Fault:
    """Return the error for a missing parameter."""
    return Fault(MISSING_PARAMETER, f"The request must contain the parameter {parameter}.")


# The only mapping of our errors to those of SQS. It includes errors of other APIs, because an error without
# an entry would be an internal failure.
CODES: Mapping[type[e.AlpacaError], Kind] = {
    e.InvalidRequest: INVALID_PARAMETER,
    e.CorruptBatch: INTERNAL_FAILURE,
    e.CorruptState: INTERNAL_FAILURE,
    TooMuchData: INTERNAL_FAILURE,
    e.DamagedLog: INTERNAL_FAILURE,
    e.InvalidRecord: INVALID_CONTENTS,
    e.SchemasUnavailable: UNAVAILABLE,
    e.InvalidTimestamp: INVALID_PARAMETER,
    e.BatchTooLarge: INVALID_PARAMETER,
    e.UnsupportedCompression: INTERNAL_FAILURE,
    e.UnknownTopic: QUEUE_DOES_NOT_EXIST,
    e.UnknownTopicId: QUEUE_DOES_NOT_EXIST,
    e.TopicExists: QUEUE_NAME_EXISTS,
    e.InvalidTopicName: INVALID_PARAMETER,
    e.InvalidPartitionCount: OVER_LIMIT,
    e.InvalidReplication: INTERNAL_FAILURE,
    e.InvalidReplicaAssignment: INTERNAL_FAILURE,
    e.InvalidConfig: INVALID_ATTRIBUTE_VALUE,
    e.InvalidRequiredAcks: INTERNAL_FAILURE,
    e.OffsetOutOfRange: INTERNAL_FAILURE,
    e.FencedLeaderEpoch: UNAVAILABLE,
    e.UnknownLeaderEpoch: UNAVAILABLE,
    e.NotLeader: UNAVAILABLE,
    e.NotController: UNAVAILABLE,
    e.LeaderNotAvailable: UNAVAILABLE,
    e.OffsetNotAvailable: UNAVAILABLE,
    e.NotEnoughReplicas: UNAVAILABLE,
    e.NotEnoughReplicasAfterAppend: UNAVAILABLE,
    e.RequestTimedOut: UNAVAILABLE,
    e.PeerUnavailable: UNAVAILABLE,
    e.PeerFailed: INTERNAL_FAILURE,
    e.UnknownBroker: INVALID_PARAMETER,
    e.DuplicateBroker: UNAVAILABLE,
    e.StaleBrokerEpoch: UNAVAILABLE,
    e.InvalidUpdateVersion: UNAVAILABLE,
    e.IneligibleReplica: UNAVAILABLE,
    e.ElectionNotNeeded: UNAVAILABLE,
    e.PreferredLeaderNotAvailable: UNAVAILABLE,
    e.EligibleLeadersNotAvailable: UNAVAILABLE,
    e.NoReassignmentInProgress: UNAVAILABLE,
    e.InconsistentClusterId: UNAVAILABLE,
    e.InvalidVoters: UNAVAILABLE,
    e.FeatureUpdateFailed: UNAVAILABLE,
    e.FencedProducer: UNAVAILABLE,
    e.OutOfOrderSequence: UNAVAILABLE,
    e.StorageFailed: UNAVAILABLE,
    e.DiskFull: UNAVAILABLE,
    e.DataInDoubt: UNAVAILABLE,
    e.DataDirectoryInUse: UNAVAILABLE,
    e.PolicyViolation: UNSUPPORTED_OPERATION,
    e.InvalidGroupId: INVALID_PARAMETER,
    e.GroupIdNotFound: QUEUE_DOES_NOT_EXIST,
    e.TooManyGroups: OVER_LIMIT,
    e.GroupMaxSizeReached: OVER_LIMIT,
    e.NonEmptyGroup: UNSUPPORTED_OPERATION,
    e.MemberIdRequired: INTERNAL_FAILURE,
    e.UnknownMember: INTERNAL_FAILURE,
    e.IllegalGeneration: INTERNAL_FAILURE,
    e.RebalanceInProgress: UNAVAILABLE,
    e.InconsistentGroupProtocol: INTERNAL_FAILURE,
    e.FencedInstanceId: INTERNAL_FAILURE,
    e.InvalidSessionTimeout: INVALID_PARAMETER,
    e.StaleMemberEpoch: INTERNAL_FAILURE,
    e.FencedMemberEpoch: INTERNAL_FAILURE,
    e.UnreleasedInstanceId: INTERNAL_FAILURE,
    e.UnsupportedAssignor: INVALID_PARAMETER,
    e.InvalidRegularExpression: INVALID_PARAMETER,
    e.StreamsInvalidTopology: INVALID_PARAMETER,
    e.GroupSubscribedToTopic: UNSUPPORTED_OPERATION,
    e.OffsetMetadataTooLarge: INVALID_PARAMETER,
    e.UnstableOffsetCommit: UNAVAILABLE,
    e.ProducerFenced: UNAVAILABLE,
    e.TransactionCoordinatorFenced: UNAVAILABLE,
    e.InvalidProducerIdMapping: INTERNAL_FAILURE,
    e.InvalidTransactionState: INTERNAL_FAILURE,
    e.ConcurrentTransactions: UNAVAILABLE,
    e.InvalidTransactionTimeout: INVALID_PARAMETER,
    e.TransactionalIdNotFound: INTERNAL_FAILURE,
    e.TransactionAbortable: UNAVAILABLE,
    e.PartitionNotReady: UNAVAILABLE,
    e.CoordinatorLoading: UNAVAILABLE,
    e.CoordinatorUnavailable: UNAVAILABLE,
    e.NotCoordinator: UNAVAILABLE,
    e.InvalidLane: INVALID_PARAMETER,
    e.InvalidReceipt: INVALID_RECEIPT,
    e.StaleReceipt: NOT_IN_FLIGHT,
    e.NotAcquired: NOT_IN_FLIGHT,
    e.TooManyInFlight: OVER_LIMIT,
    e.TooManyWaiting: THROTTLED,
    e.InvalidDelay: INVALID_PARAMETER,
    e.UnknownDelayed: INVALID_PARAMETER,
    e.TooManyDelayed: OVER_LIMIT,
    e.RateLimited: THROTTLED,
    e.QuotaExceeded: THROTTLED,
    e.UnsupportedQuotaEntity: INVALID_PARAMETER,
    e.AuthenticationFailed: UNKNOWN_KEY,
    e.InvalidCredential: INVALID_PARAMETER,
    e.InvalidPrincipal: INVALID_PARAMETER,
    e.UnknownUser: INVALID_PARAMETER,
    e.InvalidTenant: INVALID_PARAMETER,
    e.UnknownTenant: INVALID_PARAMETER,
    e.TenantExists: INVALID_PARAMETER,
    e.TenantLimitReached: OVER_LIMIT,
    e.TenantStorageFull: OVER_LIMIT,
    e.UnknownApiKey: INVALID_PARAMETER,
    e.InvalidAcl: INVALID_PARAMETER,
    e.SecurityDisabled: UNSUPPORTED_OPERATION,
    e.FeatureNotEnabled: UNSUPPORTED_OPERATION,
    e.TopicNotAuthorized: ACCESS_DENIED,
    e.GroupNotAuthorized: ACCESS_DENIED,
    e.ClusterNotAuthorized: ACCESS_DENIED,
    e.TransactionalIdNotAuthorized: ACCESS_DENIED,
    e.DelegationTokensDisabled: ACCESS_DENIED,
    e.DelegationTokenRequestNotAllowed: ACCESS_DENIED,
    e.DelegationTokenNotAuthorized: ACCESS_DENIED,
    e.DelegationTokenNotFound: ACCESS_DENIED,
    e.DelegationTokenOwnerMismatch: ACCESS_DENIED,
    e.DelegationTokenExpired: ACCESS_DENIED,
    e.InvalidPrincipalType: ACCESS_DENIED,
}


def fault_of(error: e.AlpacaError) -> Fault:
    """Return the SQS error for one of our errors."""
    return Fault(CODES.get(type(error), INTERNAL_FAILURE), str(error))


_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def has_forbidden(text: str) -> bool:
    """Return whether a text contains a character that SQS does not accept in messages."""
    # Most texts are printable ASCII, which takes no search to see.
    return not (text.isascii() and text.isprintable()) and _FORBIDDEN.search(text) is not None


def without_forbidden(text: str) -> str:
    """Replace each character that XML cannot represent with a question mark."""
    return _FORBIDDEN.sub("?", text)
