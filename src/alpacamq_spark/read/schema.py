"""The columns of a read, as Spark's Kafka source has them, and which of them a user's schema asks for."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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


def source_schema(*, include_headers: bool) -> StructType:
    """All columns there are."""
    return StructType(
        [StructField(name, kind) for name, kind in _FIELDS.items() if include_headers or name != "headers"]
    )


def wanted_columns(schema: StructType) -> list[str]:
    """The columns of a schema that a read can fill, or InvalidColumns; fewer columns read faster."""
    for field in schema.fields:
        kind = _FIELDS.get(field.name)
        if kind is None:
            raise InvalidColumns(f"there is no column {field.name!r}; there are {', '.join(_FIELDS)}")
        if field.dataType != kind:
            raise InvalidColumns(
                f"column {field.name!r} is {kind.simpleString()}, not {field.dataType.simpleString()}"
            )
    return [field.name for field in schema.fields]
