"""Client of a broker's HTTP API: one connection, JSON, one request at a time.

Before its first request a connection requests /version, so that an address without a broker is detected
within seconds, although the response to a long poll may take much longer.
"""

import ssl
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from select import select
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from alpacamq.client.connect import Tls, connect
from alpacamq.client.errors import Unreachable
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from alpacamq.wire.stats import Version

T = TypeVar("T")
# Parameters by name; None values are omitted.
Query = Mapping[str, str | int | None]

DEFAULT_PORT = 8080
# From the name lookup to the response to /version.
CONNECT_S = 4.0
REQUEST_S = 30.0
MAX_ANSWER_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_NAMED_BY = "--http HOST:PORT, ALPACAMQ_ADDRESS or a context (`alpacactl config`)"
# Time to wait for a broker that is loading its state.
_RETRY_S = 10.0
_PAUSE_S = 0.1
_LOADING = "coordinator-loading"
_RECOVERING = "recovering"
# The broker does not know this client, or does not want to hear it now.
_REFUSED = frozenset({"authentication-failed", "rate-limited"})
_KIND_PREFIX = "urn:alpacamq:problem:"


class Problem(AlpacaError):
    """An error response of the broker; `kind` is its machine-readable type."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class ProblemAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Problem details as sent (RFC 9457), or an error of a schema registry: a code and a message."""

    type: str = ""
    title: str = ""
    detail: str = ""
    error_code: int | None = None
    message: str = ""

    def problem(self) -> Problem:
        if self.error_code is not None:
            return Problem(str(self.error_code), self.message)
        return Problem(self.type.removeprefix(_KIND_PREFIX), self.detail or self.title)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one of several operations of a request."""

    error: ProblemAnswer | None = None

    @property
    def failure(self) -> Problem | None:
        return None if self.error is None else self.error.problem()


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """A user and its password, or an API key."""

    user: str = ""
    password: str = ""
    key: str = ""

    @property
    def header(self) -> str:
        """The value of the Authorization header."""
        if self.key:
            return f"Bearer {self.key}"
        return "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"


class HttpApi:
    """Client of one broker; connects on first use, and reconnects if the broker closed the connection.

    With several addresses it uses the first that answers, and another one if that does not any more. A
    request that was sent is not repeated.
    """

    def __init__(
        self,
        address: Address,
        *others: Address,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        is_broker: bool = True,
    ) -> None:
        """Set the addresses; without `is_broker` they are those of a schema registry, for example."""
        self._tls = tls
        self._is_broker = is_broker
        self._credentials = {} if credentials is None else {"Authorization": credentials.header}
        # Of the broker in use.
        self.address = address
        self._addresses = (address, *others)
        self._connection: HTTPConnection | None = None
        self._deadline = 0.0
        # The Date header of the last response.
        self.date = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(
        self,
        path: Iterable[str],
        answer: type[T],
        *,
        query: Query | None = None,
        wait_ms: int = 0,
    ) -> T:
        """Send a GET request; `wait_ms` is how long the broker may wait before it responds."""
        return self._read(answer, self._ask("GET", _target(path, query), None, REQUEST_S + wait_ms / 1000))

    def text(self, path: Iterable[str]) -> str:
        """Send a GET request for something other than JSON."""
        return self._ask("GET", _target(path, None), None, REQUEST_S).decode(errors="replace")

    def send(
        self,
        method: str,
        path: Iterable[str],
        answer: type[T],
        body: object = None,
        *,
        query: Query | None = None,
        wait_ms: int = 0,
    ) -> T:
        """Send a request with a JSON body; `wait_ms` is how long the broker may take longer than usual."""
        content = None if body is None else msgspec.json.encode(body)
        target = _target(path, query)
        return self._read(answer, self._ask(method, target, content, REQUEST_S + wait_ms / 1000))

    def _ask(self, method: str, target: str, content: bytes | None, timeout_s: float) -> bytes:
        give_up = time.monotonic() + _RETRY_S
        while True:
            connection = self._connected()
            self._deadline = time.monotonic() + timeout_s
            try:
                return self._exchange(connection, method, target, content)
            except Problem as problem:
                if problem.kind != _LOADING or time.monotonic() > give_up:
                    raise
            time.sleep(_PAUSE_S)

    def _connected(self) -> HTTPConnection:
        connection = self._connection
        # No request is pending, so readable means that the connection was closed.
        if connection is not None and (connection.sock is None or select([connection.sock], [], [], 0)[0]):
            self.close()
        if self._connection is None:
            self._connection = self._connect_to_any()
        return self._connection

    def _connect_to_any(self) -> HTTPConnection:
        # The one in use first.
        addresses = sorted(self._addresses, key=lambda each: each != self.address)
        for address in addresses[:-1]:
            self.address = address
            with suppress(Unreachable):
                return self._connect()
        self.address = addresses[-1]
        return self._connect()

    def _connect(self) -> HTTPConnection:
        self._deadline = time.monotonic() + CONNECT_S
        connection = HTTPConnection(str(self.address))
        connection.auto_open = 0
        connection.sock = connect(self.address, self._deadline, named_by=_NAMED_BY, tls=self._tls)
        if not self._is_broker:
            return connection
        try:
            self._read(Version, self._exchange(connection, "GET", "/version", None))
        except Problem as problem:
            connection.close()
            if problem.kind in _REFUSED:
                raise
            if problem.kind == _RECOVERING:
                raise Unreachable(f"{self.address} does not serve yet: {problem}; try again") from problem
            raise self._not_a_broker() from problem
        except BaseException:
            connection.close()
            raise
        return connection

    def _exchange(self, connection: HTTPConnection, method: str, target: str, content: bytes | None) -> bytes:
        """Send one request and read its response; any error except a problem closes the connection."""
        try:
            connection.sock.settimeout(self._left_s())
            headers = self._credentials
            if content is not None:
                headers = {**headers, "Content-Type": "application/json"}
            connection.request(method, target, content, headers)
            response = connection.getresponse()
            self.date = response.getheader("Date", "")
            answered = self._content(connection, response)
        except TimeoutError:
            self.close()
            raise Unreachable(
                f"{self.address} accepted the connection but does not answer {method} {target}; is it "
                f"the HTTP "
                "address of an AlpacaMQ broker, and is it overloaded or still starting?"
            ) from None
        except HTTPException as error:
            self.close()
            if isinstance(error, ConnectionError):  # end of stream instead of a response
                raise self._closed(method, target, error) from error
            raise self._not_a_broker() from error
        except OSError as error:
            self.close()
            raise self._closed(method, target, error) from error
        if response.status >= 400:
            raise self._problem(response, answered)
        return answered

    def _content(self, connection: HTTPConnection, response: HTTPResponse) -> bytes:
        data = bytearray()
        # The response owns the socket if the broker closes the connection afterwards.
        while part := response.read(_CHUNK_BYTES):
            data += part
            if len(data) > MAX_ANSWER_BYTES:
                self.close()
                raise Unreachable(f"{self.address} sent a response larger than {MAX_ANSWER_BYTES} bytes")
            left_s = self._left_s()
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
        if response.length:
            raise ConnectionError(f"{response.length} bytes of the response are missing")
        return bytes(data)

    def _problem(self, response: HTTPResponse, content: bytes) -> AlpacaError:
        try:
            found = msgspec.json.decode(content, type=ProblemAnswer)
        except msgspec.MsgspecError:
            return self._not_a_broker()
        if not (found.detail or found.title or found.message):
            return Problem("", f"{self.address} answers {response.status} {response.reason}")
        return found.problem()

    def _read(self, answer: type[T], content: bytes) -> T:
        try:
            return msgspec.json.decode(content or b"null", type=answer)
        except msgspec.MsgspecError as error:
            raise self._not_a_broker() from error

    def _not_a_broker(self) -> Unreachable:
        if not self._is_broker:
            return Unreachable(f"the server at {self.address} is not a schema registry")
        return Unreachable(
            f"the server at {self.address} is not the HTTP API of an AlpacaMQ broker; a broker prints "
            f"that address when it starts, beside http; set it with {_NAMED_BY}"
        )

    def _closed(self, method: str, target: str, error: Exception) -> Unreachable:
        hint = ""
        if self._tls is None and target == "/version":
            hint = "; if this listener uses TLS, use --tls or --ca FILE"
        elif isinstance(error, ssl.SSLError):
            hint = "; it may ask for a certificate that it accepts (--cert FILE --key FILE)"
        return Unreachable(f"{self.address} closed the connection during {method} {target}: {error}{hint}")

    def _left_s(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _target(path: Iterable[str], query: Query | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return "".join(f"/{quote(part, safe='')}" for part in path) + (f"?{urlencode(given)}" if given else "")
