"""One connection to one broker: framing, correlation ids, versions, login and deadlines.

Requests are sent one at a time. After any error the connection is closed and not reused: a late
response could be mistaken for the response to another request.
"""

import select
import ssl
import time
from math import inf
from typing import TypeVar

from alpacamq.client.connect import Tls, connect
from alpacamq.client.errors import Unreachable, check
from alpacamq.client.framing import (
    API_OF,
    API_VERSIONS_VERSION,
    CLIENT_ID,
    SIZE_BYTES,
    common_version,
    read_versions,
    request_frame,
    response_body,
    response_size,
)

# Re-exported for those who connect.
from alpacamq.client.login import DEFAULT_MECHANISM as DEFAULT_MECHANISM
from alpacamq.client.login import MECHANISMS as MECHANISMS
from alpacamq.client.login import Login as Login
from alpacamq.client.login import login_messages
from alpacamq.model.address import Address
from alpacamq.model.version import VERSION
from alpacamq.protocol.apis import APIS, Api, ApiKey
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.cluster import ApiVersionsRequest
from alpacamq.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import decode, encode

R = TypeVar("R", bound=Message)

# From the name lookup to the ApiVersions response.
CONNECT_S = 4.0
REQUEST_S = 30.0
# Share of a session after which the client authenticates again.
_RENEWED_AFTER = 0.8
_NAMED_BY = "--broker HOST:PORT, ALPACACTL_BROKER or a context (`alpacactl config`)"


class Connection:
    """A socket with negotiated versions."""

    def __init__(
        self,
        address: Address,
        *,
        login: Login | None = None,
        tls: Tls | None = None,
        connect_s: float = CONNECT_S,
    ) -> None:
        self.address = address
        self._tls = tls
        self._login = login
        self._login_again_at = inf
        self._was_served = False
        self._correlation_id = 0
        self._deadline = time.monotonic() + connect_s
        self._socket = connect(address, self._deadline, named_by=_NAMED_BY, tls=tls)
        try:
            self._spoken = self._handshake()
            if login is not None:
                self._log_in(login)
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() != -1

    def has_ended(self) -> bool:
        """Return whether the broker has closed the connection; for one that waits for no response."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Message, answer: type[R], *, timeout_s: float = REQUEST_S) -> R:
        """Send a request in the highest common version and return the response."""
        self._deadline = time.monotonic() + timeout_s
        self._log_in_again()
        return self._ask(request, answer)

    def tell(self, request: Message, *, timeout_s: float = REQUEST_S) -> None:
        """Send a request without a response: a Produce with acks=0."""
        self._deadline = time.monotonic() + timeout_s
        self._log_in_again()
        api = API_OF[type(request)]
        version = self._version(api)
        try:
            self._send(api, version, encode(request, version))
        except OSError as error:
            self.close()
            raise Unreachable(f"{self.address} closed the connection during {api.name}: {error}") from error

    def _ask(self, request: Message, answer: type[R]) -> R:
        api = API_OF[type(request)]
        assert api.response is answer
        version = self._version(api)
        return decode(answer, version, self._exchange(api, version, encode(request, version)))

    def _log_in_again(self) -> None:
        """Begin a new session if the old one is nearly over."""
        if self._login is not None and time.monotonic() > self._login_again_at:
            try:
                self._log_in(self._login)
            except BaseException:
                self.close()
                raise

    def _log_in(self, login: Login) -> None:
        about = f"logging in to {self.address} as {login.user}"
        agreed = self._ask(SaslHandshakeRequest(mechanism=login.mechanism), SaslHandshakeResponse)
        offer = ", ".join(agreed.mechanisms)
        check(about, agreed.error_code, offer and f"{login.mechanism} is not one of {offer}")
        messages = login_messages(login)
        token: bytes | None = next(messages)
        while token is not None:
            last = self._send_token(about, token)
            try:
                token = messages.send(last.auth_bytes)
            except StopIteration:
                token = None
        lifetime_ms = last.session_lifetime_ms
        self._login_again_at = (
            time.monotonic() + _RENEWED_AFTER * lifetime_ms / 1000 if lifetime_ms > 0 else inf
        )

    def _send_token(self, about: str, token: bytes) -> SaslAuthenticateResponse:
        answer = self._ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        check(about, answer.error_code, answer.error_message)
        return answer

    def _version(self, api: Api) -> int:
        return common_version(api, self._spoken.get(api.key), self.address)

    def _handshake(self) -> dict[int, tuple[int, int]]:
        api = APIS[ApiKey.API_VERSIONS]
        request = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version=VERSION)
        for version in (API_VERSIONS_VERSION, 0):
            body = self._exchange(api, version, encode(request, version))
            if (spoken := read_versions(self.address, body, version)) is not None:
                return spoken
        raise ProtocolError(f"{self.address} does not answer ApiVersions in any version")

    def _exchange(self, api: Api, version: int, body: bytes) -> memoryview:
        """Send one request and return the body of its response."""
        try:
            self._send(api, version, body)
            answer = self._receive(api, version)
            self._was_served |= api.key != ApiKey.API_VERSIONS
            return answer
        except TimeoutError:
            self.close()
            raise Unreachable(
                f"{self.address} accepted the connection but does not answer {api.name}; "
                "is it an AlpacaMQ or Kafka broker, and is it overloaded or still starting?"
            ) from None
        except OSError as error:
            self.close()
            # So does a broker with security.authentication, after ApiVersions.
            anonymous = self._login is None and api.key != ApiKey.API_VERSIONS and not self._was_served
            hint = "; if it asks clients to authenticate, give a user and a password" if anonymous else ""
            if self._tls is None and api.key == ApiKey.API_VERSIONS:
                hint = "; if this listener uses TLS, use --tls or --ca FILE"
            elif isinstance(error, ssl.SSLError):
                hint = "; it may ask for a certificate that it accepts (--cert FILE --key FILE)"
            raise Unreachable(
                f"{self.address} closed the connection during {api.name}: {error}{hint}"
            ) from error
        except ProtocolError:
            self.close()
            raise

    def _send(self, api: Api, version: int, body: bytes) -> None:
        self._correlation_id += 1
        self._socket.settimeout(self._left_s())
        self._socket.sendall(request_frame(api, version, self._correlation_id, body))

    def _receive(self, api: Api, version: int) -> memoryview:
        frame = memoryview(self._read(response_size(self._read(SIZE_BYTES), self.address)))
        return response_body(frame, api, version, self._correlation_id, self.address)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            self._socket.settimeout(self._left_s())
            received = self._socket.recv_into(rest)
            if not received:
                raise ConnectionError("end of stream")
            rest = rest[received:]
        return data

    def _left_s(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
