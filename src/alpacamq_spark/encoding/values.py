"""Encodes the keys and values of rows in a task, with the schemas that the driver has chosen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType

from alpacamq.client.http.schemas import ResolvedSchema
from alpacamq.registry.avro import AvroSchema
from alpacamq.registry.framing import Part, framed
from alpacamq.registry.json_schema.schema import JsonSchema
from alpacamq.registry.protobuf import ProtobufSchema
from alpacamq.registry.schema import ParsedSchema
from alpacamq_spark.arrays import binary_scalar
from alpacamq_spark.decoding.layout import UnusableSchema
from alpacamq_spark.errors import InvalidColumns
from alpacamq_spark.write.packing import joined

from .avro import avro_encoder
from .fitting import Encode
from .json_values import json_encoder
from .protobuf import protobuf_encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEncoding:
    """How the keys or the values of rows are encoded. Tasks get it from the driver."""

    schema_id: int
    schema: ResolvedSchema
    column: DataType
    # The message that values of a Protobuf schema have, if not the first.
    message: str | None = None


# By the part of a record, which has the name of its column.
Encoding: TypeAlias = Mapping[Part, PartEncoding]


def schema_encoder(schema: ParsedSchema, column: DataType, part: Part, message: str | None = None) -> Encode:
    """Return what encodes values of a column that are not null, without the id of the schema.

    Raises InvalidColumns if the column does not fit the schema.
    """
    try:
        match schema:
            case AvroSchema():
                return avro_encoder(schema.root, column, part)
            case JsonSchema():
                return json_encoder(schema, column, part)
            case ProtobufSchema():
                return protobuf_encoder(schema, column, part, message)
    except UnusableSchema as error:
        raise InvalidColumns(str(error)) from None
    raise InvalidColumns(f"{type(schema).__name__} is unknown")


class RowEncoder:
    """Replaces the columns of keys and values by their data."""

    def __init__(self, encoding: Encoding) -> None:
        self._parts = {
            part: (
                binary_scalar(framed(each.schema_id, b"")),
                schema_encoder(each.schema.parsed(), each.column, part, each.message),
            )
            for part, each in encoding.items()
        }

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with binary keys and values. Raises InvalidColumns."""
        for part, (prefix, encode) in self._parts.items():
            index = rows.schema.get_field_index(part)
            data = _encoded(rows.column(index), prefix, encode)
            rows = rows.set_column(index, pa.field(part, pa.binary()), data)
        return rows


def _encoded(values: pa.Array, prefix: pa.Scalar, encode: Encode) -> pa.Array:
    """Encode a column. A null is that of the record: of a tombstone, for instance."""
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.binary())
    some = values.drop_null() if values.null_count else values
    data = joined(pa.repeat(prefix, len(some)), encode(some))
    if not values.null_count:
        return data
    return pc.replace_with_mask(pa.nulls(len(values), pa.binary()), values.is_valid(), data)
