"""Authentication of HTTP requests: Basic (password), Bearer (API key or token), or the console's cookie."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from alpacamq.broker.access import Access, Caller
from alpacamq.broker.sessions import Sessions
from alpacamq.model.errors import AuthenticationFailed
from alpacamq.security.api_keys import PREFIX as KEY_PREFIX
from alpacamq.security.api_keys import masked
from alpacamq.security.oauth import MAX_TOKEN_BYTES
from alpacamq.security.principals import ANONYMOUS, MAX_NAME_LENGTH
from alpacamq.security.sessions import Session
from alpacamq.telemetry.logs import get_logger

from .messages import Request

log = get_logger(__name__)

AUTHORIZATION = "authorization"
# Asks for credentials; browsers show a dialog.
CHALLENGE = (("WWW-Authenticate", 'Basic realm="AlpacaMQ", charset="UTF-8"'),)
# Sent by scripts of the console, which has a form for it: browsers show no dialog for Bearer.
REQUESTED_WITH = "x-requested-with"
CHALLENGE_OF_SCRIPTS = (("WWW-Authenticate", 'Bearer realm="AlpacaMQ"'),)
CSRF_HEADER = "x-csrf-token"
# A bearer token of the greatest length, and its scheme.
MAX_HEADER_LENGTH = MAX_TOKEN_BYTES + 16


class Password(NamedTuple):
    """A user and its password, as the client sent them."""

    user: str
    password: str


class Login:
    """Finds out who has sent a request."""

    def __init__(self, access: Access, sessions: Sessions, cluster_id: str) -> None:
        self._access = access
        self._sessions = sessions
        # Browsers send cookies to all ports of a host, where brokers of another cluster may listen.
        self._cookie = f"alpacamq-{cluster_id}"

    def has_sessions(self, request: Request) -> bool:
        """Return whether it makes a difference who a browser is logged in as."""
        return self._access.is_enforced or self.is_required(request)

    def is_required(self, request: Request) -> bool:
        """Return whether the listener of a request requires authentication."""
        return self._access.requires_login(request.authentication)

    def known(self, request: Request) -> Caller | None:
        """Return the client; None if its password or token has to be checked with `authenticate`.

        A client without credentials is that of its cookie, or of its certificate, or anonymous; so is one
        with a cookie whose session has ended, or whose tenant is disabled.

        Raises AuthenticationFailed, RateLimited.
        """
        host = host_of(request)
        header = request.headers.get(AUTHORIZATION)
        if header is None:
            return self._by_cookie(request, host) or self._unnamed(request)
        scheme, credentials = _split(header)
        if scheme == "bearer":
            if self._is_token(credentials):
                caller = self._access.known_token(credentials, host)
                if caller is not None:
                    self._access.check_admitted(caller)
                    self._access.audit_login(caller.principal.name, host, "token")
                return caller
            return self.by_key(request, credentials)
        sent = _password(scheme, credentials)
        caller = self._access.known_login(sent.user, sent.password, host)
        if caller is not None:
            self._access.check_admitted(caller)
            self._access.audit_login(sent.user, host, "password")
        return caller

    def _is_token(self, credentials: str) -> bool:
        """Return whether credentials are the token of a provider, not an API key."""
        return self._access.tokens is not None and not credentials.startswith(KEY_PREFIX)

    async def authenticate(self, request: Request) -> Caller:
        """Return the client by its password or token. Raises AuthenticationFailed, RateLimited."""
        scheme, credentials = _split(request.headers[AUTHORIZATION])
        if scheme == "bearer":
            return await self._by_token(request, credentials)
        sent = _password(scheme, credentials)
        return await self.log_in(request, sent.user, sent.password)

    async def _by_token(self, request: Request, text: str) -> Caller:
        host = host_of(request)
        with self._recording(request, "token"):
            caller = await self._access.by_token(text, host)
            self._access.check_admitted(caller)
        self._access.audit_login(caller.principal.name, host, "token")
        return caller

    async def log_in(self, request: Request, user: str, password: str) -> Caller:
        """Return the client by a password that it has sent."""
        host = host_of(request)
        with self._recording(request, "password", user):
            caller = await self._access.log_in(user, password, host)
            self._access.check_admitted(caller)
        self._access.audit_login(user, host, "password")
        return caller

    def by_key(self, request: Request, text: str) -> Caller:
        """Return the client by an API key that it has sent."""
        host = host_of(request)
        with self._recording(request, "API key"):
            caller = self._access.by_key(text, host)
            self._access.check_admitted(caller)
        self._access.audit_login(caller.principal.name, host, "API key", key=caller.key_id)
        return caller

    def check_authenticated(self, caller: Caller) -> None:
        """Raise AuthenticationFailed for an anonymous client."""
        if caller.principal == ANONYMOUS:
            self._access.audit_login("", caller.host, "no credentials", "authentication is required")
            raise AuthenticationFailed("send a user and password (Basic), or an API key or token (Bearer)")

    @contextmanager
    def _recording(self, request: Request, how: str, user: str = "") -> Iterator[None]:
        """Log and audit a failure of the block, unless the limit on failures caused it: those are counted."""
        try:
            yield
        except AuthenticationFailed as error:
            name = masked(user)[:MAX_NAME_LENGTH]
            log.info("authentication_failed", peer=request.peer, user=name, reason=str(error))
            self._access.audit_login(name, host_of(request), how, str(error))
            raise

    def _by_cookie(self, request: Request, host: str) -> Caller | None:
        cookies = request.headers.get("cookie")
        if cookies is None or not self.has_sessions(request):
            return None
        for cookie in cookies.split(";"):
            name, _, token = cookie.strip().partition("=")
            if name == self._cookie:
                return self._admitted(self._sessions.find(token, host))
        return None

    def _admitted(self, caller: Caller | None) -> Caller | None:
        """Return the client of a session; None if its tenant is disabled."""
        if caller is not None:
            try:
                self._access.check_admitted(caller)
            except AuthenticationFailed:
                return None
        return caller

    def _unnamed(self, request: Request) -> Caller:
        """Return the client of its certificate, or an anonymous one. Raises AuthenticationFailed."""
        caller = without_credentials(request, self._access.remaining_ms(request.principal_expires_ms))
        if request.principal is not None:
            with self._recording(request, "certificate", caller.principal.name):
                self._access.check_admitted(caller)
            self._access.audit_login(caller.principal.name, caller.host, "certificate")
        return caller

    async def begin_session(self, request: Request, caller: Caller) -> Caller:
        """Begin a session for a client that has just authenticated."""
        # Behind a proxy that ends TLS, the browser still says how it has reached the page.
        origin = request.headers.get("origin", "")
        return await self._sessions.begin(caller, is_secure=request.has_tls or origin.startswith("https://"))

    def set_cookie(self, session: Session) -> tuple[str, str]:
        """Return the header that gives a browser its session."""
        return _set_cookie(self._cookie, self._sessions.token(session), is_secure=session.is_secure)

    def renewal(self, caller: Caller) -> tuple[tuple[str, str], ...]:
        """Return the header that prolongs the session of a client, if it is time to."""
        session = None if caller.session is None else self._sessions.renewed(caller.session)
        return () if session is None else (self.set_cookie(session),)

    async def end_session(self, session: Session) -> tuple[str, str]:
        """End a session; return the header that removes the cookie."""
        await self._sessions.end(session)
        name, value = _set_cookie(self._cookie, "", is_secure=session.is_secure)
        return name, f"{value}; Max-Age=0"

    def has_csrf_token(self, request: Request, session: Session) -> bool:
        """Return whether a request carries the token that only pages of the console know."""
        return self._sessions.has_csrf_token(session, request.headers.get(CSRF_HEADER, ""))

    def csrf_token(self, session: Session) -> str:
        return self._sessions.csrf_token(session)

    def end_ms(self, session: Session) -> int:
        """Return when a session ends in any case."""
        return self._sessions.end_ms(session)


def _set_cookie(name: str, value: str, *, is_secure: bool) -> tuple[str, str]:
    secure = "; Secure" if is_secure else ""
    return "Set-Cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"


def without_credentials(request: Request, remaining_ms: int | None = None) -> Caller:
    """Return the client of a request without credentials: the principal of its certificate, or anonymous.

    `remaining_ms` is how long its certificate is still valid.
    """
    return Caller(request.principal or ANONYMOUS, host_of(request), remaining_ms=remaining_ms)


def host_of(request: Request) -> str:
    """Return the address of the client, as access rules name it."""
    return _normal_host(request.peer.rpartition(":")[0])


@lru_cache(maxsize=1024)
def _normal_host(text: str) -> str:
    host = text.strip("[]")
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def _split(header: str) -> tuple[str, str]:
    if len(header) > MAX_HEADER_LENGTH:
        raise AuthenticationFailed(f"the Authorization header is longer than {MAX_HEADER_LENGTH} characters")
    scheme, _, credentials = header.partition(" ")
    return scheme.lower(), credentials.strip()


def _password(scheme: str, credentials: str) -> Password:
    if scheme != "basic":
        raise AuthenticationFailed("the Authorization header must be Basic or Bearer")
    try:
        user, separator, password = b64decode(credentials, validate=True).decode().partition(":")
    except (Base64Error, UnicodeDecodeError):
        separator = ""
    if not separator:
        raise AuthenticationFailed("the Authorization header is not Basic USER:PASSWORD in Base64")
    return Password(user, password)
