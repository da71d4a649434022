"""Merges the types of several versions of a schema into the type of a table that has data of all of them."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from .layout import UnusableSchema

# Each can have the values of those before it.
_NUMBERS = (IntegerType, LongType, DoubleType)
_TEXTS = (StringType, BinaryType)
_MAX_DIGITS = 38
_ARROW: Mapping[type[DataType], pa.DataType] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    DateType: pa.date32(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    StringType: pa.string(),
    TimestampNTZType: pa.timestamp("us"),
    TimestampType: pa.timestamp("us", tz="UTC"),
}


def merged(known: DataType, added: DataType, path: str = "") -> DataType:
    """Return a type for values of two types: with the fields of both, and the wider type of each.

    Raises UnusableSchema if a field has types that no other one has the values of.
    """
    if known == added:
        return known
    match known, added:
        case StructType(), StructType():
            return _struct(known, added, path)
        case ArrayType(), ArrayType():
            return ArrayType(merged(known.elementType, added.elementType, f"{path}[]"))
        case MapType(), MapType():
            return MapType(StringType(), merged(known.valueType, added.valueType, f"{path}[]"))
        case DecimalType(), DecimalType():
            scale = max(known.scale, added.scale)
            digits = scale + max(known.precision - known.scale, added.precision - added.scale)
            if digits <= _MAX_DIGITS:
                return DecimalType(digits, scale)
    wider = _wider(known, added)
    if wider is None:
        name = path.lstrip(".") or "the value"
        raise UnusableSchema(f"{name} is {added.simpleString()}, and was {known.simpleString()} before")
    return wider


def _struct(known: StructType, added: StructType, path: str) -> StructType:
    fields = {field.name: field.dataType for field in known.fields}
    spelt = {name.lower(): name for name in fields}
    for field in added.fields:
        name = spelt.setdefault(field.name.lower(), field.name)
        if name != field.name:
            raise UnusableSchema(f"{path}.{field.name}".lstrip(".") + f" was spelt {name} before")
        before = fields.get(name)
        inner = f"{path}.{name}"
        fields[name] = field.dataType if before is None else merged(before, field.dataType, inner)
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def _wider(one: DataType, other: DataType) -> DataType | None:
    kinds = {type(one), type(other)}
    if kinds <= {*_NUMBERS, FloatType}:
        return LongType() if kinds <= {IntegerType, LongType} else DoubleType()
    return BinaryType() if kinds <= set(_TEXTS) else None


def as_stored(table: DataType, files: DataType) -> DataType:
    """Return the type of a table with which files of an older type are to be read, and cast afterwards.

    It has the fields of the table, so that a cast by position suits it, and the types of the files.
    """
    match table, files:
        case StructType(), StructType():
            known = {field.name: field.dataType for field in files.fields}
            return StructType(
                [
                    StructField(each.name, as_stored(each.dataType, known.get(each.name, each.dataType)))
                    for each in table.fields
                ]
            )
        case ArrayType(), ArrayType():
            return ArrayType(as_stored(table.elementType, files.elementType))
        case MapType(), MapType():
            return MapType(StringType(), as_stored(table.valueType, files.valueType))
    return files


def merged_all(types: Sequence[tuple[str, DataType]]) -> DataType | None:
    """Merge the types of several sources, by name. Raises UnusableSchema, which names the source."""
    result: DataType | None = None
    for name, each in types:
        try:
            result = each if result is None else merged(result, each)
        except UnusableSchema as error:
            raise UnusableSchema(f"{name}: {error}") from None
    return result


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the type of Arrow that Spark takes for one of its own. Raises UnusableSchema."""
    match kind:
        case StructType():
            return pa.struct([(field.name, arrow_type(field.dataType)) for field in kind.fields])
        case ArrayType():
            return pa.list_(arrow_type(kind.elementType))
        case MapType() if isinstance(kind.keyType, StringType):
            return pa.map_(pa.string(), arrow_type(kind.valueType))
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
    if (found := _ARROW.get(type(kind))) is None:
        raise UnusableSchema(f"no value is decoded to the type {kind.simpleString()}")
    return found
