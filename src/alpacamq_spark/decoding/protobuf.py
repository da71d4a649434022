"""Describes Protobuf messages, and reads them.

Fields have the names of the .proto file. A field without presence has its default value where it is not set;
others, such as those of a oneof, are null. Timestamps and wrappers become values of their own, other types
that Google gives a JSON form of their own, and messages inside themselves, are JSON text.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from alpacamq.registry.protobuf import ProtobufSchema
from alpacamq.registry.schema import InvalidData

from .layout import MAX_DEPTH, Convert, Growth, Layout, Leaf, List, Map, Misfit, UnusableSchema, same

_F = FieldDescriptor
SCALARS: Mapping[int, DataType] = {
    _F.TYPE_DOUBLE: DoubleType(),
    _F.TYPE_FLOAT: FloatType(),
    _F.TYPE_INT32: IntegerType(),
    _F.TYPE_SINT32: IntegerType(),
    _F.TYPE_SFIXED32: IntegerType(),
    _F.TYPE_UINT32: LongType(),
    _F.TYPE_FIXED32: LongType(),
    _F.TYPE_INT64: LongType(),
    _F.TYPE_SINT64: LongType(),
    _F.TYPE_SFIXED64: LongType(),
    # Up to 2^64, which no integer of Spark has.
    _F.TYPE_UINT64: DecimalType(20, 0),
    _F.TYPE_FIXED64: DecimalType(20, 0),
    _F.TYPE_BOOL: BooleanType(),
    _F.TYPE_STRING: StringType(),
    _F.TYPE_BYTES: BinaryType(),
}
_GOOGLE = "google.protobuf."
TIMESTAMP = f"{_GOOGLE}Timestamp"
WRAPPERS = frozenset(
    f"{_GOOGLE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
# Other messages with a JSON form of their own.
JSON_FORMS = frozenset(
    f"{_GOOGLE}{name}" for name in ("Any", "Duration", "FieldMask", "Struct", "Value", "ListValue")
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def message_class(schema: ProtobufSchema, name: str | None) -> Any:
    """Return the class of a message of a schema, the first by default. Raises UnusableSchema."""
    try:
        return schema.message_class(name)
    except InvalidData as error:
        raise UnusableSchema(str(error)) from None


def message_reader(writer: ProtobufSchema, reader: ProtobufSchema, name: str | None) -> Convert:
    """Return a function that reads data of one schema as a message of another, by the numbers of fields.

    It raises InvalidData or Misfit. Raises UnusableSchema.
    """
    split = writer.split
    read_as = message_class(reader, name)
    wanted = read_as.DESCRIPTOR.full_name

    def read(data: bytes | memoryview) -> Any:
        found, message = split(data)
        if found != wanted:
            raise Misfit(f"a message {found} instead of {wanted}")
        try:
            return read_as.FromString(bytes(message))
        except DecodeError as error:
            raise Misfit(str(error)) from None

    return read


def protobuf_layout(message: Any) -> Layout:
    """Return the layout of the messages of a descriptor. Raises UnusableSchema."""
    return _Builder().message(message, "", ())


class _Builder:
    def __init__(self) -> None:
        self._growth = Growth()

    def message(self, of: Any, path: str, outer: Sequence[str]) -> Layout:
        name = of.full_name
        if name == TIMESTAMP:
            return self._growth.leaf(Leaf(TimestampType(), _timestamp))
        if name in WRAPPERS:
            inner = self._scalar(of.fields_by_name["value"])
            read = inner.read
            return Leaf(inner.type, lambda wrapper: read(wrapper.value))
        if name in JSON_FORMS or name in outer or len(outer) >= MAX_DEPTH or not of.fields:
            return self._growth.leaf(Leaf(StringType(), _text))
        nested = (*outer, name)
        fields = {each.name: self._field(each, f"{path}.{each.name}", nested) for each in of.fields}
        return self._growth.object(fields, path.lstrip("."), _reader(of))

    def _field(self, field: Any, path: str, outer: Sequence[str]) -> Layout:
        if not field.is_repeated:
            return self._single(field, path, outer)
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
            name = _key_text if key.type == _F.TYPE_BOOL else str
            return Map(
                self._single(value, f"{path}[]", outer),
                lambda items: {name(each): items[each] for each in items},
            )
        return List(self._single(field, f"{path}[]", outer), same)

    def _single(self, field: Any, path: str, outer: Sequence[str]) -> Layout:
        if field.message_type is not None:
            return self.message(field.message_type, path, outer)
        return self._scalar(field)

    def _scalar(self, field: Any) -> Leaf:
        if field.enum_type is not None:
            names = field.enum_type.values_by_number
            # Open enums have values without a name.
            return self._growth.leaf(
                Leaf(StringType(), lambda number: names[number].name if number in names else str(number))
            )
        kind = SCALARS[field.type]
        return self._growth.leaf(Leaf(kind, Decimal if isinstance(kind, DecimalType) else same))


def _reader(of: Any) -> Convert:
    """Return a function that takes the fields out of a message."""
    always = [each.name for each in of.fields if not each.has_presence]
    sometimes = [each.name for each in of.fields if each.has_presence]

    def read(message: Any) -> Mapping[str, Any]:
        fields = {name: getattr(message, name) for name in always}
        for name in sometimes:
            if message.HasField(name):
                fields[name] = getattr(message, name)
        return fields

    return read


def _key_text(key: bool) -> str:
    return "true" if key else "false"


def _timestamp(message: Any) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        raise Misfit(f"no date is {message.seconds} seconds from 1970") from None


def _text(message: Any) -> str:
    try:
        value = json_format.MessageToDict(message, preserving_proto_field_name=True)
    except (json_format.Error, TypeError, ValueError) as error:
        raise Misfit(f"no JSON form: {error}") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
