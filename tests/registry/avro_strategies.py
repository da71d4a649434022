"""Random Avro schemas, values of them, and schemas that evolved from them."""

import copy
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

# A JSON schema as Python values.
Schema = Any

PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
NUMBERS = ["int", "long", "float", "double"]
LOGICAL_TYPES = [
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-millis", "note": [1, {"b": 1.5, "a": None}]},
    {"type": "bytes", "scale": 2, "precision": 4, "logicalType": "decimal"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "string", "logicalType": "date"},
]
NAMESPACES = ["", "shop", "shop.orders"]
MAX_LEVELS = 3


class _Names:
    """The named types of one schema, by full name. Those that are not defined yet are open."""

    def __init__(self) -> None:
        self.defined: dict[str, Schema] = {}
        self.open: list[str] = []
        self.count = 0


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Draw a schema of which finite values exist."""
    return _type(draw, _Names(), namespace="", levels=0)


def _type(draw: st.DrawFn, names: _Names, namespace: str, levels: int, *, in_union: bool = False) -> Schema:
    kinds = ["primitive", "primitive", "logical"]
    if levels < MAX_LEVELS:
        kinds += ["record", "record", "enum", "fixed", "array", "map"]
        kinds += [] if in_union else ["union", "union"]
    usable = _usable(names.defined, namespace)
    if usable:
        kinds.append("reference")
    match draw(st.sampled_from(kinds)):
        case "primitive":
            primitive: str = draw(st.sampled_from(PRIMITIVES))
            return primitive
        case "logical":
            return copy.deepcopy(draw(st.sampled_from(LOGICAL_TYPES)))
        case "array":
            return {"type": "array", "items": _type_or_open(draw, names, namespace, levels + 1)}
        case "map":
            return {"type": "map", "values": _type_or_open(draw, names, namespace, levels + 1)}
        case "union":
            return _union(draw, names, namespace, levels)
        case "reference":
            return draw(st.sampled_from(usable))
        case kind:
            return _named(draw, names, namespace, levels, kind)


def _usable(names: Iterable[str], namespace: str) -> list[str]:
    """Return the names that can be written inside a namespace: not those of the empty one."""
    return [name for name in names if "." in name or not namespace]


def _type_or_open(
    draw: st.DrawFn, names: _Names, namespace: str, levels: int, *, in_union: bool = False
) -> Schema:
    usable = _usable(names.open, namespace)
    if draw(st.booleans()) and usable:
        return draw(st.sampled_from(usable))
    return _type(draw, names, namespace, levels, in_union=in_union)


def _union(draw: st.DrawFn, names: _Names, namespace: str, levels: int) -> Schema:
    branches: list[Schema] = []
    taken = {"null"}
    for _ in range(draw(st.integers(0, 3))):
        defined = dict(names.defined)
        branch = _type_or_open(draw, names, namespace, levels + 1, in_union=True)
        if _branch_name(branch, namespace) in taken:
            names.defined = defined  # the branch is dropped with what it defines
        else:
            taken.add(_branch_name(branch, namespace))
            branches.append(branch)
    # Values end at null. The others stay in order: types are defined before they are used.
    return draw(st.sampled_from([["null", *branches], [*branches, "null"]]))


def _branch_name(schema: Schema, namespace: str) -> str:
    if isinstance(schema, str):
        return schema
    return full_name(schema, namespace) if "name" in schema else schema["type"]


def full_name(schema: Schema, namespace: str) -> str:
    space = schema.get("namespace", namespace)
    return f"{space}.{schema['name']}" if space else schema["name"]


def _named(draw: st.DrawFn, names: _Names, namespace: str, levels: int, kind: str) -> Schema:
    names.count += 1
    schema: dict[str, Any] = {"type": kind, "name": f"{kind.title()}{names.count}"}
    if draw(st.booleans()):
        schema["namespace"] = draw(st.sampled_from(NAMESPACES))
    if draw(st.booleans()):
        schema["doc"] = draw(st.text(max_size=5))
        schema["extra"] = draw(
            st.one_of(
                st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
            )
        )
    own_namespace = schema.get("namespace", namespace)
    name = full_name(schema, namespace)
    match kind:
        case "enum":
            schema["symbols"] = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True))
            if draw(st.booleans()):
                schema["default"] = schema["symbols"][0]
        case "fixed":
            schema["size"] = draw(st.integers(0, 4))
        case "record":
            names.open.append(name)
            schema["fields"] = [
                _field(draw, names, own_namespace, levels, field)
                for field in draw(st.lists(st.sampled_from("abcde"), max_size=4, unique=True))
            ]
            names.open.remove(name)
    names.defined[name] = schema
    return schema


def _field(draw: st.DrawFn, names: _Names, namespace: str, levels: int, name: str) -> Schema:
    field = {"name": name, "type": _type(draw, names, namespace, levels + 1)}
    if draw(st.booleans()) and (default := DEFAULTS.get(str(field["type"]))) is not None:
        field["default"] = draw(st.sampled_from(default))
    elif isinstance(field["type"], list) and draw(st.booleans()):
        field["default"] = None
    if draw(st.integers(0, 4)) == 0:
        field |= {
            "aliases": draw(st.lists(st.sampled_from("xyz"), max_size=2)),
            "order": "ignore",
            "doc": "",
        }
    return field


DEFAULTS: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    "int": [0, -1, 2**31 - 1],
    "long": [0, 2**63 - 1, -(2**63)],
    "float": [0, 1, 0.1, 1.5e20, "NaN"],
    "double": [0, -2, 0.001, 1e7, 12345.678, 1.5e-9, "-Infinity"],
    "bytes": ["", "\u00ff"],
    "string": ["", "näh", '"\\\n\u0001'],
}


@st.composite
def schemas_with_values(draw: st.DrawFn) -> tuple[Schema, Any]:
    """Draw a schema and a value of it, with the branches of unions named."""
    schema = draw(schemas())
    return schema, draw(values(schema))


@st.composite
def values(draw: st.DrawFn, schema: Schema) -> Any:
    """Draw a value of a schema, as fastavro's writer takes it."""
    named: dict[str, tuple[Schema, str]] = {}
    _collect(schema, "", named)
    return _value(draw, schema, "", named, levels=0)


def _collect(schema: Schema, namespace: str, named: dict[str, tuple[Schema, str]]) -> None:
    match schema:
        case list():
            for branch in schema:
                _collect(branch, namespace, named)
        case {"type": "array", "items": part} | {"type": "map", "values": part}:
            _collect(part, namespace, named)
        case {"name": _}:
            own_namespace = schema.get("namespace", namespace)
            named[full_name(schema, namespace)] = schema, own_namespace
            for field in schema.get("fields", ()):
                _collect(field["type"], own_namespace, named)


def _value(
    draw: st.DrawFn, schema: Schema, namespace: str, named: dict[str, tuple[Schema, str]], levels: int
) -> Any:
    if isinstance(schema, str) and schema in named:
        schema, namespace = named[schema]
    match schema:
        case list():
            # Deep values end at null.
            branches = [each for each in schema if levels < 6 or each == "null"]
            branch = draw(st.sampled_from(branches))
            return _branch_name(branch, namespace), _value(draw, branch, namespace, named, levels + 1)
        case {"type": "array", "items": part}:
            size = draw(st.integers(0, 3 if levels < 6 else 0))
            return [_value(draw, part, namespace, named, levels + 1) for _ in range(size)]
        case {"type": "map", "values": part}:
            keys = draw(st.lists(st.text(max_size=3), max_size=3 if levels < 6 else 0))
            return {key: _value(draw, part, namespace, named, levels + 1) for key in keys}
        case {"type": "enum", "symbols": symbols}:
            return draw(st.sampled_from(symbols))
        case {"type": "fixed", "size": size}:
            return draw(st.binary(min_size=size, max_size=size))
        case {"type": "record", "fields": fields}:
            own_namespace = schema.get("namespace", namespace)
            return {
                each["name"]: _value(draw, each["type"], own_namespace, named, levels + 1) for each in fields
            }
        case {"type": kind}:
            return draw(_PRIMITIVE_VALUES[kind])
    return draw(_PRIMITIVE_VALUES[schema])


_PRIMITIVE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.text(max_size=5).map(str.encode),  # may be read as a string
    "string": st.text(max_size=5),
}


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Schema, Schema]:
    """Draw a schema and one with a few changes."""
    old = draw(schemas())
    new = copy.deepcopy(old)
    for _ in range(draw(st.integers(0, 3))):
        new = _changed(draw, new)
    return old, new


def _changed(draw: st.DrawFn, schema: Schema) -> Schema:
    """Change one place of a schema. The result may be invalid."""
    match schema:
        case str():
            change = draw(st.sampled_from(["type", "union"]))
            return draw(st.sampled_from(PRIMITIVES)) if change == "type" else ["null", schema]
        case list():
            match draw(st.sampled_from(["inside", "inside", "add", "remove"])):
                case "add":
                    return [*schema, draw(st.sampled_from(PRIMITIVES))]
                case "remove":
                    return schema[1:]
            if not schema:
                return schema
            index = draw(st.integers(0, len(schema) - 1))
            return [*schema[:index], _changed(draw, schema[index]), *schema[index + 1 :]]
        case {"type": "array"}:
            return schema | {"items": _changed(draw, schema["items"])}
        case {"type": "map"}:
            return schema | {"values": _changed(draw, schema["values"])}
        case {"name": name}:
            match draw(st.sampled_from(["inside", "inside", "inside", "rename", "alias", "namespace"])):
                case "rename":
                    return schema | {"name": f"{name}x"}
                case "alias":
                    return schema | {"name": f"{name}x", "aliases": [name]}
                case "namespace":
                    return schema | {"namespace": draw(st.sampled_from(NAMESPACES))}
            return _changed_definition(draw, schema)
    return draw(st.sampled_from([schema["type"], "string", ["null", schema]]))


def _changed_definition(draw: st.DrawFn, schema: Schema) -> Schema:
    if schema["type"] == "enum":
        symbols = draw(st.lists(st.sampled_from("ABCDE"), min_size=1, unique=True))
        changed = {key: value for key, value in schema.items() if key != "default"} | {"symbols": symbols}
        return changed | ({"default": symbols[0]} if draw(st.booleans()) else {})
    if schema["type"] == "fixed":
        return schema | {"size": schema["size"] + draw(st.integers(0, 1))}
    fields = list(schema["fields"])
    change = draw(st.sampled_from(["inside", "inside", "add", "remove", "rename"]))
    if change == "add" or not fields:
        kind = draw(st.sampled_from(PRIMITIVES))
        default = {"default": DEFAULTS[kind][0]} if draw(st.booleans()) else {}
        return schema | {"fields": [*fields, {"name": "new", "type": kind} | default]}
    index = draw(st.integers(0, len(fields) - 1))
    field = {key: value for key, value in fields[index].items() if key != "default"}
    match change:
        case "remove":
            return schema | {"fields": fields[:index] + fields[index + 1 :]}
        case "rename":
            alias = {"aliases": [field["name"]]} if draw(st.booleans()) else {}
            changed = field | {"name": "renamed"} | alias
        case _:
            changed = field | {"type": _changed(draw, field["type"])}
    return schema | {"fields": [*fields[:index], changed, *fields[index + 1 :]]}
