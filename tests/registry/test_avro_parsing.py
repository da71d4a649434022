"""Parsing of Avro schemas, and the texts that identify them."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from alpacamq.registry import avro
from alpacamq.registry.schema import MAX_DEPTH, MAX_SCHEMA_BYTES, Dependency, InvalidSchema

from .avro_strategies import Schema, schemas


def record(*fields: Schema, name: str = "R", **attributes: Any) -> Schema:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, kind: Schema, **attributes: Any) -> Schema:
    return {"name": name, "type": kind, **attributes}


def enum(name: str, *symbols: str) -> Schema:
    return {"type": "enum", "name": name, "symbols": list(symbols)}


def parsed(schema: Schema, *dependencies: Schema) -> avro.AvroSchema:
    texts = [Dependency(name=each["name"], text=json.dumps(each)) for each in dependencies]
    return avro.parse(json.dumps(schema), texts)


CANONICAL = [
    pytest.param(' { "type" : "string" } ', '"string"', id="the short form of a primitive type"),
    pytest.param('{"type":"string","x":1}', '{"type":"string","x":1}', id="properties are kept"),
    pytest.param(
        '{"fields":[],"p":{"b":1,"a":[null,true]},"aliases":["Q"],"doc":"d","name":"R","type":"record"}',
        '{"type":"record","name":"R","doc":"d","fields":[],"p":{"b":1,"a":[null,true]},"aliases":["Q"]}',
        id="attributes of a record in order",
    ),
    pytest.param(
        '{"type":"record","name":"R","fields":[{"x":1,"aliases":["b"],"order":"IGNORE","default":1,"doc":"d",'
        '"type":"int","name":"a"},{"order":"ascending","name":"c","type":"long"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","doc":"d","default":1,"order":"ignore",'
        '"aliases":["b"],"x":1},{"name":"c","type":"long"}]}',
        id="attributes of fields in order",
    ),
    pytest.param(
        '{"x":1,"default":"B","aliases":["G"],"symbols":["A","B"],"doc":"d","name":"E","type":"enum"}',
        '{"type":"enum","name":"E","doc":"d","symbols":["A","B"],"default":"B","x":1,"aliases":["G"]}',
        id="attributes of an enum in order",
    ),
    pytest.param(
        '{"x":1,"size":4,"name":"a.F","type":"fixed"}',
        '{"type":"fixed","name":"F","namespace":"a","size":4,"x":1}',
        id="attributes of a fixed type in order",
    ),
    pytest.param(
        '{"x":1,"type":"map","values":{"items":"int","type":"array"}}',
        '{"type":"map","values":{"type":"array","items":"int"},"x":1}',
        id="attributes of maps and arrays in order",
    ),
    pytest.param(
        '{"type":"error","name":"R","fields":[]}', '{"type":"error","name":"R","fields":[]}', id="error"
    ),
    pytest.param('["null", "int"]', '["null","int"]', id="union"),
    pytest.param("[]", "[]", id="empty union"),
    pytest.param(
        '{"type":"record","name":"a.R","fields":[{"name":"x","type":{"type":"fixed","name":"F","namespace":"a",'
        '"size":1}},{"name":"y","type":"a.F"},{"name":"z","type":{"type":"a.R"}},'
        '{"name":"v","type":{"type":"fixed","name":"b.F","size":1}},{"name":"w","type":"b.F"}]}',
        '{"type":"record","name":"R","namespace":"a","fields":[{"name":"x","type":{"type":"fixed","name":"F",'
        '"size":1}},{"name":"y","type":"F"},{"name":"z","type":"R"},'
        '{"name":"v","type":{"type":"fixed","name":"F","namespace":"b","size":1}},{"name":"w","type":"b.F"}]}',
        id="names are relative to the namespace",
    ),
    pytest.param(
        '{"type":"record","name":"a.R","fields":[{"name":"x","type":{"type":"fixed","name":"F","namespace":"",'
        '"size":1}},{"name":"y","type":"F"}],"aliases":["a.Q","b.Q","Q",".Q"]}',
        '{"type":"record","name":"R","namespace":"a","fields":[{"name":"x","type":{"type":"fixed","name":"F",'
        '"namespace":"","size":1}},{"name":"y","type":"F"}],"aliases":["Q","b.Q",".Q"]}',
        id="the empty namespace inside another one",
    ),
    pytest.param(
        '{"type":"record","name":"a.int","fields":[{"name":"x","type":["int","a.int"]}]}',
        '{"type":"record","name":"int","namespace":"a","fields":[{"name":"x","type":["int","a.int"]}]}',
        id="a type with the name of a primitive type",
    ),
    pytest.param(
        '["null",{"type":"fixed","name":"F","size":1,"doc":"1"},'
        '{"type":"array","items":{"type":"fixed","name":"F","size":1,"doc":"2"}}]',
        '["null",{"type":"fixed","name":"F","doc":"1","size":1},{"type":"array","items":"F"}]',
        id="a repeated definition is a reference",
    ),
    pytest.param(
        '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"S","fields":['
        '{"name":"e","type":["null",{"type":"enum","name":"E","symbols":["A"]}]}]}},'
        '{"name":"b","type":{"type":"record","name":"S","fields":['
        '{"name":"e","type":["null",{"type":"enum","name":"E","symbols":["A"]}]}]}}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"record","name":"S","fields":['
        '{"name":"e","type":["null",{"type":"enum","name":"E","symbols":["A"]}]}]}},{"name":"b","type":"S"}]}',
        id="a repeated definition with other types inside",
    ),
    pytest.param(
        '{"type":"string","a":1e2,"b":-0.0,"c":1E7,"d":12345678.5,"e":0.00015,"f":1.50,"g":-1e-300,"h":-0}',
        '{"type":"string","a":100.0,"b":-0.0,"c":1.0E7,"d":1.23456785E7,"e":1.5E-4,"f":1.5,"g":-1.0E-300,"h":0}',
        id="numbers as Java writes them",
    ),
    pytest.param(
        '{"type":"string","a":"\\u00e9\\/\\"\\\\\\n\\u000B\\ud83e\\udd99"}',
        '{"type":"string","a":"é/\\"\\\\\\n\\u000B🦙"}',
        id="strings as Java writes them",
    ),
    pytest.param(
        '{"type":"record","name":"R","fields":[{"name":"a","type":"double","default":"NaN"},'
        '{"name":"b","type":"float","default":"-1.5"},{"name":"c","type":"double","default":"Infinity"},'
        '{"name":"d","type":"double","default":"-Infinity"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"double","default":"NaN"},'
        '{"name":"b","type":"float","default":-1.5},{"name":"c","type":"double","default":"Infinity"},'
        '{"name":"d","type":"double","default":"-Infinity"}]}',
        id="numbers as strings",
    ),
    pytest.param(
        '/* a "comment" */ {"type": "string", // to the end\n "see": "http://x/*y*/"}',
        '{"type":"string","see":"http://x/*y*/"}',
        id="comments",
    ),
    pytest.param('// of 32 bits\n"int"', '"int"', id="only a comment to the end of the line"),
    pytest.param(
        '{"type":"string","x":1,"x":2}', '{"type":"string","x":2}', id="the last of equal keys counts"
    ),
    pytest.param('{"type":"string","doc":5,"size":3}', '"string"', id="meaningless attributes are dropped"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_canonical_text(text: str, canonical: str) -> None:
    """Avro 1.12.1 for Java prints the same, except for the dot of an alias in the empty namespace."""
    assert avro.parse(text).canonical == canonical
    assert avro.parse(canonical).canonical == canonical


NORMALIZED = [
    pytest.param(
        '{"type":"string","b":{"z":1,"y":[{"d":1,"c":2}]},"a":1}',
        '{"type":"string","a":1,"b":{"y":[{"c":2,"d":1}],"z":1}}',
        id="properties are sorted",
    ),
    pytest.param(
        '{"type":"bytes","scale":2,"a":1,"precision":4,"logicalType":"decimal"}',
        '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2,"a":1}',
        id="logical types come first",
    ),
    pytest.param(
        '{"type":"bytes","scale":5,"a":1,"precision":4,"logicalType":"decimal"}',
        '{"type":"bytes","a":1,"logicalType":"decimal","precision":4,"scale":5}',
        id="a logical type that does not fit is a property",
    ),
    pytest.param(
        '{"type":"fixed","name":"F","size":16,"z":1,"logicalType":"uuid","aliases":["B","A"],"doc":""}',
        '{"type":"fixed","name":"F","size":16,"logicalType":"uuid","z":1,"aliases":["A","B"]}',
        id="aliases are sorted and empty documentation is dropped",
    ),
    pytest.param(
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","aliases":["c","b"],"doc":""}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","doc":"","aliases":["b","c"]}]}',
        id="aliases of fields are sorted",
    ),
    pytest.param(
        '{"type":"error","name":"R","fields":[]}',
        '{"type":"record","name":"R","fields":[]}',
        id="error is record",
    ),
    pytest.param(
        '{"type":"record","name":"R","fields":[{"name":"a","type":"double","default":1},'
        '{"name":"b","type":"float","default":3.14159265358979},'
        '{"name":"c","type":["null","double"],"default":2},'
        '{"name":"d","type":{"type":"map","values":"float"},"default":{"b":1,"a":0.1}},'
        '{"name":"e","type":{"type":"array","items":"long"},"default":[1]}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"double","default":1.0},'
        '{"name":"b","type":"float","default":3.1415927},'
        '{"name":"c","type":["null","double"],"default":2.0},'
        '{"name":"d","type":{"type":"map","values":"float"},"default":{"a":0.1,"b":1.0}},'
        '{"name":"e","type":{"type":"array","items":"long"},"default":[1]}]}',
        id="defaults are written as their types",
    ),
    pytest.param(
        '{"type":"record","name":"R","fields":[{"name":"p","type":{"type":"record","name":"P","fields":['
        '{"name":"x","type":"double"}]},"default":{"x":1,"other":1}}]}',
        '{"type":"record","name":"R","fields":[{"name":"p","type":{"type":"record","name":"P","fields":['
        '{"name":"x","type":"double"}]},"default":{"other":1,"x":1.0}}]}',
        id="defaults of records",
    ),
]


@pytest.mark.parametrize(("text", "normalized"), NORMALIZED)
def test_normalized_text(text: str, normalized: str) -> None:
    assert avro.parse(text).normalized == normalized
    assert avro.parse(normalized).normalized == normalized


INVALID = [
    pytest.param("", "invalid JSON at line 1, column 1: Expecting value", id="no text"),
    pytest.param("string", "invalid JSON at line 1, column 1: Expecting value", id="no JSON"),
    pytest.param(
        '{"type":\n "string",}',
        "invalid JSON at line 2, column 11: Expecting property name enclosed in double quotes",
        id="the line of broken JSON",
    ),
    pytest.param(
        '/* one\n two */ {"type": oops}',
        "invalid JSON at line 2, column 18: Expecting value",
        id="after a comment",
    ),
    pytest.param('"int" "int"', "invalid JSON at line 1, column 7: Extra data", id="two schemas"),
    pytest.param('{"type":"int","x":NaN}', "invalid JSON: NaN is not a JSON value", id="NaN"),
    pytest.param('{"type":"int","x":1e999}', "invalid JSON: number 1e999 is too large", id="infinite number"),
    pytest.param('{"type":"int","x":"\\ud800"}', "schema contains half of a surrogate pair", id="surrogate"),
    pytest.param('"int\ud800"', "schema contains half of a surrogate pair", id="surrogate in the text"),
    pytest.param("5", "a type is a name, an object or a list, not 5 (at /)", id="number"),
    pytest.param("{}", "missing type: expected a name under 'type' (at /)", id="no type"),
    pytest.param(
        '{"type":{"type":"int"}}',
        "missing type: expected a name under 'type' (at /)",
        id="type inside a type",
    ),
    pytest.param(
        '"Foo"', "unknown type 'Foo': types must be defined before they are used (at /)", id="unknown type"
    ),
    pytest.param(
        '{"type":"array","items":{"type":"Foo"}}',
        "unknown type 'Foo': types must be defined before they are used (at /items/type)",
        id="unknown type of items",
    ),
    pytest.param('{"type":"array"}', "missing 'items' of array type (at /)", id="no items"),
    pytest.param('{"type":"map"}', "missing 'values' of map type (at /)", id="no values"),
    pytest.param('["null",["int"]]', "a union cannot contain a union (at /1)", id="union in a union"),
    pytest.param('["int","int"]', "type int occurs twice in the union (at /1)", id="type twice in a union"),
    pytest.param(
        '["int",{"type":"int","logicalType":"date"}]',
        "type int occurs twice in the union (at /1)",
        id="logical types are no types of their own",
    ),
    pytest.param(
        '[{"type":"fixed","name":"a.F","size":1},"a.F"]',
        "type a.F occurs twice in the union (at /1)",
        id="named type twice in a union",
    ),
    pytest.param('{"type":"record","fields":[]}', "missing 'name' of record (at /)", id="no name"),
    pytest.param('{"type":"record","name":"R"}', "a record needs a list of 'fields' (at /)", id="no fields"),
    pytest.param(record(5), "a field is an object (at /fields/0)", id="field is no object"),
    pytest.param(record({"type": "int"}), "missing 'name' of a field (at /fields/0)", id="no field name"),
    pytest.param(record({"name": "a"}), "missing 'type' of field a (at /fields/0)", id="no field type"),
    pytest.param(
        record(field("a", "int"), field("a", "int")),
        "field a occurs twice in the record (at /fields/1)",
        id="field twice",
    ),
    pytest.param(
        record(field("a", "int", order="up")),
        "'order' must be one of ascending, descending, ignore (at /fields/0)",
        id="order",
    ),
    pytest.param(
        record(name="a-b"),
        "invalid name 'a-b': only A-Z, a-z, 0-9 and _, and no digit first (at /name)",
        id="invalid name",
    ),
    pytest.param(
        record(name="a-b.R"),
        "invalid name 'a-b': only A-Z, a-z, 0-9 and _, and no digit first (at /name)",
        id="invalid namespace in a name",
    ),
    pytest.param(
        record(namespace="a..b"),
        "invalid name '': only A-Z, a-z, 0-9 and _, and no digit first (at /namespace)",
        id="invalid namespace",
    ),
    pytest.param(
        record(field("9a", "int")),
        "invalid name '9a': only A-Z, a-z, 0-9 and _, and no digit first (at /fields/0/name)",
        id="invalid field name",
    ),
    pytest.param(
        record(aliases=["a\n"]),
        r"invalid name 'a\n': only A-Z, a-z, 0-9 and _, and no digit first (at /aliases)",
        id="invalid alias",
    ),
    pytest.param(record(aliases="a"), "'aliases' is a list of strings (at /)", id="aliases"),
    pytest.param(
        record(field("a", "int", aliases=[1])), "'aliases' is a list of strings (at /fields/0)", id="alias"
    ),
    pytest.param(
        record(name="int"), "int is the name of a primitive type (at /name)", id="name of a primitive"
    ),
    pytest.param('{"type":"enum","name":"E"}', "an enum needs a list of 'symbols' (at /)", id="no symbols"),
    pytest.param(
        '{"type":"enum","name":"E","symbols":["A","A"]}',
        "symbol A occurs twice in the enum (at /symbols/1)",
        id="symbol twice",
    ),
    pytest.param(
        '{"type":"enum","name":"E","symbols":["A",1]}', "a symbol is a string (at /symbols/1)", id="symbol"
    ),
    pytest.param(
        '{"type":"enum","name":"E","symbols":["A"],"default":"B"}',
        'default "B" is not a symbol of the enum (at /default)',
        id="default of an enum",
    ),
    pytest.param(
        '{"type":"fixed","name":"F","size":true}',
        "a fixed type needs a 'size' from 0 to 2147483639 (at /)",
        id="size",
    ),
    pytest.param(
        record(field("a", record(name="S")), field("b", record(field("c", "int"), name="S"))),
        "type S is defined twice (at /fields/1/type)",
        id="different definitions",
    ),
    pytest.param(
        record(field("a", record(name="R"))),
        "type R is defined twice (at /fields/0/type)",
        id="definition inside itself",
    ),
    pytest.param(
        record(
            field("a", {"type": "fixed", "name": "F", "size": 1, "x": 1}),
            field("b", {"type": "fixed", "name": "F", "size": 1, "x": True}),
        ),
        "type F is defined twice (at /fields/1/type)",
        id="different properties",
    ),
    pytest.param(
        record(field("a", enum("E", "A")), field("b", enum("E", "B"))),
        "type E is defined twice (at /fields/1/type)",
        id="different symbols",
    ),
    pytest.param(
        record(
            field("e", [enum("E", "A"), enum("G", "A")]),
            field("a", record(field("x", "E"), name="S")),
            field("b", record(field("x", "G"), name="S")),
        ),
        "type S is defined twice (at /fields/2/type)",
        id="fields of different types with equal symbols",
    ),
    pytest.param(
        record(
            field("a", record(field("x", ["null"]), name="S")), field("b", record(field("x", []), name="S"))
        ),
        "type S is defined twice (at /fields/1/type)",
        id="unions of different length",
    ),
    pytest.param(
        record(
            field("a", record(field("x", ["null"]), name="S")),
            field("b", record(field("x", ["int"]), name="S")),
        ),
        "type S is defined twice (at /fields/1/type)",
        id="unions of different types",
    ),
]


@pytest.mark.parametrize(("schema", "message"), INVALID)
def test_invalid_schemas(schema: Schema, message: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(InvalidSchema) as error:
        avro.parse(text)
    assert str(error.value) == message


E = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
F = {"type": "fixed", "name": "F", "size": 2}
P = record(field("x", "int"), field("y", "int", default=0), name="P")

VALID_DEFAULTS = [
    ("null", [None], [0, False]),
    ("boolean", [True], [1, "true"]),
    ("int", [-(2**31), 2**31 - 1], [2**31, 1.0, True, "1"]),
    ("long", [-(2**63), 2**63 - 1], [2**63, 1.0]),
    ("float", [1, 1.5, "1.5", "NaN", "-Infinity"], [True, "one", "1_0", "inf"]),
    ("double", [1, 1.5, "1e3"], [None, ""]),
    ("string", [""], [1, None]),
    ("bytes", ["\u00ff"], ["\u0100", 1]),
    (E, ["A"], ["C", 1]),
    (F, ["\u00ff\u0000"], ["a", "abc", "a\u0100"]),
    ({"type": "array", "items": "int"}, [[], [1]], [{}, [1, "a"]]),
    ({"type": "map", "values": "int"}, [{}, {"a": 1}], [[], {"a": "b"}]),
    (["null", "int"], [None, 1], ["a"]),
    (P, [{"x": 1}, {"x": 1, "y": 2}], [{}, {"y": 2}, {"x": "a"}, 1]),
    (["null", "R"], [None], [5]),
]


@pytest.mark.parametrize(("kind", "valid", "invalid"), VALID_DEFAULTS, ids=lambda each: json.dumps(each)[:30])
def test_defaults_are_values_of_their_type(kind: Schema, valid: list[Any], invalid: list[Any]) -> None:
    for default in valid:
        parsed(record(field("f", kind, default=default)))
    for default in invalid:
        with pytest.raises(
            InvalidSchema, match=r"^default .* is not a value of type .* \(at /fields/0/default\)$"
        ):
            parsed(record(field("f", kind, default=default)))


def test_a_default_cannot_contain_a_record_that_is_being_defined() -> None:
    with pytest.raises(InvalidSchema, match="default contains record R, whose definition has not ended"):
        parsed(record(field("f", ["R", "null"], default={})))


def test_references_define_types() -> None:
    address = record(field("street", "string"), name="Address", namespace="shop")
    customer = record(field("address", "shop.Address"), name="Customer", namespace="shop")
    order = parsed(
        record(field("by", "shop.Customer"), field("to", "shop.Address"), name="Order"), address, customer
    )
    assert order.canonical == (
        '{"type":"record","name":"Order","fields":[{"name":"by","type":"shop.Customer"},'
        '{"name":"to","type":"shop.Address"}]}'
    )
    assert order.normalized == order.canonical
    assert order.resolved == (
        '{"type":"record","name":"Order","fields":[{"name":"by","type":{"type":"record","name":"Customer",'
        '"namespace":"shop","fields":[{"name":"address","type":{"type":"record","name":"Address","fields":'
        '[{"name":"street","type":"string"}]}}]}},{"name":"to","type":"shop.Address"}]}'
    )
    assert order.name == "Order"


def test_a_schema_can_be_the_name_of_a_reference() -> None:
    schema = parsed("shop.P", P | {"namespace": "shop"})
    assert (schema.canonical, schema.name) == ('"shop.P"', "shop.P")


def test_a_reference_may_be_given_twice_or_written_out() -> None:
    schema = parsed(record(field("p", P), field("q", "P")), P, P)
    assert (
        schema.canonical
        == '{"type":"record","name":"R","fields":[{"name":"p","type":"P"},{"name":"q","type":"P"}]}'
    )


def test_an_invalid_reference_is_named() -> None:
    with pytest.raises(InvalidSchema, match=r"^reference P: unknown type 'Q'.* \(at /fields/0/type\)$"):
        parsed("int", record(field("q", "Q"), name="P"))


def nested(levels: int) -> str:
    return (levels - 1) * '{"type":"array","items":' + '"int"' + (levels - 1) * "}"


def test_types_are_nested_only_so_deep() -> None:
    avro.parse(nested(MAX_DEPTH))
    with pytest.raises(InvalidSchema, match=f"types are nested more than {MAX_DEPTH} deep"):
        avro.parse(nested(MAX_DEPTH + 1))


HOSTILE = {
    "too long": ('"' + MAX_SCHEMA_BYTES * "é" + '"', "bytes; at most 1048576 are allowed"),
    "100,000 lists": (100_000 * "[", "nested too deeply"),
    "100,000 objects": (100_000 * '{"a":', "nested too deeply"),
    "deep property": ('{"type":"int","x":' + 200 * "[" + 200 * "]" + "}", "property x is nested more than"),
    "deep default": (
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":'
        + 200 * "["
        + 200 * "]"
        + "}]}",
        "default is nested more than",
    ),
    "unclosed comments": (100_000 * "/*", "invalid JSON"),
    "unclosed strings": ('/*"*/' + '"' + 100_000 * '\\"', "invalid JSON"),
    "long number": (5_000 * "1", "invalid JSON: Exceeds the limit"),
    "long name": ('"' + 100_000 * "a" + '"', "unknown type 'aaaaaaaa"),
    "digits and a letter": (
        json.dumps(record(field("a", "double", default=1_000_000 * "1" + "x"))),
        "is not a value of type double",
    ),
    "long namespace": (
        json.dumps(record(field("a", "int"), namespace=500_000 * "a.")),
        "name R has more than 1000 characters",
    ),
    "long alias": (
        json.dumps(record(field("a", "int"), aliases=[1_000 * "a." + "b"])),
        "name b has more than 1000 characters",
    ),
}


@pytest.mark.parametrize(("text", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidSchema, match=message) as error:
        avro.parse(text)
    assert len(str(error.value)) < 1_000


def test_work_on_defaults_is_bounded() -> None:
    """Every level of the default fits two records of the level above, and the innermost fits none."""
    branches = [record(field("f", ["null", "string"]), name="R0")]
    for level in range(1, 30):
        kinds = ["null", *(branch["name"] for branch in branches[-2:])]
        branches += [record(field("f", kinds), name=f"{side}{level}") for side in ("A", "B")]
    default: Any = 5
    for _ in range(30):
        default = {"f": default}
    with pytest.raises(InvalidSchema, match="defaults are too large to check"):
        parsed(
            record(
                field("types", ["null", *branches]),
                field("f", branches[-1]["name"], default=default),
                name="Z",
            )
        )


def test_names_that_are_written_out_make_no_text_of_any_length() -> None:
    """A type with the name of a kind is printed with its namespace wherever it is used."""
    kind = {"type": "fixed", "name": "map", "size": 1}
    uses = [field(f"f{index}", "map") for index in range(20_000)]
    schema = parsed(record(field("first", kind), *uses, namespace=900 * "n"))
    with pytest.raises(InvalidSchema, match="schema has more than 16777216 characters"):
        _ = schema.canonical


def test_long_chains_of_types_are_printed_without_recursion() -> None:
    links = [
        record(field("f", f"R{index - 1}") if index else field("f", "int"), name=f"R{index}")
        for index in range(2_000)
    ]
    schema = parsed("R1999", *links)
    assert schema.canonical == '"R1999"'
    assert schema.resolved.startswith(
        '{"type":"record","name":"R1999","fields":[{"name":"f","type":{"type":"record"'
    )


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(schemas())
def test_texts_identify_what_they_print(schema: Schema) -> None:
    first = avro.parse(json.dumps(schema))
    assert avro.parse(first.canonical).canonical == first.canonical
    assert avro.parse(first.canonical).normalized == first.normalized
    assert avro.parse(first.normalized).normalized == first.normalized
    assert avro.parse(json.dumps(json.loads(first.canonical), indent=1)).canonical == first.canonical
