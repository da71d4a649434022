"""The client's side of SASL: credentials, and the messages of each mechanism."""

import secrets
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field

from alpacamq.security.api_keys import PREFIX as API_KEY_PREFIX
from alpacamq.security.api_keys import masked, parse
from alpacamq.security.scram import NONCE_BYTES, ClientExchange, Mechanism

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (*map(str, Mechanism), PLAIN)
DEFAULT_MECHANISM = str(Mechanism.SHA_256)
# The answer to the error of a server, which then refuses the client (RFC 7628).
_ABORT = b"\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user and its password."""

    user: str
    password: str = field(repr=False)
    mechanism: str = DEFAULT_MECHANISM


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerToken:
    """A token of an OAuth provider, or a function that returns a valid one whenever it is needed."""

    token: str | Callable[[], str | Awaitable[str]] = field(repr=False)
    mechanism: str = field(default=OAUTHBEARER, init=False)

    @property
    def user(self) -> str:
        return "the owner of the token"


Credentials = Login | BearerToken


def api_key(key: str) -> Login:
    """Return the login by an API key (`amq_…`), which the broker accepts as the password of PLAIN."""
    presented = parse(key)
    if presented is None:
        raise ValueError(f"{masked(key)!r} is not an API key: these begin with {API_KEY_PREFIX}")
    return Login(user=presented.id, password=key, mechanism=PLAIN)


def login_messages(login: Login) -> Generator[bytes, bytes, None]:
    """Yield the messages of a login by password; each answer of the server is sent in.

    Raises AuthenticationFailed if the server does not know the password. Proofs of SCRAM take milliseconds.
    """
    if login.mechanism == PLAIN:
        yield f"\0{login.user}\0{login.password}".encode()
        return
    nonce = secrets.token_bytes(NONCE_BYTES)
    exchange = ClientExchange(Mechanism(login.mechanism), login.user, login.password, nonce)
    challenge = yield exchange.first
    exchange.verify((yield exchange.final(challenge)))


def token_messages(token: str) -> Generator[bytes, bytes, None]:
    """Yield the messages of a login by a bearer token; each answer of the server is sent in."""
    challenge = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if challenge:  # why the token is refused; the answer to this message is the refusal
        yield _ABORT
