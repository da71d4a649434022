"""Quotas of clients: whom they are for, which of them applies, and how much of one is used.

Entities, keys and precedence are Kafka's. A quota is that of one broker, not of the cluster.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from ipaddress import IPv6Address, ip_address
from math import isfinite
from typing import NamedTuple

import msgspec

from alpacamq.model.errors import InvalidRequest, UnsupportedQuotaEntity

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)

MAX_NAME_LENGTH = 255
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
# Of a value that has to be whole, as clients send floats.
_EPSILON = 1e-6


class QuotaKey(StrEnum):
    """What a quota limits, by its name in Kafka.

    `connection_count`, quotas of the connections of users, and rates of messages are ours.
    """

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"
    CONNECTION_RATE = "connection_creation_rate"
    CONNECTION_COUNT = "connection_count"
    # Of tenants only.
    PRODUCE_MESSAGES = "producer_message_rate"
    FETCH_MESSAGES = "consumer_message_rate"


class _Form(NamedTuple):
    """The values that a key may have."""

    largest: float
    is_whole: bool
    # How much can be saved up while nothing is used, in seconds of the rate.
    burst_seconds: float
    # A client that has used more than it may is throttled no longer than this; the excess is forgiven.
    max_throttle_seconds: float = 600.0


_FORMS: Mapping[QuotaKey, _Form] = {
    QuotaKey.PRODUCE: _Form(_MAX_INT64, True, 0.25),
    QuotaKey.FETCH: _Form(_MAX_INT64, True, 0.25),
    # Throttled for a short time, so that a client with a quota that is too low can still change it.
    QuotaKey.REQUEST: _Form(_MAX_INT64, False, 0.25, 10.0),
    QuotaKey.MUTATION: _Form(_MAX_INT64, False, 1.0),
    QuotaKey.CONNECTION_RATE: _Form(_MAX_INT32, True, 1.0),
    QuotaKey.CONNECTION_COUNT: _Form(_MAX_INT32, True, 0.0),
    QuotaKey.PRODUCE_MESSAGES: _Form(_MAX_INT64, True, 0.25),
    QuotaKey.FETCH_MESSAGES: _Form(_MAX_INT64, True, 0.25),
}
# Keys of users and client ids, those of users alone, and those of addresses.
CLIENT_KEYS = (QuotaKey.PRODUCE, QuotaKey.FETCH, QuotaKey.REQUEST, QuotaKey.MUTATION)
CONNECTION_KEYS = (QuotaKey.CONNECTION_RATE, QuotaKey.CONNECTION_COUNT)
USER_KEYS = (*CLIENT_KEYS, *CONNECTION_KEYS)
IP_KEYS = CONNECTION_KEYS


class EntityPart(NamedTuple):
    """A type and a name; None is the default of all names without a quota of their own."""

    type: str
    name: str | None


# Sorted by type, each of which is there once.
Entity = tuple[EntityPart, ...]


class ClientQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of one entity."""

    entity: Entity
    values: Mapping[str, float]

    @property
    def id(self) -> str:
        return entity_id(self.entity)


class QuotaOp(msgspec.Struct, frozen=True, array_like=True):
    """A quota to set; None removes it."""

    key: str
    value: float | None


class QuotaEdit(msgspec.Struct, frozen=True, array_like=True):
    """Changes of the quotas of one entity, which take effect together."""

    entity: tuple[EntityPart, ...]
    ops: tuple[QuotaOp, ...]


def entity_id(entity: Entity) -> str:
    """Return a text that is the same for the same entity only."""
    return msgspec.json.encode(entity).decode()


def entity_of(parts: Iterable[EntityPart]) -> Entity:
    """Return the entity of these parts. Raises InvalidRequest unless there can be quotas for it."""
    entity = tuple(sorted(parts, key=lambda part: part.type))
    types = [part.type for part in entity]
    if not entity:
        raise InvalidRequest("a quota needs an entity: a user, a client id or an IP address")
    for type_, name in entity:
        if type_ not in ENTITY_TYPES:
            raise InvalidRequest(
                f"unknown entity type {type_[:MAX_NAME_LENGTH]!r}; known are {', '.join(ENTITY_TYPES)}"
            )
        if name is not None and not 0 < len(name) <= MAX_NAME_LENGTH:
            raise InvalidRequest(f"the name of a {type_} has 1 to {MAX_NAME_LENGTH} characters")
    if len(set(types)) < len(types):
        raise InvalidRequest("an entity has each type once")
    if IP in types:
        if len(types) > 1:
            raise InvalidRequest("an IP address cannot be combined with a user or client id")
        if (address := entity[0].name) is not None:
            entity = (EntityPart(IP, _checked_address(address)),)
    return entity


def _checked_address(text: str) -> str:
    try:
        return str(_unmapped(text))
    except ValueError:
        raise InvalidRequest(f"{text!r} is not an IP address") from None


def _unmapped(text: str) -> object:
    address = ip_address(text)
    # A socket for both versions shows IPv4 clients so.
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def edited(quota: ClientQuota | None, edit: QuotaEdit) -> ClientQuota | None:
    """Return the quotas of an entity after a change; None if none is left. Raises InvalidRequest."""
    entity = entity_of(edit.entity)
    values = {} if quota is None else dict(quota.values)
    named = set()
    for op in edit.ops:
        key = _checked_key(entity, op.key)
        if key in named:
            raise InvalidRequest(f"the quota {key} is changed twice")
        named.add(key)
        if op.value is None:
            values.pop(key, None)
        else:
            values[key] = _checked_value(key, op.value)
    return ClientQuota(entity=entity, values=values) if values else None


def _checked_key(entity: Entity, text: str) -> QuotaKey:
    types = [part.type for part in entity]
    keys = IP_KEYS if types == [IP] else USER_KEYS if types == [USER] else CLIENT_KEYS
    for key in keys:
        if text == key:
            return key
    raise InvalidRequest(
        f"unknown quota {text[:MAX_NAME_LENGTH]!r} of {' and '.join(types)}; there are {', '.join(keys)}"
    )


def _checked_value(key: QuotaKey, value: float) -> float:
    form = _FORMS[key]
    if not isfinite(value) or value <= 0:
        raise InvalidRequest(f"the quota {key} must be greater than 0, not {value:g}")
    if value > form.largest:
        raise InvalidRequest(f"the quota {key} must be at most {form.largest}, not {value:g}")
    if form.is_whole:
        if abs(value - round(value)) > _EPSILON or value < 1:
            raise InvalidRequest(f"the quota {key} must be a whole number, not {value:g}")
        return float(round(value))
    return value


class MatchType(IntEnum):
    """Which names of a type a filter finds."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class FilterPart(NamedTuple):
    """A condition on the name of one type."""

    type: str
    match: MatchType
    name: str | None = None


class QuotaFilter:
    """Finds entities. `is_strict`: those of the named types only, and not those that have others too."""

    def __init__(self, parts: Sequence[FilterPart], *, is_strict: bool) -> None:
        types = [part.type for part in parts]
        for type_ in types:
            if not type_:
                raise InvalidRequest("a filter component needs an entity type")
            if type_ not in ENTITY_TYPES:
                raise UnsupportedQuotaEntity(
                    f"unknown entity type {type_[:MAX_NAME_LENGTH]!r}; known are {', '.join(ENTITY_TYPES)}"
                )
        if len(set(types)) < len(types):
            raise InvalidRequest("a filter names each entity type once")
        if IP in types and len(types) > 1:
            raise InvalidRequest("an IP address cannot be combined with a user or client id")
        for part in parts:
            if (part.match is MatchType.EXACT) != (part.name is not None):
                raise InvalidRequest("a filter component has a name if, and only if, it matches exactly")
        self._parts = parts
        self._is_strict = is_strict

    def matches(self, quota: ClientQuota) -> bool:
        if self._is_strict and len(quota.entity) != len(self._parts):
            return False
        names = dict(quota.entity)
        for type_, match, name in self._parts:
            if type_ not in names:
                return False
            if match is MatchType.DEFAULT and names[type_] is not None:
                return False
            if match is MatchType.EXACT and names[type_] != name:
                return False
        return True


class Applied(NamedTuple):
    """A quota that applies to a client, and whose use of it is counted together."""

    rate: float
    # Empty if the quota is not about users, or not about client ids.
    user: str
    client_id: str


# In place of a name: an entity without this type.
_NOT_NAMED = ""


class QuotaTable:
    """Finds the quotas of a client: of each key the one of the most specific entity that has it."""

    def __init__(self, quotas: Iterable[ClientQuota]) -> None:
        self._clients: dict[str, dict[tuple[str | None, str | None], float]] = {}
        self._addresses: dict[str, dict[str | None, float]] = {}
        for quota in quotas:
            names = dict(quota.entity)
            for key, value in quota.values.items():
                if IP in names:
                    self._addresses.setdefault(key, {})[names[IP]] = value
                else:
                    entity = (names.get(USER, _NOT_NAMED), names.get(CLIENT_ID, _NOT_NAMED))
                    self._clients.setdefault(key, {})[entity] = value

    @property
    def limits_clients(self) -> bool:
        """Whether there is a quota of users or client ids."""
        return bool(self._clients)

    @property
    def limits_connections(self) -> bool:
        """Whether there is a quota of the connections of users."""
        return any(key in self._clients for key in CONNECTION_KEYS)

    @property
    def limits_addresses(self) -> bool:
        return bool(self._addresses)

    def of_client(self, key: QuotaKey, user: str, client_id: str | None) -> Applied | None:
        """Return the quota of a client; `client_id` is None for clients that have none.

        All clients of a user share its quota. A default is a quota of its own for each name.
        """
        client_id = client_id or None
        known = self._clients.get(key)
        if known is None:
            return None
        for of_user in (user, None, _NOT_NAMED):
            for of_client in (client_id, None, _NOT_NAMED):
                if client_id is None and of_client is None:
                    continue
                value = known.get((of_user, of_client))
                if value is not None:
                    return Applied(
                        value,
                        _NOT_NAMED if of_user == _NOT_NAMED else user,
                        _NOT_NAMED if of_client == _NOT_NAMED else client_id or _NOT_NAMED,
                    )
        return None

    def of_address(self, key: QuotaKey, address: str) -> float | None:
        """Return the quota of an address."""
        known = self._addresses.get(key, {})
        return known.get(address, known.get(None))


class TokenBucket:
    """The use of one quota: amounts are taken as they come, and what is too much has to be waited for.

    A client that waits as long as `charge` says takes, over any time, at most the rate times the time, a
    burst, and the last amount.
    """

    __slots__ = ("_at", "_longest_seconds", "burst", "level", "rate")

    def __init__(self, rate: float, burst: float, longest_seconds: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._longest_seconds = longest_seconds
        # What is left, as of `_at`; negative while there is something to wait for.
        self.level = burst
        self._at = now

    def charge(self, amount: float, now: float) -> float:
        """Take an amount; return the seconds until it is paid for, 0 if it is already."""
        rate = self.rate
        level = self.level + (now - self._at) * rate
        if level > self.burst:
            level = self.burst
        level -= amount
        self._at = now
        if level >= 0:
            self.level = level
            return 0.0
        seconds = -level / rate
        if seconds > self._longest_seconds:
            seconds = self._longest_seconds
            level = -seconds * rate
        self.level = level
        return seconds

    def wait_seconds(self, now: float) -> float:
        """Return the seconds until all that was taken is paid for."""
        if self.level >= 0:
            return 0.0
        return max(0.0, -self.level / self.rate - (now - self._at))


def bucket_of(key: QuotaKey, value: float, now: float) -> TokenBucket:
    """Return the bucket of a quota. The rate of REQUEST is seconds of work in a second."""
    rate = value / 100 if key is QuotaKey.REQUEST else value
    form = _FORMS[key]
    return TokenBucket(rate, rate * form.burst_seconds, form.max_throttle_seconds, now)
