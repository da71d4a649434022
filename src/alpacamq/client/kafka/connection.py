"""One connection to one broker: framing, correlation ids, versions, login and deadlines.

Requests are sent one at a time. After any error the connection is closed and not reused: a late
response could be mistaken for the response to another request.
"""

import secrets
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from struct import Struct
from typing import TypeVar

from alpacamq import __version__
from alpacamq.client.connect import Tls, connect
from alpacamq.client.errors import Refused, Unreachable, check
from alpacamq.model.address import Address
from alpacamq.protocol.apis import APIS, Api, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from alpacamq.protocol.messages.committed_offsets import OffsetCommitRequest, OffsetFetchRequest
from alpacamq.protocol.messages.fetch import FetchRequest
from alpacamq.protocol.messages.groups import FindCoordinatorRequest
from alpacamq.protocol.messages.produce import ProduceRequest
from alpacamq.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from alpacamq.protocol.messages.topics import DeleteTopicsRequest
from alpacamq.protocol.messages.transactions import AddPartitionsToTxnRequest, EndTxnRequest
from alpacamq.protocol.notation import Message
from alpacamq.protocol.schema import decode, encode
from alpacamq.security.scram import NONCE_BYTES, ClientExchange, Mechanism

R = TypeVar("R", bound=Message)

CLIENT_ID = "alpacamq"
# From the name lookup to the ApiVersions response.
CONNECT_S = 4.0
REQUEST_S = 30.0
MAX_RESPONSE_BYTES = 256 << 20
_HANDSHAKE_VERSION = 3
# Share of a session after which the client authenticates again.
_RENEWED_AFTER = 0.8
_NAMED_BY = "--broker HOST:PORT, ALPACACTL_BROKER or a context (`alpacactl config`)"

# Versions narrower than those we can read and write: in later ones topics go by id instead of name, and
# every transaction ends with a new epoch, which a client that ends it for another could not pass on;
# earlier ones have another form, which only old brokers need.
_VERSIONS: Mapping[type[Message], tuple[int, int]] = {
    ProduceRequest: (3, 12),
    FetchRequest: (4, 12),
    OffsetCommitRequest: (2, 9),
    OffsetFetchRequest: (8, 9),
    FindCoordinatorRequest: (4, 6),
    DeleteTopicsRequest: (6, 6),
    AddPartitionsToTxnRequest: (0, 3),
    EndTxnRequest: (0, 4),
    # After version 0, messages have no header.
    SaslHandshakeRequest: (1, 1),
}
_APIS: Mapping[type[Message], Api] = {api.request: api for api in APIS.values()}
_REQUEST_START = Struct(">hhih")
_INT32 = Struct(">i")
_INT16 = Struct(">h")


PLAIN = "PLAIN"
MECHANISMS = (*map(str, Mechanism), PLAIN)
DEFAULT_MECHANISM = str(Mechanism.SHA_256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user and its password."""

    user: str
    password: str = field(repr=False)
    mechanism: str = DEFAULT_MECHANISM


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
        api = _APIS[type(request)]
        version = self._version(api)
        try:
            self._send(api, version, encode(request, version))
        except OSError as error:
            self.close()
            raise Unreachable(f"{self.address} closed the connection during {api.name}: {error}") from error

    def _ask(self, request: Message, answer: type[R]) -> R:
        api = _APIS[type(request)]
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
        if login.mechanism == PLAIN:
            last = self._send_token(about, f"\0{login.user}\0{login.password}".encode())
        else:
            nonce = secrets.token_bytes(NONCE_BYTES)
            exchange = ClientExchange(Mechanism(login.mechanism), login.user, login.password, nonce)
            first = self._send_token(about, exchange.first)
            last = self._send_token(about, exchange.final(first.auth_bytes))
            exchange.verify(last.auth_bytes)
        lifetime_ms = last.session_lifetime_ms
        self._login_again_at = (
            time.monotonic() + _RENEWED_AFTER * lifetime_ms / 1000 if lifetime_ms > 0 else inf
        )

    def _send_token(self, about: str, token: bytes) -> SaslAuthenticateResponse:
        answer = self._ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        check(about, answer.error_code, answer.error_message)
        return answer

    def _version(self, api: Api) -> int:
        lowest, highest = _VERSIONS.get(api.request, (api.min_version, api.max_version))
        theirs = self._spoken.get(api.key)
        if theirs is None or min(highest, theirs[1]) < max(lowest, theirs[0]):
            offer = "offers none" if theirs is None else f"offers versions {theirs[0]} to {theirs[1]}"
            raise Refused(
                f"{api.name} at {self.address}",
                ErrorCode.UNSUPPORTED_VERSION,
                f"this client needs version {lowest} to {highest}, the broker {offer}",
            )
        return min(highest, theirs[1])

    def _handshake(self) -> dict[int, tuple[int, int]]:
        api = APIS[ApiKey.API_VERSIONS]
        request = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version=__version__)
        version = _HANDSHAKE_VERSION
        body = self._exchange(api, version, encode(request, version))
        if len(body) >= _INT16.size and _INT16.unpack_from(body)[0] == ErrorCode.UNSUPPORTED_VERSION:
            # A broker that does not support this version responds in version 0.
            version = 0
            body = self._exchange(api, version, encode(request, version))
        answer = decode(ApiVersionsResponse, version, body)
        check(f"talking to {self.address}", answer.error_code)
        return {spoken.api_key: (spoken.min_version, spoken.max_version) for spoken in answer.api_keys}

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
        name = CLIENT_ID.encode()
        head = _REQUEST_START.pack(api.key, version, self._correlation_id, len(name)) + name
        if version >= api.flexible_from:
            head += b"\0"
        self._socket.settimeout(self._left_s())
        self._socket.sendall(_INT32.pack(len(head) + len(body)) + head + body)

    def _receive(self, api: Api, version: int) -> memoryview:
        size = _INT32.unpack(self._read(_INT32.size))[0]
        # ApiVersions precedes version negotiation, so its response header is not flexible.
        tagged = version >= api.flexible_from and api.key != ApiKey.API_VERSIONS
        header = _INT32.size + tagged
        if not header <= size <= MAX_RESPONSE_BYTES:
            raise ProtocolError(
                f"{self.address} announces an answer of {size} bytes; is it a Kafka listener?"
            )
        frame = memoryview(self._read(size))
        correlation_id = _INT32.unpack_from(frame)[0]
        if correlation_id != self._correlation_id:
            raise ProtocolError(
                f"{self.address} responded with correlation id {correlation_id} to request "
                f"{self._correlation_id}"
            )
        if tagged and frame[_INT32.size]:
            raise ProtocolError(f"{self.address} sent tagged fields in the header of its {api.name} response")
        return frame[header:]

    def _read(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(self._left_s())
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ConnectionError("end of stream")
            data += part
        return data

    def _left_s(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
