"""A request and its answer, as the APIs on top of HTTP see them.

Whatever reaches an API has been checked by the connection: framing, sizes, one valid Host. What a
path, a header or a body means is the API's business.
"""

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs

import msgspec

PROBLEM_JSON = "application/problem+json"

# A query is short anyway, being part of the target; this bounds what it can be split into.
MAX_QUERY_FIELDS = 1000


class Response(NamedTuple):
    """What a request is answered with; Content-Length, Date and Connection are the connection's to add."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """A request cannot be served as it is; an API that raises it has it answered as a problem."""

    def __init__(self, status: int, detail: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers

    def answer(self) -> Response:
        return problem(self.status, self.detail, self.headers)


class Request:
    """One whole request."""

    __slots__ = ("_query", "body", "headers", "method", "path", "peer", "query_string")

    def __init__(
        self,
        method: str,
        path: str,
        query_string: str,
        headers: Mapping[str, str],
        body: bytes,
        peer: str,
    ) -> None:
        self.method = method
        # As sent: still percent-encoded, without the query.
        self.path = path
        self.query_string = query_string
        # By lower-case name; the values of a repeated header are joined with ", ".
        self.headers = headers
        self.body = body
        # IP:PORT of the client.
        self.peer = peer
        self._query: Mapping[str, list[str]] | None = None

    @property
    def host(self) -> str:
        """The Host header; empty where HTTP/1.0 left it out."""
        return self.headers.get("host", "")

    @property
    def query(self) -> Mapping[str, list[str]]:
        """The query's fields, decoded, each with its values in order; `Refused` if it is malformed."""
        if self._query is None:
            self._query = _parse_query(self.query_string) if self.query_string else {}
        return self._query

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} from {self.peer}, {len(self.body)} bytes>"


# A Response is sent at once. An awaitable one is awaited in a task that is cancelled when the client
# goes away: what must not stop half-way is the API's to shield.
App = Callable[[Request], Response | Awaitable[Response]]


def problem(status: int, detail: str = "", headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """An answer that says what went wrong, as RFC 9457 has it."""
    body: dict[str, object] = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    if detail:
        body["detail"] = detail
    return Response(status, msgspec.json.encode(body), PROBLEM_JSON, headers)


def _parse_query(text: str) -> Mapping[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:  # too many fields, or percent-encoded bytes that are not UTF-8
        raise Refused(400, f"the query is not UTF-8 or has more than {MAX_QUERY_FIELDS} fields") from None
