"""Counts what clients use on this broker, and decides how long they are throttled.

A change of quotas is in force with the next request.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil
from typing import NamedTuple
from weakref import WeakValueDictionary

from alpacamq.cluster.commands import AlterQuotas, EditResults
from alpacamq.cluster.image import Delta
from alpacamq.model.errors import QuotaExceeded
from alpacamq.model.topics import INT64_MAX
from alpacamq.security.acls import Operation
from alpacamq.security.principals import USER
from alpacamq.security.quotas import (
    CLIENT_KEYS,
    ClientQuota,
    QuotaEdit,
    QuotaKey,
    QuotaTable,
    bucket_of,
)
from alpacamq.security.tenants import TenantLimits
from alpacamq.telemetry.logs import get_logger

from .access import Caller
from .audit import Audit
from .metadata.metadata import Metadata

log = get_logger(__name__)

# Quotas in use by open connections are always kept; of others, the most recently used.
MAX_KEPT = 10_000
# When a client whose user has too many connections may try again.
RETRY_MS = 1000
# Logged no more often than this, for all clients together.
REPORT_SECONDS = 10.0
# The rates of a tenant, by quota.
TENANT_RATES: Mapping[QuotaKey, Callable[[TenantLimits], int | None]] = {
    QuotaKey.PRODUCE: lambda limits: limits.produce_bytes_per_second,
    QuotaKey.FETCH: lambda limits: limits.fetch_bytes_per_second,
    QuotaKey.PRODUCE_MESSAGES: lambda limits: limits.produce_messages_per_second,
    QuotaKey.FETCH_MESSAGES: lambda limits: limits.fetch_messages_per_second,
}
# The size of a message, as long as no client of a tenant has fetched one.
MESSAGE_BYTES = 100


class _Identity(NamedTuple):
    """Whose use is counted together."""

    key: QuotaKey
    user: str = ""
    client_id: str = ""
    address: str = ""
    tenant: str = ""


class Limit:
    """A quota and how much of it is used, by all the clients that share it."""

    __slots__ = (
        "__weakref__",
        "bucket",
        "burst",
        "grain",
        "identity",
        "message_bytes",
        "now",
        "quotas",
        "value",
    )

    def __init__(self, identity: _Identity, value: float, quotas: "Quotas") -> None:
        self.identity = identity
        self.value = value
        self.quotas = quotas
        self.now = quotas.now
        self.bucket = bucket_of(identity.key, value, quotas.now())
        # The amount that one request should not exceed.
        self.burst = max(1, int(self.bucket.burst))
        # An amount that may be counted together with the next ones.
        self.grain = self.bucket.burst / 100
        # Of a quota of messages: the size of the last ones.
        self.message_bytes: float = MESSAGE_BYTES

    def charge(self, amount: float) -> int:
        """Count an amount; return how long the client has to be throttled, in milliseconds."""
        seconds = self.bucket.charge(amount, self.now())
        return self.quotas.throttled(self.identity, seconds) if seconds else 0

    def wait_ms(self) -> int:
        """Return how long the client has to wait for what it has used already."""
        if self.bucket.level >= 0:
            return 0
        return _milliseconds(self.bucket.wait_seconds(self.now()))

    def check(self) -> None:
        """Raise QuotaExceeded if the client has to wait."""
        if wait_ms := self.wait_ms():
            self.quotas.throttled(self.identity, wait_ms / 1000)
            raise QuotaExceeded(f"the quota {self.identity.key} of {self.value:g} is exceeded", wait_ms)

    def admit(self) -> bool:
        """Count one, unless the client has to wait."""
        now = self.now()
        if seconds := self.bucket.wait_seconds(now):
            self.quotas.throttled(self.identity, seconds)
            return False
        self.bucket.charge(1, now)
        return True


def _milliseconds(seconds: float) -> int:
    return -int(-seconds * 1000 // 1)  # rounded up: afterwards it is over


class TrafficLimit:
    """The limits of what a client writes, or of what it reads: its quota, and the rates of its tenant."""

    __slots__ = (
        "_all",
        "_burst_bytes",
        "burst_bytes",
        "grain_bytes",
        "grain_messages",
        "of_bytes",
        "of_messages",
        "only_bucket",
    )

    def __init__(self, of_bytes: Sequence[Limit], of_messages: Limit | None) -> None:
        self.of_bytes = of_bytes
        self.of_messages = of_messages
        self._all = (*of_bytes,) if of_messages is None else (*of_bytes, of_messages)
        # A level below 0 has to be waited for; None if there are several.
        self.only_bucket = self._all[0].bucket if len(self._all) == 1 else None
        self._burst_bytes = min((limit.burst for limit in of_bytes), default=INT64_MAX)
        # The bytes that one request should not exceed, at least 1.
        self.burst_bytes = self._burst_bytes if of_messages is None else self._with_messages(of_messages)
        # Amounts that may be counted together with the next ones.
        self.grain_bytes = min((ceil(limit.grain) for limit in of_bytes), default=INT64_MAX)
        self.grain_messages = INT64_MAX if of_messages is None else ceil(of_messages.grain)

    def charge(self, size_bytes: int, messages: int) -> int:
        """Count bytes and messages; return how long the client has to be throttled, in milliseconds."""
        throttle_ms = 0
        for limit in self.of_bytes:
            # As `Limit.charge`, with fewer calls: most of the cost of quotas is here.
            if seconds := limit.bucket.charge(size_bytes, limit.now()):
                throttle_ms = max(throttle_ms, limit.quotas.throttled(limit.identity, seconds))
        if self.of_messages is not None and messages:
            throttle_ms = max(throttle_ms, self.of_messages.charge(messages))
            if size_bytes:
                self.of_messages.message_bytes = size_bytes / messages
            self.burst_bytes = self._with_messages(self.of_messages)
        return throttle_ms

    def _with_messages(self, limit: Limit) -> int:
        """Return the bytes of one request: messages are counted when they have been read.

        As many as fit, if they are like the last ones.
        """
        return min(self._burst_bytes, max(1, int(limit.burst * limit.message_bytes)))

    def wait_ms(self) -> int:
        """Return how long the client has to wait for what it has used already."""
        return max((limit.wait_ms() for limit in self._all), default=0)

    def check(self) -> None:
        """Raise QuotaExceeded if the client has to wait."""
        for limit in self._all:
            limit.check()


class ClientLimits:
    """The quotas of one client; None where it has none."""

    __slots__ = ("_quotas", "client_id", "epoch", "fetch", "mutation", "produce", "request")

    def __init__(self, quotas: "Quotas", user: str, client_id: str | None) -> None:
        self._quotas = quotas
        # It is current as long as that of the quotas is the same.
        self.epoch = quotas.epoch
        self.client_id = client_id
        produce, fetch, self.request, self.mutation = (
            quotas.limit(key, user, client_id) for key in CLIENT_KEYS
        )
        tenant = quotas.tenant_limits(user)
        self.produce = _traffic(produce, tenant, QuotaKey.PRODUCE, QuotaKey.PRODUCE_MESSAGES)
        self.fetch = _traffic(fetch, tenant, QuotaKey.FETCH, QuotaKey.FETCH_MESSAGES)

    @property
    def is_current(self) -> bool:
        """Whether no quota has changed since."""
        return self.epoch == self._quotas.epoch


def _traffic(
    own: Limit | None, tenant: Mapping[QuotaKey, Limit], of_bytes: QuotaKey, of_messages: QuotaKey
) -> TrafficLimit | None:
    limits = [limit for limit in (own, tenant.get(of_bytes)) if limit is not None]
    messages = tenant.get(of_messages)
    return TrafficLimit(limits, messages) if limits or messages is not None else None


class ThrottleStats:
    """Counts throttled requests and how long they were throttled, by quota."""

    def __init__(self) -> None:
        self.requests = dict.fromkeys(QuotaKey, 0)
        self.seconds = dict.fromkeys(QuotaKey, 0.0)


class Quotas:
    """The quotas of the cluster, and their use on this broker."""

    def __init__(self, metadata: Metadata, now: Callable[[], float], audit: Audit | None = None) -> None:
        self._metadata = metadata
        # None if nothing is audited.
        self._audit = audit
        self.now = now
        # Counted up with every change.
        self.epoch = 0
        # Whether there is any quota of users or client ids, or rate of a tenant, and any quota of the
        # connections of users.
        self.is_active = False
        self.limits_connections = False
        # The rates of tenants that have some.
        self._tenant_rates: Mapping[str, Mapping[QuotaKey, float]] = {}
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
        if delta.quotas or (delta.security and self._have_rates_changed()):
            self._load()

    def _have_rates_changed(self) -> bool:
        """Return whether tenants with rates, or perhaps their members, have changed."""
        return bool(self._tenant_rates) or bool(self._rates_of_tenants())

    def _rates_of_tenants(self) -> dict[str, Mapping[QuotaKey, float]]:
        found: dict[str, Mapping[QuotaKey, float]] = {}
        for tenant in self._metadata.image.tenants.values():
            values = {key: rate(tenant.limits) for key, rate in TENANT_RATES.items()}
            if rates := {key: float(value) for key, value in values.items() if value is not None}:
                found[tenant.id] = rates
        return found

    def _load(self) -> None:
        self._table = QuotaTable(self._metadata.image.quotas.values())
        self.epoch += 1
        self._tenant_rates = self._rates_of_tenants()
        self.is_active = self._table.limits_clients or bool(self._tenant_rates)
        self.limits_connections = self._table.limits_connections
        self._of_users.clear()
        for identity, limit in list(self._limits.items()):
            if self._value(identity) != limit.value:
                # Of a quota that was removed or changed, and may be set again.
                del self._limits[identity]
                self._kept.pop(identity, None)

    def _value(self, identity: _Identity) -> float | None:
        if identity.tenant:
            return self._tenant_rates.get(identity.tenant, {}).get(identity.key)
        if identity.address:
            return self._table.of_address(identity.key, identity.address)
        applied = self._table.of_client(identity.key, identity.user, identity.client_id)
        return None if applied is None else applied.rate

    def all(self) -> Collection[ClientQuota]:
        """Return the quotas of all entities."""
        return list(self._metadata.image.quotas.values())

    def find(self, entity: str) -> ClientQuota | None:
        """Return the quotas of an entity by its id; None if it has none."""
        return self._metadata.image.quotas.get(entity)

    async def alter(self, edits: Collection[QuotaEdit], *, dry_run: bool = False) -> EditResults:
        """Set and remove quotas, those of each entity on their own."""
        results = await self._metadata.ask(AlterQuotas(edits=tuple(edits), dry_run=dry_run))
        if self._audit is not None and not dry_run:
            for edit, failure in zip(edits, results.failures, strict=True):
                entity = ", ".join(f"{type_}={name or '<default>'}" for type_, name in edit.entity)
                values = ", ".join(
                    f"{op.key}={'removed' if op.value is None else op.value}" for op in edit.ops
                )
                reason = "" if failure is None else str(failure.to_error())
                self._audit.changed(Operation.ALTER_CONFIGS, "quota", entity, values, reason)
        return results

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

    def tenant_limits(self, user: str) -> Mapping[QuotaKey, Limit]:
        """Return the rates of the tenant of a principal, with what all its clients have used of them."""
        if not self._tenant_rates or (member := self._metadata.image.members.get(user)) is None:
            return {}
        tenant = member.tenant
        rates = self._tenant_rates.get(tenant, {})
        return {key: self._limit(_Identity(key, tenant=tenant), rate) for key, rate in rates.items()}

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
                tenant=identity.tenant,
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
        even if the quota is lowered. Needed only if `limits_connections`.
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
