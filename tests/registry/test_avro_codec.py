"""Avro data as JSON values, and back."""

import io
import json
import math
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from alpacamq.registry import avro
from alpacamq.registry.avro.data import MAX_EMPTY_ITEMS
from alpacamq.registry.avro.encoding import MAX_ENCODED_BYTES
from alpacamq.registry.schema import MAX_DEPTH, InvalidData, InvalidSchema

from .avro_strategies import Schema, evolutions, schemas_with_values, values
from .test_avro_data import checked, field, long, record, without_logical_types, written

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 2}
UUID = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
DATE = {"type": "int", "logicalType": "date"}
STATUS = {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}
POINT = record(field("x", "int"), field("y", "int"), name="shop.Point")
SIZE = record(field("w", "int"), field("x", "int"), name="shop.Size")


def logical(kind: str, name: str) -> Schema:
    return {"type": kind, "logicalType": name}


def with_default(name: str, kind: Schema, default: Any) -> Schema:
    return {"name": name, "type": kind, "default": default}


FORMS = [
    pytest.param("null", None, b"", id="null"),
    pytest.param("boolean", True, b"\1", id="boolean"),
    pytest.param("int", -65, b"\x81\x01", id="int"),
    pytest.param("long", -(2**63), 9 * b"\xff" + b"\1", id="long"),
    pytest.param("float", 1.5, b"\0\0\xc0\x3f", id="float"),
    pytest.param("double", "-Infinity", b"\0\0\0\0\0\0\xf0\xff", id="infinite double"),
    pytest.param("bytes", "a\u00ff\0", b"\6a\xff\0", id="bytes"),
    pytest.param(FIXED, "\u00e4b", b"\xe4b", id="fixed"),
    pytest.param("string", "ä", b"\4\xc3\xa4", id="string"),
    pytest.param(STATUS, "PAID", long(1), id="enum"),
    pytest.param({"type": "array", "items": "int"}, [1, 2], long(2) + long(1) + long(2) + b"\0", id="array"),
    pytest.param({"type": "map", "values": "int"}, {"a": 1}, long(1) + b"\2a\2\0", id="map"),
    pytest.param(POINT, {"x": 1, "y": 2}, b"\2\4", id="record"),
    pytest.param(DATE, "2026-01-31", long(20484), id="date"),
    pytest.param(DATE, 2**31 - 1, long(2**31 - 1), id="date after the calendar"),
    pytest.param(logical("int", "time-millis"), "12:30:59.125", long(45059125), id="time-millis"),
    pytest.param(logical("int", "time-millis"), -1, long(-1), id="time before the day"),
    pytest.param(logical("long", "time-micros"), "00:00:00.000001", long(1), id="time-micros"),
    pytest.param(
        logical("long", "timestamp-millis"), "1969-12-31T23:59:59.999Z", long(-1), id="timestamp-millis"
    ),
    pytest.param(
        logical("long", "timestamp-micros"),
        "1970-01-01T00:00:01.000002Z",
        long(1000002),
        id="timestamp-micros",
    ),
    pytest.param(
        logical("long", "timestamp-nanos"), "1970-01-01T00:00:00.000000003Z", long(3), id="timestamp-nanos"
    ),
    pytest.param(
        logical("long", "local-timestamp-millis"),
        "1970-01-02T00:00:00.000",
        long(86400000),
        id="local timestamp",
    ),
    pytest.param(
        logical("long", "timestamp-millis"), 2**63 - 1, long(2**63 - 1), id="timestamp after the calendar"
    ),
    pytest.param(UUID, "01020304-0506-0708-090a-0b0c0d0e0f10", bytes(range(1, 17)), id="uuid"),
    pytest.param(DECIMAL, "-0.05", b"\2\xfb", id="decimal"),
    pytest.param(DECIMAL, "1.28", b"\4\0\x80", id="decimal with its sign in a byte of its own"),
    pytest.param(
        {"type": "fixed", "name": "D", "size": 3, "logicalType": "decimal", "precision": 4},
        "-7",
        b"\xff\xff\xf9",
        id="fixed decimal",
    ),
    pytest.param(["null", "int"], None, b"\0", id="null of a union"),
    pytest.param(["null", "int"], 5, b"\2\n", id="other branch"),
    pytest.param(["null", DATE], "1970-01-02", b"\2\2", id="optional date"),
    pytest.param(["null", DATE], -(2**31), b"\2" + long(-(2**31)), id="optional date before the calendar"),
    pytest.param(["string", "int", "boolean"], "a", b"\0\2a", id="branches of different JSON types"),
    pytest.param(["int", "long"], {"long": 5}, b"\2\n", id="branches of one JSON type"),
    pytest.param(
        ["string", "double"], {"double": "NaN"}, b"\2\0\0\0\0\0\0\xf8\x7f", id="NaN beside a string"
    ),
    pytest.param([POINT, SIZE], {"shop.Size": {"w": 1, "x": 2}}, b"\2\2\4", id="records"),
    pytest.param(
        ["null", {"type": "map", "values": "int"}], {"a": 1}, b"\2\2\2a\2\0", id="map that names no branch"
    ),
    pytest.param(
        ["null", {"type": "map", "values": "int"}],
        {"map": {"map": 1}},
        b"\2\2\6map\2\0",
        id="map that names one",
    ),
]


@pytest.mark.parametrize(("schema", "value", "data"), FORMS)
def test_values_and_their_data(schema: Schema, value: object, data: bytes) -> None:
    parsed = checked(schema)
    assert parsed.encode(value) == data
    assert parsed.decode(data) == value
    assert parsed.decode(memoryview(b"?" + data)[1:]) == value


@pytest.mark.parametrize(
    ("schema", "given_value", "shown"),
    [
        pytest.param(DATE, 1, "1970-01-02", id="number of days"),
        pytest.param(logical("long", "timestamp-millis"), 1, "1970-01-01T00:00:00.001Z", id="milliseconds"),
        pytest.param(
            logical("long", "timestamp-millis"),
            "1970-01-01 01:00:00+01:00",
            "1970-01-01T00:00:00.000Z",
            id="offset of a time zone",
        ),
        pytest.param(DECIMAL, 1.5, "1.50", id="decimal as a number"),
        pytest.param(DECIMAL, "12e2", "1200.00", id="decimal with an exponent"),
        pytest.param(DECIMAL, "1.50000", "1.50", id="zeros at the end"),
        pytest.param(["int", "long"], 5, {"int": 5}, id="the narrowest number"),
        pytest.param(["int", "long"], 2**40, {"long": 2**40}, id="the narrowest number with room"),
        pytest.param(["int", "double"], 1.5, {"double": 1.5}, id="fraction"),
        pytest.param(["null", "int"], {"int": 5}, 5, id="branch named without need"),
        pytest.param(["null", "int"], {"null": None}, None, id="null named"),
        pytest.param(
            [POINT, SIZE], {"w": 1, "x": 2}, {"shop.Size": {"w": 1, "x": 2}}, id="fields of one record"
        ),
        pytest.param([STATUS, "string"], "other", {"string": "other"}, id="text that is no symbol"),
        pytest.param(
            record(
                with_default("a", "bytes", "\u00ff"),
                with_default("b", DATE, 1),
                with_default("c", DECIMAL, "\u0001"),
                with_default("d", ["null", "int"], None),
                with_default("e", ["int", "null"], 7),
                with_default("f", {"type": "array", "items": POINT}, [{"x": 1, "y": 2}]),
                with_default("g", {"type": "map", "values": "double"}, {"k": 1}),
                with_default("h", record(with_default("i", STATUS, "PAID"), name="H"), {}),
            ),
            {},
            {
                "a": "\u00ff",
                "b": "1970-01-02",
                "c": "0.01",
                "d": None,
                "e": 7,
                "f": [{"x": 1, "y": 2}],
                "g": {"k": 1.0},
                "h": {"i": "PAID"},
            },
            id="defaults",
        ),
    ],
)
def test_other_ways_to_write_values(schema: Schema, given_value: object, shown: object) -> None:
    parsed = checked(schema)
    assert parsed.decode(parsed.encode(given_value)) == shown


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        pytest.param("null", 0, "expected null, not 0", id="null"),
        pytest.param("boolean", 1, "expected true or false, not 1", id="boolean"),
        pytest.param("int", 2**31, "expected a whole number of 32 bits, not 2147483648", id="int"),
        pytest.param("int", True, "expected a whole number of 32 bits, not true", id="boolean for int"),
        pytest.param("long", 5.0, "expected a whole number of 64 bits, not 5.0", id="fraction"),
        pytest.param("float", 1e39, "the number is too large for the type", id="float"),
        pytest.param("double", 10**400, "the number is too large for the type", id="double"),
        pytest.param("string", None, "expected a string, not null", id="string"),
        pytest.param("string", "\ud800", "the string has half of a surrogate pair", id="surrogate"),
        pytest.param("bytes", "€", "character 0 is not a byte: it must be from U+0000 to U+00FF", id="bytes"),
        pytest.param(FIXED, "a", "expected 2 bytes, not 1", id="fixed"),
        pytest.param(STATUS, "OLD", 'expected one of NEW, PAID, not "OLD"', id="enum"),
        pytest.param(STATUS, ["NEW"], "expected one of NEW, PAID, not a value of type array", id="no symbol"),
        pytest.param(
            {"type": "array", "items": "int"},
            [1, "2"],
            '[1]: expected a whole number of 32 bits, not "2"',
            id="item",
        ),
        pytest.param(
            {"type": "map", "values": "int"},
            {"k": None},
            '["k"]: expected a whole number of 32 bits, not null',
            id="value of a map",
        ),
        pytest.param(POINT, {"x": 1}, "y: the field is missing and has no default", id="missing field"),
        pytest.param(
            POINT, {"x": 1, "y": 2, "z": 3}, "record shop.Point has no field 'z'", id="unknown field"
        ),
        pytest.param(
            ["null", POINT],
            {"x": 1, "y": ""},
            'y: expected a whole number of 32 bits, not ""',
            id="inside an optional record",
        ),
        pytest.param(
            ["null", "int", "string"],
            [],
            "expected a value of one of the types null, int, string, not a value of type array",
            id="no branch",
        ),
        pytest.param(
            [POINT, {"type": "map", "values": "int"}],
            {"x": 1, "y": 2},
            'the value may be of the types shop.Point, map: write {"shop.Point": …}',
            id="two branches",
        ),
        pytest.param(DATE, "2026-02-30", "the calendar has no day 2026-02-30", id="date"),
        pytest.param(DATE, "today", "'today' is not a date such as 2026-01-31", id="no date"),
        pytest.param(logical("int", "time-millis"), "24:00:00", "no day has the time 24:00:00", id="time"),
        pytest.param(
            logical("long", "timestamp-millis"),
            "2026-01-31T12:00:00",
            "'2026-01-31T12:00:00' is not a timestamp such as 2026-01-31T12:30:59.125Z",
            id="timestamp without an offset",
        ),
        pytest.param(
            logical("long", "timestamp-millis"),
            "2026-01-31T12:00:00.0001Z",
            "the type has only 3 digits of a second",
            id="microseconds for milliseconds",
        ),
        pytest.param(DECIMAL, "1.005", "1.005 has more than 2 decimal places", id="decimal places"),
        pytest.param(DECIMAL, "12345", "12345 has more than 4 digits before the point", id="digits"),
        pytest.param(DECIMAL, "1e-999999", "1e-999999 has more than 2 decimal places", id="tiny decimal"),
        pytest.param(
            DECIMAL, "1e999999", "1e999999 has more than 4 digits before the point", id="huge decimal"
        ),
        pytest.param(DECIMAL, "NaN", "'NaN' is not a decimal number", id="no number"),
        pytest.param(UUID, "0102", "'0102' is not a UUID", id="uuid"),
    ],
)
def test_values_that_are_refused(schema: Schema, value: object, message: str) -> None:
    with pytest.raises(InvalidData) as refused:
        checked(schema).encode(value)
    assert str(refused.value) == message


def test_the_place_of_a_wrong_value_is_named() -> None:
    orders = record(
        field(
            "orders",
            {"type": "array", "items": record(field("tags", {"type": "map", "values": POINT}), name="O")},
        )
    )
    with pytest.raises(InvalidData) as refused:
        checked(orders).encode({"orders": [{"tags": {}}, {"tags": {"a b": {"x": 1, "y": []}}}]})
    assert refused.value.mismatch.path == 'orders[1].tags["a b"].y'


slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)


@slow
@given(schemas_with_values())
def test_decoding_and_encoding_gives_the_same_data(drawn: tuple[Schema, Any]) -> None:
    schema, value = drawn
    schema = without_decimals(schema)
    data = written(without_logical_types(schema), value)
    parsed = checked(schema)
    decoded = parsed.decode(data)
    assert msgspec.json.decode(msgspec.json.encode(decoded)) == decoded
    again = parsed.encode(decoded)
    assert parsed.decode(again) == decoded
    assert again == data or "nan" in repr(value)  # there are many NaNs


def without_decimals(schema: Schema) -> Schema:
    """Replace decimals: other bytes than those that Java writes stand for the same number."""
    match schema:
        case list():
            return [without_decimals(each) for each in schema]
        case {"logicalType": "decimal"}:
            return {"type": "bytes"}
        case dict():
            return {key: without_decimals(each) for key, each in schema.items()}
    return schema


@slow
@given(st.decimals(-9999, 9999, places=2, allow_nan=False))
def test_decimals_are_those_of_another_writer(number: Any) -> None:
    parsed = checked(DECIMAL)
    data = written(DECIMAL, number)
    assert parsed.encode(str(number)) == data
    assert parsed.decode(data) == f"{number + 0:.2f}"


@slow
@given(schemas_with_values())
def test_another_reader_understands_what_was_encoded(drawn: tuple[Schema, Any]) -> None:
    schema, value = drawn
    plain = without_logical_types(schema)
    parsed = checked(plain)
    encoded = parsed.encode(parsed.decode(written(plain, value)))
    first, second = (
        fastavro.schemaless_reader(io.BytesIO(each), fastavro.parse_schema(plain), None)
        for each in (encoded, written(plain, value))
    )
    assert repr(first) == repr(second)  # NaN is not equal to itself


@slow
@given(schemas_with_values(), st.data())
def test_data_is_decoded_exactly_if_it_is_valid(drawn: tuple[Schema, Any], data: st.DataObject) -> None:
    schema, value = drawn
    encoded = bytearray(written(schema, value))
    assume(encoded)
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    parsed = checked(schema)
    found = parsed.mismatch(bytes(encoded))
    if found is None:
        parsed.decode(bytes(encoded))
        return
    with pytest.raises(InvalidData) as refused:
        parsed.decode(bytes(encoded))
    assert refused.value.mismatch == found


@pytest.mark.parametrize(
    ("schema", "data", "message"),
    [
        pytest.param(record(field("next", ["null", "R"])), 1_000_000 * b"\2", "deep", id="linked list"),
        pytest.param(record(field("next", "R")), b"", "deep", id="endless record"),
        pytest.param(
            {"type": "array", "items": "null"}, long(MAX_EMPTY_ITEMS + 1) + b"\0", "without data", id="nulls"
        ),
        pytest.param(
            {"type": "array", "items": record(*(field(f"f{at}", "null") for at in range(1000)))},
            long(MAX_EMPTY_ITEMS) + b"\0",
            "much larger than its data",
            id="records of nulls",
        ),
        pytest.param(
            {
                "type": "array",
                "items": record(field("a", "int"), *(field(f"f{at}", "null") for at in range(1000))),
            },
            long(1_000_000) + 1_000_000 * b"\0" + b"\0",
            "much larger than its data",
            id="nulls beside a number",
        ),
        pytest.param(
            {"type": "array", "items": record(field(100_000 * "n", "int"))},
            long(100_000) + 100_000 * b"\0" + b"\0",
            "much larger than its data",
            id="long names",
        ),
        pytest.param(DECIMAL, long(1_000_000) + 1_000_000 * b"1", "decimal has more than", id="long decimal"),
    ],
)
def test_hostile_data_is_refused(schema: Schema, data: bytes, message: str) -> None:
    with pytest.raises(InvalidData) as refused:
        checked(schema).decode(data)
    assert message in str(refused.value)


def test_deep_values_are_refused() -> None:
    schema = checked(record(with_default("next", ["null", "R"], None)))
    value: dict[str, Any] = {}
    for _ in range(MAX_DEPTH - 1):
        value = {"next": value}
    assert schema.decode(schema.encode(value)) is not None
    with pytest.raises(InvalidData) as refused:
        schema.encode({"next": value})
    assert "nested more than" in str(refused.value)


def test_defaults_that_multiply_are_refused() -> None:
    """A few records of which each has two of the one before would be written with 2^50 values."""
    doubled: Schema = record(with_default("n", "int", 1), name="R0")
    for at in range(1, 50):
        doubled = record(with_default("a", doubled, {}), with_default("b", f"R{at - 1}", {}), name=f"R{at}")
    with pytest.raises(InvalidData) as refused:
        checked(record(with_default("all", doubled, {}))).encode({})
    assert "default is too large" in str(refused.value)
    large = record(with_default("text", "bytes", 500_000 * "x"))
    with pytest.raises(InvalidData) as refused:
        checked({"type": "array", "items": large}).encode(200 * [{}])
    assert f"more than {MAX_ENCODED_BYTES} bytes" in str(refused.value)


def test_unions_that_multiply_take_no_more_time_than_the_value_has() -> None:
    """To try the branches one by one would take 2^90 steps."""
    schema = record(
        field(
            "n",
            [
                "null",
                record(field("of", "R"), field("a", "int"), name="A"),
                record(field("of", "R"), field("b", "int"), name="B"),
            ],
        )
    )
    value: dict[str, Any] = {"n": None}
    for _ in range(40):
        value = {"n": {"of": value, "b": 1}}
    parsed = checked(schema)
    assert parsed.decode(parsed.encode(value)) is not None


RESOLUTIONS = [
    pytest.param("int", 5, "long", 5, id="int as long"),
    pytest.param("int", 5, "double", 5.0, id="int as double"),
    pytest.param("float", "NaN", "double", "NaN", id="float as double"),
    pytest.param("string", "ä", "bytes", "\u00c3\u00a4", id="string as bytes"),
    pytest.param("bytes", "\u00c3\u00a4", "string", "ä", id="bytes as string"),
    pytest.param("int", 5, ["null", "int"], 5, id="made optional"),
    pytest.param(["null", "int"], 5, "int", 5, id="made mandatory"),
    pytest.param("int", 5, ["null", "double", "long"], {"double": 5.0}, id="first that it can be read as"),
    pytest.param("long", 5, ["double", "long"], {"long": 5}, id="same type first"),
    pytest.param(["int", "string"], 5, ["string", "null", "int"], 5, id="other order of branches"),
    pytest.param(
        record(field("a", "int"), field("b", "int")),
        {"a": 1, "b": 2},
        record(field("b", "int"), field("a", "int")),
        {"b": 2, "a": 1},
        id="other order of fields",
    ),
    pytest.param(
        record(field("a", "int"), field("gone", {"type": "array", "items": "string"}), field("z", "int")),
        {"a": 1, "gone": ["x"], "z": 3},
        record(field("a", "int"), with_default("new", ["null", DATE], None), field("z", "int")),
        {"a": 1, "new": None, "z": 3},
        id="field removed and added",
    ),
    pytest.param(
        record(field("a", "int")),
        {"a": 1},
        record(with_default("b", DATE, 1), {"name": "c", "type": "long", "aliases": ["a"]}),
        {"b": "1970-01-02", "c": 1},
        id="default and alias",
    ),
    pytest.param(
        STATUS,
        "PAID",
        {"type": "enum", "name": "S", "symbols": ["UNKNOWN", "NEW"], "default": "UNKNOWN"},
        "UNKNOWN",
        id="unknown symbol",
    ),
    pytest.param(
        "long", 1, logical("long", "timestamp-millis"), "1970-01-01T00:00:00.001Z", id="now a timestamp"
    ),
    pytest.param(DECIMAL, "1.50", DECIMAL | {"scale": 3}, "1.50", id="the writer's scale counts"),
    pytest.param(DATE, "1970-01-02", "int", 1, id="no longer a date"),
]


@pytest.mark.parametrize(("writer", "value", "reader", "expected"), RESOLUTIONS)
def test_data_of_another_version(writer: Schema, value: object, reader: Schema, expected: object) -> None:
    data = checked(writer).encode(value)
    decoded = checked(reader).decoder_of(checked(writer)).decode(data)
    assert decoded == expected
    if isinstance(expected, dict):
        assert isinstance(decoded, dict)
        assert list(decoded) == list(expected)


@pytest.mark.parametrize(
    ("writer", "value", "reader", "message"),
    [
        pytest.param("string", "5", "int", "data of type string cannot be read as int", id="type"),
        pytest.param(
            record(field("a", "int")),
            {"a": 1},
            record(field("b", "int")),
            "b: the writer's schema lacks the field, and it has no default",
            id="field",
        ),
        pytest.param(
            STATUS,
            "PAID",
            {"type": "enum", "name": "S", "symbols": ["NEW"]},
            "the reader's enum has neither symbol PAID nor a default",
            id="symbol",
        ),
        pytest.param(["int", "string"], "a", "int", "data of type string cannot be read as int", id="branch"),
        pytest.param(
            "string", "a", ["null", "int"], "no branch of the reader's union can read type string", id="union"
        ),
        pytest.param(
            POINT, {"x": 1, "y": 2}, SIZE, "data of type shop.Point cannot be read as shop.Size", id="name"
        ),
    ],
)
def test_data_that_another_version_cannot_read(
    writer: Schema, value: object, reader: Schema, message: str
) -> None:
    data = checked(writer).encode(value)
    with pytest.raises(InvalidData) as refused:
        checked(reader).decoder_of(checked(writer)).decode(data)
    assert str(refused.value) == message


@slow
@given(evolutions(), st.data())
def test_a_compatible_reader_gets_values_of_its_own_schema(
    pair: tuple[Schema, Schema], data: st.DataObject
) -> None:
    writer, reader = (without_decimals(without_logical_types(each)) for each in pair)
    try:
        reading = checked(reader)
        assume(not reading.incompatibilities(checked(writer)))
    except InvalidSchema:
        assume(False)
    encoded = written(writer, data.draw(values(writer)))
    resolved = reading.decoder_of(checked(writer)).decode(encoded)
    again = reading.encode(resolved)
    assert reading.mismatch(again) is None
    assert reading.decode(again) == resolved


def test_schemas_whose_pairs_multiply_are_refused() -> None:
    """Two rings without a common divisor of their lengths bring together every pair of their records."""

    def ring(length: int, name: str) -> avro.AvroSchema:
        links = [
            record(field("next", {"type": "array", "items": f"n{(at or length) - 1}.R"}), name=f"n{at}.R")
            for at in range(length - 1)
        ]
        last = {"type": "array", "items": f"n{length - 2}.R"}
        return checked(record(field(name, links), field("next", last), name=f"n{length - 1}.R"))

    with pytest.raises(InvalidSchema) as refused:
        ring(331, "first").decoder_of(ring(337, "second"))
    assert "too large" in str(refused.value)


def test_json_of_decoded_values_has_no_special_numbers() -> None:
    decoded = checked("double").decode(b"\0\0\0\0\0\0\xf8\x7f")
    assert json.loads(msgspec.json.encode(decoded)) == "NaN"
    assert not isinstance(decoded, float) or math.isfinite(decoded)
