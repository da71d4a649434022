"""Encodes columns as Protobuf messages, derives messages from columns, and extends them.

Columns may have the types that `decoding.protobuf` gives to fields, and narrower numbers. A null is a field
that is not set. Null lists and maps are empty; a field without presence must not be null.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import EncodeError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from alpacamq.registry.protobuf import ProtobufSchema, from_descriptors
from alpacamq.registry.schema import Dependency
from alpacamq_spark.decoding.layout import MAX_DEPTH
from alpacamq_spark.decoding.protobuf import JSON_FORMS, SCALARS, TIMESTAMP, WRAPPERS, message_class
from alpacamq_spark.errors import InvalidColumns

from .fitting import INTEGERS, SMALL_INTEGERS, Convert, Encode, field_types, is_missing, is_null, unfit

_F = FieldDescriptor
_Proto = FieldDescriptorProto
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMESTAMP_FILE = "google/protobuf/timestamp.proto"
_TYPES: Mapping[type[DataType], int] = {
    BinaryType: _F.TYPE_BYTES,
    BooleanType: _F.TYPE_BOOL,
    ByteType: _F.TYPE_INT32,
    DoubleType: _F.TYPE_DOUBLE,
    FloatType: _F.TYPE_FLOAT,
    IntegerType: _F.TYPE_INT32,
    LongType: _F.TYPE_INT64,
    ShortType: _F.TYPE_INT32,
    StringType: _F.TYPE_STRING,
}
_UNSIGNED = {
    _F.TYPE_UINT32: 1 << 32,
    _F.TYPE_FIXED32: 1 << 32,
    _F.TYPE_UINT64: 1 << 64,
    _F.TYPE_FIXED64: 1 << 64,
}
# Numbers of fields that Protobuf keeps for itself.
_RESERVED = range(19_000, 20_000)


def protobuf_encoder(schema: ProtobufSchema, column: DataType, path: str, message: str | None) -> Encode:
    """Return what encodes values of a column. Raises InvalidColumns if they do not fit the message.

    The function raises InvalidColumns for a value that does not fit.
    """
    new = message_class(schema, message)
    convert = _message(new.DESCRIPTOR, column, path, ())
    # A message of Google's may be the only one that takes a value without fields.
    prefix = schema.indexes(message)

    def one(value: Any) -> bytes:
        found = convert(value)
        try:
            built = new(**found) if isinstance(found, dict) else found
            return prefix + bytes(built.SerializeToString(deterministic=True))
        except (EncodeError, TypeError, ValueError) as error:
            raise InvalidColumns(f"column {path} does not fit the message in a row: {error}") from None

    return lambda values: pa.array([one(value) for value in values.to_pylist()], pa.binary())


def _message(of: Any, column: DataType, path: str, outer: Sequence[str]) -> Convert:
    """Return what converts values to what the constructor of a message takes."""
    name = of.full_name
    if name == TIMESTAMP:
        if isinstance(column, TimestampType):
            return _timestamp
    elif name in WRAPPERS:
        inner = _scalar(of.fields_by_name["value"], column, path)
        return lambda value: {"value": inner(value)}
    elif isinstance(column, StringType):
        if name in JSON_FORMS or name in outer or len(outer) >= MAX_DEPTH or not of.fields:
            return _json_text(of, path)
    elif isinstance(column, StructType) and name not in JSON_FORMS:
        return _struct(of, column, path, (*outer, name))
    raise unfit(path, column, f"the message {name}")


def _struct(of: Any, column: StructType, path: str, outer: Sequence[str]) -> Convert:
    kinds = field_types(column, path, of.fields_by_name)
    for field in of.fields:
        if field.is_required and field.name not in kinds:
            raise is_missing(path, field.name)
    fields = [
        (name, *_field(of.fields_by_name[name], kind, f"{path}.{name}", outer))
        for name, kind in kinds.items()
    ]
    choices = [
        names
        for each in of.oneofs
        if len(names := [field.name for field in each.fields if field.name in kinds]) > 1
    ]

    def convert(value: Mapping[str, Any]) -> Any:
        for names in choices:
            if len(given := [name for name in names if value[name] is not None]) > 1:
                raise InvalidColumns(f"column {path} has {' and '.join(given)} of one oneof in a row")
        found = {}
        for name, inner, may_be_null in fields:
            if (each := value[name]) is not None:
                found[name] = inner(each)
            elif not may_be_null:
                raise is_null(f"{path}.{name}")
        return found

    return convert


def _field(field: Any, column: DataType, path: str, outer: Sequence[str]) -> tuple[Convert, bool]:
    """Return what converts values of a field, and whether they may be null."""
    if isinstance(column, NullType):
        return _same, True
    if not field.is_repeated:
        return _single(field, column, path, outer), bool(field.has_presence)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        if not isinstance(column, MapType) or not isinstance(column.keyType, StringType):
            raise unfit(path, column, "a map by text")
        key = _map_key(entry.fields_by_name["key"], path)
        inner = _single(entry.fields_by_name["value"], column.valueType, f"{path}[]", outer)
        one = _not_null(inner, f"{path}[]")
        # Arrow gives the entries of a map as pairs.
        return (lambda entries: {key(name): one(each) for name, each in entries}), True
    if not isinstance(column, ArrayType):
        raise unfit(path, column, "a repeated field")
    each_one = _not_null(_single(field, column.elementType, f"{path}[]", outer), f"{path}[]")
    return (lambda values: [each_one(each) for each in values]), True


def _not_null(inner: Convert, path: str) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            raise is_null(path)
        return inner(value)

    return convert


def _single(field: Any, column: DataType, path: str, outer: Sequence[str]) -> Convert:
    if field.message_type is not None:
        return _message(field.message_type, column, path, outer)
    return _scalar(field, column, path)


def _scalar(field: Any, column: DataType, path: str) -> Convert:
    if field.enum_type is not None:
        if not isinstance(column, StringType):
            raise unfit(path, column, f"the enum {field.enum_type.full_name}")
        return _enum(field.enum_type, path)
    wanted = SCALARS[field.type]
    if not _suits(field.type, wanted, column):
        raise unfit(path, column, _Proto.Type.Name(field.type).removeprefix("TYPE_").lower())
    if (end := _UNSIGNED.get(field.type)) is not None:
        return _unsigned(end, path)
    return float if isinstance(wanted, DoubleType) else _same


def _suits(kind: int, wanted: DataType, column: DataType) -> bool:
    if kind in _UNSIGNED:
        if isinstance(column, DecimalType):
            return isinstance(wanted, DecimalType) and column.scale == 0
        return isinstance(column, INTEGERS)
    match wanted:
        case IntegerType():
            return isinstance(column, SMALL_INTEGERS)
        case LongType():
            return isinstance(column, INTEGERS)
        case DoubleType():
            return isinstance(column, (*SMALL_INTEGERS, FloatType, DoubleType))
    return type(wanted) is type(column)


def _same(value: Any) -> Any:
    return value


def _unsigned(end: int, path: str) -> Convert:
    def convert(value: int | Decimal) -> int:
        number = int(value)
        if not 0 <= number < end:
            raise InvalidColumns(f"column {path} is {number} in a row, and the schema has an unsigned number")
        return number

    return convert


def _enum(of: Any, path: str) -> Convert:
    numbers: dict[str, int] = {name: each.number for name, each in of.values_by_name.items()}

    def convert(value: str) -> int:
        if (number := numbers.get(value)) is not None:
            return number
        # Values without a name are decoded to their numbers.
        if re.fullmatch(r"-?\d{1,10}", value, re.ASCII) and not of.is_closed:
            return int(value)
        raise InvalidColumns(
            f"column {path} is {value[:100]!r} in a row, which the enum {of.full_name} lacks"
        )

    return convert


def _map_key(field: Any, path: str) -> Callable[[str], Any]:
    if field.type == _F.TYPE_STRING:
        return _same
    read: Callable[[str], Any] = {"true": True, "false": False}.__getitem__
    if field.type != _F.TYPE_BOOL:
        read = int

    def convert(key: str) -> Any:
        try:
            return read(key)
        except (KeyError, ValueError):
            raise InvalidColumns(
                f"column {path} has the key {key[:100]!r} in a row, unlike the schema"
            ) from None

    return convert


def _timestamp(value: datetime) -> Any:
    seconds, micros = divmod((value - _EPOCH) // _MICROSECOND, 1_000_000)
    return {"seconds": seconds, "nanos": micros * 1000}


def _json_text(of: Any, path: str) -> Convert:
    new = message_factory.GetMessageClass(of)

    def convert(text: str) -> Any:
        try:
            return json_format.Parse(text, new(), max_recursion_depth=MAX_DEPTH)
        except (json_format.ParseError, TypeError, ValueError) as error:
            raise InvalidColumns(
                f"column {path} is not the JSON form of {of.full_name} in a row: {error}"
            ) from None

    return convert


def derived_protobuf(column: DataType, name: str, path: str) -> ProtobufSchema:
    """Return the schema of a column. Raises InvalidColumns if Protobuf has no type for it."""
    if not isinstance(column, StructType):
        raise InvalidColumns(f"column {path} is {column.simpleString()}, and Protobuf needs a struct")
    file = FileDescriptorProto(name="default.proto", syntax="proto3")
    message = file.message_type.add(name=name)
    _Deriver(file).extend(message, column, f".{name}", path)
    return _parsed(file, ())


def extended_protobuf(
    schema: ProtobufSchema, column: DataType, path: str, message: str | None
) -> ProtobufSchema:
    """Return a schema with the fields of a column, which get new numbers. Raises InvalidColumns."""
    descriptors = schema.descriptors
    file = FileDescriptorProto.FromString(base64.b64decode(descriptors.text))
    found = message_class(schema, message).DESCRIPTOR
    if not isinstance(column, StructType):
        raise unfit(path, column, f"the message {found.full_name}")
    name = f".{found.full_name}"
    _Deriver(file).extend(_messages(file)[name], column, name, path)
    return _parsed(file, descriptors.dependencies)


def _parsed(file: Any, dependencies: Sequence[Dependency]) -> ProtobufSchema:
    return from_descriptors(base64.b64encode(file.SerializeToString()).decode(), dependencies)


class _Deriver:
    """Adds fields to the messages of a file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        # Those that the file has so far.
        self._messages = _messages(file)

    def extend(self, message: Any, column: StructType, name: str, path: str) -> None:
        """Add the columns that a message lacks; `name` is its full one with a dot in front."""
        known = {field.name: field for field in message.field}
        if not field_types(column, path):
            raise unfit(path, column, "a message without fields")
        for field in column.fields:
            inner = f"{path}.{field.name}"
            if field.name in known:
                self._extend_field(known[field.name], field.dataType, inner)
            else:
                self._add(message, field, name, inner, is_new=bool(known))

    def _extend_field(self, field: Any, column: DataType, path: str) -> None:
        """Add columns to the message of a field, if it is one of this file, or change its type."""
        if isinstance(column, ArrayType):
            column = column.elementType
        elif isinstance(column, MapType) and field.type_name in self._messages:
            _, field = self._messages[field.type_name].field  # the value of an entry
            column = column.valueType
        nested = self._messages.get(field.type_name)
        if nested is not None and isinstance(column, StructType):
            self.extend(nested, column, field.type_name, path)
        elif (kind := _TYPES.get(type(column))) is not None and field.type != _Proto.TYPE_ENUM:
            wanted = SCALARS.get(field.type)
            if wanted is not None and not _suits(field.type, wanted, column):
                field.type = kind

    def _add(self, message: Any, field: StructField, name: str, path: str, *, is_new: bool) -> None:
        if not _NAME.fullmatch(field.name):
            raise InvalidColumns(f"column {path} has a name that Protobuf does not allow; rename it")
        added = message.field.add(name=field.name, number=_free_number(message), label=_Proto.LABEL_OPTIONAL)
        column = field.dataType
        if isinstance(column, ArrayType):
            added.label = _Proto.LABEL_REPEATED
            self._set_type(message, added, column.elementType, name, f"{path}[]")
        elif isinstance(column, MapType) and isinstance(column.keyType, StringType):
            entry = message.nested_type.add(name=_entry_name(field.name))
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=_Proto.LABEL_OPTIONAL, type=_Proto.TYPE_STRING)
            value = entry.field.add(name="value", number=2, label=_Proto.LABEL_OPTIONAL)
            self._set_type(message, value, column.valueType, name, f"{path}[]")
            added.label = _Proto.LABEL_REPEATED
            added.type = _Proto.TYPE_MESSAGE
            added.type_name = f"{name}.{entry.name}"
        else:
            self._set_type(message, added, column, name, path)
            is_scalar = added.type != _Proto.TYPE_MESSAGE
            if is_scalar and self._file.syntax == "proto3" and (field.nullable or is_new):
                added.proto3_optional = True
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _set_type(self, message: Any, field: Any, column: DataType, name: str, path: str) -> None:
        if isinstance(column, StructType):
            owner = path.rstrip("[]").rpartition(".")[2]
            nested = message.nested_type.add(name=_free_name(message, _camel(owner)))
            field.type = _Proto.TYPE_MESSAGE
            field.type_name = f"{name}.{nested.name}"
            self.extend(nested, column, field.type_name, path)
        elif isinstance(column, TimestampType):
            field.type = _Proto.TYPE_MESSAGE
            field.type_name = f".{TIMESTAMP}"
            if _TIMESTAMP_FILE not in self._file.dependency:
                self._file.dependency.append(_TIMESTAMP_FILE)
        elif (kind := _TYPES.get(type(column))) is not None:
            field.type = kind
        else:
            raise unfit(path, column, "Protobuf")


def _messages(file: Any) -> dict[str, Any]:
    """Return the messages of a file by their full names with a dot in front."""
    found: dict[str, Any] = {}
    left = [(f".{file.package}" if file.package else "", each) for each in file.message_type]
    while left:
        outer, message = left.pop()
        name = f"{outer}.{message.name}"
        found[name] = message
        left += [(name, each) for each in message.nested_type]
    return found


def _free_number(message: Any) -> int:
    """Return the number after all that a message uses or has used."""
    used = [field.number for field in message.field]
    used += [each.end - 1 for each in (*message.reserved_range, *message.extension_range)]
    number = max(used, default=0) + 1
    return _RESERVED.stop if number in _RESERVED else number


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_")) or "Nested"


def _entry_name(name: str) -> str:
    """Return the name that Protobuf wants the entries of a map to have."""
    return f"{_camel(name)}Entry"


def _free_name(message: Any, name: str) -> str:
    taken = {each.name for each in (*message.nested_type, *message.enum_type, *message.field)}
    free, count = name, 1
    while free in taken:
        count += 1
        free = f"{name}{count}"
    return free
