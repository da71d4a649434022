"""How the rows of a table are partitioned: by columns, or by a unit of time of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from alpacamq_spark.pipelines.errors import InvalidPipeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

Unit: TypeAlias = Literal["identity", "year", "month", "day", "hour"]
# Types whose statistics in Parquet files tell the one value of a partition.
_PARTITIONING = frozenset(
    {"boolean", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "string"}
)
_UNITS: Mapping[str, Unit] = {"year": "year", "month": "month", "day": "day", "hour": "hour"}
# Directories of a job's files, by the values that partition them; readers do not see these names.
DIRECTORY = "__partition_"
# Before texts: Spark writes rows without a value and those with an empty text to the same directory.
TEXT = "_"
_PARTITION = re.compile(r"(?:(year|month|day|hour)\((.+)\)|(.+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """A column, or the year, month, day or hour (UTC) of one."""

    column: str
    unit: Unit = "identity"

    @property
    def name(self) -> str:
        """The name in Iceberg's metadata, as other engines give it."""
        return self.column if self.unit == "identity" else f"{self.column}_{self.unit}"

    def __str__(self) -> str:
        return self.column if self.unit == "identity" else f"{self.unit}({self.column})"

    def check(self, schema: "StructType") -> None:
        """Reject a column that is missing or cannot be used so. Raises InvalidPipeline."""
        from pyspark.sql import types

        kinds = {field.name: field.dataType for field in schema.fields}
        kind = kinds.get(self.column)
        if kind is None:
            raise InvalidPipeline(
                f"sink.partition_by: no column {self.column!r}; columns are {', '.join(kinds)}"
            )
        is_time = isinstance(kind, types.TimestampType | types.TimestampNTZType)
        fits = {
            "identity": kind.typeName() in _PARTITIONING,
            "hour": is_time,
        }.get(self.unit, is_time or isinstance(kind, types.DateType))
        if not fits:
            raise InvalidPipeline(
                f"sink.partition_by: the column {self.column!r} has the type {kind.simpleString()}, which "
                f"{'cannot partition a table' if self.unit == 'identity' else f'has no {self.unit}'}"
            )

    def value(self, frame: "DataFrame") -> "Column":
        """Return what is equal for rows of the same partition, and different for others."""
        from pyspark.sql import functions as f
        from pyspark.sql import types

        column = f.col(f"`{self.column}`")
        if self.unit == "identity":
            is_text = isinstance(frame.schema[self.column].dataType, types.StringType)
            return f.concat(f.lit(TEXT), column) if is_text else column
        date, hour = column, f.lit(0)
        match frame.schema[self.column].dataType:
            case types.TimestampType():
                # Computed from numbers: the session's time zone must not count.
                hours = f.floor(f.unix_seconds(column) / 3600)
                date = f.date_add(f.lit("1970-01-01").cast("date"), f.floor(hours / 24).cast("int"))
                hour = f.pmod(hours, f.lit(24)).cast("int")
            case types.TimestampNTZType():
                date, hour = column.cast("date"), f.hour(column)
        match self.unit:
            case "year":
                return f.date_format(date, "yyyy")
            case "month":
                return f.date_format(date, "yyyy-MM")
            case "day":
                return date.cast("string")
            case "hour":
                return f.concat_ws("-", date.cast("string"), hour.cast("string"))


def parse_partition(text: str) -> PartitionField:
    """Parse a column, or `day(column)`. Raises InvalidPipeline."""
    found = _PARTITION.fullmatch(text.strip())
    if found is None or "(" in (found[3] or ""):
        raise InvalidPipeline(
            f"sink.partition_by: {text!r} is neither a column nor year, month, day or hour of one, "
            "as in day(timestamp)"
        )
    unit, inner, column = found.groups()
    if column is not None:
        return PartitionField(column=column)
    return PartitionField(column=inner.strip(), unit=_UNITS[unit])
