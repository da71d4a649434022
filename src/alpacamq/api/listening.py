"""Shared by all listeners: binding an address, accepting connections, and the limits on connections."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Generic, Protocol, TypeVar, cast

import msgspec

from alpacamq.broker.quotas import Quotas
from alpacamq.model.address import Address
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import ListenerStats

from .tls import AddressQuota, ListenerTls, TlsConnection

log = get_logger(__name__)

BACKLOG = 1024
# How long a connection is idle before it may be evicted for a new one. Group members send
# heartbeats every 3 s by default; a client that has just connected sends its first request at once.
EVICTABLE_AFTER_SECONDS = 5.0
SILENT_EVICTABLE_AFTER_SECONDS = 1.0
# Pause between searches for idle connections after one found none.
_SEARCH_SECONDS = 0.1
REPORT_SECONDS = 10.0


class CannotListen(AlpacaError):
    """The address is in use or not local."""


def take_address(host: str, port: int, remedy: str) -> socket.socket:
    """Return a listening socket; `remedy` tells the user what to do if the address is unavailable."""
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # Immediately: an address that is bound but not listening could be bound by another broker too.
        listening.listen(BACKLOG)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}; {remedy}") from error
    return listening


Network = IPv4Network | IPv6Network


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One listener of an API."""

    # By which clients of this listener learn the addresses of other brokers.
    name: str
    address: Address
    # None: connections are plain.
    tls: ListenerTls | None = None
    # Addresses of clients that are served; all, if empty.
    allow: tuple[Network, ...] = ()
    # Whether clients must authenticate; None if security.authentication decides.
    authentication: bool | None = None
    # SASL mechanisms that Kafka clients may use; all, if empty.
    mechanisms: tuple[str, ...] = ()
    # What to do if the address cannot be bound.
    remedy: str = ""


class ListeningSocket:
    """A bound address, and how connections to it are accepted."""

    def __init__(self, settings: ListenerSettings, stats: ListenerStats | None) -> None:
        self.settings = settings
        self._stats = stats

    def bind(self) -> Address:
        """Bind the address and return it, with the actual port if 0 was requested."""
        address = self.settings.address
        self._socket = take_address(address.host, address.port, self.settings.remedy)
        return Address(address.host, self._socket.getsockname()[1])

    async def accept(
        self, factory: Callable[[], asyncio.BaseProtocol], quota: AddressQuota | None = None
    ) -> asyncio.AbstractServer:
        """Accept connections; each gets a protocol of `factory`, with TLS after its handshake.

        With TLS, connections beyond a quota are closed before it. Protocols of plain ones ask themselves.
        """
        loop = asyncio.get_running_loop()
        make = factory
        if (tls := self.settings.tls) is not None:
            name, stats = self.settings.name, self._stats

            def make() -> asyncio.BaseProtocol:
                return TlsConnection(loop, name, tls, factory, stats, quota)

        if self.settings.allow:
            return await loop.create_server(
                lambda: _Admission(self._admits, make), sock=self._socket, backlog=BACKLOG
            )
        return await loop.create_server(make, sock=self._socket, backlog=BACKLOG)

    def _admits(self, host: str) -> bool:
        if is_within(host, self.settings.allow):
            return True
        if self._stats is not None:
            self._stats.filtered += 1
        return False


class Connection(Protocol):
    """A connection that counts against the limit of its listener."""

    @property
    def has_asked(self) -> bool:
        """Whether it has received a request."""
        ...

    @property
    def idle_since(self) -> float | None:
        """When it was last active; None while a request is in progress, or once it is closed."""
        ...

    def evict(self) -> None:
        """Close it and remove it from the listener's connections immediately."""
        ...


C = TypeVar("C", bound=Connection)


class ConnectionLimit(Generic[C]):
    """Bounds the connections of one listener.

    At the limit, the connection that has been idle longest is evicted for the new
    one. A connection with a request in progress is never evicted; if none is idle, the new one is refused.
    """

    def __init__(
        self, listener: str, connections: Collection[C], limit: int, stats: ListenerStats | None
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._limit = limit
        self._stats = stats
        # Connections found idle by the last search, the longest idle last; and when to search again.
        self._idle: list[tuple[float, C]] = []
        self._search_at = 0.0
        # Counts since the last log entry, and when the next may be written.
        self._refused = self._evicted = 0
        self._report_at = 0.0
        # Open connections by address.
        self._by_address: Counter[str] = Counter()
        self._quotas: Quotas | None = None

    def enforce(self, quotas: Quotas) -> None:
        """Refuse connections beyond the quotas of their addresses from now on."""
        self._quotas = quotas
        quotas.count_connections(self._by_address)

    def is_within_quota(self, host: str, transport: asyncio.BaseTransport) -> bool:
        """Return whether an address may have one more connection. To be asked once, before `has_place`."""
        return transport.get_extra_info("is_within_quota", False) or self._admits(host)

    def _admits(self, host: str) -> bool:
        return self._quotas is None or self._quotas.admits_connection(host)

    def handshake_began(self, host: str) -> bool:
        """Count a connection of an address before its handshake, unless it exceeds a quota."""
        if is_admitted := self._admits(host):
            self.opened(host)
        return is_admitted

    def handshake_ended(self, host: str) -> None:
        """Stop counting a connection that is closed, or that is counted by its protocol now."""
        self._forget(host)

    def opened(self, host: str) -> None:
        """Count a connection of an address."""
        self._by_address[host] += 1

    def closed(self, host: str, connection: C) -> None:
        """Count a connection of an address as closed."""
        if self._quotas is not None:
            self._quotas.connection_closed(connection)
        self._forget(host)

    def _forget(self, host: str) -> None:
        self._by_address[host] -= 1
        if not self._by_address[host]:
            del self._by_address[host]

    def has_place(self, now: float) -> bool:
        """Return whether one more connection may be opened, after evicting an idle one if necessary."""
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
        """Count a refused connection."""
        self._refused += 1
        if self._stats is not None:
            self._stats.refused += 1

    def report(self, now: float) -> None:
        """Log the numbers of refused and evicted connections, at most once every `REPORT_SECONDS`."""
        self._idle.clear()  # do not keep references to closed connections
        if now < self._report_at or not (self._refused or self._evicted):
            return
        self._report_at = now + REPORT_SECONDS
        if self._refused:
            log.warning(
                "connections_refused", listener=self._listener, count=self._refused, limit=self._limit
            )
        if self._evicted:
            log.warning(
                "connections_evicted", listener=self._listener, count=self._evicted, limit=self._limit
            )
        self._refused = self._evicted = 0

    def _evict_longest_idle(self, now: float) -> bool:
        if not self._idle and now >= self._search_at:
            self._search_at = now + _SEARCH_SECONDS
            self._idle = sorted(self._evictable(now), key=lambda each: each[0], reverse=True)
        while self._idle:
            since, connection = self._idle.pop()
            if connection.idle_since == since:  # else it has been active since
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


class _Admission(asyncio.BufferedProtocol):
    """Closes connections from addresses that a listener does not serve; the others get their protocol."""

    def __init__(self, admits: Callable[[str], bool], factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._admits = admits
        self._factory = factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        inner = cast("asyncio.Transport", transport)
        host, *_ = inner.get_extra_info("peername") or ("",)
        if not self._admits(str(host)):
            inner.abort()
            return
        protocol = self._factory()
        inner.set_protocol(protocol)
        protocol.connection_made(inner)

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(max(1, sizehint))  # of an aborted connection

    def buffer_updated(self, nbytes: int) -> None:
        pass


def is_within(host: str, networks: Iterable[Network]) -> bool:
    """Return whether an address belongs to one of the networks."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
