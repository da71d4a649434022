"""The columns of a read, named as in Spark's Kafka source."""

from collections.abc import Collection, Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from alpacamq_spark.errors import InvalidColumns

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_FIELDS = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def source_schema(*, include_headers: bool, decoded: Mapping[str, DataType] | None = None) -> StructType:
    """Return the schema with all columns."""
    own = {name: kind for name, kind in _FIELDS.items() if include_headers or name != "headers"}
    return StructType([StructField(name, kind) for name, kind in {**own, **(decoded or {})}.items()])


def wanted_columns(schema: StructType, decoded: Collection[str] = ()) -> list[str]:
    """Return the columns that a schema selects. Raises InvalidColumns. Fewer columns read faster.

    `decoded` are columns of decoded parts, which may have any type.
    """
    for field in schema.fields:
        if field.name in decoded:
            continue
        kind = _FIELDS.get(field.name)
        if kind is None:
            raise InvalidColumns(f"unknown column {field.name!r}; columns are {', '.join(_FIELDS)}")
        if field.dataType != kind:
            raise InvalidColumns(
                f"column {field.name!r} is {kind.simpleString()}, not {field.dataType.simpleString()}"
            )
    return [field.name for field in schema.fields]
