"""The host names by which clients may address a listener.

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
# The machine itself: these names are never resolved by DNS.
_LOCAL = ("localhost", "*.localhost")


class Hosts:
    """The accepted host names: IP addresses, localhost and `names`.

    A name may begin with `*.` to include its subdomains, or be `*` for every name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = {_normal(name) for name in (*_LOCAL, *names)}
        self._accepts_all = ANY in known
        self._names = frozenset(name for name in known if not name.startswith("*"))
        self._suffixes = tuple(name[1:] for name in known if name.startswith("*."))

    def accept(self, host: str) -> bool:
        """Return whether a Host header is accepted. The port is ignored, because a proxy may use another."""
        if self._accepts_all:
            return True
        if (split := _WITH_PORT.fullmatch(host)) is not None:
            host = split[1]
        if host.startswith("[") and host.endswith("]"):
            return _is_address(host[1:-1])
        name = _normal(host)
        return name in self._names or name.endswith(self._suffixes) or _is_address(name)


class HostCheck:
    """An App in front of another that refuses requests with a foreign Host header."""

    def __init__(
        self, app: App, hosts: Hosts, setting: str, refuse: Callable[[Request, str], Response] | None = None
    ) -> None:
        self._app = app
        self._hosts = hosts
        # The setting that adds names.
        self._setting = setting
        self._refuse = refuse or _misdirected
        # Most clients use one name only. Empty: HTTP/1.0 needs no Host, and browsers do not use it.
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


# Set by browsers; pages cannot set it.
_OWN = frozenset({"same-origin", "none"})
_FOREIGN = frozenset({"cross-site", "same-site"})


def foreign_page(request: Request) -> str | None:
    """Return a description of the page if a page of another site sent the request."""
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site in _OWN:  # also behind a proxy, which uses another host name than the browser
        return None
    if (origin := headers.get("origin")) is not None and not _is_here(origin, request.host):
        return f"a page of {origin}"
    # Not every request has an Origin header: images and links have none.
    return "a page of another site" if site in _FOREIGN else None


def _is_here(origin: str, host: str) -> bool:
    return origin.partition("://")[2].lower() == host.lower()
