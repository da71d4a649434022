"""Confluent's rules of compatibility for Protobuf: one row for each rule and direction."""

import pytest

from alpacamq.registry.protobuf import ProtobufSchema

from .protobuf_schemas import parse, proto3

IMPORTING = 'import "part.proto"; package own; message A { lib.Part part = 1; }'


Differences = list[tuple[str, str, str]]


def differences(reader: ProtobufSchema, writer: ProtobufSchema) -> Differences:
    return [(each.rule, each.path, each.message) for each in reader.incompatibilities(writer)]


@pytest.mark.parametrize(
    ("old", "new", "forth", "back"),
    [
        pytest.param(
            "package a; message A {}",
            "package b; message A {}",
            [("PACKAGE_CHANGED", "#/", "the package is b instead of a")],
            [("PACKAGE_CHANGED", "#/", "the package is a instead of b")],
            id="package",
        ),
        pytest.param(
            "message A {}",
            "message A {} message B {}",
            [],
            [("MESSAGE_REMOVED", "#/B", "message B is missing")],
            id="message added or removed",
        ),
        pytest.param(
            "message A {}",
            "message A { message B {} }",
            [],
            [("MESSAGE_REMOVED", "#/A/B", "message B is missing")],
            id="nested message added or removed",
        ),
        pytest.param("message A {} message B {}", "message B {} message A {}", [], [], id="message moved"),
        pytest.param("message A {}", "message A {} enum E { X = 0; }", [], [], id="enum added or removed"),
        pytest.param(
            "message A {} enum E { X = 0; }", "message A {} enum E { X = 0; Y = 1; }", [], [], id="enum value"
        ),
        pytest.param("message A {}", "message A { int32 x = 1; }", [], [], id="field added or removed"),
        pytest.param("message A { int32 x = 1; }", "message A { int32 y = 1; }", [], [], id="field renamed"),
        pytest.param(
            "message A { int32 x = 1; }", "message A { int32 x = 2; }", [], [], id="field renumbered"
        ),
        pytest.param(
            "message A { int32 x = 1; }",
            "message A { string x = 1; }",
            [
                (
                    "FIELD_SCALAR_KIND_CHANGED",
                    "#/A/1",
                    "field x is string instead of int32, which is encoded differently",
                )
            ],
            [
                (
                    "FIELD_SCALAR_KIND_CHANGED",
                    "#/A/1",
                    "field x is int32 instead of string, which is encoded differently",
                )
            ],
            id="scalar kind",
        ),
        pytest.param(
            "message A { B x = 1; } message B {}",
            "message A { int32 x = 1; } message B {}",
            [("FIELD_KIND_CHANGED", "#/A/1", "field x is int32 instead of B")],
            [("FIELD_KIND_CHANGED", "#/A/1", "field x is B instead of int32")],
            id="message or scalar",
        ),
        pytest.param(
            "message A { map<string, int32> x = 1; }",
            "message A { string x = 1; }",
            [("FIELD_KIND_CHANGED", "#/A/1", "field x is string instead of a map")],
            [("FIELD_KIND_CHANGED", "#/A/1", "field x is a map instead of string")],
            id="map or scalar",
        ),
        pytest.param(
            "message A { map<string, int32> x = 1; }",
            "message A { map<string, string> x = 1; }",
            [
                (
                    "FIELD_SCALAR_KIND_CHANGED",
                    "#/A/1",
                    "field value is string instead of int32, which is encoded differently",
                )
            ],
            [
                (
                    "FIELD_SCALAR_KIND_CHANGED",
                    "#/A/1",
                    "field value is int32 instead of string, which is encoded differently",
                )
            ],
            id="type of a map's values",
        ),
        pytest.param(
            "message A { B x = 1; } message B {} message C {}",
            "message A { C x = 1; } message B {} message C {}",
            [("FIELD_NAMED_TYPE_CHANGED", "#/A/1", "field x has type C, which cannot read B")],
            [("FIELD_NAMED_TYPE_CHANGED", "#/A/1", "field x has type B, which cannot read C")],
            id="named type",
        ),
        pytest.param(
            "message A { string a = 1; string b = 2; }",
            "message A { oneof o { string a = 1; string b = 2; } }",
            [
                (
                    "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
                    "#/A/o",
                    "oneof o has several fields that were independent: a, b",
                )
            ],
            [],
            id="fields moved to a oneof or out of it",
        ),
        pytest.param(
            "message A { string a = 1; oneof o { string b = 2; } }",
            "message A { oneof o { string a = 1; string b = 2; } }",
            [
                (
                    "FIELD_MOVED_TO_EXISTING_ONEOF",
                    "#/A/o",
                    "oneof o has fields that did not exclude each other: a",
                )
            ],
            [],
            id="field moved to an existing oneof",
        ),
        pytest.param(
            "message A { string a = 1; }",
            "message A { oneof o { string a = 1; } }",
            [],
            [],
            id="only field of a oneof",
        ),
        pytest.param(
            "message A { oneof o { string a = 1; } }",
            "message A { oneof o { string a = 1; string b = 2; } }",
            [],
            [("ONEOF_FIELD_REMOVED", "#/A/o/2", "field b of oneof o is missing")],
            id="field of a oneof added or removed",
        ),
        pytest.param("message A {}", "message A { oneof o { string a = 1; } }", [], [], id="whole oneof"),
        pytest.param(
            "message A { oneof o { string a = 1; string b = 2; } }",
            "message A { oneof p { string a = 1; string b = 2; } }",
            [],
            [],
            id="oneof renamed",
        ),
        pytest.param(
            "message A { oneof o { string a = 1; string b = 2; } }",
            "message A { oneof p { string a = 1; } }",
            [("ONEOF_FIELD_REMOVED", "#/A/o/2", "field b of oneof o is missing")],
            [],
            id="oneof renamed without one of its fields",
        ),
        pytest.param(
            "message A { optional int32 x = 1; }",
            "message A { repeated int32 x = 1; }",
            [("FIELD_NUMERIC_LABEL_CHANGED", "#/A/1", "numeric field x is repeated instead of optional")],
            [("FIELD_NUMERIC_LABEL_CHANGED", "#/A/1", "numeric field x is optional instead of repeated")],
            id="label of a number",
        ),
        pytest.param(
            "message A { int32 x = 1; }", "message A { repeated int32 x = 1; }", [], [], id="no label"
        ),
        pytest.param(
            "message A { optional string x = 1; }",
            "message A { repeated string x = 1; }",
            [],
            [],
            id="label of a string",
        ),
    ],
)
def test_proto3(old: str, new: str, forth: Differences, back: Differences) -> None:
    assert differences(proto3(new), proto3(old)) == forth
    assert differences(proto3(old), proto3(new)) == back


def test_required_fields_can_neither_be_added_nor_removed() -> None:
    old = parse("message A { optional int32 x = 1; }")
    new = parse("message A { optional int32 x = 1; required int32 y = 2; }")
    assert differences(new, old) == [
        ("REQUIRED_FIELD_ADDED", "#/A/2", "required field y is new; earlier data does not have it")
    ]
    assert differences(old, new) == [("REQUIRED_FIELD_REMOVED", "#/A/2", "required field y is missing")]


def test_a_required_field_of_an_edition_is_one() -> None:
    old = parse('edition = "2023"; message A {}')
    new = parse('edition = "2023"; message A { int32 x = 1 [features.field_presence = LEGACY_REQUIRED]; }')
    assert [each.rule for each in new.incompatibilities(old)] == ["REQUIRED_FIELD_ADDED"]
    assert [each.rule for each in old.incompatibilities(new)] == ["REQUIRED_FIELD_REMOVED"]


def test_a_group_is_no_message() -> None:
    group = parse("message A { optional group B = 1 { optional int32 x = 1; } }")
    message = parse("message A { optional B b = 1; message B { optional int32 x = 1; } }")
    assert [each.rule for each in message.incompatibilities(group)] == ["FIELD_KIND_CHANGED"]
    assert [each.rule for each in group.incompatibilities(message)] == ["FIELD_KIND_CHANGED"]


@pytest.mark.parametrize(
    "kinds",
    [
        ("int32", "int64", "uint32", "uint64", "bool", "E"),
        ("sint32", "sint64"),
        ("fixed32", "sfixed32"),
        ("fixed64", "sfixed64"),
        ("string", "bytes"),
        ("float",),
        ("double",),
    ],
    ids=lambda kinds: kinds[0],
)
def test_scalars_can_be_exchanged_if_they_are_encoded_alike(kinds: tuple[str, ...]) -> None:
    everything = ["int32", "sint32", "fixed32", "fixed64", "string", "float", "double"]
    for kind in (*kinds, *everything):
        reader = proto3(f"enum E {{ X = 0; }} message A {{ {kind} x = 1; }}")
        writer = proto3(f"enum E {{ X = 0; }} message A {{ {kinds[0]} x = 1; }}")
        rules = [each.rule for each in reader.incompatibilities(writer)]
        assert rules == ([] if kind in kinds else ["FIELD_SCALAR_KIND_CHANGED"])


def importing(fields: str) -> ProtobufSchema:
    library = f"package lib; message Part {{ {fields} }}"
    return parse(f'syntax = "proto3"; {IMPORTING}', {"part.proto": library})


def test_imported_types_are_compared_where_they_are_used() -> None:
    old = parse(
        f'syntax = "proto3"; {IMPORTING}',
        {"part.proto": "package lib; message Part { optional int32 x = 1; }"},
    )
    new = parse(
        f'syntax = "proto3"; {IMPORTING}',
        {"part.proto": "package lib; message Part { optional string x = 1; }"},
    )
    assert differences(new, old) == [
        (
            "FIELD_SCALAR_KIND_CHANGED",
            "#/Part/1",
            "field x is string instead of int32, which is encoded differently",
        ),
        ("FIELD_NAMED_TYPE_CHANGED", "#/A/1", "field part has type lib.Part, which cannot read lib.Part"),
    ]


def test_an_imported_type_may_change_its_package() -> None:
    old = parse(f'syntax = "proto3"; {IMPORTING}', {"part.proto": "package lib; message Part {}"})
    moved = IMPORTING.replace("lib.", "books.")
    new = parse(f'syntax = "proto3"; {moved}', {"part.proto": "package books; message Part {}"})
    assert not differences(new, old)


def test_imported_types_that_use_each_other_are_compared_once() -> None:
    # Without that, each level would double the work.
    levels = 60
    links = "".join(
        f"message M{level} {{ optional M{level + 1} a = 1; optional M{level + 1} b = 2; }}"
        for level in range(levels)
    )

    def schema(last: str) -> ProtobufSchema:
        library = f"{links} message M{levels} {{ optional {last} x = 1; optional M0 again = 2; }}"
        return parse('import "part.proto"; message A { optional M0 a = 1; }', {"part.proto": library})

    assert not differences(schema("int32"), schema("int64"))
    found = differences(schema("int32"), schema("string"))
    assert found[0][:2] == ("FIELD_SCALAR_KIND_CHANGED", f"#/M{levels}/1")
    assert {each[1] for each in found} >= {"#/A/1", "#/M0/1", f"#/M{levels}/2"}
    assert len(found) == 2 * levels + 3
