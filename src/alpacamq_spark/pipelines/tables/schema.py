"""Converts Spark's columns to those of Iceberg and back."""

import itertools
from collections.abc import Iterator, Sequence

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from pyspark.sql import types as spark_types

from alpacamq_spark.pipelines.errors import InvalidPipeline

_SIMPLE: dict[type[spark_types.DataType], IcebergType] = {
    spark_types.BinaryType: BinaryType(),
    spark_types.BooleanType: BooleanType(),
    spark_types.ByteType: IntegerType(),
    spark_types.DateType: DateType(),
    spark_types.DoubleType: DoubleType(),
    spark_types.FloatType: FloatType(),
    spark_types.IntegerType: IntegerType(),
    spark_types.LongType: LongType(),
    spark_types.ShortType: IntegerType(),
    spark_types.StringType: StringType(),
    spark_types.TimestampNTZType: TimestampType(),
    spark_types.TimestampType: TimestamptzType(),
}
_BACK: dict[type[IcebergType], spark_types.DataType] = {
    BinaryType: spark_types.BinaryType(),
    BooleanType: spark_types.BooleanType(),
    DateType: spark_types.DateType(),
    DoubleType: spark_types.DoubleType(),
    FloatType: spark_types.FloatType(),
    IntegerType: spark_types.IntegerType(),
    LongType: spark_types.LongType(),
    StringType: spark_types.StringType(),
    TimestampType: spark_types.TimestampNTZType(),
    TimestamptzType: spark_types.TimestampType(),
}


def iceberg_schema(schema: spark_types.StructType) -> Schema:
    """Convert Spark's columns; all are optional. Raises InvalidPipeline for a type that Iceberg lacks."""
    ids = itertools.count(1)
    return Schema(*_fields(schema, ids, ""))


def _fields(schema: spark_types.StructType, ids: Iterator[int], place: str) -> list[NestedField]:
    # Names that differ in case only are one column for Spark.
    names = [field.name.lower() for field in schema.fields]
    for field in schema.fields:
        if names.count(field.name.lower()) > 1:
            raise InvalidPipeline(f"the column {place}{field.name} exists more than once")
    return [
        NestedField(
            next(ids), field.name, _iceberg_type(field.dataType, ids, f"{place}{field.name}"), required=False
        )
        for field in schema.fields
    ]


def _iceberg_type(kind: spark_types.DataType, ids: Iterator[int], place: str) -> IcebergType:
    match kind:
        case spark_types.StructType():
            return StructType(*_fields(kind, ids, f"{place}."))
        case spark_types.ArrayType():
            element = _iceberg_type(kind.elementType, ids, f"{place}[]")
            return ListType(next(ids), element, element_required=False)
        case spark_types.MapType():
            key, value = (_iceberg_type(each, ids, f"{place}{{}}") for each in (kind.keyType, kind.valueType))
            return MapType(next(ids), key, next(ids), value, value_required=False)
        case spark_types.DecimalType():
            return DecimalType(kind.precision, kind.scale)
    known = _SIMPLE.get(type(kind))
    if known is None:
        raise InvalidPipeline(
            f"the column {place} has the type {kind.simpleString()}, which Iceberg tables cannot have; "
            "cast it in the query"
        )
    return known


def spark_schema(schema: Schema) -> spark_types.StructType:
    """Convert an Iceberg table's columns. Raises InvalidPipeline for a type that Spark lacks."""
    return _spark_struct(schema.fields, "")


def _spark_struct(fields: Sequence[NestedField], place: str) -> spark_types.StructType:
    return spark_types.StructType(
        [
            spark_types.StructField(field.name, _spark_type(field.field_type, f"{place}{field.name}"))
            for field in fields
        ]
    )


def _spark_type(kind: IcebergType, place: str) -> spark_types.DataType:
    match kind:
        case StructType():
            return _spark_struct(kind.fields, f"{place}.")
        case ListType():
            return spark_types.ArrayType(_spark_type(kind.element_type, f"{place}[]"))
        case MapType():
            key, value = (_spark_type(each, f"{place}{{}}") for each in (kind.key_type, kind.value_type))
            return spark_types.MapType(key, value)
        case DecimalType():
            return spark_types.DecimalType(kind.precision, kind.scale)
    known = _BACK.get(type(kind))
    if known is None:
        raise InvalidPipeline(f"the column {place} has the type {kind}, which Spark cannot read")
    return known
