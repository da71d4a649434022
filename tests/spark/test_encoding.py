"""Columns become values of schemas, and are the same after the decoder has read them."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from alpacamq.registry import avro
from alpacamq.registry.framing import Part
from alpacamq.registry.json_schema import schema as json_schema
from alpacamq.registry.schema import ParsedSchema
from alpacamq_spark.decoding.layout import compiled, type_of
from alpacamq_spark.decoding.types import arrow_type
from alpacamq_spark.decoding.values import layout_of
from alpacamq_spark.encoding.avro_schema import derived_avro, extended_avro
from alpacamq_spark.encoding.json_values import derived_json, extended_json
from alpacamq_spark.encoding.protobuf import derived_protobuf, extended_protobuf
from alpacamq_spark.encoding.values import schema_encoder
from alpacamq_spark.errors import InvalidColumns

from .registries import record
from .test_decoding import descriptors, logical, typed

NTZ = datetime(2026, 1, 31, 12, 0, 0, 1)  # noqa: DTZ001 - without a time zone
AT = NTZ.replace(tzinfo=UTC)


def arrow_of(kind: DataType) -> pa.DataType:
    """The type that Spark gives Arrow."""
    match kind:
        case ByteType():
            return pa.int8()
        case ShortType():
            return pa.int16()
        case NullType():
            return pa.null()
        case StructType():
            return pa.struct([(field.name, arrow_of(field.dataType)) for field in kind.fields])
        case ArrayType():
            return pa.list_(arrow_of(kind.elementType))
        case MapType():
            return pa.map_(pa.string(), arrow_of(kind.valueType))
    return arrow_type(kind)


def encoded(
    schema: ParsedSchema, kind: DataType, values: list[Any], message: str | None = None
) -> list[bytes]:
    """Encode values, which have others on both sides in Arrow's memory."""
    column = pa.array([*values[:1], *values, *values[:1]], arrow_of(kind)).slice(1, len(values))
    found: list[bytes] = schema_encoder(schema, kind, Part.VALUE, message)(column).to_pylist()
    return found


def decoded(schema: ParsedSchema, kind: DataType, data: list[bytes], read: Any = None) -> list[Any]:
    layout = layout_of(schema)
    convert = compiled(layout, kind)
    return pa.array([convert((read or schema.decode)(each)) for each in data], arrow_of(kind)).to_pylist()


def round_trip(schema: ParsedSchema, kind: DataType, values: list[Any]) -> list[Any]:
    return decoded(schema, kind, encoded(schema, kind, values))


def as_arrow(kind: DataType, values: list[Any]) -> list[Any]:
    found: list[Any] = pa.array(values, arrow_of(kind)).to_pylist()
    return found


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def required(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable=False) for name, kind in fields.items()])


def parsed(schema: Any) -> avro.AvroSchema:
    return avro.parse(json.dumps(schema))


class Typed(NamedTuple):
    """A type of Spark, and values of it."""

    kind: DataType
    values: st.SearchStrategy[Any]


CONTEXT = Context(prec=40)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
DATES = st.dates(date(1, 1, 1), date(9999, 12, 31))
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - without a time zone
SIMPLE = [
    Typed(BooleanType(), st.booleans()),
    Typed(IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    Typed(LongType(), st.integers(-(2**63), 2**63 - 1)),
    Typed(FloatType(), st.floats(width=32, allow_nan=False)),
    Typed(DoubleType(), st.floats(allow_nan=False)),
    Typed(StringType(), TEXT),
    Typed(BinaryType(), st.binary(max_size=8)),
    Typed(DateType(), DATES),
    Typed(TimestampNTZType(), TIMES),
    Typed(TimestampType(), TIMES.map(lambda time: time.replace(tzinfo=UTC))),
]


@st.composite
def decimals(draw: st.DrawFn) -> Typed:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1)
    kind = DecimalType(precision, scale)
    return Typed(kind, unscaled.map(lambda number: Decimal(number).scaleb(-scale, CONTEXT)))


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        st.tuples(inner, st.booleans()).map(lambda given: array_of(*given)),
        st.tuples(inner, st.booleans()).map(lambda given: map_of(*given)),
        st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=4).map(struct_of),
    )


def or_none(values: st.SearchStrategy[Any], *, nullable: bool) -> st.SearchStrategy[Any]:
    return st.none() | values if nullable else values


def array_of(inner: Typed, nullable: bool) -> Typed:  # noqa: FBT001 - drawn
    values = st.lists(or_none(inner.values, nullable=nullable), max_size=4)
    return Typed(ArrayType(inner.kind, nullable), values)


def map_of(inner: Typed, nullable: bool) -> Typed:  # noqa: FBT001 - drawn
    values = st.dictionaries(TEXT, or_none(inner.values, nullable=nullable), max_size=3)
    return Typed(MapType(StringType(), inner.kind, nullable), values.map(lambda found: list(found.items())))


def struct_of(fields: list[tuple[Typed, bool]]) -> Typed:
    kind = StructType([StructField(f"f{at}", inner.kind, null) for at, (inner, null) in enumerate(fields)])
    values = {f"f{at}": or_none(inner.values, nullable=null) for at, (inner, null) in enumerate(fields)}
    return Typed(kind, st.fixed_dictionaries(values))


TYPED = st.recursive(st.sampled_from(SIMPLE) | decimals(), nested, max_leaves=8)
CASES = TYPED.flatmap(lambda drawn: st.tuples(st.just(drawn.kind), st.lists(drawn.values, max_size=5)))


@given(CASES)
@settings(max_examples=60, deadline=None)
def test_columns_survive_a_derived_avro_schema(case: tuple[DataType, list[Any]]) -> None:
    kind, values = case
    schema = avro.parse(derived_avro(kind, "Order", "value"))
    assert round_trip(schema, kind, values) == as_arrow(kind, values)


PRIMITIVES = ["boolean", "int", "long", "float", "double", "string", "bytes", "null"]
LOGICAL = [
    logical("int", "date"),
    logical("int", "time-millis"),
    logical("long", "time-micros"),
    logical("long", "timestamp-millis"),
    logical("long", "timestamp-micros"),
    logical("long", "local-timestamp-millis"),
    logical("long", "local-timestamp-micros"),
    logical("bytes", "decimal", precision=9, scale=2),
    logical("bytes", "decimal", precision=60, scale=3),
    {"type": "string", "logicalType": "uuid"},
]


class Names:
    """Gives named types their names."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return f"T{self.count}"


@st.composite
def avro_types(draw: st.DrawFn, names: Names, depth: int = 3, *, may_be_union: bool = True) -> Any:
    choices = ["primitive", "logical", "named", *(["array", "map", "record"] if depth else [])]
    if may_be_union and depth:
        choices += ["optional", "union"]
    inner = avro_types(names, depth - 1) if depth else st.nothing()
    match draw(st.sampled_from(choices)):
        case "primitive":
            return draw(st.sampled_from(PRIMITIVES[:-1] if not may_be_union else PRIMITIVES))
        case "logical":
            return draw(st.sampled_from(LOGICAL))
        case "named":
            fixed: dict[str, Any] = {"type": "fixed", "name": names.next(), "size": 5}
            return draw(
                st.sampled_from(
                    [
                        fixed,
                        {**fixed, "size": 16, "logicalType": "uuid"},
                        {**fixed, "size": 20, "logicalType": "decimal", "precision": 30, "scale": 4},
                        {**fixed, "logicalType": "decimal", "precision": 10, "scale": 4},
                        {"type": "enum", "name": fixed["name"], "symbols": ["RED", "GREEN"]},
                    ]
                )
            )
        case "array":
            return {"type": "array", "items": draw(inner)}
        case "map":
            return {"type": "map", "values": draw(inner)}
        case "record":
            name = names.next()
            kinds = draw(st.lists(inner, min_size=1, max_size=3))
            return record(name, **{f"f{at}": kind for at, kind in enumerate(kinds)})
        case "optional":
            branch = draw(avro_types(names, depth - 1, may_be_union=False))
            return draw(st.sampled_from([["null", branch], [branch, "null"]]))
    branches = draw(st.lists(st.sampled_from(PRIMITIVES), min_size=1, max_size=4, unique=True))
    return [*branches, draw(st.just(record(names.next(), a="int")) | inner.filter(is_named))]


def is_named(kind: Any) -> bool:
    return isinstance(kind, dict) and kind["type"] in ("fixed", "enum", "record")


# A moment inside of Python's calendar, in milliseconds or microseconds.
MOMENTS = st.integers(-(2**40), 2**40)


def raw_values(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type in the JSON form that the registry writes."""
    if isinstance(kind, list):
        tagged = [
            st.none() if each == "null" else raw_values(each).map(lambda value, each=each: {tag(each): value})
            for each in kind
        ]
        return st.one_of(tagged)
    if isinstance(kind, str):
        return {
            "boolean": st.booleans(),
            "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**63), 2**63 - 1),
            "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
            "double": st.floats(allow_nan=False, allow_infinity=False),
            "string": TEXT,
            "bytes": st.binary(max_size=5).map(lambda data: data.decode("latin-1")),
            "null": st.none(),
        }[kind]
    match kind.get("logicalType"):
        case "date":
            return DATES.map(str)
        case "time-millis":
            return st.integers(0, 86_399_999)
        case "time-micros":
            return st.integers(0, 86_399_999_999)
        case "decimal":
            digits = min(kind["precision"], 15)
            return st.integers(-(10**digits) + 1, 10**digits - 1).map(
                lambda number: f"{Decimal(number).scaleb(-kind.get('scale', 0), CONTEXT):f}"
            )
        case "uuid":
            return st.uuids().map(str)
        case str():
            return MOMENTS
    match kind["type"]:
        case "fixed":
            return st.binary(min_size=kind["size"], max_size=kind["size"]).map(
                lambda data: data.decode("latin-1")
            )
        case "enum":
            return st.sampled_from(kind["symbols"])
        case "array":
            return st.lists(raw_values(kind["items"]), max_size=3)
        case "map":
            return st.dictionaries(TEXT, raw_values(kind["values"]), max_size=3)
    return st.fixed_dictionaries({each["name"]: raw_values(each["type"]) for each in kind["fields"]})


def tag(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    return str(kind["name"] if is_named(kind) else kind["type"])


AVRO_CASES = st.deferred(
    lambda: (
        st.builds(Names)
        .flatmap(avro_types)
        .flatmap(lambda kind: st.tuples(st.just(kind), st.lists(raw_values(kind), max_size=4)))
    )
)


@given(AVRO_CASES)
@settings(max_examples=60, deadline=None)
def test_what_the_decoder_reads_can_be_written_again(case: tuple[Any, list[Any]]) -> None:
    kind, values = case
    schema = parsed(kind)
    column = type_of(layout_of(schema))
    given_columns = decoded(schema, column, [schema.encode(value) for value in values])
    if schema.root.kind != "null":
        assert round_trip(schema, column, given_columns) == given_columns
