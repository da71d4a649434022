"""Parses the URL of a cluster: `alpaca://[user:password@]host[:port][,host2…]`, `alpacas://` with TLS."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from alpacamq.model.address import Address
from alpacamq.security.api_keys import parse as is_api_key

from .connect import Tls, parse_addresses
from .errors import ClientError
from .login import BearerToken, Credentials, Login, api_key

# Of the gRPC API, where clients find out the rest.
DEFAULT_PORT: Final = 9095
_PLAIN, _SECURE = "alpaca", "alpacas"
_EXAMPLE: Final = "alpaca://localhost or alpacas://user:password@broker1:9095,broker2:9095"


class InvalidUrl(ClientError, ValueError):
    """The URL of a cluster, or an option beside it, is invalid."""


# An API key or a JSON Web Token, or a function that returns one that is valid now.
Token: TypeAlias = str | Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The nodes of a cluster and how to connect to them."""

    addresses: tuple[Address, ...]
    credentials: Credentials | None = None
    tls: Tls | None = None


def parse_url(
    url: str,
    *,
    token: Token | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
) -> Target:
    """Return the nodes and the login of a URL. Raises InvalidUrl."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in (_PLAIN, _SECURE):
        raise InvalidUrl(f"{_without_password(url)!r} is not the URL of a cluster, such as {_EXAMPLE}")
    rest = rest.removesuffix("/")
    if any(character in rest.rpartition("@")[2] for character in "/?#"):
        raise InvalidUrl(
            f"{_without_password(url)!r} has a path or a query; a cluster's URL is like {_EXAMPLE}"
        )
    tls = None
    if scheme == _SECURE:
        tls = Tls(ca=ca, certificate=certificate, key=key)
    elif ca or certificate or key:
        raise InvalidUrl(f"ca, certificate and key need a URL with TLS: {_SECURE}://…")
    if key and not certificate:
        raise InvalidUrl("key is the key of a certificate; set certificate as well")
    userinfo, at, hosts = rest.rpartition("@")
    credentials: Credentials | None = None
    if at:
        user, _, password = userinfo.partition(":")
        credentials = Login(user=unquote(user), password=unquote(password))
        if not credentials.user:
            raise InvalidUrl(f"{_without_password(url)!r} has no user before the @")
    if token is not None:
        if credentials is not None:
            raise InvalidUrl("a URL with a user and a token exclude each other")
        if not token:
            raise InvalidUrl("token is empty")
        is_key = isinstance(token, str) and is_api_key(token)
        credentials = api_key(str(token)) if is_key else BearerToken(token=token)
    try:
        addresses = parse_addresses(hosts, DEFAULT_PORT)
    except ValueError as error:
        raise InvalidUrl(f"{_without_password(url)!r}: {error}") from None
    return Target(addresses=addresses, credentials=credentials, tls=tls)


def authorization(credentials: Credentials | None) -> str | None:
    """Return the credentials as the value of an `authorization` header."""
    match credentials:
        case None:
            return None
        case BearerToken(token=token):
            current = token if isinstance(token, str) else token()
            assert isinstance(current, str), "tokens of this client are not awaited"
            return f"Bearer {current}"
        case Login(password=password) if is_api_key(password):
            return f"Bearer {password}"
        case Login(user=user, password=password):
            return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def _without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    scheme, separator, rest = url.partition("://")
    userinfo, at, hosts = rest.rpartition("@")
    if not at or ":" not in userinfo:
        return url
    return f"{scheme}{separator}{userinfo.partition(':')[0]}:***@{hosts}"
