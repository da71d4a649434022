"""The mapping of errors to gRPC: a canonical code, and details of `google.rpc` for programs.

ErrorInfo names the error as Kafka does, BadRequest the field of an invalid request, RetryInfo when to try
again.
"""

from collections.abc import Mapping
from http import HTTPStatus

from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status as RpcStatus
from grpclib.const import Status

from alpacamq.api.kafka.errors import CODES as KAFKA_CODES
from alpacamq.api.registry.errors import CODES as REGISTRY_CODES
from alpacamq.api.rest import errors as rest
from alpacamq.model import errors as e
from alpacamq.model.compression import TooMuchData
from alpacamq.model.names import localized
from alpacamq.protocol.error_codes import ErrorCode

DOMAIN = "alpacamq"
RETRY_MS = 1000
# Statuses are sent as headers.
MAX_TEXT = 1000


class InvalidField(e.AlpacaError):
    """A field of a request is invalid; `field` is its path, as `open.credit`."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field


class MessageTooLarge(e.AlpacaError):
    """A message of the client exceeds grpc.max_message_bytes."""


class ShuttingDown(e.AlpacaError):
    """The broker stops; the client continues with another one."""


class Overloaded(e.AlpacaError):
    """Requests in progress use all the memory that they may use."""


class Unimplemented(e.AlpacaError):
    """No service has this method, or it cannot do what the request asks for."""


class UnknownService(e.AlpacaError):
    """There is no service of this name."""


class Expired(e.AlpacaError):
    """The deadline of the client has passed."""


class InternalError(e.AlpacaError):
    """A bug of the broker, which its log describes."""


class Malformed(e.AlpacaError):
    """The bytes of a message are not what the method takes."""


# Errors that only the schema registry has.
SCHEMA_CODES: Mapping[type[e.AlpacaError], Status] = {
    kind: {
        HTTPStatus.NOT_FOUND: Status.NOT_FOUND,
        HTTPStatus.CONFLICT: Status.FAILED_PRECONDITION,
        HTTPStatus.INTERNAL_SERVER_ERROR: Status.INTERNAL,
    }.get(code.status, Status.INVALID_ARGUMENT)
    for kind, code in REGISTRY_CODES.items()
    if kind not in rest.CODES
}

CODES: Mapping[type[e.AlpacaError], Status] = {
    **SCHEMA_CODES,
    InvalidField: Status.INVALID_ARGUMENT,
    MessageTooLarge: Status.RESOURCE_EXHAUSTED,
    ShuttingDown: Status.UNAVAILABLE,
    Overloaded: Status.RESOURCE_EXHAUSTED,
    Unimplemented: Status.UNIMPLEMENTED,
    UnknownService: Status.NOT_FOUND,
    Expired: Status.DEADLINE_EXCEEDED,
    InternalError: Status.INTERNAL,
    Malformed: Status.INTERNAL,
    rest.InvalidInput: Status.INVALID_ARGUMENT,
    rest.ConflictingInput: Status.INVALID_ARGUMENT,
    rest.UnsupportedMediaType: Status.INVALID_ARGUMENT,
    rest.CrossOrigin: Status.PERMISSION_DENIED,
    rest.CsrfTokenMissing: Status.PERMISSION_DENIED,
    rest.UnknownPath: Status.NOT_FOUND,
    rest.MethodNotAllowed: Status.UNIMPLEMENTED,
    rest.UnknownTask: Status.NOT_FOUND,
    rest.NotCompacted: Status.FAILED_PRECONDITION,
    rest.AlreadyExists: Status.ALREADY_EXISTS,
    rest.UnknownAcl: Status.NOT_FOUND,
    rest.UnknownTrace: Status.NOT_FOUND,
    rest.UnknownProducer: Status.NOT_FOUND,
    rest.Degraded: Status.UNAVAILABLE,
    rest.Recovering: Status.UNAVAILABLE,
    rest.MetricsDisabled: Status.UNIMPLEMENTED,
    e.InvalidRequest: Status.INVALID_ARGUMENT,
    e.CorruptBatch: Status.INVALID_ARGUMENT,
    TooMuchData: Status.INVALID_ARGUMENT,
    e.CorruptState: Status.DATA_LOSS,
    e.DamagedLog: Status.DATA_LOSS,
    e.InvalidRecord: Status.INVALID_ARGUMENT,
    e.SchemasUnavailable: Status.UNAVAILABLE,
    e.InvalidTimestamp: Status.INVALID_ARGUMENT,
    e.BatchTooLarge: Status.INVALID_ARGUMENT,
    e.UnsupportedCompression: Status.INVALID_ARGUMENT,
    e.UnknownTopic: Status.NOT_FOUND,
    e.UnknownTopicId: Status.NOT_FOUND,
    e.TopicExists: Status.ALREADY_EXISTS,
    e.InvalidTopicName: Status.INVALID_ARGUMENT,
    e.InvalidPartitionCount: Status.INVALID_ARGUMENT,
    e.InvalidReplication: Status.INVALID_ARGUMENT,
    e.InvalidReplicaAssignment: Status.INVALID_ARGUMENT,
    e.InvalidConfig: Status.INVALID_ARGUMENT,
    e.InvalidRequiredAcks: Status.INVALID_ARGUMENT,
    e.OffsetOutOfRange: Status.OUT_OF_RANGE,
    e.FencedLeaderEpoch: Status.ABORTED,
    e.UnknownLeaderEpoch: Status.UNAVAILABLE,
    e.NotLeader: Status.UNAVAILABLE,
    e.NotController: Status.UNAVAILABLE,
    e.LeaderNotAvailable: Status.UNAVAILABLE,
    e.OffsetNotAvailable: Status.UNAVAILABLE,
    e.NotEnoughReplicas: Status.UNAVAILABLE,
    e.NotEnoughReplicasAfterAppend: Status.UNAVAILABLE,
    e.RequestTimedOut: Status.DEADLINE_EXCEEDED,
    e.PeerUnavailable: Status.UNAVAILABLE,
    e.PeerFailed: Status.INTERNAL,
    e.UnknownBroker: Status.NOT_FOUND,
    e.DuplicateBroker: Status.ALREADY_EXISTS,
    e.StaleBrokerEpoch: Status.ABORTED,
    e.InvalidUpdateVersion: Status.ABORTED,
    e.IneligibleReplica: Status.FAILED_PRECONDITION,
    e.ElectionNotNeeded: Status.FAILED_PRECONDITION,
    e.PreferredLeaderNotAvailable: Status.UNAVAILABLE,
    e.EligibleLeadersNotAvailable: Status.UNAVAILABLE,
    e.NoReassignmentInProgress: Status.FAILED_PRECONDITION,
    e.InconsistentClusterId: Status.FAILED_PRECONDITION,
    e.InvalidVoters: Status.FAILED_PRECONDITION,
    e.FeatureUpdateFailed: Status.FAILED_PRECONDITION,
    e.FencedProducer: Status.ABORTED,
    e.OutOfOrderSequence: Status.ABORTED,
    e.StorageFailed: Status.INTERNAL,
    e.DiskFull: Status.RESOURCE_EXHAUSTED,
    e.DataInDoubt: Status.DATA_LOSS,
    e.DataDirectoryInUse: Status.INTERNAL,
    e.PolicyViolation: Status.FAILED_PRECONDITION,
    e.InvalidGroupId: Status.INVALID_ARGUMENT,
    e.GroupIdNotFound: Status.NOT_FOUND,
    e.TooManyGroups: Status.RESOURCE_EXHAUSTED,
    e.GroupMaxSizeReached: Status.RESOURCE_EXHAUSTED,
    e.NonEmptyGroup: Status.FAILED_PRECONDITION,
    e.MemberIdRequired: Status.ABORTED,
    e.UnknownMember: Status.NOT_FOUND,
    e.IllegalGeneration: Status.ABORTED,
    e.RebalanceInProgress: Status.ABORTED,
    e.InconsistentGroupProtocol: Status.FAILED_PRECONDITION,
    e.FencedInstanceId: Status.ABORTED,
    e.InvalidSessionTimeout: Status.INVALID_ARGUMENT,
    e.StaleMemberEpoch: Status.ABORTED,
    e.FencedMemberEpoch: Status.ABORTED,
    e.UnreleasedInstanceId: Status.FAILED_PRECONDITION,
    e.UnsupportedAssignor: Status.INVALID_ARGUMENT,
    e.InvalidRegularExpression: Status.INVALID_ARGUMENT,
    e.StreamsInvalidTopology: Status.INVALID_ARGUMENT,
    e.GroupSubscribedToTopic: Status.FAILED_PRECONDITION,
    e.OffsetMetadataTooLarge: Status.INVALID_ARGUMENT,
    e.UnstableOffsetCommit: Status.UNAVAILABLE,
    e.InvalidLane: Status.INVALID_ARGUMENT,
    e.InvalidReceipt: Status.INVALID_ARGUMENT,
    e.StaleReceipt: Status.FAILED_PRECONDITION,
    e.NotAcquired: Status.FAILED_PRECONDITION,
    e.TooManyInFlight: Status.RESOURCE_EXHAUSTED,
    e.TooManyWaiting: Status.RESOURCE_EXHAUSTED,
    e.InvalidDelay: Status.INVALID_ARGUMENT,
    e.UnknownDelayed: Status.NOT_FOUND,
    e.TooManyDelayed: Status.RESOURCE_EXHAUSTED,
    e.RateLimited: Status.RESOURCE_EXHAUSTED,
    e.QuotaExceeded: Status.RESOURCE_EXHAUSTED,
    e.UnsupportedQuotaEntity: Status.INVALID_ARGUMENT,
    e.ProducerFenced: Status.ABORTED,
    e.TransactionCoordinatorFenced: Status.UNAVAILABLE,
    e.InvalidProducerIdMapping: Status.ABORTED,
    e.InvalidTransactionState: Status.FAILED_PRECONDITION,
    e.ConcurrentTransactions: Status.ABORTED,
    e.InvalidTransactionTimeout: Status.INVALID_ARGUMENT,
    e.TransactionalIdNotFound: Status.NOT_FOUND,
    e.TransactionAbortable: Status.ABORTED,
    e.PartitionNotReady: Status.UNAVAILABLE,
    e.CoordinatorLoading: Status.UNAVAILABLE,
    e.CoordinatorUnavailable: Status.UNAVAILABLE,
    e.NotCoordinator: Status.UNAVAILABLE,
    e.AuthenticationFailed: Status.UNAUTHENTICATED,
    e.InvalidCredential: Status.INVALID_ARGUMENT,
    e.InvalidPrincipal: Status.INVALID_ARGUMENT,
    e.UnknownUser: Status.NOT_FOUND,
    e.InvalidTenant: Status.INVALID_ARGUMENT,
    e.UnknownTenant: Status.NOT_FOUND,
    e.TenantExists: Status.ALREADY_EXISTS,
    e.TenantLimitReached: Status.RESOURCE_EXHAUSTED,
    e.TenantStorageFull: Status.RESOURCE_EXHAUSTED,
    e.UnknownApiKey: Status.NOT_FOUND,
    e.InvalidAcl: Status.INVALID_ARGUMENT,
    e.SecurityDisabled: Status.FAILED_PRECONDITION,
    e.FeatureNotEnabled: Status.FAILED_PRECONDITION,
    e.TopicNotAuthorized: Status.PERMISSION_DENIED,
    e.GroupNotAuthorized: Status.PERMISSION_DENIED,
    e.ClusterNotAuthorized: Status.PERMISSION_DENIED,
    e.TransactionalIdNotAuthorized: Status.PERMISSION_DENIED,
    e.DelegationTokensDisabled: Status.FAILED_PRECONDITION,
    e.DelegationTokenRequestNotAllowed: Status.PERMISSION_DENIED,
    e.DelegationTokenNotAuthorized: Status.PERMISSION_DENIED,
    e.DelegationTokenNotFound: Status.NOT_FOUND,
    e.DelegationTokenOwnerMismatch: Status.PERMISSION_DENIED,
    e.DelegationTokenExpired: Status.FAILED_PRECONDITION,
    e.InvalidPrincipalType: Status.INVALID_ARGUMENT,
}
# Of errors that Kafka has no name for.
REASONS: Mapping[type[e.AlpacaError], ErrorCode] = {
    InvalidField: ErrorCode.INVALID_REQUEST,
    MessageTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    ShuttingDown: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    Overloaded: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    Unimplemented: ErrorCode.UNSUPPORTED_VERSION,
    UnknownService: ErrorCode.RESOURCE_NOT_FOUND,
    Expired: ErrorCode.REQUEST_TIMED_OUT,
    Malformed: ErrorCode.CORRUPT_MESSAGE,
    rest.InvalidInput: ErrorCode.INVALID_REQUEST,
    rest.ConflictingInput: ErrorCode.INVALID_REQUEST,
    rest.UnknownTask: ErrorCode.RESOURCE_NOT_FOUND,
    rest.AlreadyExists: ErrorCode.DUPLICATE_RESOURCE,
    rest.UnknownAcl: ErrorCode.RESOURCE_NOT_FOUND,
    rest.UnknownTrace: ErrorCode.RESOURCE_NOT_FOUND,
    rest.UnknownProducer: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    rest.NotCompacted: ErrorCode.POLICY_VIOLATION,
}
# Errors that may pass by themselves; those of UNAVAILABLE are among them.
_PASSING = frozenset(
    {
        Overloaded,
        e.ConcurrentTransactions,
        e.RebalanceInProgress,
        e.RequestTimedOut,
        e.TooManyInFlight,
        e.TooManyWaiting,
        e.TooManyDelayed,
        e.RateLimited,
    }
)


def code_of(error: e.AlpacaError) -> Status:
    """Return the canonical code of an error."""
    return CODES[type(error)]


def reason_of(error: e.AlpacaError) -> str:
    """Return the name of an error, as Kafka's where it has one."""
    kind = type(error)
    if kind in SCHEMA_CODES:
        return rest.problem_type(kind).rpartition(":")[2].replace("-", "_").upper()
    code = KAFKA_CODES.get(kind) or REASONS.get(kind)
    return ErrorCode.UNKNOWN_SERVER_ERROR.name if code is None else code.name


def is_retriable(error: e.AlpacaError) -> bool:
    """Return whether the same request may succeed later."""
    kind = type(error)
    return kind in _PASSING or kind is e.QuotaExceeded or CODES[kind] is Status.UNAVAILABLE


def to_status(error: e.AlpacaError, tenant: str | None = None) -> RpcStatus:
    """Return an error with its details. Clients of a tenant get it with the names that they know."""
    text = str(error) if tenant is None else localized(tenant, str(error))
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}…"
    status = RpcStatus(code=code_of(error).value, message=text)
    _add(status, ErrorInfo(reason=reason_of(error), domain=DOMAIN))
    if field := getattr(error, "field", ""):
        violation = BadRequest.FieldViolation(field=field, description=text)
        _add(status, BadRequest(field_violations=[violation]))
    if is_retriable(error):
        retry = RetryInfo()
        after_ms = error.retry_after_ms if isinstance(error, e.QuotaExceeded) else RETRY_MS
        retry.retry_delay.FromMilliseconds(after_ms)
        _add(status, retry)
    return status


def _add(status: RpcStatus, detail: object) -> None:
    packed = Any()
    packed.Pack(detail)
    status.details.append(packed)
