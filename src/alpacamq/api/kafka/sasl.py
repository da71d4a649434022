"""SASL: authenticates the client of a connection, by PLAIN or SCRAM, at its start and again later.

A client names a mechanism (SaslHandshake) and sends its messages in SaslAuthenticate requests; after version
0 of SaslHandshake, which old clients use, as frames without a header. A refusal is answered with a short
delay, and closes the connection. A connection that is authenticated keeps its user until its session ends,
even if the user is deleted or gets another password, as in Kafka.
"""

import asyncio
import secrets
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from math import inf
from struct import Struct
from time import monotonic
from typing import NamedTuple

from alpacamq.broker.access import Access, Caller
from alpacamq.model.errors import AuthenticationFailed, RateLimited
from alpacamq.protocol.apis import Api, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.framing import RequestHeader, response_frame
from alpacamq.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from alpacamq.protocol.schema import decode, encode
from alpacamq.security.principals import MAX_NAME_LENGTH, Principal, user
from alpacamq.security.scram import NONCE_BYTES, Mechanism, ServerExchange
from alpacamq.telemetry.logs import get_logger

from .connection import MAX_UNAUTHENTICATED_BYTES, Answer, Connection

log = get_logger(__name__)

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *map(str, Mechanism))
# Served before a client has authenticated; SaslHandshake and SaslAuthenticate, and which versions there are.
BEFORE_AUTHENTICATION = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
# As connection.failed.authentication.delay.ms of Kafka: a client that tries again at once is slowed down.
REFUSAL_DELAY_S = 0.1
# A client may not keep the broker busy with authentication; as in Kafka.
MIN_REAUTHENTICATION_S = 1.0
# From this version of SaslHandshake on, SASL messages are SaslAuthenticate requests.
_WITH_HEADERS_FROM = 1
_SIZE = Struct(">i")


class Phase(Enum):
    """What the broker expects from the client."""

    HANDSHAKE = auto()
    FIRST_MESSAGE = auto()
    # Of SCRAM: the proof that the client knows the password.
    PROOF = auto()


@dataclass(slots=True)
class Session:
    """The state of a connection whose client uses SASL."""

    phase: Phase = Phase.HANDSHAKE
    mechanism: str = ""
    # Whether messages come without the header of a request.
    is_bare: bool = False
    handshake_at: float = -inf
    exchange: ServerExchange | None = None
    # The user that the client says it is.
    name: str = ""
    # The user of the connection, if it is authenticated.
    principal: Principal | None = None


class _Reply(NamedTuple):
    """A response, and why the connection is closed after it; None if it stays open."""

    response: SaslHandshakeResponse | SaslAuthenticateResponse
    refusal: str | None = None


class SaslRequests:
    """Serves SaslHandshake and SaslAuthenticate."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lifetime_ms = access.settings.session_lifetime_ms
        self._sessions: dict[Connection, Session] = {}

    def opened(self, connection: Connection) -> None:
        """Let a client that must authenticate do nothing else first."""
        if self._access.needs_authentication:
            connection.require_authentication()

    def expects_token(self, connection: Connection) -> bool:
        """Return whether the next frame is a SASL message without a header."""
        session = self._sessions.get(connection)
        return session is not None and session.is_bare and session.phase is not Phase.HANDSHAKE

    def refusal(self, connection: Connection, api: Api) -> str:
        """Return why a request of a connection that is not admitted is refused."""
        session = self._sessions.get(connection)
        if session is not None and session.principal is not None:
            return f"{api.name} after the end of the session (security.session_lifetime_ms)"
        return f"{api.name} before authentication (security.authentication)"

    def handle_token(self, connection: Connection, frame: memoryview) -> None:
        """Start on a SASL message without a header."""
        self._start(connection, None, bytes(frame))

    def handle(self, connection: Connection, api: Api, header: RequestHeader, frame: memoryview) -> None:
        """Start on a SaslHandshake or SaslAuthenticate request."""
        if len(frame) > MAX_UNAUTHENTICATED_BYTES:
            raise ProtocolError(f"a {api.name} request of {len(frame)} bytes is too large")
        request = decode(api.request, header.api_version, frame, header.body_at)
        if isinstance(request, SaslAuthenticateRequest):
            self._start(connection, (api, header), request.auth_bytes)
            return
        assert isinstance(request, SaslHandshakeRequest)
        reply = self._handshake(connection, request.mechanism, header.api_version)
        answer = connection.reserve()
        if reply.refusal is None:
            _fill(answer, (api, header), reply)
        else:
            connection.hold()
            connection.spawn(self._refuse(connection, answer, (api, header), reply))

    def _handshake(self, connection: Connection, mechanism: str, version: int) -> _Reply:
        session = self._sessions.get(connection)
        if session is None:
            session = self._sessions[connection] = Session()
            connection.on_close(partial(self._forget, connection))
        now = monotonic()
        if session.phase is not Phase.HANDSHAKE:
            response = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=MECHANISMS)
            return _Reply(response, "a second SaslHandshake before the end of the first exchange")
        if session.principal is not None and (
            not self._lifetime_ms or now - session.handshake_at < MIN_REAUTHENTICATION_S
        ):
            return _Reply(
                SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=MECHANISMS)
            )
        if mechanism not in MECHANISMS:
            response = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=MECHANISMS
            )
            return _Reply(response, f"SASL mechanism {mechanism[:MAX_NAME_LENGTH]!r} is not supported")
        session.phase = Phase.FIRST_MESSAGE
        session.mechanism = mechanism
        session.handshake_at = now
        session.is_bare = version < _WITH_HEADERS_FROM
        if session.is_bare:
            connection.require_authentication()  # until the exchange ends, every frame is part of it
        return _Reply(SaslHandshakeResponse(mechanisms=MECHANISMS))

    def _forget(self, connection: Connection) -> None:
        self._sessions.pop(connection, None)

    def _start(self, connection: Connection, request: tuple[Api, RequestHeader] | None, token: bytes) -> None:
        connection.hold()
        connection.spawn(self._authenticate(connection, connection.reserve(), request, token))

    async def _authenticate(
        self,
        connection: Connection,
        answer: Answer,
        request: tuple[Api, RequestHeader] | None,
        token: bytes,
    ) -> None:
        session = self._sessions.get(connection)
        if session is None or session.phase is Phase.HANDSHAKE:
            reply = _out_of_order(session)
        else:
            reply = await self._next(connection, session, token)
        if reply.refusal is None:
            _fill(answer, request, reply)
            connection.proceed()
        else:
            await self._refuse(connection, answer, request, reply)

    async def _refuse(
        self,
        connection: Connection,
        answer: Answer,
        request: tuple[Api, RequestHeader] | None,
        reply: _Reply,
    ) -> None:
        """Answer later, and close the connection."""
        assert reply.refusal is not None
        session = self._sessions.get(connection)
        log.info(
            "authentication_failed",
            peer=connection.peer,
            user=session.name[:MAX_NAME_LENGTH] if session is not None else "",
            mechanism=session.mechanism if session is not None else "",
            reason=reply.refusal,
        )
        await asyncio.sleep(REFUSAL_DELAY_S)
        _fill(answer, request, reply)
        connection.close_after_responses(f"authentication failed: {reply.refusal}")

    async def _next(self, connection: Connection, session: Session, token: bytes) -> _Reply:
        """Take the next message of an exchange."""
        try:
            if session.mechanism == PLAIN:
                caller = await self._log_in(connection, session, token)
                last = b""
            elif session.phase is Phase.FIRST_MESSAGE:
                challenge = self._challenge(connection, session, token)
                return _Reply(SaslAuthenticateResponse(auth_bytes=challenge))
            else:
                last = self._check_proof(connection, session, token)
                caller = Caller(user(session.name), connection.peer_host)
            if session.principal not in (None, caller.principal):
                raise AuthenticationFailed("a connection cannot change its user")
        except (AuthenticationFailed, RateLimited) as error:
            failed = ErrorCode.SASL_AUTHENTICATION_FAILED
            response = SaslAuthenticateResponse(error_code=failed, error_message=str(error))
            return _Reply(response, str(error))
        session.phase = Phase.HANDSHAKE
        session.exchange = None
        session.principal = caller.principal
        until = monotonic() + self._lifetime_ms / 1000 if self._lifetime_ms else inf
        if not connection.is_closed:
            connection.admit(caller, until)
        return _Reply(SaslAuthenticateResponse(auth_bytes=last, session_lifetime_ms=self._lifetime_ms))

    async def _log_in(self, connection: Connection, session: Session, token: bytes) -> Caller:
        try:
            acts_for, session.name, password = token.decode().split("\0")
        except ValueError:  # not UTF-8, or not three parts
            self._access.failed(connection.peer_host)
            raise AuthenticationFailed("malformed PLAIN message") from None
        if acts_for not in ("", session.name):
            self._access.failed(connection.peer_host)
            raise AuthenticationFailed("acting for another user is not supported")
        return await self._access.log_in(session.name, password, connection.peer_host)

    def _challenge(self, connection: Connection, session: Session, token: bytes) -> bytes:
        mechanism = Mechanism(session.mechanism)
        exchange = session.exchange = ServerExchange(mechanism)
        try:
            session.name = exchange.begin(token)
            if exchange.extensions.get("tokenauth") == "true":
                raise AuthenticationFailed("delegation tokens are not supported")
        except AuthenticationFailed:
            self._access.failed(connection.peer_host)
            raise
        session.phase = Phase.PROOF
        # An unknown user gets a challenge as well, which no password meets.
        credential = self._access.credential(mechanism, session.name)
        return exchange.challenge(credential, secrets.token_bytes(NONCE_BYTES))

    def _check_proof(self, connection: Connection, session: Session, token: bytes) -> bytes:
        assert session.exchange is not None
        self._access.check_failures(connection.peer_host)
        try:
            return session.exchange.finish(token)
        except AuthenticationFailed:
            self._access.failed(connection.peer_host)
            raise


def _out_of_order(session: Session | None) -> _Reply:
    """Return the reply to a SASL message that nothing was agreed on for."""
    response = SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="SaslAuthenticate without SaslHandshake"
    )
    is_authenticated = session is not None and session.principal is not None
    return _Reply(response, None if is_authenticated else "SaslAuthenticate without SaslHandshake")


def _fill(answer: Answer, request: tuple[Api, RequestHeader] | None, reply: _Reply) -> None:
    code = reply.response.error_code
    if code:
        answer.refused(code)
    if request is not None:
        api, header = request
        body = encode(reply.response, header.api_version)
        answer.fill((response_frame(api, header.api_version, header.correlation_id, body),))
    elif code:
        answer.fill(())  # there is no form for an error without a header
    else:
        assert isinstance(reply.response, SaslAuthenticateResponse)
        token = reply.response.auth_bytes
        answer.fill((_SIZE.pack(len(token)) + token,))
