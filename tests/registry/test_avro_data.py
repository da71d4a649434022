"""Checks of Avro data: which bytes are a value of a schema, and where others are wrong."""

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from alpacamq.registry import avro
from alpacamq.registry.avro.data import MAX_EMPTY_ITEMS
from alpacamq.registry.schema import MAX_DEPTH, InvalidSchema

from .avro_strategies import Schema, evolutions, schemas_with_values, values


def record(*fields: Schema, name: str = "R") -> Schema:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Schema) -> Schema:
    return {"name": name, "type": kind}


def checked(schema: Schema) -> avro.AvroSchema:
    return avro.parse(json.dumps(schema))


def written(schema: Schema, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def long(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 127:
        encoded.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*encoded, rest])


ORDER = record(
    field("id", "long"),
    field(
        "items",
        {"type": "array", "items": record(field("name", "string"), field("price", "double"), name="I")},
    ),
    field("tags", {"type": "map", "values": ["null", "int"]}),
    field("status", {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}),
)
TREE = record(field("left", ["null", "R"]), field("right", ["null", "R"]))
ENDS = "data ends inside the value"

MISMATCHES = [
    pytest.param("null", b"", None, id="null"),
    pytest.param("null", b"\0", ("", "1 bytes follow the value"), id="bytes after the value"),
    pytest.param("boolean", b"\2", ("", "boolean is 2 instead of 0 or 1"), id="boolean"),
    pytest.param("int", long(2**31 - 1), None, id="largest int"),
    pytest.param("int", long(-(2**31)), None, id="smallest int"),
    pytest.param("int", long(2**31), ("", "int has more than 32 bits"), id="int of 33 bits"),
    pytest.param("int", b"\x80\x80\x80\x80\x80\x00", ("", "int has more than 32 bits"), id="int of 6 bytes"),
    pytest.param("int", b"\x80\x00", None, id="int with more bytes than necessary"),
    pytest.param("int", b"\x80", ("", ENDS), id="int without an end"),
    pytest.param("long", long(-(2**63)), None, id="smallest long"),
    pytest.param("long", 9 * b"\xff" + b"\x02", ("", "long has more than 64 bits"), id="long of 65 bits"),
    pytest.param("long", 10 * b"\x80" + b"\x00", ("", "long has more than 64 bits"), id="long of 11 bytes"),
    pytest.param("float", b"\0\0\0", ("", ENDS), id="float"),
    pytest.param("double", 7 * b"\0", ("", ENDS), id="double"),
    pytest.param("string", b"\x04\xc3\xa9", None, id="string"),
    pytest.param("string", b"\x02\xc3", ("", "string is not UTF-8"), id="string of other bytes"),
    pytest.param("string", b"\x04a", ("", ENDS), id="string that ends early"),
    pytest.param("string", long(-1), ("", "length is -1"), id="string of negative length"),
    pytest.param("string", long(200) + 200 * b"x", None, id="long string"),
    pytest.param("bytes", long(-1), ("", "length is -1"), id="bytes of length -1"),
    pytest.param("bytes", long(200) + 200 * b"x", None, id="bytes"),
    pytest.param("bytes", long(2**62), ("", ENDS), id="huge bytes"),
    pytest.param("bytes", long(-(2**62)), ("", f"length is {-(2**62)}"), id="bytes of negative length"),
    pytest.param({"type": "fixed", "name": "F", "size": 3}, b"abc", None, id="fixed"),
    pytest.param({"type": "fixed", "name": "F", "size": 3}, b"ab", ("", ENDS), id="fixed that ends early"),
    pytest.param(ORDER["fields"][3]["type"], long(2), ("", "symbol 2 of an enum with 2"), id="enum"),
    pytest.param(
        ORDER["fields"][3]["type"], long(-1), ("", "symbol -1 of an enum with 2"), id="negative enum"
    ),
    pytest.param(["null", "int"], long(2), ("", "branch 2 of a union with 2"), id="union"),
    pytest.param(["null", "int"], long(-1), ("", "branch -1 of a union with 2"), id="negative union"),
    pytest.param([], long(0), ("", "branch 0 of a union with 0"), id="empty union"),
    pytest.param({"type": "array", "items": "int"}, long(1) + long(5) + long(0), None, id="array"),
    pytest.param(
        {"type": "array", "items": "int"},
        long(1) + long(5) + long(-2) + long(2) + long(6) + long(7) + long(0),
        None,
        id="array of two blocks, one with its size",
    ),
    pytest.param({"type": "array", "items": "int"}, long(1) + long(5), ("", ENDS), id="array without an end"),
    pytest.param(
        {"type": "array", "items": "int"},
        long(1) + long(5) + long(1) + b"\x80",
        ("[1]", ENDS),
        id="index over all blocks",
    ),
    pytest.param(
        {"type": "array", "items": "int"},
        long(2**40) + long(0),
        ("", f"block of {2**40} items is longer than the data"),
        id="huge block",
    ),
    pytest.param(
        {"type": "array", "items": "int"},
        long(-1) + long(2) + long(5) + long(0),
        ("", "block has another size than its header says"),
        id="wrong size of a block",
    ),
    pytest.param(
        {"type": "array", "items": "int"},
        long(-1) + long(2**40) + long(5) + long(0),
        ("", f"block of {2**40} bytes is longer than the data"),
        id="huge size of a block",
    ),
    pytest.param(
        {"type": "array", "items": "int"},
        long(-1) + long(-1),
        ("", "length is -1"),
        id="negative size of a block",
    ),
    pytest.param(
        {"type": "array", "items": "null"}, long(MAX_EMPTY_ITEMS) + long(0), None, id="items without data"
    ),
    pytest.param(
        {"type": "array", "items": {"type": "array", "items": record(field("f", "null"))}},
        long(3) + 3 * (long(MAX_EMPTY_ITEMS // 2) + long(0)) + long(0),
        ("[2]", f"value has more than {MAX_EMPTY_ITEMS} items without data"),
        id="too many items without data, over all arrays",
    ),
    pytest.param(
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        long(-5) + long(1) + b"\0" + long(0),
        ("", "block has another size than its header says"),
        id="wrong size of a block without data",
    ),
    pytest.param(
        {"type": "map", "values": "null"},
        long(2**40) + long(0),
        ("", f"block of {2**40} items is longer than the data"),
        id="huge map",
    ),
    pytest.param(
        {"type": "map", "values": "null"},
        long(-1) + long(3) + long(1) + b"a" + long(0),
        ("", "block has another size than its header says"),
        id="wrong size of a block of a map",
    ),
    pytest.param(
        {"type": "map", "values": "null"},
        long(-1) + long(2) + long(1) + b"a" + long(0),
        None,
        id="map with the size of its block",
    ),
    pytest.param(ORDER, long(7) + long(0) + long(0) + long(1), None, id="record"),
    pytest.param(ORDER, b"", ("id", ENDS), id="first field"),
    pytest.param(
        ORDER, long(7) + long(1) + long(1) + b"a" + b"1234", ("items[0].price", ENDS), id="field of an item"
    ),
    pytest.param(
        ORDER,
        long(7) + long(0) + long(1) + long(2) + "kéy".encode()[:2] + long(9),
        ("tags", "string is not UTF-8"),
        id="key of a map",
    ),
    pytest.param(
        ORDER,
        long(7) + long(0) + long(1) + long(3) + b"key" + long(9),
        ('tags["key"]', "branch 9 of a union with 2"),
        id="value of a map",
    ),
    pytest.param(
        ORDER, long(7) + long(0) + long(0) + long(3), ("status", "symbol 3 of an enum with 2"), id="last"
    ),
    pytest.param(
        TREE,
        long(1) + long(0) + long(1) + long(0) + b"\7",
        ("left.right.right", "branch -4 of a union with 2"),
        id="recursive type",
    ),
]


@pytest.mark.parametrize(("schema", "data", "expected"), MISMATCHES)
def test_mismatches(schema: Schema, data: bytes, expected: tuple[str, str] | None) -> None:
    for given_data in (data, memoryview(b"?" + data)[1:]):
        found = checked(schema).mismatch(given_data)
        assert (found and (found.path, found.message)) == expected


def test_values_of_recursive_types_are_nested_only_so_deep() -> None:
    schema = checked(record(field("next", ["null", "R"])))
    assert schema.mismatch((MAX_DEPTH - 1) * long(1) + long(0)) is None
    found = schema.mismatch(MAX_DEPTH * long(1) + long(0))
    assert found is not None
    assert found.message == f"value is nested more than {MAX_DEPTH} deep"
    assert found.path == ".".join(MAX_DEPTH * ["next"])


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        pytest.param(record(field("next", ["null", "R"])), 1_000_000 * b"\2", id="linked list"),
        pytest.param(record(field("next", "R")), b"", id="endless record"),
        pytest.param({"type": "array", "items": record(field("next", "R"))}, b"\2\0", id="endless item"),
        pytest.param(
            record(field("next", {"type": "array", "items": {"type": "map", "values": "R"}})),
            500_000 * b"\2\2\0",
            id="nested blocks",
        ),
    ],
)
def test_deep_data_is_refused(schema: Schema, data: bytes) -> None:
    found = checked(schema).mismatch(data)
    assert found is not None
    assert found.message == f"value is nested more than {MAX_DEPTH} deep"


def test_long_chains_of_types_are_refused_without_recursion() -> None:
    links = [
        record(field("f", f"R{index - 1}") if index else field("f", "int"), name=f"R{index}")
        for index in range(2_000)
    ]
    found = checked(["null", *links]).mismatch(long(2_000) + long(0))
    assert found is not None
    assert found.message == f"value is nested more than {MAX_DEPTH} deep"


def test_paths_are_bounded() -> None:
    name = 100_000 * "n"
    found = checked(record(field(name, ["null", "R"]))).mismatch(200 * b"\2")
    assert found is not None
    assert len(found.path) < 20_000


slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


@slow
@given(schemas_with_values())
def test_data_of_another_writer_is_accepted_and_its_truncations_are_not(drawn: tuple[Schema, Any]) -> None:
    schema, value = drawn
    data = written(schema, value)
    parsed = checked(schema)
    assert parsed.mismatch(data) is None
    assert parsed.mismatch(data + b"\0") is not None
    for end in range(len(data)):
        assert parsed.mismatch(data[:end]) is not None


@slow
@given(schemas_with_values(), st.data())
def test_what_is_accepted_can_be_read(drawn: tuple[Schema, Any], data: st.DataObject) -> None:
    schema, value = drawn
    encoded = bytearray(written(schema, value))
    assume(encoded)
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    if checked(schema).mismatch(bytes(encoded)) is None:
        read(encoded, writer=schema, reader=None)


@slow
@given(evolutions(), st.data())
def test_a_compatible_reader_reads_all_data(pair: tuple[Schema, Schema], data: st.DataObject) -> None:
    writer, reader = pair
    try:
        assume(not checked(reader).incompatibilities(checked(writer)))
    except InvalidSchema:
        assume(False)
    read(written(writer, data.draw(values(writer))), writer=writer, reader=reader)


def read(data: bytes | bytearray, writer: Schema, reader: Schema | None) -> None:
    source = io.BytesIO(data)
    reader = None if reader is None else fastavro.parse_schema(without_logical_types(reader))
    fastavro.schemaless_reader(source, fastavro.parse_schema(without_logical_types(writer)), reader)
    assert source.read() == b""


def without_logical_types(schema: Schema) -> Schema:
    """Remove what fastavro would convert: not every number is a date that Python has."""
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {key: without_logical_types(each) for key, each in schema.items() if key != "logicalType"}
    return schema
