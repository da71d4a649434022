"""Describes decoded values, and converts them to columns of a Spark type.

A schema becomes a layout: nested objects, lists and maps of leaves, with the Spark type that fits it best. A
layout is compiled with the type of a table, which may be wider or have other fields, to one function.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from alpacamq.model.errors import AlpacaError

MAX_DEPTH = 32
# Of a schema. Types that use others twice on every level have exponentially many.
MAX_LEAVES = 5_000
# The column of values that are not objects.
ONLY = "value"

Convert: TypeAlias = Callable[[Any], Any]


class UnusableSchema(AlpacaError):
    """A schema has no columns, or not those of a table; names the field and the reason."""


class Misfit(ValueError):
    """A value does not fit its column."""


def same(value: Any) -> Any:
    """Return a value as it is."""
    return value


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value without parts. `read` turns the decoded value into one of the type, or raises Misfit."""

    type: DataType
    read: Convert = same


@dataclass(frozen=True, slots=True)
class Object:
    """Named fields. `read` turns the decoded value into a mapping, or raises Misfit."""

    fields: Mapping[str, "Layout"]
    read: Convert
    # Fields that an encoded value must have.
    required: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class List:
    """Elements of one layout."""

    element: "Layout"
    read: Convert


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one layout by text."""

    value: "Layout"
    read: Convert


Layout: TypeAlias = Leaf | Object | List | Map


def an_object(value: Any) -> Mapping[str, Any]:
    """Check that a value is an object."""
    if not isinstance(value, dict):
        raise Misfit(f"{type(value).__name__} instead of an object")
    return value


def a_list(value: Any) -> list[Any]:
    """Check that a value is a list."""
    if not isinstance(value, list):
        raise Misfit(f"{type(value).__name__} instead of a list")
    return value


def as_text(value: Any) -> str:
    """Return text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# For what has no type of its own in Spark.
JSON_TEXT = Leaf(StringType(), as_text)


class Growth:
    """Counts the leaves of a layout while it is built, and ends one that grows too large."""

    def __init__(self) -> None:
        self._left = MAX_LEAVES

    def leaf(self, leaf: Leaf) -> Leaf:
        """Count a leaf. Raises UnusableSchema."""
        self._left -= 1
        if self._left < 0:
            raise UnusableSchema(f"the schema has more than {MAX_LEAVES} columns")
        return leaf

    def object(
        self,
        fields: Mapping[str, Layout],
        path: str,
        read: Convert = an_object,
        required: frozenset[str] = frozenset(),
    ) -> Layout:
        """Return the layout of an object. Raises UnusableSchema if Spark cannot tell its fields apart."""
        if not fields:
            return self.leaf(JSON_TEXT)  # Parquet has no objects without fields
        seen: dict[str, str] = {}
        for name in fields:
            if (other := seen.setdefault(name.lower(), name)) != name:
                raise UnusableSchema(
                    f"{path or 'the schema'} has the fields {other} and {name}, which Spark takes for one"
                )
        return Object(fields, read, required)


def as_row(layout: Layout) -> Object:
    """Return the layout of the columns of a table: the fields of an object, or one column `value`."""
    return layout if isinstance(layout, Object) else Object({ONLY: layout}, lambda value: {ONLY: value})


def type_of(layout: Layout) -> DataType:
    """Return the Spark type that fits a layout."""
    match layout:
        case Leaf():
            return layout.type
        case Object():
            return StructType([StructField(name, type_of(inner)) for name, inner in layout.fields.items()])
        case List():
            return ArrayType(type_of(layout.element))
        case Map():
            return MapType(StringType(), type_of(layout.value))


def compiled(layout: Layout, wanted: DataType, path: str = "") -> Convert:
    """Return a function that converts decoded values to a type of Spark.

    Fields that the type lacks are left out, those that the layout lacks are null. Raises UnusableSchema if
    no value fits. The function raises Misfit for a value that does not fit.
    """
    match layout, wanted:
        case Object(), StructType():
            return _object(layout, wanted, path)
        case List(), ArrayType():
            read_list, element = layout.read, compiled(layout.element, wanted.elementType, f"{path}[]")
            return _unless_null(lambda value: [element(each) for each in read_list(value)])
        case Map(), MapType():
            read_map, inner = layout.read, compiled(layout.value, wanted.valueType, f"{path}[]")
            # Arrow takes a map as a list of pairs.
            return _unless_null(lambda value: [(key, inner(each)) for key, each in read_map(value).items()])
        case Leaf(), _ if (fit := _fit(layout.type, wanted)) is not None:
            read = layout.read
            return _unless_null(read if fit is same else lambda value: fit(read(value)))
    raise UnusableSchema(
        f"{path.lstrip('.') or 'the value'} is {type_of(layout).simpleString()} in a schema, "
        f"which does not fit {wanted.simpleString()}"
    )


def _object(layout: Object, wanted: StructType, path: str) -> Convert:
    read = layout.read
    fields = [
        (field.name, compiled(layout.fields[field.name], field.dataType, f"{path}.{field.name}"))
        for field in wanted.fields
        if field.name in layout.fields
    ]

    def convert(value: Any) -> Any:
        found = read(value)
        return {name: inner(found.get(name)) for name, inner in fields}

    return _unless_null(convert)


def _unless_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


_INTEGERS = (IntegerType, LongType)


def _fit(given: DataType, wanted: DataType) -> Convert | None:
    """Return how values of one type become those of another; None if they do not."""
    if given == wanted or (isinstance(given, IntegerType) and isinstance(wanted, LongType)):
        return same
    if isinstance(given, LongType) and isinstance(wanted, IntegerType):
        return _as_int
    if isinstance(wanted, DoubleType) and isinstance(given, (*_INTEGERS, FloatType)):
        return float
    if isinstance(given, StringType) and isinstance(wanted, BinaryType):
        return str.encode
    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return same if whole and wanted.scale >= given.scale else None
    return None


def _as_int(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise Misfit(f"{value} is too large for a column of type int")
    return value
