"""Records of Protobuf schemas: message indexes, checks, names, and their JSON form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.registry.protobuf import ProtobufSchema, from_descriptors
from alpacamq.registry.protobuf.data import MAX_WALKED_VALUES
from alpacamq.registry.schema import MAX_DEPTH, Dependency, InvalidData, InvalidSchema, Mismatch

from .protobuf_schemas import parse, proto3

ORDERS = proto3(
    """
    package shop;
    import "google/protobuf/timestamp.proto";
    message Order {
      message Line { string name = 1; message Note { string text = 1; } Note note = 2; }
      string id = 1; int64 cents = 2; repeated Line lines = 3; Order parent = 4; repeated int32 codes = 5;
      google.protobuf.Timestamp at = 6; map<string, Line> by_name = 7; repeated fixed32 hashes = 8;
    }
    message Refund { bool all = 1; }
    """
)
REQUIRED = parse("message A { required string a = 1; optional B b = 2; } message B { required int32 x = 1; }")


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\0", "shop.Order"),
        (b"\2\0", "shop.Order"),
        (b"\2\2", "shop.Refund"),
        (b"\4\0\0", "shop.Order.Line"),
        (b"\6\0\0\0", "shop.Order.Line.Note"),
    ],
)
def test_the_indexes_name_a_message(data: bytes, name: str) -> None:
    assert ORDERS.record_name(data) == name
    assert ORDERS.record_name(memoryview(data)) == name
    assert ORDERS.mismatch(data) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "data does not begin with message indexes"),
        (b"\xff\xff\xff\xff\xff\xff", "data does not begin with message indexes"),
        (b"\x02", "data does not begin with message indexes"),
        (b"\x01\0", "data begins with -1 message indexes"),
        (b"\xfe\xff\xff\xff\x0f", "data begins with 2147483647 message indexes"),
        (b"\2\4", "the schema has no message with the indexes [2]"),
        (b"\2\1", "the schema has no message with the indexes [-1]"),
        (b"\4\2\0", "the schema has no message with the indexes [1, 0]"),
    ],
)
def test_wrong_indexes_are_refused(data: bytes, message: str) -> None:
    assert ORDERS.mismatch(data) == Mismatch("", message)
    assert ORDERS.record_name(data) is None


@pytest.mark.parametrize(
    ("data", "mismatch"),
    [
        pytest.param(b"\x0a\x05ab", Mismatch("id", "data ends inside the value"), id="length"),
        pytest.param(b"\x0a\x02\xff\xff", Mismatch("id", "string is not UTF-8"), id="UTF-8"),
        pytest.param(b"\x10\xff", Mismatch("cents", "data ends inside the value"), id="varint"),
        pytest.param(b"\x10" + b"\xff" * 11, Mismatch("cents", "number has more than 64 bits"), id="64 bits"),
        pytest.param(
            b"\x1a\x00\x1a\x04\x0a\x02\xff\xff", Mismatch("lines[1].name", "string is not UTF-8"), id="path"
        ),
        pytest.param(b"\x2a\x01\xff", Mismatch("codes[0]", "data ends inside the value"), id="packed"),
        pytest.param(
            b"\x42\x03abc",
            Mismatch("hashes[0]", "packed values have 3 bytes, which is no multiple of 4"),
            id="packed of 4 bytes",
        ),
        pytest.param(b"\x02\x00", Mismatch("0", "field number is 0"), id="number 0"),
        pytest.param(b"\x7b\x08\x01", Mismatch("15", "group 15 does not end"), id="group without end"),
        pytest.param(b"\x7f", Mismatch("15", "wire type 7 is not known"), id="wire type"),
    ],
)
def test_a_wrong_field_is_named(data: bytes, mismatch: Mismatch) -> None:
    assert ORDERS.mismatch(b"\0" + data) == mismatch


def test_a_wrong_field_far_away_is_not_looked_for() -> None:
    found = ORDERS.mismatch(b"\0" + b"\x1a\x00" * MAX_WALKED_VALUES + b"\x0a\x05ab")
    assert found is not None
    assert found.path == ""
    assert "shop.Order" in found.message


@pytest.mark.parametrize("data", [b"\xf8\x07\x01", b"\x0b\x0c", b"\x08\x01", b"\x7b\x08\x01\x7c"])
def test_unknown_fields_are_allowed(data: bytes) -> None:
    assert ORDERS.mismatch(b"\0" + data) is None


def nested(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        size = len(data)
        length = bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        data = b"\x22" + bytes([*length, size]) + data
    return data


def test_deep_values_are_refused() -> None:
    assert ORDERS.mismatch(b"\0" + nested(MAX_DEPTH - 1)) is None
    assert ORDERS.decode(b"\0" + nested(MAX_DEPTH - 1))
    found = ORDERS.mismatch(b"\0" + nested(20_000))
    assert found is not None
    assert found.message == "message is nested more than 100 deep"
    # Groups need no lengths: a start for each byte.
    found = ORDERS.mismatch(b"\0" + b"\x7b" * 1_000_000)
    assert found is not None
    assert found.message == "message is nested more than 100 deep"


def test_required_fields_must_be_there() -> None:
    assert REQUIRED.mismatch(b"\0\x0a\x01x") is None
    assert REQUIRED.mismatch(b"\0") == Mismatch("a", "required field is missing")
    assert REQUIRED.mismatch(b"\0\x0a\x01x\x12\x00") == Mismatch("b.x", "required field is missing")


def test_strings_of_proto2_may_have_any_bytes() -> None:
    assert REQUIRED.mismatch(b"\0\x0a\x01\xff") is None


@given(st.binary(max_size=60))
def test_any_bytes_are_checked(data: bytes) -> None:
    found = ORDERS.mismatch(data)
    if found is None:
        value = ORDERS.decode(data) if b"\x32" not in data else {}
        assert isinstance(value, dict)


def test_a_record_has_a_json_form() -> None:
    value = {"id": "a", "cents": "12", "lines": [{"name": "x"}], "at": "2026-01-02T03:04:05Z"}
    data = ORDERS.encode(value)
    assert data[0] == 0
    decoded = ORDERS.decode(data)
    assert {key: decoded[key] for key in value} == value
    # As Confluent's tools do, fields of proto3 without presence are shown if they are 0.
    assert decoded["codes"] == []
    assert ORDERS.encode(decoded) == data


@pytest.mark.parametrize(
    ("message", "prefix"),
    [
        ("shop.Refund", b"\2\2"),
        ("Refund", b"\2\2"),
        ("shop.Order.Line.Note", b"\6\0\0\0"),
        (None, b"\0"),
    ],
)
def test_a_message_is_encoded_by_its_name(message: str | None, prefix: bytes) -> None:
    assert ORDERS.encode({}, message) == prefix


def test_indexes_of_more_than_one_byte_are_read_and_written() -> None:
    many = proto3("".join(f"message M{number} {{ int32 x = 1; }}" for number in range(300)))
    data = many.encode({"x": 5}, "M299")
    assert data.startswith(b"\2\xd6\4")
    assert many.record_name(data) == "M299"
    assert many.decode(data) == {"x": 5}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"unknown": 1}, None),
        ({"cents": "x"}, None),
        ({"at": "yesterday"}, None),
        (7, None),
        ([], None),
        ({}, "shop.Missing"),
        ({}, "shop.Order.ByNameEntry"),
    ],
)
def test_a_value_that_is_no_message_is_refused(value: object, message: str | None) -> None:
    with pytest.raises(InvalidData):
        ORDERS.encode(value, message)


def test_a_deep_value_cannot_be_encoded() -> None:
    value: dict[str, object] = {}
    for _ in range(5000):
        value = {"parent": value}
    with pytest.raises(InvalidData):
        ORDERS.encode(value)


def test_data_that_does_not_match_is_not_decoded() -> None:
    with pytest.raises(InvalidData, match="id: data ends inside the value"):
        ORDERS.decode(b"\0\x0a\x05")
    with pytest.raises(InvalidData, match="no JSON form"):
        ORDERS.decode(b"\0\x32\x0a\x08" + b"\xff" * 8 + b"\x7f")  # a timestamp out of range


def test_a_schema_without_messages_has_no_records() -> None:
    schema = proto3("enum E { X = 0; }")
    assert schema.mismatch(b"\0") == Mismatch("", "the schema has no message with the indexes [0]")
    with pytest.raises(InvalidData):
        schema.encode({})


def test_a_schema_is_built_from_descriptors_alone() -> None:
    library = proto3("package lib; message Part { string name = 1; }")
    whole = parse(
        'syntax = "proto3"; import "lib/part.proto"; import "confluent/type/decimal.proto"; '
        "message A { lib.Part part = 1; confluent.type.Decimal price = 2; }",
        {"lib/part.proto": library.canonical},
    )
    schema = from_descriptors(whole.serialized(), [Dependency("lib/part.proto", library.serialized())])
    assert isinstance(schema, ProtobufSchema)
    assert list(schema.imports) == ["lib/part.proto", "confluent/type/decimal.proto"]
    assert schema.normalized == whole.normalized
    data = whole.encode({"part": {"name": "x"}, "price": {"value": "AQ==", "scale": 2}})
    assert schema.decode(data)["part"] == {"name": "x"}
    assert not schema.incompatibilities(whole)


@pytest.mark.parametrize("serialized", ["not base64!", "AAAA", "CgFhEgFi"])
def test_wrong_descriptors_are_refused(serialized: str) -> None:
    with pytest.raises(InvalidSchema):
        from_descriptors(serialized, [Dependency("x", "%%")])


def test_a_descriptor_without_its_imports_is_refused() -> None:
    whole = parse('syntax = "proto3"; import "x.proto"; message A { X x = 1; }', {"x.proto": "message X {}"})
    with pytest.raises(InvalidSchema, match=r"'x.proto' is imported but not given"):
        from_descriptors(whole.serialized())
