"""Avro types as a parsed schema holds them.

Named types are compared by identity: a schema has one object per full name, so a recursive type is a cycle of
objects. Walks over types therefore use a worklist or remember what they have seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import floor, log10
from typing import ClassVar, NamedTuple, TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_INT = (1 << 31) - 1
MAX_LONG = (1 << 63) - 1


class Kind(StrEnum):
    """The kinds of types, by their names in schemas."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"
    RECORD = "record"
    ENUM = "enum"
    FIXED = "fixed"
    ARRAY = "array"
    MAP = "map"
    UNION = "union"


PRIMITIVES: Mapping[str, Kind] = {
    kind.value: kind
    for kind in (
        Kind.NULL,
        Kind.BOOLEAN,
        Kind.INT,
        Kind.LONG,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.BYTES,
        Kind.STRING,
    )
}


class Name(NamedTuple):
    """The name of a named type, or an alias of one. The namespace may be empty."""

    namespace: str
    simple: str

    @property
    def full(self) -> str:
        return f"{self.namespace}.{self.simple}" if self.namespace else self.simple


@dataclass(slots=True, eq=False)
class Primitive:
    """A type without parts."""

    kind: Kind
    properties: Mapping[str, Json]

    @property
    def zero_width(self) -> bool:
        """Return whether every value is encoded as no bytes."""
        return self.kind is Kind.NULL


@dataclass(slots=True, eq=False)
class Array:
    """A list of values of one type."""

    items: "AvroType"
    properties: Mapping[str, Json]
    kind: ClassVar = Kind.ARRAY
    zero_width: ClassVar = False


@dataclass(slots=True, eq=False)
class Map:
    """Values of one type by string keys."""

    values: "AvroType"
    properties: Mapping[str, Json]
    kind: ClassVar = Kind.MAP
    zero_width: ClassVar = False


@dataclass(slots=True, eq=False)
class Union:
    """A value of one of several types. Unions have no properties."""

    branches: "list[AvroType]"
    kind: ClassVar = Kind.UNION
    zero_width: ClassVar = False
    properties: ClassVar[Mapping[str, Json]] = {}


@dataclass(eq=False)
class Enum:
    """One of a list of symbols. `default` stands for symbols that a reader does not know."""

    name: Name
    aliases: list[Name]
    doc: str | None
    symbols: list[str]
    default: str | None
    properties: Mapping[str, Json]
    kind: ClassVar = Kind.ENUM
    zero_width: ClassVar = False

    @cached_property
    def symbol_set(self) -> frozenset[str]:
        return frozenset(self.symbols)


@dataclass(slots=True, eq=False)
class Fixed:
    """A fixed number of bytes."""

    name: Name
    aliases: list[Name]
    doc: str | None
    size: int
    properties: Mapping[str, Json]
    kind: ClassVar = Kind.FIXED

    @property
    def zero_width(self) -> bool:
        """Return whether every value is encoded as no bytes."""
        return self.size == 0


class Default(NamedTuple):
    """The default value of a field."""

    value: Json


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record."""

    name: str
    type: "AvroType"
    aliases: list[str]
    doc: str | None
    default: Default | None
    order: str
    properties: Mapping[str, Json]


@dataclass(eq=False)
class Record:
    """Named fields in order. They are set when the definition ends, because they may refer to the record."""

    name: Name
    aliases: list[Name]
    doc: str | None
    is_error: bool
    properties: Mapping[str, Json]
    fields: list[Field] = field(default_factory=list)
    # A record that is being defined contains itself where it is used, so it cannot be empty.
    zero_width: bool = False
    is_complete: bool = False
    kind: ClassVar = Kind.RECORD

    def complete(self, fields: list[Field]) -> None:
        """Set the fields at the end of the definition."""
        self.fields = fields
        self.zero_width = all(each.type.zero_width for each in fields)
        self.is_complete = True

    @cached_property
    def fields_by_name(self) -> Mapping[str, Field]:
        assert self.is_complete
        return {each.name: each for each in self.fields}


Named: TypeAlias = Record | Enum | Fixed
AvroType: TypeAlias = Primitive | Array | Map | Union | Named

_LOGICAL_KINDS: Mapping[str, Kind] = {
    "big-decimal": Kind.BYTES,
    "date": Kind.INT,
    "time-millis": Kind.INT,
    "time-micros": Kind.LONG,
    "timestamp-millis": Kind.LONG,
    "timestamp-micros": Kind.LONG,
    "timestamp-nanos": Kind.LONG,
    "local-timestamp-millis": Kind.LONG,
    "local-timestamp-micros": Kind.LONG,
    "local-timestamp-nanos": Kind.LONG,
}
# Properties of Avro's Java library that choose a class for the value, which a logical type does as well.
_CLASS_PROPERTIES = ("avro.java.string", "java-class", "java-key-class", "java-element-class")
_UUID_BYTES = 16
_DURATION_BYTES = 12


def logical_type(of: AvroType) -> str | None:
    """Return the logical type of a type. One that is unknown or does not fit the type has no meaning."""
    name = of.properties.get("logicalType")
    if not isinstance(name, str) or any(isinstance(of.properties.get(key), str) for key in _CLASS_PROPERTIES):
        return None
    if name == "decimal":
        fits = _is_decimal(of)
    elif name == "uuid":
        fits = of.kind is Kind.STRING or (isinstance(of, Fixed) and of.size == _UUID_BYTES)
    elif name == "duration":
        fits = isinstance(of, Fixed) and of.size == _DURATION_BYTES
    else:
        fits = _LOGICAL_KINDS.get(name) is of.kind
    return name if fits else None


def _is_decimal(of: AvroType) -> bool:
    precision, scale = of.properties.get("precision"), of.properties.get("scale", 0)
    # In JSON true is no number, in Python it is.
    if type(precision) is not int or type(scale) is not int:
        return False
    if isinstance(of, Fixed):
        max_precision = floor(log10(2) * (8 * of.size - 1)) if of.size else 0
    elif of.kind is Kind.BYTES:
        max_precision = MAX_INT
    else:
        return False
    return 0 < precision <= max_precision and 0 <= scale <= precision


def excerpt(text: str, limit: int = 100) -> str:
    """Shorten a text of a stranger for a message."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
