"""How the rows of a table are sorted inside its files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpacamq_spark.pipelines.errors import InvalidPipeline

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_SORT = re.compile(r"(\S.*?)(?:\s+(asc|desc))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortField:
    """A column, or a field inside one, `data.id`; nulls are first, or last if it descends."""

    column: str
    is_descending: bool = False

    def check(self, schema: "StructType") -> None:
        """Reject a column that is missing or has no order. Raises InvalidPipeline."""
        from pyspark.sql import types

        kind: DataType = schema
        for name in self.column.split("."):
            fields = kind.fields if isinstance(kind, types.StructType) else []
            kinds = {field.name: field.dataType for field in fields}
            if name not in kinds:
                raise InvalidPipeline(
                    f"sink.sort_by: no column {self.column!r}; columns are {', '.join(schema.names)}"
                )
            kind = kinds[name]
        if isinstance(kind, types.StructType | types.ArrayType | types.MapType):
            raise InvalidPipeline(
                f"sink.sort_by: the column {self.column!r} has the type {kind.simpleString()}, which has no "
                "order"
            )

    def order(self) -> "Column":
        """Return the order for Spark."""
        from pyspark.sql import functions as f

        column = f.col(".".join(f"`{name}`" for name in self.column.split(".")))
        return column.desc_nulls_last() if self.is_descending else column.asc_nulls_first()


def parse_sort(text: str) -> SortField:
    """Parse `column`, or `column desc`. Raises InvalidPipeline."""
    found = _SORT.fullmatch(text.strip())
    if found is None:
        raise InvalidPipeline(
            f"sink.sort_by: {text!r} is not a column, as in 'timestamp' or 'timestamp desc'"
        )
    column, direction = found.groups()
    return SortField(column=column, is_descending=(direction or "").lower() == "desc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the files of a table are written."""

    compression: str
    sort_by: Sequence[SortField] = ()
