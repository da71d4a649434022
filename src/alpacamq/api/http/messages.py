"""Requests and responses, as the APIs on top of HTTP see them.

The connection has checked framing, sizes and the Host header of every request. APIs interpret path, headers
and body.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs

import msgspec

from alpacamq.model.errors import AlpacaError
from alpacamq.security.callers import Caller
from alpacamq.security.principals import Principal

PROBLEM_JSON = "application/problem+json"

# The length of a query is bounded by that of the target; this bounds the number of its fields.
MAX_QUERY_FIELDS = 1000


class Response(NamedTuple):
    """A response. The connection adds Content-Length, Date and Connection."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    # What it reports, for callers in this process.
    error: AlpacaError | None = None


class Refused(Exception):
    """A request that cannot be served; answered with a problem document."""

    def __init__(self, status: int, detail: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers

    def answer(self) -> Response:
        return problem(self.status, self.detail, self.headers)


class OpenConnection(Protocol):
    """The connection of a request."""

    @property
    def is_closed(self) -> bool: ...


class Head:
    """Everything before the body of a request, shared by all requests that begin with the same bytes."""

    __slots__ = ("app", "body_bytes", "headers", "method", "path", "query_string", "routed")

    def __init__(self, request: "Request") -> None:
        self.method = request.method
        self.path = request.path
        self.query_string = request.query_string
        self.headers = request.headers
        self.body_bytes = len(request.body)
        # The API that such requests end at, whatever their body, and what it has found out about them; None
        # if none has said so yet.
        self.app: App | None = None
        self.routed: object = None


class Request:
    """One complete request."""

    __slots__ = (
        "_query",
        "authentication",
        "body",
        "caller",
        "connection",
        "has_tls",
        "head",
        "headers",
        "is_last",
        "method",
        "path",
        "peer",
        "principal",
        "principal_expires_ms",
        "query_string",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query_string: str,
        headers: Mapping[str, str],
        body: bytes,
        peer: str,
        head: Head | None = None,
    ) -> None:
        self.method = method
        # Percent-encoded as sent, without the query.
        self.path = path
        self.query_string = query_string
        # By lower-case name; the values of a repeated header are joined with ", ".
        self.headers = headers
        self.body = body
        # IP:PORT of the client.
        self.peer = peer
        # What it shares with earlier requests; None for one whose head is not kept.
        self.head = head
        # The connection that it came on, and whether that is closed after the response.
        self.connection: OpenConnection | None = None
        self.is_last = False
        # Whether it came over TLS, and the principal of the client's certificate, if it has one, with the
        # time when that expires.
        self.has_tls = False
        self.principal: Principal | None = None
        self.principal_expires_ms: int | None = None
        # Whether its listener requires authentication; None if security.authentication decides.
        self.authentication: bool | None = None
        # The client, if the API that the request came through has authenticated it already.
        self.caller: Caller | None = None
        self._query: Mapping[str, list[str]] | None = None

    @property
    def host(self) -> str:
        """The Host header; empty if an HTTP/1.0 request has none."""
        return self.headers.get("host", "")

    @property
    def query(self) -> Mapping[str, list[str]]:
        """Return the decoded query fields, each with its values in order; `Refused` if malformed."""
        if self._query is None:
            self._query = _parse_query(self.query_string) if self.query_string else {}
        return self._query

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} from {self.peer}, {len(self.body)} bytes>"


# A Response is sent immediately, and one that is Later when it is known. Any other awaitable is awaited in a
# task that is cancelled when the client disconnects; APIs shield work that must not be interrupted.
App = Callable[[Request], Response | Awaitable[Response]]


def problem(status: int, detail: str = "", headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return a problem document (RFC 9457)."""
    body: dict[str, object] = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    if detail:
        body["detail"] = detail
    return Response(status, msgspec.json.encode(body), PROBLEM_JSON, headers)


def _parse_query(text: str) -> Mapping[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:  # too many fields, or percent-encoded bytes that are not UTF-8
        raise Refused(400, f"the query is not UTF-8 or has more than {MAX_QUERY_FIELDS} fields") from None
