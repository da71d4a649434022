"""The mapping of errors to HTTP: each has a status, and is sent as a problem document (RFC 9457).

400 is for input that violates the OpenAPI document, 422 for input that only the broker can check.
"""

import re
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus

import msgspec

from alpacamq.api.http.login import CHALLENGE, CHALLENGE_OF_SCRIPTS, REQUESTED_WITH
from alpacamq.api.http.messages import PROBLEM_JSON, Request, Response
from alpacamq.model import errors as e
from alpacamq.model.compression import TooMuchData
from alpacamq.model.names import localized

# Responses end with one, for reading on a terminal.
LINE_END = b"\n"
_WORD = re.compile(r"[A-Z][a-z]*")
# For temporary errors.
_RETRY_AFTER = (("Retry-After", "1"),)


class InvalidInput(e.AlpacaError):
    """A parameter or body violates the description of the API.

    `field` is a JSON pointer into the body, or the name of a parameter.
    """

    def __init__(self, detail: str, field: str = "") -> None:
        super().__init__(detail)
        self.field = field


class ConflictingInput(InvalidInput):
    """Fields are valid individually but not in combination."""


class UnsupportedMediaType(e.AlpacaError):
    """The content type of a body is not JSON."""


class CrossOrigin(e.AlpacaError):
    """A browser sent the request for a page of another site."""


class CsrfTokenMissing(e.AlpacaError):
    """A request with the cookie of the console lacks the token that its pages send."""


class UnknownPath(e.AlpacaError):
    """No route has this path."""


class MethodNotAllowed(e.AlpacaError):
    """No route at this path has the method."""

    def __init__(self, detail: str, allowed: str) -> None:
        super().__init__(detail)
        self.allowed = allowed


class UnknownTask(e.AlpacaError):
    """No redrive has this id."""


class NotCompacted(e.AlpacaError):
    """The cleanup policy of a topic does not include compaction."""


class AlreadyExists(e.AlpacaError):
    """A user of this name, or the same access rule, exists already."""


class UnknownAcl(e.AlpacaError):
    """No access rule has this id."""


class UnknownTrace(e.AlpacaError):
    """No trace has this id, or it has been deleted."""


class UnknownProducer(e.AlpacaError):
    """No transactional producer has this id."""


class Degraded(e.AlpacaError):
    """A health check fails."""


class Recovering(e.AlpacaError):
    """The broker is recovering its logs after start."""


class MetricsDisabled(e.AlpacaError):
    """Metrics are disabled."""


CODES: Mapping[type[e.AlpacaError], HTTPStatus] = {
    InvalidInput: HTTPStatus.BAD_REQUEST,
    ConflictingInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    CrossOrigin: HTTPStatus.FORBIDDEN,
    CsrfTokenMissing: HTTPStatus.FORBIDDEN,
    UnknownPath: HTTPStatus.NOT_FOUND,
    MethodNotAllowed: HTTPStatus.METHOD_NOT_ALLOWED,
    UnknownTask: HTTPStatus.NOT_FOUND,
    NotCompacted: HTTPStatus.CONFLICT,
    AlreadyExists: HTTPStatus.CONFLICT,
    UnknownAcl: HTTPStatus.NOT_FOUND,
    UnknownTrace: HTTPStatus.NOT_FOUND,
    UnknownProducer: HTTPStatus.NOT_FOUND,
    Degraded: HTTPStatus.SERVICE_UNAVAILABLE,
    Recovering: HTTPStatus.SERVICE_UNAVAILABLE,
    MetricsDisabled: HTTPStatus.NOT_FOUND,
    e.InvalidRequest: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.CorruptBatch: HTTPStatus.INTERNAL_SERVER_ERROR,
    TooMuchData: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    e.CorruptState: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.DamagedLog: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.InvalidRecord: HTTPStatus.BAD_REQUEST,
    e.SchemasUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.InvalidTimestamp: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.BatchTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    e.UnsupportedCompression: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.UnknownTopic: HTTPStatus.NOT_FOUND,
    e.UnknownTopicId: HTTPStatus.NOT_FOUND,
    e.TopicExists: HTTPStatus.CONFLICT,
    e.InvalidTopicName: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.InvalidPartitionCount: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.InvalidReplication: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.InvalidReplicaAssignment: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.InvalidConfig: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.InvalidRequiredAcks: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.OffsetOutOfRange: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    e.FencedLeaderEpoch: HTTPStatus.CONFLICT,
    e.UnknownLeaderEpoch: HTTPStatus.CONFLICT,
    e.NotLeader: HTTPStatus.SERVICE_UNAVAILABLE,
    e.NotController: HTTPStatus.SERVICE_UNAVAILABLE,
    e.LeaderNotAvailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.OffsetNotAvailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.NotEnoughReplicas: HTTPStatus.SERVICE_UNAVAILABLE,
    e.NotEnoughReplicasAfterAppend: HTTPStatus.SERVICE_UNAVAILABLE,
    e.RequestTimedOut: HTTPStatus.SERVICE_UNAVAILABLE,
    e.PeerUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.PeerFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.UnknownBroker: HTTPStatus.NOT_FOUND,
    e.DuplicateBroker: HTTPStatus.CONFLICT,
    e.StaleBrokerEpoch: HTTPStatus.CONFLICT,
    e.InvalidUpdateVersion: HTTPStatus.CONFLICT,
    e.IneligibleReplica: HTTPStatus.CONFLICT,
    e.ElectionNotNeeded: HTTPStatus.CONFLICT,
    e.PreferredLeaderNotAvailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.EligibleLeadersNotAvailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.NoReassignmentInProgress: HTTPStatus.CONFLICT,
    e.InconsistentClusterId: HTTPStatus.CONFLICT,
    e.InvalidVoters: HTTPStatus.CONFLICT,
    e.FeatureUpdateFailed: HTTPStatus.CONFLICT,
    e.FencedProducer: HTTPStatus.CONFLICT,
    e.OutOfOrderSequence: HTTPStatus.CONFLICT,
    e.StorageFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.DiskFull: HTTPStatus.INSUFFICIENT_STORAGE,
    e.DataInDoubt: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.DataDirectoryInUse: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.PolicyViolation: HTTPStatus.FORBIDDEN,
    e.InvalidGroupId: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.GroupIdNotFound: HTTPStatus.NOT_FOUND,
    e.TooManyGroups: HTTPStatus.TOO_MANY_REQUESTS,
    e.GroupMaxSizeReached: HTTPStatus.TOO_MANY_REQUESTS,
    e.NonEmptyGroup: HTTPStatus.CONFLICT,
    e.MemberIdRequired: HTTPStatus.CONFLICT,
    e.UnknownMember: HTTPStatus.NOT_FOUND,
    e.IllegalGeneration: HTTPStatus.CONFLICT,
    e.RebalanceInProgress: HTTPStatus.CONFLICT,
    e.InconsistentGroupProtocol: HTTPStatus.CONFLICT,
    e.FencedInstanceId: HTTPStatus.CONFLICT,
    e.InvalidSessionTimeout: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.StaleMemberEpoch: HTTPStatus.CONFLICT,
    e.FencedMemberEpoch: HTTPStatus.CONFLICT,
    e.UnreleasedInstanceId: HTTPStatus.CONFLICT,
    e.UnsupportedAssignor: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.InvalidRegularExpression: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.StreamsInvalidTopology: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.GroupSubscribedToTopic: HTTPStatus.CONFLICT,
    e.OffsetMetadataTooLarge: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.UnstableOffsetCommit: HTTPStatus.CONFLICT,
    e.InvalidLane: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.InvalidReceipt: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.StaleReceipt: HTTPStatus.CONFLICT,
    e.NotAcquired: HTTPStatus.CONFLICT,
    e.TooManyInFlight: HTTPStatus.TOO_MANY_REQUESTS,
    e.TooManyWaiting: HTTPStatus.TOO_MANY_REQUESTS,
    e.InvalidDelay: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.UnknownDelayed: HTTPStatus.NOT_FOUND,
    e.TooManyDelayed: HTTPStatus.TOO_MANY_REQUESTS,
    e.RateLimited: HTTPStatus.TOO_MANY_REQUESTS,
    e.QuotaExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    e.UnsupportedQuotaEntity: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.ProducerFenced: HTTPStatus.CONFLICT,
    e.TransactionCoordinatorFenced: HTTPStatus.SERVICE_UNAVAILABLE,
    e.InvalidProducerIdMapping: HTTPStatus.CONFLICT,
    e.InvalidTransactionState: HTTPStatus.CONFLICT,
    e.ConcurrentTransactions: HTTPStatus.CONFLICT,
    e.InvalidTransactionTimeout: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.TransactionalIdNotFound: HTTPStatus.NOT_FOUND,
    e.TransactionAbortable: HTTPStatus.CONFLICT,
    e.PartitionNotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    e.CoordinatorLoading: HTTPStatus.SERVICE_UNAVAILABLE,
    e.CoordinatorUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.NotCoordinator: HTTPStatus.SERVICE_UNAVAILABLE,
    e.AuthenticationFailed: HTTPStatus.UNAUTHORIZED,
    e.InvalidCredential: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.InvalidPrincipal: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.UnknownUser: HTTPStatus.NOT_FOUND,
    e.InvalidTenant: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.UnknownTenant: HTTPStatus.NOT_FOUND,
    e.TenantExists: HTTPStatus.CONFLICT,
    e.TenantLimitReached: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.TenantStorageFull: HTTPStatus.INSUFFICIENT_STORAGE,
    e.UnknownApiKey: HTTPStatus.NOT_FOUND,
    e.InvalidAcl: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.SecurityDisabled: HTTPStatus.CONFLICT,
    e.FeatureNotEnabled: HTTPStatus.CONFLICT,
    e.TopicNotAuthorized: HTTPStatus.FORBIDDEN,
    e.GroupNotAuthorized: HTTPStatus.FORBIDDEN,
    e.ClusterNotAuthorized: HTTPStatus.FORBIDDEN,
    e.TransactionalIdNotAuthorized: HTTPStatus.FORBIDDEN,
    e.DelegationTokensDisabled: HTTPStatus.CONFLICT,
    e.DelegationTokenRequestNotAllowed: HTTPStatus.FORBIDDEN,
    e.DelegationTokenNotAuthorized: HTTPStatus.FORBIDDEN,
    e.DelegationTokenNotFound: HTTPStatus.NOT_FOUND,
    e.DelegationTokenOwnerMismatch: HTTPStatus.FORBIDDEN,
    e.DelegationTokenExpired: HTTPStatus.CONFLICT,
    e.InvalidPrincipalType: HTTPStatus.UNPROCESSABLE_ENTITY,
}
# Temporary errors, sent with Retry-After.
_PASSING = frozenset(
    {
        e.CoordinatorLoading,
        e.CoordinatorUnavailable,
        e.NotCoordinator,
        e.ConcurrentTransactions,
        e.TooManyInFlight,
        e.TooManyWaiting,
        e.TooManyDelayed,
        e.RateLimited,
        e.UnstableOffsetCommit,
        e.SchemasUnavailable,
    }
)


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error, for programs (`type`, `status`, `field`) and for people (`title`, `detail`)."""

    type: str
    title: str
    status: int
    detail: str = ""
    field: str = ""


def status_of(error: e.AlpacaError) -> HTTPStatus:
    """Return the HTTP status of an error."""
    return CODES[type(error)]


def problem_type(kind: type[e.AlpacaError]) -> str:
    """Return the URN of problems of a kind."""
    return "urn:alpacamq:problem:" + "-".join(_words(kind.__name__))


def problem_of(error: e.AlpacaError) -> Problem:
    """Convert an error to a problem."""
    words = _words(type(error).__name__)
    return Problem(
        type=problem_type(type(error)),
        title=" ".join(words).capitalize(),
        status=status_of(error),
        detail=str(error),
        field=error.field if isinstance(error, InvalidInput) else "",
    )


def refusal(error: e.AlpacaError, request: Request | None = None, tenant: str | None = None) -> Response:
    """Return the response for an error, of a request if it matters how that was sent.

    Clients of a tenant get it with the names that they know.
    """
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, MethodNotAllowed):
        headers = (("Allow", error.allowed),)
    elif isinstance(error, e.AuthenticationFailed):
        is_script = request is not None and REQUESTED_WITH in request.headers
        headers = CHALLENGE_OF_SCRIPTS if is_script else CHALLENGE
    elif isinstance(error, e.QuotaExceeded):
        headers = (("Retry-After", str(-(-error.retry_after_ms // 1000))),)
    elif type(error) in _PASSING:
        headers = _RETRY_AFTER
    problem = problem_of(error)
    if tenant is not None:
        problem = msgspec.structs.replace(problem, detail=localized(tenant, problem.detail))
    body = msgspec.json.encode(problem) + LINE_END
    return Response(status_of(error), body, PROBLEM_JSON, headers, error.with_traceback(None))


@cache
def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name))
