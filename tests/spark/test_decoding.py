"""Columns of schemas: their types, how values become rows, and how types of several versions are merged."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from alpacamq.registry.avro import parse
from alpacamq.registry.json_schema.schema import parse as parse_json
from alpacamq.registry.protobuf import ProtobufSchema, from_descriptors
from alpacamq.registry.schema import Dependency
from alpacamq_spark.decoding.avro import avro_layout
from alpacamq_spark.decoding.json_values import json_layout
from alpacamq_spark.decoding.layout import MAX_LEAVES, Layout, Misfit, UnusableSchema, compiled, type_of
from alpacamq_spark.decoding.protobuf import message_class, message_reader, protobuf_layout
from alpacamq_spark.decoding.types import arrow_type, as_stored, merged

from .registries import record


def decoded(layout: Layout, value: Any, wanted: DataType | None = None) -> Any:
    return compiled(layout, wanted or type_of(layout))(value)


def avro(schema: Any) -> Layout:
    return avro_layout(parse(json.dumps(schema)).root)


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


LONGS = {"type": "map", "values": "long"}


@pytest.mark.parametrize(
    ("schema", "kind", "given", "expected"),
    [
        ("int", "int", 1, 1),
        ("double", "double", "NaN", pytest.approx(float("nan"), nan_ok=True)),
        ("bytes", "binary", "ÿ\x00", b"\xff\x00"),
        (logical("int", "date"), "date", "2026-01-31", date(2026, 1, 31)),
        (
            logical("long", "timestamp-micros"),
            "timestamp",
            "2026-01-31T12:00:00.000001Z",
            datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC),
        ),
        (
            logical("long", "local-timestamp-millis"),
            "timestamp_ntz",
            "2026-01-31T12:00:00.001",
            datetime(2026, 1, 31, 12, 0, 0, 1000),  # noqa: DTZ001 - without a time zone
        ),
        (logical("int", "time-millis"), "string", "12:30:00.000", "12:30:00.000"),
        (logical("bytes", "decimal", precision=9, scale=2), "decimal(9,2)", "1.25", Decimal("1.25")),
        (logical("bytes", "decimal", precision=39), "string", "1", "1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string", "A", "A"),
        (LONGS, "map<string,bigint>", {"a": 1}, [("a", 1)]),
        (["null", LONGS], "map<string,bigint>", {"map": {"map": 1}}, [("map", 1)]),
        (["int", "null", "long"], "bigint", {"long": 2**40}, 2**40),
        (
            ["int", "string"],
            "struct<member_int:int,member_string:string>",
            "x",
            {"member_int": None, "member_string": "x"},
        ),
        (record("R"), "string", {}, "{}"),
        ("null", "string", None, None),
    ],
)
def test_avro_values_become_the_values_of_spark(schema: Any, kind: str, given: Any, expected: Any) -> None:
    layout = avro(schema)
    assert type_of(layout).simpleString() == kind
    assert decoded(layout, given) == expected
    arrow_type(type_of(layout))


def test_an_avro_record_inside_itself_is_json_text() -> None:
    layout = avro(record("Node", id="int", next=["null", "Node"]))
    assert type_of(layout).simpleString() == "struct<id:int,next:string>"
    assert decoded(layout, {"id": 1, "next": {"id": 2, "next": None}}) == {
        "id": 1,
        "next": '{"id":2,"next":null}',
    }


def test_schemas_with_too_many_columns_are_refused() -> None:
    schema: Any = record("R0", a="int", b="int")
    for level in range(1, 20):
        schema = record(f"R{level}", a=schema, b=f"R{level - 1}")
    with pytest.raises(UnusableSchema, match=f"more than {MAX_LEAVES} columns"):
        avro(schema)


def test_fields_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(UnusableSchema, match="fields id and ID"):
        avro(record("R", id="int", ID="int"))


def test_a_json_schema_becomes_columns() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "maybe": {"oneOf": [{"type": "null"}, {"type": "integer"}]},
            "buyer": {"$ref": "person.json"},
            "parent": {"$ref": "#"},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
        },
    }
    name = {"properties": {"name": {"type": "string"}}}
    person = {"allOf": [name, {"type": "object", "properties": {"age": {"type": "integer"}}}]}
    parsed = parse_json(json.dumps(schema), [Dependency("person.json", json.dumps(person))])
    layout = json_layout(parsed.documents)
    assert type_of(layout).simpleString() == (
        "struct<id:bigint,price:double,at:timestamp,tags:array<string>,more:map<string,boolean>,any:string,"
        "maybe:bigint,buyer:struct<name:string,age:bigint>,parent:string,pair:string>"
    )
    value = {"id": 1.0, "price": 2, "any": 5, "buyer": {"name": "ann"}, "parent": {"id": 2}, "unknown": 1}
    found = decoded(layout, value)
    assert {name: each for name, each in found.items() if each is not None} == {
        "id": 1,
        "price": 2.0,
        "any": "5",
        "buyer": {"name": "ann", "age": None},
        "parent": '{"id":2}',
    }
    misfits: list[object] = [
        {"id": "1"},
        {"id": 1.5},
        {"id": True},
        {"id": 2**63},
        {"at": "today"},
        {"tags": "x"},
    ]
    for bad in (*misfits, []):
        with pytest.raises(Misfit):
            decoded(layout, bad)


def descriptors(**fields: Callable[[Proto], None]) -> ProtobufSchema:
    """Return a schema with the message `M` of these fields, in their order."""
    file = descriptor_pb2.FileDescriptorProto(name="default.proto", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    message = file.message_type.add(name="M")
    for number, (name, set_type) in enumerate(fields.items(), 1):
        field = message.field.add(name=name, number=number, label=Proto.LABEL_OPTIONAL)
        set_type(field)
    return from_descriptors(base64.b64encode(file.SerializeToString()).decode())


def typed(kind: int, name: str = "", *, is_repeated: bool = False) -> Callable[[Proto], None]:
    def set_type(field: Proto) -> None:
        field.type = kind
        if name:
            field.type_name = name
        field.label = Proto.LABEL_REPEATED if is_repeated else Proto.LABEL_OPTIONAL

    return set_type


def test_protobuf_messages_become_columns_by_the_numbers_of_fields() -> None:
    writer = descriptors(old_name=typed(Proto.TYPE_INT32), text=typed(Proto.TYPE_STRING))
    reader = descriptors(
        id=typed(Proto.TYPE_INT64),
        text=typed(Proto.TYPE_STRING),
        big=typed(Proto.TYPE_UINT64),
        at=typed(Proto.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
        maybe=typed(Proto.TYPE_MESSAGE, ".google.protobuf.Int32Value"),
        inner=typed(Proto.TYPE_MESSAGE, ".M", is_repeated=True),
    )
    layout = protobuf_layout(message_class(reader, None).DESCRIPTOR)
    assert type_of(layout).simpleString() == (
        "struct<id:bigint,text:string,big:decimal(20,0),at:timestamp,maybe:int,inner:array<string>>"
    )
    read = message_reader(writer, reader, "M")
    message = message_class(writer, None)(old_name=7, text="x")
    # One index, which stands for the first message of the file.
    assert decoded(layout, read(b"\0" + message.SerializeToString())) == {
        "id": 7,
        "text": "x",
        "big": Decimal(0),
        "at": None,
        "maybe": None,
        "inner": [],
    }
    message = message_class(reader, None)(
        maybe={"value": 0}, inner=[{"id": 1}], at={"seconds": 1, "nanos": 5000}
    )
    assert decoded(layout, message) == {
        "id": 0,
        "text": "",
        "big": Decimal(0),
        "at": datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC),
        "maybe": 0,
        "inner": ['{"id":"1"}'],
    }


def struct(**fields: DataType) -> StructType:
    found = StructType()
    for name, kind in fields.items():
        found.add(name, kind)
    return found


@pytest.mark.parametrize(
    ("known", "added", "expected"),
    [
        (IntegerType(), LongType(), LongType()),
        (LongType(), IntegerType(), LongType()),
        (LongType(), FloatType(), DoubleType()),
        (FloatType(), DoubleType(), DoubleType()),
        (DecimalType(5, 2), DecimalType(6, 4), DecimalType(7, 4)),
        (struct(a=IntegerType()), struct(b=StringType()), struct(a=IntegerType(), b=StringType())),
        (
            ArrayType(struct(a=IntegerType())),
            ArrayType(struct(a=LongType())),
            ArrayType(struct(a=LongType())),
        ),
    ],
)
def test_types_are_merged_to_one_that_has_the_values_of_both(
    known: DataType, added: DataType, expected: DataType
) -> None:
    assert merged(known, added) == expected


@pytest.mark.parametrize(
    ("known", "added", "message"),
    [
        (struct(a=IntegerType()), struct(a=StringType()), "a is string, and was int before"),
        (
            struct(a=struct(b=LongType())),
            struct(a=LongType()),
            "a is bigint, and was struct<b:bigint> before",
        ),
        (struct(id=LongType()), struct(Id=LongType()), "Id was spelt id before"),
        (DecimalType(38, 0), DecimalType(38, 10), "was decimal"),
    ],
)
def test_types_that_do_not_go_together_are_named(known: DataType, added: DataType, message: str) -> None:
    with pytest.raises(UnusableSchema, match=message):
        merged(known, added)


def test_old_files_are_read_with_the_types_they_have_and_the_fields_of_the_table() -> None:
    table = struct(a=LongType(), b=ArrayType(struct(c=DoubleType(), d=StringType())))
    files = struct(b=ArrayType(struct(c=LongType())), gone=StringType(), a=IntegerType())
    assert as_stored(table, files) == struct(
        a=IntegerType(), b=ArrayType(struct(c=LongType(), d=StringType()))
    )


def test_values_fit_wider_columns_and_narrow_ones_if_they_are_small() -> None:
    layout = avro(record("R", a="long", b="string"))
    assert decoded(layout, {"a": 5, "b": "x"}, struct(a=IntegerType(), c=StringType())) == {"a": 5}
    with pytest.raises(Misfit, match="too large"):
        decoded(layout, {"a": 2**40, "b": "x"}, struct(a=IntegerType()))
    assert decoded(layout, {"a": 5, "b": "x"}, struct(a=DoubleType())) == {"a": 5.0}
    with pytest.raises(UnusableSchema, match="b is string in a schema"):
        decoded(layout, {}, struct(b=LongType()))
