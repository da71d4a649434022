"""Derives Avro schemas from columns, and extends a schema by the columns that it lacks.

A derived schema has the types of Spark's `to_avro`. A nullable column is a union with null, which is its
default.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from alpacamq.registry.avro import AvroSchema
from alpacamq.registry.avro.types import Array, AvroType, Map, Record, Union
from alpacamq_spark.errors import InvalidColumns

from .avro import avro_encoder
from .fitting import field_types, unfit

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NO_LETTER = re.compile(r"[^A-Za-z0-9_]", re.ASCII)
_TYPES: Mapping[type[DataType], Any] = {
    BinaryType: "bytes",
    BooleanType: "boolean",
    ByteType: "int",
    DateType: {"type": "int", "logicalType": "date"},
    DoubleType: "double",
    FloatType: "float",
    IntegerType: "int",
    LongType: "long",
    ShortType: "int",
    StringType: "string",
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
}


def type_name_for(text: str) -> str:
    """Return a name of a type that is like a text: of a topic, for instance."""
    name = _NO_LETTER.sub("_", text)
    return f"_{name}" if name[:1].isdigit() else name


def derived_avro(column: DataType, name: str, path: str) -> str:
    """Return the schema of a column. Raises InvalidColumns if Avro has no type for it."""
    return _text(_Deriver(set()).type(column, name, path))


def extended_avro(schema: AvroSchema, column: DataType, name: str, path: str) -> str:
    """Return a schema with the fields of a column.

    New fields are optional, required ones that no column fills are gone, and a type that its column does not
    fit is that of the column. Raises InvalidColumns.
    """
    document = json.loads(schema.canonical)
    deriver = _Deriver(set(_names(document)))
    return _text(_extended(document, schema.root, column, name, path, deriver))


def _text(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


class _Deriver:
    """Derives types with names that are not taken."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def type(self, column: DataType, name: str, path: str) -> Any:
        """Return the type of values that are not null."""
        match column:
            case StructType():
                return self._record(column, name, path)
            case ArrayType():
                items = self._optional(column.elementType, name, f"{path}[]", is_nullable=column.containsNull)
                return {"type": "array", "items": items}
            case MapType() if isinstance(column.keyType, StringType):
                is_nullable = column.valueContainsNull
                values = self._optional(column.valueType, name, f"{path}[]", is_nullable=is_nullable)
                return {"type": "map", "values": values}
            case DecimalType():
                digits = {"precision": column.precision, "scale": column.scale}
                return {"type": "bytes", "logicalType": "decimal", **digits}
        if (known := _TYPES.get(type(column))) is None:
            raise unfit(path, column, "Avro")
        return known

    def field(self, field: StructField, name: str, path: str, *, is_nullable: bool) -> dict[str, Any]:
        """Return a field of the record `name`."""
        path = f"{path}.{field.name}"
        if not _NAME.fullmatch(field.name):
            raise InvalidColumns(f"column {path} has a name that Avro does not allow; rename it")
        kind = self._optional(field.dataType, f"{name}_{field.name}", path, is_nullable=is_nullable)
        found = {"name": field.name, "type": kind}
        return {**found, "default": None} if is_nullable else found

    def _record(self, column: StructType, name: str, path: str) -> Any:
        if not field_types(column, path):
            raise unfit(path, column, "an Avro record without fields")
        name = self._free(name)
        fields = [self.field(each, name, path, is_nullable=each.nullable) for each in column.fields]
        return {"type": "record", "name": name, "fields": fields}

    def _optional(self, column: DataType, name: str, path: str, *, is_nullable: bool) -> Any:
        kind = self.type(column, name, path)
        return ["null", kind] if is_nullable else kind

    def _free(self, name: str) -> str:
        free, count = name, 1
        while free in self._taken:
            count += 1
            free = f"{name}_{count}"
        self._taken.add(free)
        return free


def _names(document: Any) -> list[str]:
    """Return the names of the types in a schema."""
    match document:
        case list():
            return [name for each in document for name in _names(each)]
        case dict():
            own = [document["name"]] if isinstance(document.get("name"), str) else []
            return own + [name for each in document.values() for name in _names(each)]
    return []


def _extended(document: Any, of: AvroType, column: DataType, name: str, path: str, deriver: _Deriver) -> Any:
    """Return the type of a document with the fields of a column; `of` is the same type, parsed."""
    match document, of, column:
        # A type that is defined elsewhere is only a name here.
        case dict(), Record(), StructType() if "fields" in document:
            return _extended_record(document, of, column, path, deriver)
        case dict(), Array(), ArrayType():
            items = _extended(document["items"], of.items, column.elementType, name, f"{path}[]", deriver)
            return {**document, "items": items}
        case dict(), Map(), MapType():
            values = _extended(document["values"], of.values, column.valueType, name, f"{path}[]", deriver)
            return {**document, "values": values}
        case list(), Union():
            others = [index for index, each in enumerate(of.branches) if each.kind != "null"]
            if len(others) == 1:
                only = others[0]
                changed = _extended(document[only], of.branches[only], column, name, path, deriver)
                return [changed if index == only else each for index, each in enumerate(document)]
    try:
        avro_encoder(of, column, path)
    except InvalidColumns:
        return deriver.type(column, name, path)
    return document


def _extended_record(
    document: dict[str, Any], of: Record, column: StructType, path: str, deriver: _Deriver
) -> Any:
    given = field_types(column, path)
    name = of.name.simple
    fields = []
    for each, field in zip(document["fields"], of.fields, strict=True):
        if field.name in given:
            inner = f"{path}.{field.name}"
            kind = _extended(
                each["type"], field.type, given[field.name], f"{name}_{field.name}", inner, deriver
            )
            fields.append({**each, "type": kind})
        elif field.default is not None or field.type.kind == "union":
            fields.append(each)
    known = of.fields_by_name
    added = [each for each in column.fields if each.name not in known]
    fields += [deriver.field(each, name, path, is_nullable=True) for each in added]
    return {**document, "fields": fields}
