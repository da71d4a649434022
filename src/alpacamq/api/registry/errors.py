"""The mapping of errors to the codes of Confluent's schema registry."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from alpacamq.api.http.login import CHALLENGE, CHALLENGE_OF_SCRIPTS, REQUESTED_WITH
from alpacamq.api.http.messages import Request, Response
from alpacamq.api.rest import errors as http
from alpacamq.model import errors as e
from alpacamq.registry import errors as r
from alpacamq.registry.schema import InvalidData, InvalidSchema

V1_JSON = "application/vnd.schemaregistry.v1+json"
_RETRY_AFTER = (("Retry-After", "1"),)


class Code(NamedTuple):
    """The status of a response and the code in its body."""

    status: HTTPStatus
    error_code: int


class NotAcceptable(e.AlpacaError):
    """The client accepts none of the content types that the registry can send."""


def _code(error_code: int) -> Code:
    """Return a code of five digits, which begins with the status."""
    return Code(HTTPStatus(error_code // 100), error_code)


# Those of Confluent's registry. The others are mapped as the HTTP API maps them.
_REGISTRY: Mapping[type[e.AlpacaError], Code] = {
    r.SubjectNotFound: _code(40401),
    r.VersionNotFound: _code(40402),
    r.SchemaNotFound: _code(40403),
    r.SubjectSoftDeleted: _code(40404),
    r.SubjectNotSoftDeleted: _code(40405),
    r.VersionSoftDeleted: _code(40406),
    r.VersionNotSoftDeleted: _code(40407),
    r.ConfigNotFound: _code(40408),
    r.ModeNotFound: _code(40409),
    r.IncompatibleSchema: Code(HTTPStatus.CONFLICT, 409),
    InvalidSchema: _code(42201),
    InvalidData: _code(42201),
    r.InvalidVersion: _code(42202),
    r.InvalidCompatibilityLevel: _code(42203),
    r.InvalidMode: _code(42204),
    r.OperationNotPermitted: _code(42205),
    r.ReferenceExists: _code(42206),
    r.IdDoesNotMatch: _code(42207),
    r.InvalidSubject: _code(42208),
    r.SchemaTooLarge: _code(42209),
    r.InvalidRuleSet: _code(42210),
    r.IdsExhausted: _code(50001),
    NotAcceptable: Code(HTTPStatus.NOT_ACCEPTABLE, 406),
    e.AuthenticationFailed: _code(40101),
    e.TopicNotAuthorized: _code(40301),
    e.ClusterNotAuthorized: _code(40301),
    e.RequestTimedOut: _code(50002),
    e.PeerUnavailable: _code(50003),
    e.PeerFailed: _code(50003),
    e.NotLeader: _code(50004),
    e.LeaderNotAvailable: _code(50004),
    e.NotCoordinator: _code(50004),
}
_STORE = frozenset({HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.INSUFFICIENT_STORAGE})


def _as_http(status: HTTPStatus) -> Code:
    return _code(50001) if status in _STORE else Code(status, int(status))


CODES: Mapping[type[e.AlpacaError], Code] = {
    **{error: _as_http(status) for error, status in http.CODES.items()},
    **_REGISTRY,
}
# The registry is being loaded or moves to another broker, or its topic has too few replicas.
_PASSING = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS})
_PASSING_CODES = frozenset({50003, 50004})


class ErrorMessage(msgspec.Struct, frozen=True):
    """The body of a response to a request that failed."""

    error_code: int
    message: str


def refusal(error: e.AlpacaError, request: Request, message: str, content_type: str = V1_JSON) -> Response:
    """Return the response for an error, with its message as the client may read it."""
    code = CODES[type(error)]
    headers: tuple[tuple[str, str], ...] = ()
    if isinstance(error, http.MethodNotAllowed):
        headers = (("Allow", error.allowed),)
    elif isinstance(error, e.AuthenticationFailed):
        headers = CHALLENGE_OF_SCRIPTS if REQUESTED_WITH in request.headers else CHALLENGE
    elif isinstance(error, e.QuotaExceeded):
        headers = (("Retry-After", str(-(-error.retry_after_ms // 1000))),)
    elif code.status in _PASSING or code.error_code in _PASSING_CODES:
        headers = _RETRY_AFTER
    body = msgspec.json.encode(ErrorMessage(code.error_code, message)) + http.LINE_END
    return Response(code.status, body, content_type, headers, error.with_traceback(None))


def failure(status: HTTPStatus, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return the response to a request that fails before it is read."""
    body = msgspec.json.encode(ErrorMessage(int(status), message)) + http.LINE_END
    return Response(status, body, V1_JSON, headers)
