"""Encodes Arrow columns as Avro data.

A type and the Spark type of a column are compiled to one function, which encodes all rows at once: numpy
encodes numbers, and Arrow joins the pieces of each row. Columns may have the types that `decoding.avro` gives
to values, and narrower numbers.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from alpacamq.registry.avro.data import Bad
from alpacamq.registry.avro.encoding import DefaultWriter, Encoder
from alpacamq.registry.avro.json_form import type_name
from alpacamq.registry.avro.types import (
    MAX_LONG,
    Array,
    AvroType,
    Enum,
    Field,
    Fixed,
    Kind,
    Map,
    Primitive,
    Record,
    Union,
    excerpt,
    logical_type,
)
from alpacamq.registry.schema import InvalidData
from alpacamq_spark.arrays import binary_scalar
from alpacamq_spark.decoding.avro import MAX_PRECISION, avro_layout, member_names
from alpacamq_spark.decoding.layout import MAX_DEPTH, UnusableSchema, type_of
from alpacamq_spark.errors import InvalidColumns
from alpacamq_spark.write.packing import Ints, joined, lengths, numbers, sized, zigzag

from .fitting import INTEGERS, SMALL_INTEGERS, Encode, field_types, is_missing, is_null, unfit

_DECIMAL_BYTES = 16  # of Arrow
_END = binary_scalar(b"\0")
_MICROS_PER_MILLI = 1000
_NANOS_PER_MICRO = 1000


def avro_encoder(root: AvroType, column: DataType, path: str) -> Encode:
    """Return what encodes values of a column. Raises InvalidColumns if they do not fit the type.

    The function raises InvalidColumns for a value that does not fit.
    """
    return _slot(root, column, path, ())


def _slot(of: AvroType, column: DataType, path: str, outer: Sequence[Record]) -> Encode:
    """Return what encodes values that may be null."""
    if isinstance(of, Union):
        return _union(of, column, path, outer)
    if of.kind is Kind.NULL:
        return _only_null(path, column)
    encode = _compiled(of, column, path, outer)

    def required(values: pa.Array) -> pa.Array:
        if values.null_count:
            raise is_null(path)
        return encode(values)

    return required


def _compiled(of: AvroType, column: DataType, path: str, outer: Sequence[Record]) -> Encode:
    """Return what encodes values that are not null."""
    match of, column:
        case Record(), StructType():
            return _record(of, column, path, outer)
        case Record(), StringType() if _is_text(of, outer):
            return _json_text(of, path)
        case Array(), ArrayType():
            return _array(_slot(of.items, column.elementType, f"{path}[]", outer))
        case Map(), MapType() if isinstance(column.keyType, StringType):
            return _map(_slot(of.values, column.valueType, f"{path}[]", outer))
        case Enum(), StringType():
            return _enum(of, path)
        case ((Primitive() | Fixed()), _) if (encode := _leaf(of, column, path)) is not None:
            return encode
    raise unfit(path, column, _shown(of))


def _shown(of: AvroType) -> str:
    """Name a type for a message."""
    if (name := logical_type(of)) is None:
        return type_name(of)
    if name == "decimal":
        return f"decimal({of.properties['precision']},{of.properties.get('scale', 0)})"
    return f"{type_name(of)} ({name})"


def _is_text(of: Record, outer: Sequence[Record]) -> bool:
    """Return whether values of a record are decoded to JSON text."""
    return not of.fields or any(each is of for each in outer) or len(outer) >= MAX_DEPTH


def _record(of: Record, column: StructType, path: str, outer: Sequence[Record]) -> Encode:
    given = field_types(column, path, of.fields_by_name)
    order = column.fieldNames()
    inner = (*outer, of)
    # The index of the column and how it is encoded, or the data of a field that has none.
    makers: list[tuple[int, Encode] | pa.Scalar] = [
        (order.index(each.name), _slot(each.type, given[each.name], f"{path}.{each.name}", inner))
        if each.name in given
        else binary_scalar(_default(each, path))
        for each in of.fields
    ]

    def encode(values: pa.Array) -> pa.Array:
        pieces = [
            each[1](values.field(each[0])) if isinstance(each, tuple) else pa.repeat(each, len(values))
            for each in makers
        ]
        return joined(*pieces) if pieces else pa.repeat(binary_scalar(b""), len(values))

    return encode


def _default(field: Field, path: str) -> bytes:
    """Return the data of a field without a column."""
    if field.default is not None:
        try:
            return DefaultWriter().encoded(field)
        except Bad as bad:
            raise InvalidColumns(
                f"the default of {path}.{field.name} cannot be written: {bad.reason}"
            ) from None
    if field.type.kind is Kind.NULL:
        return b""
    if isinstance(field.type, Union) and (null := _null_tag(field.type)) is not None:
        return null
    raise is_missing(path, field.name)


def _tag(index: int) -> bytes:
    return bytes(Encoder(Primitive(Kind.LONG, {})).encode(index))


def _null_tag(of: Union) -> bytes | None:
    return next((_tag(index) for index, each in enumerate(of.branches) if each.kind is Kind.NULL), None)


def _union(of: Union, column: DataType, path: str, outer: Sequence[Record]) -> Encode:
    null = _null_tag(of)
    if isinstance(column, NullType):
        return _tagged(null, [], path)
    branches = [(_tag(index), each) for index, each in enumerate(of.branches) if each.kind is not Kind.NULL]
    members = dict(zip(member_names([each for _, each in branches]), branches, strict=True))
    if isinstance(column, StructType) and column.fields and set(column.fieldNames()) <= members.keys():
        kinds = field_types(column, path)
        found = [
            (binary_scalar(tag), _compiled(branch, kinds[name], f"{path}.{name}", outer))
            if not isinstance(kinds[name], NullType)
            else None
            for name, (tag, branch) in ((name, members[name]) for name in column.fieldNames())
        ]
        return _members(null, found, path)
    return _tagged(null, [_branch(branches, column, path, outer)], path)


def _branch(
    branches: Sequence[tuple[bytes, AvroType]], column: DataType, path: str, outer: Sequence[Record]
) -> tuple[pa.Scalar, Encode]:
    """Return the branch of a union that suits a column best, by its tag."""
    fitting = []
    errors = []
    for tag, branch in branches:
        try:
            fitting.append((tag, branch, _compiled(branch, column, path, outer)))
        except InvalidColumns as error:
            errors.append(error)
    if not fitting:
        if len(errors) == 1:
            raise errors[0]
        raise unfit(path, column, " or ".join(_shown(each) for _, each in branches) or "null")
    exact = [each for each in fitting if _has_type(each[1], column)]
    tag, _, encode = (exact or fitting)[0]
    return binary_scalar(tag), encode


def _has_type(of: AvroType, column: DataType) -> bool:
    try:
        return bool(type_of(avro_layout(of)) == column)
    except UnusableSchema:
        return False


def _tagged(null: bytes | None, branches: Sequence[tuple[pa.Scalar, Encode]], path: str) -> Encode:
    """Return what encodes a union of which a column has at most one branch and null."""

    def encode(values: pa.Array) -> pa.Array:
        if not values.null_count and branches:
            [(tag, inner)] = branches
            return joined(pa.repeat(tag, len(values)), inner(values))
        if null is None:
            if not len(values):
                return pa.repeat(binary_scalar(b""), 0)
            raise is_null(path)
        found = pa.repeat(binary_scalar(null), len(values))
        for tag, inner in branches:
            some = values.drop_null()
            data = joined(pa.repeat(tag, len(some)), inner(some))
            found = pc.replace_with_mask(found, values.is_valid(), data)
        return found

    return encode


def _members(null: bytes | None, members: Sequence[tuple[pa.Scalar, Encode] | None], path: str) -> Encode:
    """Return what encodes a union from a struct with a field for each branch, of which one is not null."""

    def encode(values: pa.Array) -> pa.Array:
        is_struct = values.is_valid().to_numpy(zero_copy_only=False)
        masks = [
            values.field(index).is_valid().to_numpy(zero_copy_only=False) & is_struct
            for index in range(len(members))
        ]
        set_fields = np.sum(masks, axis=0)
        if np.max(set_fields, initial=0) > 1:
            raise InvalidColumns(f"column {path} has more than one field of the union in a row")
        if null is None and np.min(set_fields, initial=1) < 1:
            raise is_null(path)
        found = pa.repeat(binary_scalar(null or b""), len(values))
        for index, member in enumerate(members):
            if member is None or not masks[index].any():
                continue
            tag, inner = member
            mask = pa.array(masks[index])
            some = values.field(index).filter(mask)
            found = pc.replace_with_mask(found, mask, joined(pa.repeat(tag, len(some)), inner(some)))
        return found

    return encode


def _only_null(path: str, column: DataType) -> Encode:
    if not isinstance(column, NullType | StringType):  # decoded to text
        raise unfit(path, column, "null")

    def encode(values: pa.Array) -> pa.Array:
        if values.null_count < len(values):
            raise InvalidColumns(f"column {path} is not null in a row, and the schema has only null for it")
        return pa.repeat(binary_scalar(b""), len(values))

    return encode


def _array(inner: Encode) -> Encode:
    def encode(values: pa.Array) -> pa.Array:
        counts = pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
        return _blocks(counts, inner(values.flatten()))

    return encode


def _map(inner: Encode) -> Encode:
    def encode(values: pa.Array) -> pa.Array:
        edges = values.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        first, count = int(edges[0]), int(edges[-1] - edges[0])
        # These two have the entries of the whole array, of which this may be a part.
        keys, items = values.keys.slice(first, count), values.items.slice(first, count)
        return _blocks(np.diff(edges), joined(_text(keys), inner(items)))

    return encode


def _blocks(counts: Ints, items: pa.Array) -> pa.Array:
    """Join the encoded items of each row to one block, and end it."""
    if not len(items):
        return pa.repeat(_END, len(counts))
    starts = np.frombuffer(items.buffers()[1], dtype=np.int32)[items.offset : items.offset + len(items) + 1]
    # The items of a row are contiguous already.
    edges = starts[np.concatenate([[0], np.cumsum(counts)])]
    data = items.buffers()[2] or pa.py_buffer(b"")
    bodies = pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(edges), data])
    # An empty block is the end itself.
    ends = _pieces(np.zeros(int(np.count_nonzero(counts)), dtype=np.uint8), counts > 0)
    return joined(numbers(zigzag(counts)), bodies, ends)


def _pieces(data: npt.NDArray[np.uint8], sizes: npt.NDArray[Any]) -> pa.Array:
    """Cut bytes into pieces of some sizes."""
    edges = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=edges[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(edges), pa.py_buffer(data)])


def _text(values: pa.Array) -> pa.Array:
    return joined(*sized(values.cast(pa.binary())))


def _enum(of: Enum, path: str) -> Encode:
    symbols = pa.array(of.symbols, pa.string())

    def encode(values: pa.Array) -> pa.Array:
        texts = values.cast(pa.string())
        found = pc.index_in(texts, symbols)
        if found.null_count:
            unknown = texts.filter(found.is_null())[0].as_py()
            raise InvalidColumns(
                f"column {path} is {excerpt(unknown)!r} in a row, no symbol of the enum {of.name.full}"
            )
        return numbers(zigzag(found.to_numpy(zero_copy_only=False).astype(np.int64)))

    return encode


def _json_text(of: AvroType, path: str) -> Encode:
    """Return what encodes values that are JSON text."""
    write = Encoder(of).encode

    def encode(values: pa.Array) -> pa.Array:
        return _each(values, lambda text: write(json.loads(text)), path)

    return encode


def _as_text(of: AvroType, path: str) -> Encode:
    """Return what encodes a logical type from its readable form."""
    write = Encoder(of).encode

    def encode(values: pa.Array) -> pa.Array:
        return _each(values, write, path)

    return encode


def _each(values: pa.Array, write: Any, path: str) -> pa.Array:
    rows = []
    for value in values.to_pylist():
        try:
            rows.append(write(value))
        except (InvalidData, ValueError, RecursionError) as error:
            raise InvalidColumns(f"column {path} is {excerpt(str(value))!r} in a row: {error}") from None
    return pa.array(rows, pa.binary())


def _leaf(of: Primitive | Fixed, column: DataType, path: str) -> Encode | None:
    """Return what encodes values of a type without parts; None if the column has another type."""
    is_text = isinstance(column, StringType)
    match logical_type(of):
        case "date":
            return _days if isinstance(column, DateType) else None
        case "time-millis" | "time-micros":
            return _as_text(of, path) if is_text else None
        case "uuid" if isinstance(of, Fixed):
            return _as_text(of, path) if is_text else None
        case "decimal":
            return _decimal(of, column, path)
        case None | "uuid" | "duration" | "big-decimal":
            return _plain(of, column, path)
        case name:
            is_local = name.startswith("local-")
            if not isinstance(column, TimestampNTZType if is_local else TimestampType):
                return None
            return _timestamp(name.rpartition("-")[2], path)


def _plain(of: Primitive | Fixed, column: DataType, path: str) -> Encode | None:
    match of.kind, column:
        case Kind.BOOLEAN, BooleanType():
            return _boolean
        case Kind.INT, _ if isinstance(column, SMALL_INTEGERS):
            return _integer
        case Kind.LONG, _ if isinstance(column, INTEGERS):
            return _integer
        case Kind.FLOAT, FloatType():
            return lambda values: _floats(values, "<f4")
        case Kind.DOUBLE, _ if isinstance(column, (FloatType, DoubleType, *SMALL_INTEGERS)):
            return lambda values: _floats(values, "<f8")
        case (Kind.STRING, StringType()) | (Kind.BYTES, BinaryType()):
            return _text
        case Kind.FIXED, BinaryType() if isinstance(of, Fixed):
            return _fixed(of, path)
    return None


def _integer(values: pa.Array) -> pa.Array:
    return numbers(zigzag(values.to_numpy(zero_copy_only=False).astype(np.int64)))


def _days(values: pa.Array) -> pa.Array:
    return _integer(values.cast(pa.int32()))


def _boolean(values: pa.Array) -> pa.Array:
    data = values.to_numpy(zero_copy_only=False).astype(np.uint8)
    return _pieces(data, np.ones(len(data), dtype=np.int32))


def _floats(values: pa.Array, kind: str) -> pa.Array:
    data = values.to_numpy(zero_copy_only=False).astype(kind)
    return _pieces(data.view(np.uint8), np.full(len(data), data.itemsize, dtype=np.int32))


def _fixed(of: Fixed, path: str) -> Encode:
    def encode(values: pa.Array) -> pa.Array:
        data = values.cast(pa.binary())
        sizes = lengths(data)
        if (wrong := sizes[sizes != of.size]).size:
            raise InvalidColumns(
                f"column {path} has {wrong[0]} bytes in a row, and {of.name.full} has {of.size}"
            )
        return data

    return encode


def _timestamp(unit: str, path: str) -> Encode:
    def encode(values: pa.Array) -> pa.Array:
        micros = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
        times = micros.to_numpy(zero_copy_only=False)
        if unit == "millis":
            # Rounded down, as by Spark's to_avro.
            times = times // _MICROS_PER_MILLI
        elif unit == "nanos":
            if np.max(np.abs(times), initial=0) > MAX_LONG // _NANOS_PER_MICRO:
                raise InvalidColumns(f"column {path} has a timestamp in a row that nanoseconds do not reach")
            times = times * _NANOS_PER_MICRO
        return numbers(zigzag(times))

    return encode


def _decimal(of: Primitive | Fixed, column: DataType, path: str) -> Encode | None:
    precision, scale = of.properties["precision"], of.properties.get("scale", 0)
    assert isinstance(precision, int) and isinstance(scale, int)  # noqa: PT018 - logical_type checks
    if isinstance(column, StringType):
        return _as_text(of, path) if precision > MAX_PRECISION else None
    if not isinstance(column, DecimalType) or column.scale > scale:
        return None
    if column.precision - column.scale > precision - scale:
        return None
    if precision > MAX_PRECISION:
        text = Encoder(of).encode
        return lambda values: _each(values, lambda value: text(f"{value:f}"), path)
    size = of.size if isinstance(of, Fixed) else None

    def encode(values: pa.Array) -> pa.Array:
        return _unscaled(values.cast(pa.decimal128(MAX_PRECISION, scale)), size)

    return encode


def _unscaled(values: pa.Array, size: int | None) -> pa.Array:
    """Encode the digits of decimals as numbers of `size` bytes, or as few as possible after their count."""
    count = len(values)
    raw = np.frombuffer(values.buffers()[1] or b"", dtype=np.uint8)
    raw = raw[values.offset * _DECIMAL_BYTES : (values.offset + count) * _DECIMAL_BYTES]
    digits = raw.reshape(count, _DECIMAL_BYTES)[:, ::-1]  # big-endian
    signs = np.where(digits[:, :1] >> 7, np.uint8(0xFF), np.uint8(0))
    if size is not None:
        wide = np.hstack([np.repeat(signs, max(0, size - _DECIMAL_BYTES), axis=1), digits])
        data = np.ascontiguousarray(wide[:, wide.shape[1] - size :])
        return _pieces(data.reshape(-1), np.full(count, size, dtype=np.int32))
    # A byte that only repeats the sign is left out, unless the next one begins with another bit.
    is_spare = (digits[:, :-1] == signs) & ((digits[:, 1:] >> 7) == (signs >> 7))
    spare = np.cumprod(is_spare, axis=1).sum(axis=1)
    kept = np.arange(_DECIMAL_BYTES) >= spare[:, None]
    sizes = (_DECIMAL_BYTES - spare).astype(np.int64)
    return joined(numbers(zigzag(sizes)), _pieces(digits[kept], sizes))
