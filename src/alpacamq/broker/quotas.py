"""Counts what clients use on this broker, and decides how long they are throttled.

A change of quotas is in force with the next request.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple
from weakref import WeakValueDictionary

from alpacamq.cluster.commands import AlterQuotas, EditResults
from alpacamq.cluster.image import Delta
from alpacamq.model.errors import QuotaExceeded
from alpacamq.security.principals import USER
from alpacamq.security.quotas import (
    CLIENT_KEYS,
    ClientQuota,
    QuotaEdit,
    QuotaKey,
    QuotaTable,
    bucket_of,
)
from alpacamq.telemetry.logs import get_logger

from .access import Caller
from .metadata.metadata import Metadata

log = get_logger(__name__)

# Quotas in use by open connections are always kept; of others, the most recently used.
MAX_KEPT = 10_000
# When a client whose user has too many connections may try again.
RETRY_MS = 1000
# Logged no more often than this, for all clients together.
REPORT_SECONDS = 10.0


class _Identity(NamedTuple):
    """Whose use is counted together."""

    key: QuotaKey
    user: str = ""
    client_id: str = ""
    address: str = ""


class Limit:
    """A quota and how much of it is used, by all the clients that share it."""

    __slots__ = ("__weakref__", "_bucket", "_now", "_quotas", "burst", "grain", "identity", "value")

    def __init__(self, identity: _Identity, value: float, quotas: "Quotas") -> None:
        self.identity = identity
        self.value = value
        self._quotas = quotas
        self._now = quotas.now
        self._bucket = bucket_of(identity.key, value, quotas.now())
        # The amount that one request should not exceed.
        self.burst = max(1, int(self._bucket.burst))
        # An amount that may be counted together with the next ones.
        self.grain = self._bucket.burst / 100

    def charge(self, amount: float) -> int:
        """Count an amount; return how long the client has to be throttled, in milliseconds."""
        seconds = self._bucket.charge(amount, self._now())
        return self._quotas.throttled(self.identity, seconds) if seconds else 0

    def wait_ms(self) -> int:
        """Return how long the client has to wait for what it has used already."""
        if self._bucket.level >= 0:
            return 0
        return _milliseconds(self._bucket.wait_seconds(self._now()))

    def check(self) -> None:
        """Raise QuotaExceeded if the client has to wait."""
        if wait_ms := self.wait_ms():
            self._quotas.throttled(self.identity, wait_ms / 1000)
            raise QuotaExceeded(f"the quota {self.identity.key} of {self.value:g} is exceeded", wait_ms)

    def admit(self) -> bool:
        """Count one, unless the client has to wait."""
        now = self._now()
        if seconds := self._bucket.wait_seconds(now):
            self._quotas.throttled(self.identity, seconds)
            return False
        self._bucket.charge(1, now)
        return True


def _milliseconds(seconds: float) -> int:
    return -int(-seconds * 1000 // 1)  # rounded up: afterwards it is over


class ClientLimits:
    """The quotas of one client; None where it has none."""

    __slots__ = ("_epoch", "_quotas", "client_id", "fetch", "mutation", "produce", "request", "user")

    def __init__(self, quotas: "Quotas", user: str, client_id: str | None) -> None:
        self._quotas = quotas
        self._epoch = quotas.epoch
        # The name of the principal, with its type.
        self.user = user
        self.client_id = client_id
        self.produce, self.fetch, self.request, self.mutation = (
            quotas.limit(key, user, client_id) for key in CLIENT_KEYS
        )

    @property
    def is_current(self) -> bool:
        """Whether no quota has changed since."""
        return self._epoch == self._quotas.epoch

    def is_of(self, user: str, client_id: str | None) -> bool:
        """Return whether these are still the quotas of a client."""
        return self._epoch == self._quotas.epoch and self.client_id == client_id and self.user == user


class ThrottleStats:
    """Counts throttled requests and how long they were throttled, by quota."""

    def __init__(self) -> None:
        self.requests = dict.fromkeys(QuotaKey, 0)
        self.seconds = dict.fromkeys(QuotaKey, 0.0)


class Quotas:
    """The quotas of the cluster, and their use on this broker."""

    def __init__(self, metadata: Metadata, now: Callable[[], float]) -> None:
        self._metadata = metadata
        self.now = now
        # Counted up with every change.
        self.epoch = 0
        # Whether there is any quota of users or client ids, and any of the connections of users.
        self.is_active = False
        self.limits_connections = False
        self._limits: WeakValueDictionary[_Identity, Limit] = WeakValueDictionary()
        self._kept: OrderedDict[_Identity, Limit] = OrderedDict()
        # Of clients without a connection of their own here, by user.
        self._of_users: dict[str, ClientLimits] = {}
        # Open connections by address, of each listener.
        self._connections: list[Mapping[str, int]] = []
        # Open connections that count for a user, while there are quotas of them: their principals.
        self._principals: dict[object, str] = {}
        self._by_principal: Counter[str] = Counter()
        self.stats = ThrottleStats()
        self._report_at = 0.0
        self._unreported = 0
        self._load()
        metadata.subscribe(self._metadata_changed)

    def _metadata_changed(self, delta: Delta) -> None:
        if delta.quotas:
            self._load()

    def _load(self) -> None:
        self._table = QuotaTable(self._metadata.image.quotas.values())
        self.epoch += 1
        self.is_active = self._table.limits_clients
        self.limits_connections = self._table.limits_connections
        self._of_users.clear()
        for identity, limit in list(self._limits.items()):
            if self._value(identity) != limit.value:
                # Of a quota that was removed or changed, and may be set again.
                del self._limits[identity]
                self._kept.pop(identity, None)

    def _value(self, identity: _Identity) -> float | None:
        if identity.address:
            return self._table.of_address(identity.key, identity.address)
        applied = self._table.of_client(identity.key, identity.user, identity.client_id)
        return None if applied is None else applied.rate

    def all(self) -> Collection[ClientQuota]:
        """Return the quotas of all entities."""
        return list(self._metadata.image.quotas.values())

    async def alter(self, edits: Collection[QuotaEdit], *, dry_run: bool = False) -> EditResults:
        """Set and remove quotas, those of each entity on their own."""
        return await self._metadata.ask(AlterQuotas(edits=tuple(edits), dry_run=dry_run))

    # Requests.

    def of(self, caller: Caller, client_id: str | None) -> ClientLimits | None:
        """Return the quotas of a client; None if there are none at all. Connections keep the result."""
        return ClientLimits(self, caller.name, client_id) if self.is_active else None

    def of_user(self, caller: Caller) -> ClientLimits | None:
        """Return the quotas of a client without a client id."""
        if not self.is_active:
            return None
        if (found := self._of_users.get(caller.name)) is None:
            if len(self._of_users) >= MAX_KEPT:
                self._of_users.clear()  # what was used is kept with the limits
            found = self._of_users[caller.name] = ClientLimits(self, caller.name, None)
        return found

    def limit(self, key: QuotaKey, user: str, client_id: str | None) -> Limit | None:
        """Return a quota of a client with what is used of it."""
        applied = self._table.of_client(key, _user_name(user), client_id)
        if applied is None:
            return None
        return self._limit(_Identity(key, applied.user, applied.client_id), applied.rate)

    def _limit(self, identity: _Identity, value: float) -> Limit:
        limit = self._limits.get(identity)
        if limit is None or limit.value != value:
            limit = self._limits[identity] = Limit(identity, value, self)
        self._kept[identity] = limit
        self._kept.move_to_end(identity)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return limit

    def throttled(self, identity: _Identity, seconds: float) -> int:
        """Count a throttled request; return the time in milliseconds."""
        key = identity.key
        self.stats.requests[key] += 1
        self.stats.seconds[key] += seconds
        self._unreported += 1
        now = self.now()
        if now >= self._report_at:
            self._report_at = now + REPORT_SECONDS
            log.info(
                "quota_exceeded",
                quota=str(key),
                user=identity.user,
                client_id=identity.client_id,
                address=identity.address,
                throttle_ms=_milliseconds(seconds),
                requests=self._unreported,
            )
            self._unreported = 0
        return _milliseconds(seconds)

    # Connections.

    def count_connections(self, by_address: Mapping[str, int]) -> None:
        """Take the open connections of a listener into account, as they are at any time."""
        self._connections.append(by_address)

    def admits_connection(self, address: str) -> bool:
        """Return whether a client of an address may open a connection now, and count it if so."""
        if not self._table.limits_addresses:
            return True
        most = self._table.of_address(QuotaKey.CONNECTION_COUNT, address)
        if most is not None and sum(each.get(address, 0) for each in self._connections) >= most:
            self.throttled(_Identity(QuotaKey.CONNECTION_COUNT, address=address), 0.0)
            return False
        rate = self._table.of_address(QuotaKey.CONNECTION_RATE, address)
        return rate is None or self._limit(_Identity(QuotaKey.CONNECTION_RATE, address=address), rate).admit()

    def check_connection(self, connection: object, principal: str) -> None:
        """Count an open connection as one of a user, at its first request as that user.

        Raises QuotaExceeded if the user has too many, or has opened too many. Those that count already stay,
        whatever becomes of the quota. Needed only if `limits_connections`.
        """
        if self._principals.get(connection) == principal:
            return
        name = _user_name(principal)
        most = self._table.of_client(QuotaKey.CONNECTION_COUNT, name, None)
        if most is not None and self._by_principal[principal] >= most.rate:
            self.throttled(_Identity(QuotaKey.CONNECTION_COUNT, user=name), 0.0)
            raise QuotaExceeded(
                f"too many connections: the quota {QuotaKey.CONNECTION_COUNT} of the user is {most.rate:g}",
                RETRY_MS,
            )
        rate = self.limit(QuotaKey.CONNECTION_RATE, principal, None)
        if rate is not None and not rate.admit():
            raise QuotaExceeded(
                f"too many connections: the quota {QuotaKey.CONNECTION_RATE} of the user is {rate.value:g}",
                max(rate.wait_ms(), 1),
            )
        self.connection_closed(connection)
        self._principals[connection] = principal
        self._by_principal[principal] += 1

    def connection_closed(self, connection: object) -> None:
        """Stop counting a connection for its user."""
        if (principal := self._principals.pop(connection, None)) is not None:
            self._by_principal[principal] -= 1
            if not self._by_principal[principal]:
                del self._by_principal[principal]


def _user_name(principal: str) -> str:
    """Return the name by which quotas name a principal: without its type if that is User."""
    kind, _, name = principal.partition(":")
    return name if kind == USER else principal
