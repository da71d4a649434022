"""Columns become values of schemas, and are the same after the decoder has read them."""

import json
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto
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
    found = pa.array([convert((read or schema.decode)(each)) for each in data], arrow_of(kind))
    return list(found.to_pylist())


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


def array_of(inner: Typed, nullable: bool) -> Typed:
    values = st.lists(or_none(inner.values, nullable=nullable), max_size=4)
    return Typed(ArrayType(inner.kind, nullable), values)


def map_of(inner: Typed, nullable: bool) -> Typed:
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
        return st.one_of([st.none() if each == "null" else tagged(each) for each in kind])
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


def tagged(kind: Any) -> st.SearchStrategy[Any]:
    return raw_values(kind).map(lambda value: {tag(kind): value})


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


JSON_KINDS = [
    each
    for each in SIMPLE
    if not isinstance(each.kind, BinaryType | TimestampNTZType | FloatType | DoubleType | StringType)
]
JSON_KINDS += [
    Typed(DoubleType(), st.floats(allow_nan=False, allow_infinity=False)),
    Typed(StringType(), TEXT),
]
JSON_TYPED = st.lists(
    st.tuples(st.recursive(st.sampled_from(JSON_KINDS), nested, max_leaves=4), st.booleans()),
    min_size=1,
    max_size=4,
).map(struct_of)


@given(JSON_TYPED.flatmap(lambda drawn: st.tuples(st.just(drawn.kind), st.lists(drawn.values, max_size=4))))
@settings(max_examples=60, deadline=None)
def test_columns_survive_a_derived_json_schema(case: tuple[DataType, list[Any]]) -> None:
    kind, values = case
    schema = json_schema.parse(derived_json(kind, "orders", "value"))
    wanted = type_of(layout_of(schema))  # integers are of 64 bits
    data = encoded(schema, kind, values)
    assert decoded(schema, wanted, data, json.loads) == as_arrow(wanted, values)


def test_columns_survive_a_derived_protobuf_message() -> None:
    line = struct(name=StringType(), count=IntegerType())
    fields = {
        **{f"f{at}": each.kind for at, each in enumerate(SIMPLE) if "NTZ" not in str(each.kind)},
        "lines": ArrayType(line),
        "line": line,
        "by_name": MapType(StringType(), line),
        "ids": ArrayType(LongType()),
        "at_each": ArrayType(TimestampType()),
    }
    del fields["f7"]  # a date
    kind = struct(**fields)
    values = [
        {
            "f0": False,
            "f1": -(2**31),
            "f2": 2**63 - 1,
            "f3": 0.5,
            "f4": 1e300,
            "f5": "ä",
            "f6": b"\0",
            "f9": AT,
            "lines": [{"name": "a", "count": None}, {"name": None, "count": 0}],
            "line": {"name": None, "count": 2},
            "by_name": [("k", {"name": "x", "count": 1})],
            "ids": [1, 2],
            "at_each": [AT, datetime(1, 1, 1, tzinfo=UTC)],
        },
        {**dict.fromkeys(fields), "lines": [], "by_name": [], "ids": [], "at_each": []},
    ]
    schema = derived_protobuf(kind, "Order", "value")
    message = schema.message_class()
    data = encoded(schema, kind, values)
    assert decoded(schema, kind, data, lambda each: message.FromString(each[1:])) == as_arrow(kind, values)


def test_a_schema_decides_how_columns_are_written() -> None:
    schema = parsed(
        record(
            "R",
            wide="double",
            long="long",
            millis=logical("long", "timestamp-millis"),
            nanos=logical("long", "timestamp-nanos"),
            money=logical("bytes", "decimal", precision=9, scale=4),
            color={"type": "enum", "name": "E", "symbols": ["RED", "GREEN"]},
            best=["null", "double", "int", {"type": "map", "values": "int"}],
            gone=("int", 7),
            none=["null", "string"],
            listed=({"type": "array", "items": "string"}, ["x"]),
        )
    )
    kind = struct(
        best=IntegerType(),
        wide=FloatType(),
        long=ShortType(),
        millis=TimestampType(),
        nanos=TimestampType(),
        money=DecimalType(5, 2),
        color=StringType(),
    )
    row = {
        "best": 5,
        "wide": 0.5,
        "long": 3,
        "millis": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "nanos": AT,
        "money": Decimal("-1.25"),
        "color": "GREEN",
    }
    [data] = encoded(schema, kind, [row])
    assert schema.decode(data) == {
        "best": {"int": 5},
        "wide": 0.5,
        "long": 3,
        "millis": "1969-12-31T23:59:59.999Z",
        "nanos": "2026-01-31T12:00:00.000001000Z",
        "money": "-1.2500",
        "color": "GREEN",
        "gone": 7,
        "none": None,
        "listed": ["x"],
    }
    void = parsed(record("V", a=["null", "int"], b="long"))
    [data] = encoded(void, struct(a=NullType(), b=LongType()), [{"a": None, "b": 1}])
    assert void.decode(data) == {"a": None, "b": 1}


def test_records_inside_themselves_are_written_from_columns_and_from_json() -> None:
    schema = parsed(record("Node", id="int", next=["null", "Node"]))
    kind = struct(id=IntegerType(), next=struct(id=IntegerType(), next=StringType()))
    [data] = encoded(schema, kind, [{"id": 1, "next": {"id": 2, "next": '{"id": 3, "next": null}'}}])
    assert schema.decode(data) == {"id": 1, "next": {"id": 2, "next": {"id": 3, "next": None}}}


@pytest.mark.parametrize(
    ("schema", "kind", "message"),
    [
        pytest.param("int", LongType(), "column value is bigint, which cannot be written as int", id="wide"),
        pytest.param("string", BinaryType(), "value is binary, which cannot be .* as string", id="other"),
        pytest.param(
            record("R", id="int"),
            struct(id=IntegerType(), Ids=IntegerType()),
            r"no field for column value\.Ids; did you mean id\?",
            id="unknown",
        ),
        pytest.param(
            record("R", id="int", name="string"),
            struct(id=IntegerType()),
            r"there is no column value\.name, which the schema requires",
            id="missing",
        ),
        pytest.param(
            record("R", at=logical("bytes", "decimal", precision=4, scale=2)),
            struct(at=DecimalType(5, 2)),
            r"value\.at is decimal\(5,2\), which cannot be written as decimal\(4,2\)",
            id="decimal",
        ),
        pytest.param(
            ["null", "int", "string"], DoubleType(), "cannot be written as int or string", id="no branch"
        ),
        pytest.param(
            {"type": "array", "items": record("L", n="int")},
            ArrayType(struct(n=StringType())),
            r"value\[\]\.n is string",
            id="inside",
        ),
        pytest.param(
            {"type": "map", "values": "int"}, MapType(LongType(), IntegerType()), "map<bigint,int>", id="keys"
        ),
        pytest.param(
            logical("long", "timestamp-micros"), TimestampNTZType(), r"long \(timestamp-micros\)", id="zone"
        ),
    ],
)
def test_columns_that_do_not_fit_are_named(schema: Any, kind: DataType, message: str) -> None:
    with pytest.raises(InvalidColumns, match=message):
        schema_encoder(parsed(schema), kind, Part.VALUE)


FOUR = {"type": "fixed", "name": "Four", "size": 4}
EITHER = struct(member_int=IntegerType(), member_string=StringType())


@pytest.mark.parametrize(
    ("schema", "kind", "value", "message"),
    [
        (record("R", id="int"), struct(id=IntegerType()), {"id": None}, r"value\.id is null in a row"),
        ({"type": "array", "items": "int"}, ArrayType(IntegerType()), [None], r"value\[\] is null in a row"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            StringType(),
            "B",
            "value is 'B' in a row, no symbol",
        ),
        (FOUR, BinaryType(), b"123", "value has 3 bytes in a row, and Four has 4"),
        (logical("int", "time-millis"), StringType(), "noon", "'noon' in a row: .*not a time"),
        (["int", "string"], EITHER, {"member_int": 1, "member_string": "a"}, "more than one field"),
        (["int", "string"], EITHER, {"member_int": None, "member_string": None}, "value is null in a row"),
        (
            logical("long", "timestamp-nanos"),
            TimestampType(),
            datetime(9999, 1, 1, tzinfo=UTC),
            "nanoseconds do not reach",
        ),
    ],
)
def test_rows_that_do_not_fit_are_named(schema: Any, kind: DataType, value: Any, message: str) -> None:
    with pytest.raises(InvalidColumns, match=message):
        encoded(parsed(schema), kind, [value])


def json_of(**properties: Any) -> json_schema.JsonSchema:
    return json_schema.parse(json.dumps({"type": "object", "properties": properties, "required": ["id"]}))


def test_json_is_written_and_checked_by_its_schema() -> None:
    schema = json_of(
        id={"type": "integer", "minimum": 1},
        price={"type": "number"},
        either={"anyOf": [{"type": "string"}, {"type": "array"}]},
        day={"type": "string", "format": "date"},
    )
    kind = struct(id=LongType(), price=DecimalType(9, 2), either=StringType(), day=DateType())
    rows: list[dict[str, Any]] = [
        {"id": 1, "price": Decimal("0.10"), "either": "[1]", "day": date(2026, 1, 31)},
        {"id": 2, "price": None, "either": "5", "day": None},
    ]
    assert encoded(schema, kind, rows) == [
        b'{"id":1,"price":0.10,"either":[1],"day":"2026-01-31"}',
        b'{"id":2,"either":"5"}',
    ]
    with pytest.raises(InvalidColumns, match=r"does not match the schema in a row at /id: 0 is less than"):
        encoded(schema, kind, [{**rows[0], "id": 0}])
    with pytest.raises(InvalidColumns, match=r"no column value\.id, which the schema requires"):
        schema_encoder(schema, struct(price=DoubleType()), Part.VALUE)
    with pytest.raises(InvalidColumns, match=r"no field for column value\.dai; did you mean day"):
        schema_encoder(schema, struct(id=LongType(), dai=DateType()), Part.VALUE)
    with pytest.raises(InvalidColumns, match=r"value\.price is nan in a row, which is no number in JSON"):
        encoded(schema, struct(id=LongType(), price=DoubleType()), [{"id": 1, "price": float("nan")}])


def test_protobuf_fields_say_what_columns_fit() -> None:
    schema = descriptors(
        count=typed(Proto.TYPE_UINT32),
        big=typed(Proto.TYPE_UINT64),
        maybe=typed(Proto.TYPE_MESSAGE, ".google.protobuf.Int32Value"),
        inner=typed(Proto.TYPE_MESSAGE, ".M"),
    )
    kind = struct(count=LongType(), big=DecimalType(20, 0), maybe=IntegerType(), inner=StringType())
    row: dict[str, Any] = {"count": 2**32 - 1, "big": Decimal(2**64 - 1), "maybe": 0, "inner": '{"count": 3}'}
    [data] = encoded(schema, kind, [row])
    assert schema.decode(data) == {
        "count": 2**32 - 1,
        "big": str(2**64 - 1),
        "maybe": 0,
        "inner": {"count": 3, "big": "0"},
    }
    changes: list[tuple[dict[str, Any], str]] = [
        ({"count": -1}, "count is -1 in a row, and the schema has an unsigned number"),
        ({"count": None}, r"value\.count is null in a row"),
        ({"inner": "{"}, "inner is not the JSON form of M in a row"),
    ]
    for changed, message in changes:
        with pytest.raises(InvalidColumns, match=message):
            encoded(schema, kind, [{**row, **changed}])
    with pytest.raises(InvalidColumns, match=r"value\.count is double, which cannot be written as uint32"):
        schema_encoder(schema, struct(count=DoubleType()), Part.VALUE)


@pytest.mark.parametrize(
    ("language", "kind", "message"),
    [
        ("avro", NullType(), r"value\.x is void, which cannot be written as Avro"),
        ("json", BinaryType(), r"value\.x is binary, which cannot be written as JSON Schema"),
        ("json", TimestampNTZType(), r"value\.x is timestamp_ntz"),
        ("protobuf", DateType(), r"value\.x is date, which cannot be written as Protobuf"),
        ("protobuf", DecimalType(5, 2), r"value\.x is decimal"),
        ("protobuf", ArrayType(ArrayType(LongType())), r"value\.x\[\] is array"),
    ],
)
def test_types_that_a_language_lacks_are_refused(language: str, kind: DataType, message: str) -> None:
    derive: Any = {"avro": derived_avro, "json": derived_json, "protobuf": derived_protobuf}[language]
    with pytest.raises(InvalidColumns, match=message):
        derive(struct(x=kind), "Order", "value")


def test_names_that_a_language_does_not_allow_are_refused() -> None:
    for derive in (derived_avro, derived_protobuf):
        with pytest.raises(InvalidColumns, match=r"value\.a-b has a name that"):
            derive(struct(**{"a-b": LongType()}), "Order", "value")
    with pytest.raises(InvalidColumns, match="Protobuf needs a struct"):
        derived_protobuf(StringType(), "Order", "value")


OLD = required(id=IntegerType(), line=required(name=StringType()))
NEW = struct(
    line=struct(name=StringType(), count=LongType()),
    id=LongType(),
    tags=ArrayType(StringType()),
    at=TimestampType(),
)


def test_an_extended_schema_can_read_what_was_written_before() -> None:
    row = {"line": {"name": "a", "count": None}, "id": 2**40, "tags": None, "at": AT}
    old_avro = avro.parse(derived_avro(OLD, "Order", "value"))
    new_avro = avro.parse(extended_avro(old_avro, NEW, "Order", "value"))
    assert not new_avro.incompatibilities(old_avro)
    assert round_trip(new_avro, NEW, [row]) == [row]
    assert extended_avro(new_avro, NEW, "Order", "value") == new_avro.canonical
    old_json = json_schema.parse(derived_json(OLD, "order", "value"))
    new_json = json_schema.parse(extended_json(old_json, NEW, "value"))
    assert not new_json.incompatibilities(old_json)
    assert decoded(new_json, NEW, encoded(new_json, NEW, [row]), json.loads) == [row]
    old_protobuf = derived_protobuf(OLD, "Order", "value")
    new_protobuf = extended_protobuf(old_protobuf, NEW, "value", None)
    assert not new_protobuf.incompatibilities(old_protobuf)
    numbers = {each.name: each.number for each in new_protobuf.message_class().DESCRIPTOR.fields}
    assert numbers == {"id": 1, "line": 2, "tags": 3, "at": 4}
    [data] = encoded(new_protobuf, NEW, [row])
    assert new_protobuf.decode(data)["line"] == {"name": "a"}


def test_messages_are_extended_wherever_the_file_has_them() -> None:
    old = derived_protobuf(struct(by_name=MapType(StringType(), struct(a=LongType()))), "Order", "value")
    kind = struct(by_name=MapType(StringType(), struct(a=LongType(), b=StringType())))
    new = extended_protobuf(old, kind, "value", None)
    assert not new.incompatibilities(old)
    [data] = encoded(new, kind, [{"by_name": [("k", {"a": 1, "b": "x"})]}])
    assert new.decode(data) == {"byName": {"k": {"a": "1", "b": "x"}}}
    outer = descriptors(id=typed(Proto.TYPE_INT64), inner=typed(Proto.TYPE_MESSAGE, ".M"))
    kind = struct(inner=struct(id=LongType(), more=DoubleType()), id=LongType())
    [data] = encoded(
        extended_protobuf(outer, kind, "value", "M"), kind, [{"inner": {"id": 1, "more": 2.0}, "id": 3}]
    )
    assert outer.decode(data) == {"id": "3", "inner": {"id": "1"}}


def test_an_extended_schema_keeps_what_columns_do_not_say() -> None:
    old = parsed(
        {
            **record(
                "shop.Order",
                id="long",
                color=(["null", {"type": "enum", "name": "Color", "symbols": ["RED"]}], None),
                gone="string",
                kept=("string", "x"),
            ),
            "doc": "An order",
        }
    )
    new = json.loads(
        extended_avro(old, struct(id=IntegerType(), color=StringType(), more=LongType()), "o", "value")
    )
    assert (new["name"], new["doc"]) == ("Order", "An order")
    assert [each["name"] for each in new["fields"]] == ["id", "color", "kept", "more"]
    assert new["fields"][3] == {"name": "more", "type": ["null", "long"], "default": None}
