"""Authentication of HTTP requests: a password (Basic) or an API key (Bearer) in each."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import NamedTuple

from alpacamq.broker.access import Access, Caller
from alpacamq.model.errors import AuthenticationFailed, RateLimited
from alpacamq.security.principals import ANONYMOUS, MAX_NAME_LENGTH
from alpacamq.telemetry.logs import get_logger

from .messages import Request

log = get_logger(__name__)

AUTHORIZATION = "authorization"
# Asks for credentials; browsers show a dialog.
CHALLENGE = (("WWW-Authenticate", 'Basic realm="AlpacaMQ", charset="UTF-8"'),)
MAX_HEADER_LENGTH = 4096


class Password(NamedTuple):
    """A user and its password, as the client sent them."""

    user: str
    password: str


class Login:
    """Finds out who has sent a request."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def known(self, request: Request) -> Caller | None:
        """Return the client; None if its password has to be checked with `by_password`.

        A client without credentials is anonymous. Raises AuthenticationFailed, RateLimited.
        """
        host = host_of(request)
        header = request.headers.get(AUTHORIZATION)
        if header is None:
            return self._access.anonymous(host)
        scheme, credentials = _split(header)
        if scheme == "bearer":
            with _logging(request):
                return self._access.by_key(credentials, host)
        sent = _password(scheme, credentials)
        return self._access.known_login(sent.user, sent.password, host)

    async def by_password(self, request: Request) -> Caller:
        """Return the client by its password. Raises AuthenticationFailed, RateLimited."""
        sent = _password(*_split(request.headers[AUTHORIZATION]))
        with _logging(request, sent.user):
            return await self._access.log_in(sent.user, sent.password, host_of(request))


@contextmanager
def _logging(request: Request, user: str = "") -> Iterator[None]:
    """Log a failure of the block."""
    try:
        yield
    except (AuthenticationFailed, RateLimited) as error:
        log.info("authentication_failed", peer=request.peer, user=user[:MAX_NAME_LENGTH], reason=str(error))
        raise


def check_authenticated(caller: Caller) -> None:
    """Raise AuthenticationFailed for an anonymous client."""
    if caller.principal == ANONYMOUS:
        raise AuthenticationFailed("send a user and password (Basic) or an API key (Bearer)")


def host_of(request: Request) -> str:
    """Return the address of the client, as access rules name it."""
    host = request.peer.rpartition(":")[0].strip("[]")
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
