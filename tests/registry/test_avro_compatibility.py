"""The rules of Avro schema resolution, one row each, in both directions."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from alpacamq.registry import avro
from alpacamq.registry.avro import resolution

from .avro_strategies import Schema, schemas


def record(*fields: Schema, name: str = "R", **attributes: Any) -> Schema:
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def field(name: str, kind: Schema, **attributes: Any) -> Schema:
    return {"name": name, "type": kind, **attributes}


def enum(*symbols: str, name: str = "E", **attributes: Any) -> Schema:
    return {"type": "enum", "name": name, "symbols": list(symbols), **attributes}


def fixed(size: int, name: str = "F", **attributes: Any) -> Schema:
    return {"type": "fixed", "name": name, "size": size, **attributes}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def mapping(values: Schema) -> Schema:
    return {"type": "map", "values": values}


def linked_list(value: Schema) -> Schema:
    return record(field("value", value), field("next", ["null", "R"]))


def mismatch(path: str, writer: str, reader: str) -> str:
    return f"TYPE_MISMATCH {path}: data of type {writer} cannot be read as {reader}"


def missing_branch(path: str, branch: str) -> str:
    return f"MISSING_UNION_BRANCH {path}: no branch of the reader's union can read the writer's type {branch}"


def missing_default(path: str, name: str) -> str:
    rule = "READER_FIELD_MISSING_DEFAULT_VALUE"
    return f"{rule} {path}: field {name} has no default, and the writer's schema lacks it"


def other_name(path: str, kind: str, reader: str, writer: str) -> str:
    return f"NAME_MISMATCH {path}: {kind} {reader} has neither the name nor an alias of the writer's {writer}"


RULES = [
    pytest.param("string", "string", [], [], id="equal primitive types"),
    pytest.param("int", "long", [], [mismatch("/", "long", "int")], id="int is promoted to long"),
    pytest.param("int", "float", [], [mismatch("/", "float", "int")], id="int is promoted to float"),
    pytest.param("int", "double", [], [mismatch("/", "double", "int")], id="int is promoted to double"),
    pytest.param("long", "float", [], [mismatch("/", "float", "long")], id="long is promoted to float"),
    pytest.param("long", "double", [], [mismatch("/", "double", "long")], id="long is promoted to double"),
    pytest.param("float", "double", [], [mismatch("/", "double", "float")], id="float is promoted to double"),
    pytest.param("string", "bytes", [], [], id="string and bytes are promoted to each other"),
    pytest.param(
        "string",
        "int",
        [mismatch("/", "string", "int")],
        [mismatch("/", "int", "string")],
        id="string and int differ",
    ),
    pytest.param(
        "null",
        "boolean",
        [mismatch("/", "null", "boolean")],
        [mismatch("/", "boolean", "null")],
        id="null and boolean differ",
    ),
    pytest.param(
        fixed(4),
        "bytes",
        [mismatch("/", "fixed", "bytes")],
        [mismatch("/", "bytes", "fixed")],
        id="fixed and bytes differ",
    ),
    pytest.param(
        enum("A"),
        "string",
        [mismatch("/", "enum", "string")],
        [mismatch("/", "string", "enum")],
        id="enum and string differ",
    ),
    pytest.param(
        record(),
        mapping("int"),
        [mismatch("/", "record", "map")],
        [mismatch("/", "map", "record")],
        id="record and map differ",
    ),
    pytest.param(
        array("int"), array("long"), [], [mismatch("/items", "long", "int")], id="items are compared"
    ),
    pytest.param(
        mapping("int"),
        mapping("long"),
        [],
        [mismatch("/values", "long", "int")],
        id="map values are compared",
    ),
    pytest.param(
        array("int"),
        mapping("int"),
        [mismatch("/", "array", "map")],
        [mismatch("/", "map", "array")],
        id="array and map differ",
    ),
    pytest.param(
        record(field("a", "int")),
        record(field("a", "int"), field("b", "int", default=0)),
        [],
        [],
        id="a field with a default is added",
    ),
    pytest.param(
        record(field("a", "int")),
        record(field("a", "int"), field("b", "int")),
        [missing_default("/fields/1", "b")],
        [],
        id="a field without a default is added",
    ),
    pytest.param(
        record(),
        record(field("e", enum("A", default="A"))),
        [missing_default("/fields/0", "e")],
        [],
        id="the default of an enum is no default of a field",
    ),
    pytest.param(
        record(field("a", "int"), field("b", "string")),
        record(field("b", "string"), field("a", "int")),
        [],
        [],
        id="fields change their order",
    ),
    pytest.param(
        record(field("a", "int")),
        record(field("b", "int")),
        [missing_default("/fields/0", "b")],
        [missing_default("/fields/0", "a")],
        id="a field is renamed",
    ),
    pytest.param(
        record(field("a", "int")),
        record(field("b", "int", aliases=["a"])),
        [],
        [missing_default("/fields/0", "a")],
        id="a field is renamed with an alias",
    ),
    pytest.param(
        record(field("a", "int"), field("b", "int")),
        record(field("b", "int", aliases=["a"])),
        [
            "NAME_MISMATCH /fields/0: field b and its aliases match several fields of the writer: b and a",
        ],
        [missing_default("/fields/0", "a")],
        id="an alias is ambiguous",
    ),
    pytest.param(
        record(field("a", "int")),
        record(field("a", "string")),
        [mismatch("/fields/0/type", "int", "string")],
        [mismatch("/fields/0/type", "string", "int")],
        id="a field changes its type",
    ),
    pytest.param(
        record(name="R", namespace="x"),
        record(name="S", namespace="x"),
        [other_name("/name", "record", "x.S", "x.R")],
        [other_name("/name", "record", "x.R", "x.S")],
        id="a record is renamed",
    ),
    pytest.param(
        record(name="R", namespace="x"),
        record(name="S", namespace="x", aliases=["R"]),
        [],
        [other_name("/name", "record", "x.R", "x.S")],
        id="a record is renamed with an alias",
    ),
    pytest.param(
        record(name="R", namespace="x"),
        record(name="S", namespace="y", aliases=["R"]),
        [other_name("/name", "record", "y.S", "x.R")],
        [other_name("/name", "record", "x.R", "y.S")],
        id="an alias has the namespace of its record",
    ),
    pytest.param(
        record(name="R", namespace="x"), record(name="R", namespace="y"), [], [], id="namespaces do not count"
    ),
    pytest.param(
        record(field("a", "int"), name="R"),
        record(field("a", "string"), name="S"),
        [other_name("/name", "record", "S", "R"), mismatch("/fields/0/type", "int", "string")],
        [other_name("/name", "record", "R", "S"), mismatch("/fields/0/type", "string", "int")],
        id="every difference is reported",
    ),
    pytest.param({"type": "error", "name": "R", "fields": []}, record(), [], [], id="errors are records"),
    pytest.param(
        enum("A"),
        enum("A", "B"),
        [],
        ["MISSING_ENUM_SYMBOLS /symbols: enum E has no default and lacks symbols of the writer: B"],
        id="a symbol is added",
    ),
    pytest.param(enum("A", default="A"), enum("A", "B"), [], [], id="the default stands for unknown symbols"),
    pytest.param(
        enum("A", name="E"),
        enum("A", name="G"),
        [other_name("/name", "enum", "G", "E")],
        [other_name("/name", "enum", "E", "G")],
        id="an enum is renamed",
    ),
    pytest.param(
        fixed(4),
        fixed(8),
        ["FIXED_SIZE_MISMATCH /size: fixed type F has 8 bytes; the writer's has 4"],
        ["FIXED_SIZE_MISMATCH /size: fixed type F has 4 bytes; the writer's has 8"],
        id="a fixed type changes its size",
    ),
    pytest.param(
        fixed(4, name="F"),
        fixed(4, name="G", aliases=["F"]),
        [],
        [other_name("/name", "fixed", "F", "G")],
        id="a fixed type is renamed with an alias",
    ),
    pytest.param("int", ["null", "int"], [], [mismatch("/0", "null", "int")], id="a type becomes optional"),
    pytest.param(
        "string",
        ["null", "int"],
        [missing_branch("/", "string")],
        [
            mismatch("/0", "null", "string"),
            mismatch("/1", "int", "string"),
        ],
        id="a type becomes a union without it",
    ),
    pytest.param(
        "int",
        ["null", "long"],
        [],
        [
            mismatch("/0", "null", "int"),
            mismatch("/1", "long", "int"),
        ],
        id="a type is promoted into a union",
    ),
    pytest.param(
        ["null", "int"],
        ["null", "int", "string"],
        [],
        [missing_branch("/2", "string")],
        id="a branch is added",
    ),
    pytest.param(["int", "null"], ["null", "int"], [], [], id="branches change their order"),
    pytest.param(["int"], "int", [], [], id="a union of one type"),
    pytest.param([], "int", [], [missing_branch("/", "int")], id="an empty union has no data"),
    pytest.param(
        ["null", record(field("a", "int"))],
        ["null", record(field("a", "string"))],
        [missing_branch("/1", "record R")],
        [missing_branch("/1", "record R")],
        id="a branch changes",
    ),
    pytest.param(
        ["null", record(name="R")],
        ["null", record(name="S"), record(name="Q", aliases=["R"])],
        [],
        [missing_branch("/1", "record S"), missing_branch("/2", "record Q")],
        id="branches match by alias",
    ),
    pytest.param(
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
        [],
        [],
        id="logical types do not count",
    ),
    pytest.param(
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        [],
        [mismatch("/", "long", "int")],
        id="types below logical types count",
    ),
    pytest.param(
        linked_list("int"),
        linked_list("long"),
        [],
        [mismatch("/fields/0/type", "long", "int")],
        id="recursive types",
    ),
    pytest.param(
        record(field("value", "long"), field("next", "R")),
        linked_list("int"),
        [mismatch("/fields/0/type", "long", "int")],
        [mismatch("/fields/1/type/0", "null", "record")],
        id="recursive types, one of them in a union",
    ),
    pytest.param(
        record(field("a", array(["null", record(field("b", mapping("int")), name="S")]))),
        record(field("a", array(["null", record(field("b", mapping("long")), name="S")]))),
        [],
        [missing_branch("/fields/0/type/items/1", "record S")],
        id="unions hide the differences inside them",
    ),
    pytest.param(
        record(field("a", array(record(field("b", mapping("int")), name="S")))),
        record(field("a", array(record(field("b", mapping("long")), name="S")))),
        [],
        [mismatch("/fields/0/type/items/fields/0/type/values", "long", "int")],
        id="nested differences",
    ),
]


@pytest.mark.parametrize(("old", "new", "backward", "forward"), RULES)
def test_resolution_rules(old: Schema, new: Schema, backward: list[str], forward: list[str]) -> None:
    assert differences(reader=new, writer=old) == backward
    assert differences(reader=old, writer=new) == forward


def differences(reader: Schema, writer: Schema) -> list[str]:
    found = avro.parse(json.dumps(reader)).incompatibilities(avro.parse(json.dumps(writer)))
    return [f"{each.rule} {each.path}: {each.message}" for each in found]


def test_a_pair_of_types_is_reported_once() -> None:
    old = record(field("a", record(field("x", "int"), name="P")), field("b", "P"))
    new = record(field("a", record(field("x", "string"), name="P")), field("b", "P"))
    assert differences(reader=new, writer=old) == [mismatch("/fields/0/type/fields/0/type", "int", "string")]


def test_an_assumption_about_a_recursive_type_is_withdrawn_for_other_branches() -> None:
    """The first branch fails after its part was found compatible by assuming that the branch is."""

    def schema(kind: str) -> Schema:
        inner = record(field("outer", ["null", "x.A"]), name="P", namespace="x")
        outer = record(field("p", inner), field("q", kind), name="A", namespace="x")
        other = record(field("p", "x.P"), name="A", namespace="y")
        return record(field("u", [outer, other]))

    writer = record(field("u", schema("int")["fields"][0]["type"][0]))
    assert differences(reader=schema("string"), writer=writer) == [
        missing_branch("/fields/0/type", "record x.A"),
    ]


def test_reports_are_bounded() -> None:
    old = record(*(field(f"f{index}", "int") for index in range(200)))
    new = record(*(field(f"f{index}", "string") for index in range(200)))
    assert len(differences(reader=new, writer=old)) == resolution.MAX_REPORTED


def test_comparisons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cycles of types whose lengths have no common divisor meet in every combination."""

    def cycle(length: int) -> Schema:
        records = [record(field("next", f"R{index - 1}"), name=f"R{index}") for index in range(1, length)]
        return record(field("more", ["null", *records]), field("next", f"R{length - 1}"), name="R0")

    monkeypatch.setattr(resolution, "MAX_COMPARISONS", 5_000)
    assert differences(reader=cycle(100), writer=cycle(101)) == [
        "TOO_COMPLEX /: the schemas are too large to compare: more than 5000 comparisons"
    ]
    assert differences(reader=cycle(100), writer=cycle(100)) == []


def test_long_chains_of_types_are_compared_without_recursion() -> None:
    def chain(owner: str, kind: str) -> Schema:
        records = [record(field("f", kind), name="R0")]
        records += [record(field("f", f"R{index - 1}"), name=f"R{index}") for index in range(1, 2_000)]
        links = field(f"links_of_{owner}", ["null", *records], default=None)
        return record(links, field("last", "R1999"))

    (found,) = differences(reader=chain("reader", "string"), writer=chain("writer", "int"))
    assert found == mismatch("/fields/1/type" + 2_000 * "/fields/0/type", "int", "string")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(schemas())
def test_a_schema_can_read_itself(schema: Schema) -> None:
    parsed = avro.parse(json.dumps(schema))
    assert parsed.incompatibilities(avro.parse(parsed.canonical)) == []
    assert parsed.incompatibilities(avro.parse(parsed.normalized)) == []
