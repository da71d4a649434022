"""Checks the columns of rows to write, and converts them to one normal form.

Properties of a record without a field on the wire (delay, priority) are sent as headers, which are
encoded here, too.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from alpacamq.model.headers import DELIVER_AT, LANE
from alpacamq.model.lanes import LANES_BY_NAME
from alpacamq_spark.errors import InvalidColumns
from alpacamq_spark.options import WriteOptions

from .packing import Ints, joined, lengths, numbers, sized, zigzag

_TEXT = (BinaryType, StringType, NullType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType, NullType)
_ACCEPTED: Mapping[str, tuple[type[DataType], ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "partition": _WHOLE,
    "headers": (ArrayType, NullType),
    "timestamp": (TimestampType, NullType),
    "delay": (*_WHOLE, DayTimeIntervalType),
    "deliver_at": (TimestampType, NullType),
    "priority": (StringType, NullType),
}
# Columns of a read that a write ignores.
_LEFT_OUT = frozenset({"offset", "timestampType"})
_US_PER_MS = 1000

# The normal form; `tail` is the record's headers as encoded on the wire.
NORMAL = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("timestamp_ms", pa.int64()), ("tail", pa.binary())]
)


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Reject rows that cannot be written. Raises InvalidColumns."""
    names = [field.name for field in schema.fields]
    encoded = () if options.encode is None else options.encode.parts
    for part in encoded:
        if part not in names:
            raise InvalidColumns(f"column {part.value!r} is missing, which encode={part} needs")
    for field in schema.fields:
        if field.name in _LEFT_OUT or field.name in encoded:
            continue
        accepted = _ACCEPTED.get(field.name)
        if accepted is None:
            near = get_close_matches(field.name, _ACCEPTED, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"columns are {', '.join(_ACCEPTED)}"
            raise InvalidColumns(f"unknown column {field.name!r}; {hint}")
        if not isinstance(field.dataType, accepted):
            kinds = " or ".join(kind.typeName() for kind in accepted if kind is not NullType)
            raise InvalidColumns(
                f"column {field.name!r} is {kinds}, not {field.dataType.simpleString()}; convert it first, "
                "for instance with to_json(struct(*)), or with the option encode"
            )
    if "value" not in names:
        raise InvalidColumns(f"column 'value' is missing; there are {', '.join(names)}")
    if "topic" not in names and options.topic is None:
        raise InvalidColumns("no topic: give a column or the option topic")
    if "delay" in names and "deliver_at" in names:
        raise InvalidColumns("use delay or deliver_at, not both")
    if "headers" in names:
        _check_headers(schema["headers"].dataType)


def _check_headers(kind: DataType) -> None:
    if isinstance(kind, NullType):
        return
    entry = kind.elementType
    is_right = (
        isinstance(entry, StructType)
        and entry.fieldNames() == ["key", "value"]
        and isinstance(entry["key"].dataType, StringType)
        and isinstance(entry["value"].dataType, (BinaryType, StringType))
    )
    if not is_right:
        raise InvalidColumns(
            f"headers must be array<struct<key:string,value:binary>>, not {kind.simpleString()}"
        )


def normal_rows(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """Convert the rows of a batch to their normal form."""
    count = batch.num_rows
    timestamps = _column(batch, "timestamp")
    if timestamps is None:
        times = pa.repeat(pa.scalar(now_ms, pa.int64()), count)
    else:
        times = pc.fill_null(_milliseconds(timestamps), now_ms)
    return pa.RecordBatch.from_arrays(
        [_binary(batch, "key"), _binary(batch, "value"), times, _tails(batch, now_ms)], schema=NORMAL
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    if index < 0 or pa.types.is_null(batch.schema.field(index).type):
        return None
    return batch.column(index)


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = _column(batch, name)
    return pa.nulls(batch.num_rows, pa.binary()) if column is None else column.cast(pa.binary())


def _milliseconds(timestamps: pa.Array) -> pa.Array:
    micros = timestamps.cast(pa.timestamp("us", tz=timestamps.type.tz)).cast(pa.int64())
    absent = timestamps.is_null().to_numpy(zero_copy_only=False)
    # numpy's division rounds times before 1970 down, Arrow's rounds towards 1970.
    return pa.array(micros.fill_null(0).to_numpy(zero_copy_only=False) // _US_PER_MS, mask=absent)


def _tails(batch: pa.RecordBatch, now_ms: int) -> pa.Array:
    """Encode the rest of each record behind its value: the header count and the headers."""
    counts = np.zeros(batch.num_rows, dtype=np.int64)
    pieces = []
    for make in _HEADER_MAKERS:
        if (made := make(batch, now_ms)) is not None:
            count, piece = made
            counts += count
            pieces.append(piece)
    if not pieces:
        return pa.repeat(pa.scalar(b"\0", pa.binary()), batch.num_rows)
    return joined(numbers(zigzag(counts)), *pieces)


def _given_headers(batch: pa.RecordBatch, _now_ms: int) -> tuple[Ints, pa.Array] | None:
    column = _column(batch, "headers")
    if column is None:
        return None
    column = pc.fill_null(column, []) if column.null_count else column
    entries = column.flatten()
    if entries.null_count or entries.field(0).null_count:
        raise InvalidColumns("a header has no name")
    encoded = _entries(entries.field(0).cast(pa.binary()), entries.field(1).cast(pa.binary()))
    counts = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    # The headers of a record are contiguous already.
    ends = np.concatenate([[0], np.cumsum(lengths(encoded))])
    edges = ends[np.concatenate([[0], np.cumsum(counts)])].astype(np.int32)
    data = encoded.buffers()[2] or pa.py_buffer(b"")
    return counts, pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(edges), data])


def _lane_headers(batch: pa.RecordBatch, _now_ms: int) -> tuple[Ints, pa.Array] | None:
    column = _column(batch, "priority")
    if column is None:
        return None
    words = pc.utf8_lower(pc.utf8_trim_whitespace(column.cast(pa.string())))
    if (unknown := pc.filter(words, pc.invert(pc.is_in(words, pa.array(LANES_BY_NAME))))).drop_null():
        raise InvalidColumns(
            f"{unknown.drop_null()[0].as_py()!r} is not a priority; priorities are {', '.join(LANES_BY_NAME)}"
        )
    return _one_header(LANE, words.cast(pa.binary()))


def _deliver_at_headers(batch: pa.RecordBatch, now_ms: int) -> tuple[Ints, pa.Array] | None:
    due = None
    if (column := _column(batch, "deliver_at")) is not None:
        due = _milliseconds(column)
    elif (column := _column(batch, "delay")) is not None:
        if pa.types.is_duration(column.type):
            delay_ms = pc.divide(column.cast(pa.duration("us")).cast(pa.int64()), _US_PER_MS)
        else:
            delay_ms = column.cast(pa.int64())
        if (least := pc.min(delay_ms).as_py()) is not None and least < 0:
            raise InvalidColumns(f"a delay of {least} ms is in the past")
        due = pc.add(delay_ms, now_ms)
    return None if due is None else _one_header(DELIVER_AT, due.cast(pa.string()).cast(pa.binary()))


def _one_header(name: str, values: pa.Array) -> tuple[Ints, pa.Array]:
    """Encode a header of the same name for every record that has a value."""
    names = pa.repeat(pa.scalar(name.encode(), pa.binary()), len(values))
    entries = pc.if_else(values.is_valid(), _entries(names, values), pa.scalar(b"", pa.binary()))
    return values.is_valid().to_numpy(zero_copy_only=False).astype(np.int64), entries


def _entries(names: pa.Array, values: pa.Array) -> pa.Array:
    return joined(*sized(names), *sized(values))


_HEADER_MAKERS: tuple[Callable[[pa.RecordBatch, int], tuple[Ints, pa.Array] | None], ...] = (
    _given_headers,
    _lane_headers,
    _deliver_at_headers,
)
