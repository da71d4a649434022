"""Encodes columns as JSON by a JSON schema, derives JSON schemas from columns, and extends them.

Values look as `decoding.json_values` reads them. An object has no member for a null, unless the schema
requires the member.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from alpacamq.registry.json_schema.schema import JsonSchema
from alpacamq_spark.decoding.json_values import json_layout
from alpacamq_spark.decoding.layout import JSON_TEXT, Layout, Leaf, List, Map, Object
from alpacamq_spark.errors import InvalidColumns

from .fitting import INTEGERS, Convert, Encode, field_types, is_missing, unfit

_DRAFT = "http://json-schema.org/draft-07/schema#"
_INTEGER, _NUMBER = {"type": "integer"}, {"type": "number"}
_TYPES: Mapping[type[DataType], Mapping[str, str]] = {
    BooleanType: {"type": "boolean"},
    ByteType: _INTEGER,
    DateType: {"type": "string", "format": "date"},
    DecimalType: _NUMBER,
    DoubleType: _NUMBER,
    FloatType: _NUMBER,
    IntegerType: _INTEGER,
    LongType: _INTEGER,
    ShortType: _INTEGER,
    StringType: {"type": "string"},
    TimestampType: {"type": "string", "format": "date-time"},
}


def json_encoder(schema: JsonSchema, column: DataType, path: str) -> Encode:
    """Return what encodes values of a column. Raises InvalidColumns if they do not fit the schema.

    The function raises InvalidColumns for a value that does not match the schema.
    """
    convert = _fitted(json_layout(schema.documents), column, path)
    write = msgspec.json.Encoder(decimal_format="number").encode

    def one(value: Any) -> bytes:
        data = write(convert(value))
        if (found := schema.mismatch(data)) is not None:
            at = f" at {found.path}" if found.path else ""
            raise InvalidColumns(f"column {path} does not match the schema in a row{at}: {found.message}")
        return data

    return lambda values: pa.array([one(value) for value in values.to_pylist()], pa.binary())


def _fitted(layout: Layout, column: DataType, path: str) -> Convert:
    """Return what converts values of a column to those of JSON."""
    if layout is JSON_TEXT:
        return _any_json(column, path)
    match layout, column:
        case _, NullType():
            return lambda value: value
        case Object(), StructType():
            kinds = field_types(column, path, layout.fields)
            if missing := sorted(layout.required - kinds.keys()):
                raise is_missing(path, missing[0])
            return _object(
                {name: _fitted(layout.fields[name], kind, f"{path}.{name}") for name, kind in kinds.items()},
                layout.required,
            )
        case List(), ArrayType():
            return _list(_fitted(layout.element, column.elementType, f"{path}[]"))
        case Map(), MapType() if isinstance(column.keyType, StringType):
            return _map(_fitted(layout.value, column.valueType, f"{path}[]"))
        case Leaf(wanted), _:
            if not _suits(wanted, column):
                raise unfit(path, column, _shown(wanted))
            return _number(path) if isinstance(column, FloatType | DoubleType) else _same
    raise unfit(path, column, type(layout).__name__.lower())


def _suits(wanted: DataType, column: DataType) -> bool:
    match wanted:
        case LongType():
            return isinstance(column, INTEGERS)
        case DoubleType():
            return isinstance(column, (*INTEGERS, FloatType, DoubleType, DecimalType))
    return type(wanted) is type(column)


def _shown(wanted: DataType) -> str:
    kind = _TYPES[type(wanted)]
    return f"{kind['type']} ({kind['format']})" if "format" in kind else kind["type"]


def _any_json(column: DataType, path: str) -> Convert:
    """Return what converts values where the schema leaves their type open, or it has none in Spark.

    The text of an object or array is written as such, because so it is decoded.
    """
    match column:
        case StructType():
            kinds = field_types(column, path)
            fields = {name: _any_json(kind, f"{path}.{name}") for name, kind in kinds.items()}
            return _object(fields, frozenset())
        case ArrayType():
            return _list(_any_json(column.elementType, f"{path}[]"))
        case MapType() if isinstance(column.keyType, StringType):
            return _map(_any_json(column.valueType, f"{path}[]"))
        case StringType():
            return _parsed
        case FloatType() | DoubleType():
            return _number(path)
    if not isinstance(column, NullType) and type(column) not in _TYPES:
        raise unfit(path, column, "JSON")
    return _same


def _parsed(text: str) -> Any:
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _same(value: Any) -> Any:
    return value


def _number(path: str) -> Convert:
    def convert(value: float) -> float:
        if not math.isfinite(value):
            raise InvalidColumns(f"column {path} is {value} in a row, which is no number in JSON")
        return value

    return convert


def _object(fields: Mapping[str, Convert], required: frozenset[str]) -> Convert:
    def convert(value: Mapping[str, Any]) -> Any:
        found = {}
        for name, inner in fields.items():
            if (each := value[name]) is not None:
                found[name] = inner(each)
            elif name in required:
                found[name] = None
        return found

    return convert


def _list(inner: Convert) -> Convert:
    return lambda value: [None if each is None else inner(each) for each in value]


def _map(inner: Convert) -> Convert:
    # Arrow gives the entries of a map as pairs.
    return lambda value: {key: None if each is None else inner(each) for key, each in value}


def derived_json(column: DataType, name: str, path: str) -> str:
    """Return the schema of a column. Raises InvalidColumns if JSON Schema has no type for it.

    Objects have no other members: only to those can the next version add some.
    """
    return json.dumps({"$schema": _DRAFT, "title": name, **_derived(column, path)})


def extended_json(schema: JsonSchema, column: DataType, path: str) -> str:
    """Return a schema with the properties of a column, which are optional. Raises InvalidColumns."""
    document = json.loads(schema.canonical)
    if not isinstance(document, dict):
        raise InvalidColumns("the schema is no object, so that no property can be added to it")
    return json.dumps(_extended(document, column, path))


def _derived(column: DataType, path: str) -> dict[str, Any]:
    match column:
        case StructType():
            kinds = field_types(column, path)
            required = [each.name for each in column.fields if not each.nullable]
            return {
                "type": "object",
                "properties": {
                    each.name: _optional(kinds[each.name], f"{path}.{each.name}", is_nullable=each.nullable)
                    for each in column.fields
                },
                **({"required": required} if required else {}),
                "additionalProperties": False,
            }
        case ArrayType():
            items = _optional(column.elementType, f"{path}[]", is_nullable=column.containsNull)
            return {"type": "array", "items": items}
        case MapType() if isinstance(column.keyType, StringType):
            values = _optional(column.valueType, f"{path}[]", is_nullable=column.valueContainsNull)
            return {"type": "object", "additionalProperties": values}
    if (known := _TYPES.get(type(column))) is None:
        raise unfit(path, column, "JSON Schema")
    return dict(known)


def _optional(column: DataType, path: str, *, is_nullable: bool) -> dict[str, Any]:
    kind = _derived(column, path)
    return {"oneOf": [{"type": "null"}, kind]} if is_nullable else kind


def _extended(document: Any, column: DataType, path: str) -> Any:
    match document, column:
        case {"oneOf": [{"type": "null"}, inner]}, _:
            return {**document, "oneOf": [{"type": "null"}, _extended(inner, column, path)]}
        case {"properties": dict(properties)}, StructType():
            kinds = field_types(column, path)
            changed = {
                name: _extended(each, kinds[name], f"{path}.{name}") if name in kinds else each
                for name, each in properties.items()
            }
            for name, kind in kinds.items():
                if name not in changed:
                    changed[name] = _optional(kind, f"{path}.{name}", is_nullable=True)
            required = [each for each in document.get("required", []) if each in kinds]
            others = {name: each for name, each in document.items() if name != "required"}
            return {**others, "properties": changed, **({"required": required} if required else {})}
        case {"type": "array", "items": dict(items)}, ArrayType():
            return {**document, "items": _extended(items, column.elementType, f"{path}[]")}
        case {"type": "object", "additionalProperties": dict(values)}, MapType():
            return {**document, "additionalProperties": _extended(values, column.valueType, f"{path}[]")}
        case {"type": str()}, _ if type(column) in _TYPES and not _is_of(document, column):
            return _derived(column, path)
    return document


def _is_of(document: Mapping[str, Any], column: DataType) -> bool:
    """Return whether a simple type suits a column."""
    if document["type"] == "number":
        return _suits(DoubleType(), column)
    wanted = _TYPES[type(column)]
    given = document.get("format") if document.get("format") in ("date", "date-time") else None
    return document["type"] == wanted["type"] and given == wanted.get("format")
