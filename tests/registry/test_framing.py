"""Where a record names its schema, and how a schema names its records."""

from uuid import UUID

import pytest

from alpacamq.registry import avro
from alpacamq.registry.framing import Framed, Part, framed, unframe
from alpacamq.registry.json_schema import schema as json_schema
from alpacamq.registry.schema import ParsedSchema

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")


@pytest.mark.parametrize(
    ("data", "header", "expected"),
    [
        pytest.param(b"\0\0\0\1\2data", None, Framed(258, b"data"), id="an id as prefix"),
        pytest.param(b"\1" + GUID.bytes + b"data", None, Framed(GUID, b"data"), id="a GUID as prefix"),
        pytest.param(b"data", b"\1" + GUID.bytes, Framed(GUID, b"data"), id="a GUID in the header"),
        pytest.param(b"data", b"\0\0\0\0\7", Framed(7, b"data"), id="an id in the header"),
        pytest.param(
            b"x", b"\1" + GUID.bytes + b"\2\0\2", Framed(GUID, b"\2\0\2x"), id="message indexes in the header"
        ),
        pytest.param(b"\0\0\0\0\1x", b"\0\0\0\0\2", Framed(2, b"\0\0\0\0\1x"), id="the header counts first"),
        pytest.param(b"\0\0\0\0\1", None, Framed(1, b""), id="no data"),
        pytest.param(b"\0\0\0\1", None, None, id="a prefix cut short"),
        pytest.param(b"\1" + GUID.bytes[:-1], None, None, id="a GUID cut short"),
        pytest.param(b"\0\0\0\0\1x", b"\1", None, id="a header cut short"),
        pytest.param(b"\2\0\0\0\1x", None, None, id="another magic byte"),
        pytest.param(b"", None, None, id="an empty value"),
    ],
)
def test_the_schema_is_found(data: bytes, header: bytes | None, expected: Framed | None) -> None:
    assert unframe(data, header) == expected
    assert unframe(memoryview(data), header and memoryview(header)) == expected


def test_framed_data_is_found() -> None:
    assert unframe(framed(1 << 31, b"data")) == Framed(1 << 31, b"data")


def test_headers_are_those_of_confluents_serializers() -> None:
    assert [part.header for part in Part] == ["__key_schema_id", "__value_schema_id"]


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (avro.parse('{"type":"record","name":"Order","namespace":"shop","fields":[]}'), "shop.Order"),
        (avro.parse('"string"'), None),
        (json_schema.parse('{"title":"Order"}'), "Order"),
        (json_schema.parse("{}"), None),
        (json_schema.parse("true"), None),
    ],
    ids=["record", "Avro string", "title", "no title", "boolean schema"],
)
def test_a_schema_names_its_records(schema: ParsedSchema, name: str | None) -> None:
    assert schema.record_name(b"") == name
