"""What every listener does alike: taking its address, and deciding who may connect."""

import socket
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ListenerStats

log = get_logger(__name__)

BACKLOG = 1024
# How long a connection is idle before it may have to give way to a new one. Group members send
# heartbeats every 3 s by default; a client that has just connected sends its first request at once.
EVICTABLE_AFTER_SECONDS = 5.0
SILENT_EVICTABLE_AFTER_SECONDS = 1.0
# How often idle connections are looked for where none was found.
_SEARCH_SECONDS = 0.1
REPORT_SECONDS = 10.0


class CannotListen(AlpacaError):
    """The address is taken or is not ours."""


def take_address(host: str, port: int, remedy: str) -> socket.socket:
    """A listening socket; `remedy` is what to do if the address cannot be had."""
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # At once: an address that is only bound could be taken by another broker as well.
        listening.listen(BACKLOG)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}; {remedy}") from error
    return listening


class Connection(Protocol):
    """A connection as the limit of its listener sees it."""

    @property
    def has_asked(self) -> bool:
        """Whether a request has arrived on it."""
        ...

    @property
    def idle_since(self) -> float | None:
        """When it last did something; None while a request is under way, or once it is closed."""
        ...

    def evict(self) -> None:
        """Hang up and leave the listener's connections at once."""
        ...


C = TypeVar("C", bound=Connection)


class ConnectionLimit(Generic[C]):
    """Bounds the connections of one listener.

    Where all places are taken, the connection that has been idle for longest gives way to the new
    one. A connection with a request under way never does: then the new one is refused.
    """

    def __init__(
        self, listener: str, connections: Collection[C], limit: int, stats: ListenerStats | None
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._limit = limit
        self._stats = stats
        # Those that were idle when last looked for, the longest idle last; and when to look again.
        self._idle: list[tuple[float, C]] = []
        self._search_at = 0.0
        # Since they were last logged, and when they may be again.
        self._refused = self._evicted = 0
        self._report_at = 0.0

    def has_place(self, now: float) -> bool:
        """Whether one more connection may be opened, for which an idle one may have been closed."""
        if len(self._connections) < self._limit:
            return True
        if self._evict_longest_idle(now):
            self._evicted += 1
            if self._stats is not None:
                self._stats.evicted += 1
            return True
        self.refused()
        return False

    def refused(self) -> None:
        """Count a connection that could not be served."""
        self._refused += 1
        if self._stats is not None:
            self._stats.refused += 1

    def report(self, now: float) -> None:
        """Log how many were refused and evicted, at most once every `REPORT_SECONDS`."""
        self._idle.clear()  # of connections that have ended, nothing is kept for long
        if now < self._report_at or not (self._refused or self._evicted):
            return
        self._report_at = now + REPORT_SECONDS
        if self._refused:
            log.warning("connections_refused", door=self._listener, count=self._refused, limit=self._limit)
        if self._evicted:
            log.warning("connections_evicted", door=self._listener, count=self._evicted, limit=self._limit)
        self._refused = self._evicted = 0

    def _evict_longest_idle(self, now: float) -> bool:
        if not self._idle and now >= self._search_at:
            self._search_at = now + _SEARCH_SECONDS
            self._idle = sorted(self._evictable(now), key=lambda each: each[0], reverse=True)
        while self._idle:
            since, connection = self._idle.pop()
            if connection.idle_since == since:  # else it has done something meanwhile
                connection.evict()
                return True
        return False

    def _evictable(self, now: float) -> list[tuple[float, C]]:
        found = []
        for connection in self._connections:
            since = connection.idle_since
            if since is not None:
                after = EVICTABLE_AFTER_SECONDS if connection.has_asked else SILENT_EVICTABLE_AFTER_SECONDS
                if now - since >= after:
                    found.append((since, connection))
        return found
