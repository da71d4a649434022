"""What the schema languages share when columns are fitted to a schema."""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import ByteType, DataType, IntegerType, LongType, ShortType, StructType

from alpacamq_spark.errors import InvalidColumns

# Takes values without nulls.
Encode: TypeAlias = Callable[[pa.Array], pa.Array]
# Converts one value, which is not null.
Convert: TypeAlias = Callable[[Any], Any]

SMALL_INTEGERS = (ByteType, ShortType, IntegerType)
INTEGERS = (*SMALL_INTEGERS, LongType)


def unfit(path: str, column: DataType, wanted: str) -> InvalidColumns:
    """Return the error about a column that is not of the type that the schema has."""
    return InvalidColumns(f"column {path} is {column.simpleString()}, which cannot be written as {wanted}")


def is_null(path: str) -> InvalidColumns:
    """Return the error about a row with a null that the schema does not allow."""
    return InvalidColumns(f"column {path} is null in a row, which the schema does not allow")


def field_types(
    column: StructType, path: str, known: Collection[str] | None = None
) -> Mapping[str, DataType]:
    """Return the types of a struct by field. Raises InvalidColumns for a name that is twice or not known."""
    types: dict[str, DataType] = {}
    for field in column.fields:
        if field.name in types:
            raise InvalidColumns(f"column {path} has two fields {field.name}")
        types[field.name] = field.dataType
        if known is None or field.name in known:
            continue
        folded = {name.lower(): name for name in known}
        near = get_close_matches(field.name.lower(), folded, n=1)
        hint = f"; did you mean {folded[near[0]]}?" if near else ""
        raise InvalidColumns(f"the schema has no field for column {path}.{field.name}{hint}")
    return types


def is_missing(path: str, name: str) -> InvalidColumns:
    """Return the error about a field that the schema requires and no column fills."""
    return InvalidColumns(f"there is no column {path}.{name}, which the schema requires")
