"""The names by which clients may address a listener.

A page of another site can have its own name resolve to the address of this machine (DNS rebinding);
its requests then look like those of our own pages, but their Host header still says that name.
"""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus

from .messages import App, Request, Response, problem

ANY = "*"
_WITH_PORT = re.compile(r"(.*):\d*")
# The machine itself: these names are never looked up in the network's DNS.
_LOCAL = ("localhost", "*.localhost")


class Hosts:
    """Which host names are ours: IP addresses, localhost and `names`.

    A name may begin with `*.` for every name below it, and be `*` for every name there is.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = {_normal(name) for name in (*_LOCAL, *names)}
        self._accepts_all = ANY in known
        self._names = frozenset(name for name in known if not name.startswith("*"))
        self._suffixes = tuple(name[1:] for name in known if name.startswith("*."))

    def accept(self, host: str) -> bool:
        """Whether a Host header names us; the port is not looked at, a proxy may have another."""
        if self._accepts_all:
            return True
        if (split := _WITH_PORT.fullmatch(host)) is not None:
            host = split[1]
        if host.startswith("[") and host.endswith("]"):
            return _is_address(host[1:-1])
        name = _normal(host)
        return name in self._names or name.endswith(self._suffixes) or _is_address(name)


class HostCheck:
    """An App in front of another: refuses requests addressed to a name that is not ours."""

    def __init__(
        self, app: App, hosts: Hosts, setting: str, refuse: Callable[[Request, str], Response] | None = None
    ) -> None:
        self._app = app
        self._hosts = hosts
        # Where names can be added.
        self._setting = setting
        self._refuse = refuse or _misdirected
        # Clients hardly ever use more than one. Empty: HTTP/1.0 needs no Host, and browsers do not speak it.
        self._accepted = ""

    def __call__(self, request: Request) -> Response | Awaitable[Response]:
        host = request.host
        if host and host != self._accepted:
            if not self._hosts.accept(host):
                return self._refuse(
                    request,
                    f"{host!r} is not a name of this broker; use its IP address or localhost, "
                    f"or add the name to {self._setting}",
                )
            self._accepted = host
        return self._app(request)


def _misdirected(_request: Request, detail: str) -> Response:
    return problem(HTTPStatus.MISDIRECTED_REQUEST, detail)


def _normal(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# What browsers themselves say of a request; no page can.
_OWN = frozenset({"same-origin", "none"})
_FOREIGN = frozenset({"cross-site", "same-site"})


def foreign_page(request: Request) -> str | None:
    """Who asks, in words, if it is a page of another site."""
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site in _OWN:  # also behind a proxy, which knows us by another name than the browser does
        return None
    if (origin := headers.get("origin")) is not None and not _is_here(origin, request.host):
        return f"a page of {origin}"
    # Not every request has an origin: pictures and links have none.
    return "a page of another site" if site in _FOREIGN else None


def _is_here(origin: str, host: str) -> bool:
    return origin.partition("://")[2].lower() == host.lower()
