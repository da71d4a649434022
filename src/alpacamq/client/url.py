"""Parses the URL of a cluster: `alpaca://[user:password@]host[:port][,host2[:port2]…]`, `alpacas://` with TLS."""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError

from .connect import Tls, parse_addresses

# Of the gRPC API, where clients find out the rest.
DEFAULT_PORT: Final = 9095
_PLAIN, _SECURE = "alpaca", "alpacas"
_EXAMPLE: Final = "alpaca://localhost or alpacas://user:password@broker1:9095,broker2:9095"


class InvalidUrl(AlpacaError, ValueError):
    """The URL of a cluster, or an option beside it, is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user with a password, or a token: an API key or a JSON Web Token."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The nodes of a cluster and how to connect to them."""

    addresses: tuple[Address, ...]
    login: Login | None = None
    tls: Tls | None = None


def parse_url(
    url: str,
    *,
    token: str | None = None,
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
    login = None
    if at:
        user, _, password = userinfo.partition(":")
        login = Login(user=unquote(user), password=unquote(password))
        if not login.user:
            raise InvalidUrl(f"{_without_password(url)!r} has no user before the @")
    if token is not None:
        if login is not None:
            raise InvalidUrl("a URL with a user and a token exclude each other")
        if not token:
            raise InvalidUrl("token is empty")
        login = Login(token=token)
    try:
        addresses = parse_addresses(hosts, DEFAULT_PORT)
    except ValueError as error:
        raise InvalidUrl(f"{_without_password(url)!r}: {error}") from None
    return Target(addresses=addresses, login=login, tls=tls)


def _without_password(url: str) -> str:
    """Return a URL as it may be shown."""
    scheme, separator, rest = url.partition("://")
    userinfo, at, hosts = rest.rpartition("@")
    if not at or ":" not in userinfo:
        return url
    return f"{scheme}{separator}{userinfo.partition(':')[0]}:***@{hosts}"
