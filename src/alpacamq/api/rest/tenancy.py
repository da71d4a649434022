"""Names in requests and answers of tenants' clients: as they name resources, and as the broker stores them.

The tables say which fields of the values of the HTTP API hold names. Messages are never changed: their keys,
values and headers belong to the client.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from alpacamq.model import names

Rename = Callable[[str], str]


class Kind(Enum):
    """What a text names."""

    TOPIC = "topic"
    # A group or transactional id.
    ID = "id"
    # The beginning of names: an empty one is that of all names of the tenant.
    TOPIC_PREFIX = "prefix of topics"
    ID_PREFIX = "prefix of ids"
    # Positions in topics, `NAME:0@17,OTHER:1@5`.
    CURSOR = "cursor"
    # A text for people that may contain names.
    TEXT = "text"
    # Attributes of a step in a trace, of which one names a message.
    ATTRIBUTES = "attributes"


# By the name of the field, in all values.
FIELDS: Mapping[str, Kind] = {
    "topic": Kind.TOPIC,
    "topics": Kind.TOPIC,
    "dead_letter_topic": Kind.TOPIC,
    "assignment": Kind.TOPIC,
    "group": Kind.ID,
    "transactional_id": Kind.ID,
    "cursor": Kind.CURSOR,
    "detail": Kind.TEXT,
    "failure": Kind.TEXT,
}
# By the name of the type and the field, where the name of the field alone does not say it.
FIELDS_OF_TYPES: Mapping[tuple[str, str], Kind | None] = {
    ("NewTopic", "name"): Kind.TOPIC,
    ("ListedTopic", "name"): Kind.TOPIC,
    ("TopicDescription", "name"): Kind.TOPIC,
    ("TopicsQuery", "prefix"): Kind.TOPIC_PREFIX,
    ("TopicsQuery", "after"): Kind.TOPIC,
    ("TopicList", "next"): Kind.TOPIC,
    ("TopicStatsQuery", "prefix"): Kind.TOPIC_PREFIX,
    ("DelayTopicsQuery", "after"): Kind.TOPIC,
    ("DelayTopics", "next"): Kind.TOPIC,
    ("GroupsQuery", "prefix"): Kind.ID_PREFIX,
    ("GroupsQuery", "after"): Kind.ID,
    ("GroupList", "next"): Kind.ID,
    ("GroupStatsQuery", "prefix"): Kind.ID_PREFIX,
    ("GroupAnswer", "queues"): Kind.TOPIC,
    ("MemberDescription", "target"): Kind.TOPIC,
    ("TransactionsQuery", "after"): Kind.ID,
    ("TransactionList", "next"): Kind.ID,
    ("Redrive", "target"): Kind.TOPIC,
    ("RedriveDescription", "source"): Kind.TOPIC,
    ("RedriveDescription", "target"): Kind.TOPIC,
    ("SkippedBatch", "reason"): Kind.TEXT,
    ("TraceStep", "attributes"): Kind.ATTRIBUTES,
    # Of traces: a place in their log.
    ("TracesQuery", "cursor"): None,
    ("TraceSearch", "cursor"): None,
    ("TraceList", "cursor"): None,
}
# The attribute of a trace step that names a message, as TOPIC/PARTITION/OFFSET.
_ORIGIN = "from"


class _Plan(NamedTuple):
    """The fields of a value that hold names, and those with values that do."""

    names: tuple[tuple[str, Kind], ...]
    parts: tuple[str, ...]


def kind_of(owner: type, field: str) -> Kind | None:
    """Return what a field of a value names; None if it is not a name."""
    key = (owner.__name__, field)
    return FIELDS_OF_TYPES[key] if key in FIELDS_OF_TYPES else FIELDS.get(field)


@cache
def _plan(owner: type) -> _Plan:
    found, parts = [], []
    for field in msgspec.structs.fields(owner):
        described = inspect.type_info(field.type)
        structs = _structs_in(described)
        if any(any(_plan(each)) for each in structs):
            parts.append(field.name)
        elif not structs and (kind := kind_of(owner, field.name)) is not None:
            found.append((field.name, kind))
    return _Plan(tuple(found), tuple(parts))


def _structs_in(described: inspect.Type) -> list[type]:
    """Return the types of values in a field."""
    if isinstance(described, inspect.Metadata):
        return _structs_in(described.type)
    if isinstance(described, inspect.StructType):
        return [described.cls]
    if isinstance(described, inspect.UnionType):
        return [found for each in described.types for found in _structs_in(each)]
    if isinstance(described, inspect.ListType | inspect.VarTupleType):
        return _structs_in(described.item_type)
    if isinstance(described, inspect.DictType):
        return _structs_in(described.value_type)
    return []


class Translation:
    """Translates values by a function for the names of each kind."""

    def __init__(self, renames: Mapping[Kind, Rename]) -> None:
        self._renames = renames

    def __call__(self, value: Any) -> Any:
        """Return a value, or a list or mapping of values, with other names."""
        if isinstance(value, msgspec.Struct):
            return self._struct(value)
        if isinstance(value, list):
            return [self(each) for each in value]
        if isinstance(value, dict):
            return {key: self(each) for key, each in value.items()}
        return value

    def _struct(self, value: msgspec.Struct) -> msgspec.Struct:
        plan = _plan(type(value))
        changes: dict[str, Any] = {}
        for name, kind in plan.names:
            if (rename := self._renames.get(kind)) is not None:
                changes[name] = _renamed(getattr(value, name), kind, rename)
        for name in plan.parts:
            changes[name] = self(getattr(value, name))
        return msgspec.structs.replace(value, **changes) if changes else value


def _renamed(value: Any, kind: Kind, rename: Rename) -> Any:
    if isinstance(value, str):
        # Only a prefix may be empty; any other empty name is one that was not given.
        return rename(value) if value or kind in {Kind.TOPIC_PREFIX, Kind.ID_PREFIX} else value
    if isinstance(value, list):
        return [rename(each) if isinstance(each, str) else each for each in value]
    if isinstance(value, dict):
        if kind is Kind.ATTRIBUTES:
            origin = value.get(_ORIGIN)
            return {**value, _ORIGIN: rename(origin)} if isinstance(origin, str) else value
        return {rename(key): each for key, each in value.items()}
    return value


@cache
def to_stored(tenant: str) -> Translation:
    """Return the translation of requests of a tenant's clients."""

    def topic(name: str) -> str:
        return names.topic_of(tenant, name)

    def id_(name: str) -> str:
        return names.id_of(tenant, name)

    return Translation(
        {
            Kind.TOPIC: topic,
            Kind.TOPIC_PREFIX: topic,
            Kind.ID: id_,
            Kind.ID_PREFIX: id_,
            Kind.CURSOR: lambda cursor: ",".join(map(topic, cursor.split(","))),
        }
    )


@cache
def to_local(tenant: str) -> Translation:
    """Return the translation of answers to a tenant's clients."""
    topics, ids = names.topic_of(tenant, ""), names.id_of(tenant, "")

    def topic(name: str) -> str:
        return name.removeprefix(topics)

    return Translation(
        {
            Kind.TOPIC: topic,
            Kind.ID: lambda name: name.removeprefix(ids),
            Kind.CURSOR: lambda cursor: ",".join(map(topic, cursor.split(","))),
            Kind.TEXT: lambda text: names.localized(tenant, text),
            Kind.ATTRIBUTES: topic,
        }
    )
