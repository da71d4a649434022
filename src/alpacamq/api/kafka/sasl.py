"""SASL: authenticates the client of a connection, by a password or a token, at its start and again later.

A client names a mechanism (SaslHandshake) and sends its messages in SaslAuthenticate requests; after version
0 of SaslHandshake, which old clients use, as frames without a header. A refusal is answered with a short
delay, and closes the connection; a client of OAUTHBEARER gets the reason as a message first, which it
answers. A connection that is authenticated keeps its user until its session ends, even if the user is deleted
or gets another password, as in Kafka.
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
from alpacamq.security import api_keys, oauth
from alpacamq.security.api_keys import masked
from alpacamq.security.principals import ANONYMOUS, MAX_NAME_LENGTH, Principal, user
from alpacamq.security.scram import NONCE_BYTES, Mechanism, ServerExchange
from alpacamq.telemetry.logs import get_logger

from .connection import MAX_UNAUTHENTICATED_BYTES, Answer, Connection

log = get_logger(__name__)

PLAIN = "PLAIN"
# All that this version knows; some need settings.
MECHANISMS = (PLAIN, *map(str, Mechanism), oauth.MECHANISM)
# Served before a client has authenticated; SaslHandshake and SaslAuthenticate, and which versions there are.
BEFORE_AUTHENTICATION = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
# As connection.failed.authentication.delay.ms of Kafka: a client that tries again at once is slowed down.
REFUSAL_DELAY_S = 0.1
# A client may not keep the broker busy with authentication; as in Kafka.
MIN_REAUTHENTICATION_S = 1.0
# Of a token that is about to end, or has ended by as much as clocks may differ: clients authenticate again
# shortly before the end, which must not be too early.
MIN_SESSION_MS = 3000
# From this version of SaslHandshake on, SASL messages are SaslAuthenticate requests.
_WITH_HEADERS_FROM = 1
_SIZE = Struct(">i")


class Phase(Enum):
    """What the broker expects from the client."""

    HANDSHAKE = auto()
    FIRST_MESSAGE = auto()
    # Of SCRAM: the proof that the client knows the password.
    PROOF = auto()
    # Of OAUTHBEARER: that the client has seen why its token is refused.
    ABORT = auto()


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
    # Why its token is refused.
    refusal: str = ""
    # The user of the connection, if it is authenticated.
    principal: Principal | None = None


class _Reply(NamedTuple):
    """A response, and why the connection is closed after it; None if it stays open."""

    response: SaslHandshakeResponse | SaslAuthenticateResponse
    refusal: str | None = None


def enabled_mechanisms(*, has_provider: bool) -> tuple[str, ...]:
    """Return the mechanisms of listeners that do not say; OAUTHBEARER needs a provider of tokens."""
    return MECHANISMS if has_provider else tuple(each for each in MECHANISMS if each != oauth.MECHANISM)


class SaslRequests:
    """Serves SaslHandshake and SaslAuthenticate."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lifetime_ms = access.settings.session_lifetime_ms
        self._mechanisms = enabled_mechanisms(has_provider=access.tokens is not None)
        self._sessions: dict[Connection, Session] = {}
        self._connections: set[Connection] = set()
        access.subscribe(self._close_without_key)

    def _close_without_key(self) -> None:
        """Close the connections of clients whose API key was deleted, or ends at another time by now."""
        known = self._access.api_keys()
        for connection in list(self._connections):
            key = connection.caller.key
            if key is not None and known.get(key.id) != key:
                connection.close("the API key was changed or deleted")

    def opened(self, connection: Connection) -> None:
        """Let a client that must authenticate do nothing else first. Some have, by a certificate."""
        self._connections.add(connection)
        connection.on_close(partial(self._forget, connection))
        if connection.caller.principal != ANONYMOUS:
            self._admit_certified(connection)
        elif self._access.requires_login(connection.listener.authentication):
            connection.require_authentication()

    def _admit_certified(self, connection: Connection) -> None:
        """Close the connection of a client that has a certificate, and may not log in."""
        name, host = connection.caller.principal.name, connection.caller.host
        try:
            self._check_admitted(connection, connection.caller)
        except AuthenticationFailed as error:
            log.info("authentication_failed", peer=connection.peer, user=name, reason=str(error))
            self._access.audit_login(name, host, "certificate", str(error))
            connection.close(f"authentication failed: {error}")
        else:
            self._access.audit_login(name, host, "certificate")

    def expects_token(self, connection: Connection) -> bool:
        """Return whether the next frame is a SASL message without a header."""
        session = self._sessions.get(connection)
        return session is not None and session.is_bare and session.phase is not Phase.HANDSHAKE

    def refusal(self, connection: Connection, api: Api) -> str:
        """Return why a request of a connection that is not admitted is refused."""
        session = self._sessions.get(connection)
        if session is not None and session.principal is not None:
            return f"{api.name} after the end of the session (security.session_lifetime_ms, or of a token)"
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
        now = monotonic()
        mechanisms = self._mechanisms_of(connection)
        if session.phase is not Phase.HANDSHAKE:
            response = _handshake_response(ErrorCode.ILLEGAL_SASL_STATE, mechanisms)
            return _Reply(response, "a second SaslHandshake before the end of the first exchange")
        if session.principal is not None and (
            connection.admitted_until == inf or now - session.handshake_at < MIN_REAUTHENTICATION_S
        ):
            return _Reply(_handshake_response(ErrorCode.ILLEGAL_SASL_STATE, mechanisms))
        if mechanism not in mechanisms:
            response = _handshake_response(ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms)
            return _Reply(response, f"SASL mechanism {mechanism[:MAX_NAME_LENGTH]!r} is not supported")
        session.phase = Phase.FIRST_MESSAGE
        session.mechanism = mechanism
        session.handshake_at = now
        session.is_bare = version < _WITH_HEADERS_FROM
        if session.is_bare:
            connection.require_authentication()  # until the exchange ends, every frame is part of it
        return _Reply(_handshake_response(ErrorCode.NONE, mechanisms))

    def _mechanisms_of(self, connection: Connection) -> tuple[str, ...]:
        """Return the mechanisms by which clients of a listener can authenticate."""
        allowed = connection.listener.mechanisms
        return tuple(each for each in self._mechanisms if each in allowed) if allowed else self._mechanisms

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
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
        if session is None or session.phase is not Phase.ABORT:  # otherwise it has been recorded
            self._record_refusal(connection, session, reply.refusal)
        # From its arrival on: how long it took to find out tells nothing about the user.
        await asyncio.sleep(connection.received_at + REFUSAL_DELAY_S - monotonic())
        _fill(answer, request, reply)
        connection.close_after_responses(f"authentication failed: {reply.refusal}")

    def _record_refusal(self, connection: Connection, session: Session | None, reason: str) -> None:
        """Log and audit a refusal."""
        name, how = ("", "") if session is None else (masked(session.name), session.mechanism)
        name = name[:MAX_NAME_LENGTH]
        log.info("authentication_failed", peer=connection.peer, user=name, mechanism=how, reason=reason)
        self._access.audit_login(name, connection.peer_host, how or "SASL", reason)

    async def _next(self, connection: Connection, session: Session, token: bytes) -> _Reply:
        """Take the next message of an exchange."""
        if session.phase is Phase.ABORT:
            failed = ErrorCode.SASL_AUTHENTICATION_FAILED
            response = SaslAuthenticateResponse(error_code=failed, error_message=session.refusal)
            return _Reply(response, session.refusal)
        try:
            last = b""
            if session.mechanism == PLAIN:
                caller = await self._log_in(connection, session, token)
            elif session.mechanism == oauth.MECHANISM:
                caller = await self._by_token(connection, session, token)
            elif session.phase is Phase.FIRST_MESSAGE:
                challenge = self._challenge(connection, session, token)
                return _Reply(SaslAuthenticateResponse(auth_bytes=challenge))
            else:
                last = self._check_proof(connection, session, token)
                caller = self._proved(connection, session)
            if session.principal not in (None, caller.principal):
                raise AuthenticationFailed("a connection cannot change its user")
            self._check_admitted(connection, caller)
        except (AuthenticationFailed, RateLimited) as error:
            if session.mechanism == oauth.MECHANISM:
                return self._refused_token(connection, session, str(error))
            failed = ErrorCode.SASL_AUTHENTICATION_FAILED
            response = SaslAuthenticateResponse(error_code=failed, error_message=str(error))
            return _Reply(response, str(error))
        self._access.audit_login(caller.principal.name, caller.host, session.mechanism, key=caller.key_id)
        session.phase = Phase.HANDSHAKE
        session.exchange = None
        session.principal = caller.principal
        lifetime_ms = self._lifetime_of(caller)
        until = monotonic() + lifetime_ms / 1000 if lifetime_ms else inf
        if not connection.is_closed:
            connection.admit(caller, until)
        return _Reply(SaslAuthenticateResponse(auth_bytes=last, session_lifetime_ms=lifetime_ms))

    def _lifetime_of(self, caller: Caller) -> int:
        """Return how long a client is served before it has to authenticate again; 0 if it need not."""
        remaining_ms = caller.remaining_ms
        if caller.key is not None:
            remaining_ms = self._access.remaining_ms(caller.key.expires_ms)
        if remaining_ms is None:
            return self._lifetime_ms
        remaining_ms = max(remaining_ms, MIN_SESSION_MS)
        return min(remaining_ms, self._lifetime_ms) if self._lifetime_ms else remaining_ms

    def _check_admitted(self, connection: Connection, caller: Caller) -> None:
        """Raise AuthenticationFailed if the tenant of a client is disabled or has all its connections."""
        self._access.check_admitted(caller)
        if (limit := self._access.connection_limit(caller)) is None:
            return
        tenant = self._access.tenant_of(caller)
        others = (each for each in self._connections if each is not connection)
        count = sum(self._access.tenant_of(each.caller) == tenant for each in others)
        if count >= limit:
            raise AuthenticationFailed(f"too many connections: the limit of the tenant is {limit}")

    async def _log_in(self, connection: Connection, session: Session, token: bytes) -> Caller:
        try:
            acts_for, session.name, password = token.decode().split("\0")
        except ValueError:  # not UTF-8, or not three parts
            self._access.failed(connection.peer_host)
            raise AuthenticationFailed("malformed PLAIN message") from None
        if acts_for not in ("", session.name):
            self._access.failed(connection.peer_host)
            raise AuthenticationFailed("acting for another user is not supported")
        presented = api_keys.parse(password)
        if presented is not None and presented.id == session.name:
            return self._access.by_key(password, connection.peer_host)
        return await self._access.log_in(session.name, password, connection.peer_host)

    async def _by_token(self, connection: Connection, session: Session, message: bytes) -> Caller:
        try:
            first = oauth.parse_client_first(message)
        except AuthenticationFailed:
            self._access.failed(connection.peer_host)
            raise
        caller = await self._access.by_token(first.token, connection.peer_host)
        session.name = caller.principal.name
        if first.acts_for not in ("", session.name):
            raise AuthenticationFailed("acting for another user is not supported")
        return caller

    def _refused_token(self, connection: Connection, session: Session, reason: str) -> _Reply:
        """Return the error of a token as a message; the client answers it, and is refused then."""
        self._record_refusal(connection, session, reason)
        session.phase = Phase.ABORT
        session.refusal = reason
        if not connection.is_closed:
            connection.require_authentication()
        return _Reply(SaslAuthenticateResponse(auth_bytes=oauth.error_challenge(reason)))

    def _challenge(self, connection: Connection, session: Session, token: bytes) -> bytes:
        mechanism = Mechanism(session.mechanism)
        exchange = session.exchange = ServerExchange(mechanism)
        try:
            session.name = exchange.begin(token)
            if exchange.is_token and self._access.settings.delegation is None:
                raise AuthenticationFailed(
                    "delegation tokens are not enabled (security.delegation_token_secret_file)"
                )
        except AuthenticationFailed:
            self._access.failed(connection.peer_host)
            raise
        session.phase = Phase.PROOF
        # An unknown user or token gets a challenge as well, which no password meets.
        credential_of = self._access.token_credential if exchange.is_token else self._access.credential
        credential = credential_of(mechanism, session.name)
        return exchange.challenge(credential, secrets.token_bytes(NONCE_BYTES))

    def _check_proof(self, connection: Connection, session: Session, token: bytes) -> bytes:
        assert session.exchange is not None
        self._access.check_failures(connection.peer_host)
        try:
            return session.exchange.finish(token)
        except AuthenticationFailed:
            self._access.failed(connection.peer_host)
            raise

    def _proved(self, connection: Connection, session: Session) -> Caller:
        """Return the client whose proof was right."""
        assert session.exchange is not None
        if session.exchange.is_token:
            return self._access.by_delegation_token(session.name, connection.peer_host)
        return Caller(user(session.name), connection.peer_host)


def _handshake_response(code: ErrorCode, mechanisms: tuple[str, ...]) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=code, mechanisms=mechanisms)


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
