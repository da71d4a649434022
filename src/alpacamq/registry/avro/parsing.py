"""Parses the JSON text of Avro schemas.

Accepts what Avro's Java library accepts with strict names, except forward references, which the specification
forbids. Defaults are checked in full: Java also takes symbols that an enum lacks and fixed values of another
size. The text comes from strangers: nesting and the work on defaults are bounded.
"""

import json
import re
from collections.abc import Collection, Sequence
from math import isfinite
from typing import NamedTuple, NoReturn, TypeGuard, TypeVar

from alpacamq.registry.schema import MAX_DEPTH, MAX_SCHEMA_BYTES, Dependency, InvalidSchema

from .types import (
    MAX_INT,
    MAX_LONG,
    PRIMITIVES,
    Array,
    AvroType,
    Default,
    Enum,
    Field,
    Fixed,
    Json,
    Kind,
    Map,
    Name,
    Named,
    Primitive,
    Record,
    Union,
    excerpt,
)

# Avro's Java library cannot allocate more.
MAX_FIXED_SIZE = MAX_INT - 8
# Comparisons of a default with a type. Unions of recursive types could make them exponential.
MAX_DEFAULT_CHECKS = 200_000
# Of a full name. Every type in a namespace repeats it, in memory and where the schema is printed.
MAX_NAME_CHARACTERS = 1000

_TYPE_ATTRIBUTES = frozenset(
    {"type", "name", "namespace", "doc", "aliases", "fields", "symbols", "items", "values", "size"}
)
_ENUM_ATTRIBUTES = _TYPE_ATTRIBUTES | {"default"}
_FIELD_ATTRIBUTES = frozenset({"name", "type", "doc", "aliases", "default", "order"})
_ORDERS = ("ascending", "descending", "ignore")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
# A string or comment without an end reaches to the end of the text: no text is scanned twice.
_STRING_OR_COMMENT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z|\\\Z)|/\*.*?(?:\*/|\Z)|//[^\n]*', re.DOTALL)
_JSON_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NUMBER = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]+)?)")

N = TypeVar("N", Record, Enum, Fixed)


class Parsed(NamedTuple):
    """The type of a schema's text, and the full names that its dependencies define."""

    root: AvroType
    imported: Collection[str]


def parse_text(text: str, dependencies: Sequence[Dependency] = ()) -> Parsed:
    """Parse a schema with the named types of its dependencies."""
    names: dict[str, Named] = {}
    for dependency in dependencies:
        try:
            _Parser(names).parse(load_json(dependency.text))
        except InvalidSchema as error:
            raise InvalidSchema(f"reference {excerpt(dependency.name)}: {error}") from None
    imported = frozenset(names)
    return Parsed(_Parser(names).parse(load_json(text)), imported)


def load_json(text: str) -> Json:
    """Read JSON with comments, as Avro's Java library does."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidSchema("schema contains half of a surrogate pair") from None
    if size > MAX_SCHEMA_BYTES:
        raise InvalidSchema(f"schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are allowed")
    if "//" in text or "/*" in text:
        text = _STRING_OR_COMMENT.sub(_blank_comment, text)
    try:
        value: Json = json.loads(text, parse_float=_finite, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        reason = f"invalid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise InvalidSchema(reason) from None
    except RecursionError:
        raise InvalidSchema("JSON is nested too deeply") from None
    except ValueError as error:
        raise InvalidSchema(f"invalid JSON: {error}") from None
    if _JSON_SURROGATE.search(text):
        _refuse_half_surrogates(value)
    return value


def _blank_comment(match: re.Match[str]) -> str:
    found = match[0]
    if found[0] == '"':
        return found
    # Keeps lines and columns of what follows.
    return "\n".join(len(line) * " " for line in found.split("\n"))


def _finite(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError(f"number {excerpt(digits, 40)} is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _refuse_half_surrogates(value: Json) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidSchema("schema contains half of a surrogate pair") from None
    except RecursionError:
        raise InvalidSchema("JSON is nested too deeply") from None


def _is_nested_deeper(value: Json, limit: int) -> bool:
    level: list[Json] = [value]
    for _ in range(limit + 1):
        containers = [each for each in level if isinstance(each, dict | list)]
        if not containers:
            return False
        level = [part for each in containers for part in (each.values() if isinstance(each, dict) else each)]
    return True


class _Path(list[str]):
    """The place of the parser in the schema. As a context manager it leaves the last step."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self.pop()


class _Parser:
    """Parses the types of one text. `names` holds the types of earlier texts and receives the new ones."""

    def __init__(self, names: dict[str, Named]) -> None:
        self._names = names
        self._path = _Path()
        self._depth = 0
        self._default_checks = 0

    def parse(self, node: Json) -> AvroType:
        return self._type(node, namespace="")

    def _fail(self, reason: str) -> NoReturn:
        raise InvalidSchema(f"{reason} (at /{'/'.join(self._path)})")

    def _at(self, step: str) -> "_Path":
        self._path.append(step)
        return self._path

    def _type(self, node: Json, namespace: str) -> AvroType:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"types are nested more than {MAX_DEPTH} deep")
        match node:
            case str():
                found = self._reference(node, namespace)
            case dict():
                found = self._complex(node, namespace)
            case list():
                found = self._union(node, namespace)
            case _:
                self._fail(f"a type is a name, an object or a list, not {excerpt(json.dumps(node))}")
        self._depth -= 1
        return found

    def _reference(self, name: str, namespace: str) -> AvroType:
        if (kind := PRIMITIVES.get(name)) is not None:
            return Primitive(kind, {})
        found = None
        if namespace and "." not in name:
            found = self._names.get(f"{namespace}.{name}")
        found = found or self._names.get(name)
        if found is None:
            self._fail(f"unknown type {excerpt(name)!r}: types must be defined before they are used")
        return found

    def _complex(self, node: dict[str, Json], namespace: str) -> AvroType:
        kind = node.get("type")
        if not isinstance(kind, str):
            self._fail("missing type: expected a name under 'type'")
        match kind:
            case "record" | "error":
                return self._record(node, namespace)
            case "enum":
                return self._enum(node, namespace)
            case "fixed":
                return self._fixed(node, namespace)
            case "array":
                items = self._part(node, "items", namespace)
                return Array(items, self._properties(node, _TYPE_ATTRIBUTES))
            case "map":
                values = self._part(node, "values", namespace)
                return Map(values, self._properties(node, _TYPE_ATTRIBUTES))
        if kind in PRIMITIVES:
            return Primitive(PRIMITIVES[kind], self._properties(node, _TYPE_ATTRIBUTES))
        with self._at("type"):
            return self._reference(kind, namespace)

    def _part(self, node: dict[str, Json], attribute: str, namespace: str) -> AvroType:
        if attribute not in node:
            self._fail(f"missing {attribute!r} of {node['type']} type")
        with self._at(attribute):
            return self._type(node[attribute], namespace)

    def _union(self, nodes: list[Json], namespace: str) -> AvroType:
        branches: list[AvroType] = []
        names: set[str] = set()
        for index, node in enumerate(nodes):
            with self._at(str(index)):
                branch = self._type(node, namespace)
                if isinstance(branch, Union):
                    self._fail("a union cannot contain a union")
                name = branch.name.full if isinstance(branch, Record | Enum | Fixed) else branch.kind.value
                if name in names:
                    self._fail(f"type {excerpt(name)} occurs twice in the union")
            names.add(name)
            branches.append(branch)
        return Union(branches)

    def _record(self, node: dict[str, Json], namespace: str) -> Record:
        name = self._name(node, namespace)
        record = Record(
            name=name,
            aliases=self._aliases(node, name.namespace),
            doc=_text(node, "doc"),
            is_error=node["type"] == "error",
            properties=self._properties(node, _TYPE_ATTRIBUTES),
        )
        nodes = node.get("fields")
        if not isinstance(nodes, list):
            self._fail("a record needs a list of 'fields'")
        # Uses inside a second definition refer to the first, so that equal definitions have equal parts.
        self._names.setdefault(name.full, record)
        fields: dict[str, Field] = {}
        for index, each in enumerate(nodes):
            with self._at(f"fields/{index}"):
                parsed = self._field(each, name.namespace)
                if parsed.name in fields:
                    self._fail(f"field {excerpt(parsed.name)} occurs twice in the record")
            fields[parsed.name] = parsed
        record.complete(list(fields.values()))
        return self._define(record)

    def _field(self, node: Json, namespace: str) -> Field:
        if not isinstance(node, dict):
            self._fail("a field is an object")
        name = node.get("name")
        if not isinstance(name, str):
            self._fail("missing 'name' of a field")
        with self._at("name"):
            self._check_name(name)
        if "type" not in node:
            self._fail(f"missing 'type' of field {excerpt(name)}")
        with self._at("type"):
            field_type = self._type(node["type"], namespace)
        order = node.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            self._fail(f"'order' must be one of {', '.join(_ORDERS)}")
        return Field(
            name=name,
            type=field_type,
            aliases=self._alias_texts(node),
            doc=_text(node, "doc"),
            default=self._default(node, field_type),
            order=order.lower(),
            properties=self._properties(node, _FIELD_ATTRIBUTES),
        )

    def _enum(self, node: dict[str, Json], namespace: str) -> Enum:
        name = self._name(node, namespace)
        nodes = node.get("symbols")
        if not isinstance(nodes, list):
            self._fail("an enum needs a list of 'symbols'")
        symbols: dict[str, None] = {}
        for index, symbol in enumerate(nodes):
            with self._at(f"symbols/{index}"):
                if not isinstance(symbol, str):
                    self._fail("a symbol is a string")
                self._check_name(symbol)
                if symbol in symbols:
                    self._fail(f"symbol {excerpt(symbol)} occurs twice in the enum")
            symbols[symbol] = None
        default = node.get("default")
        if default is not None and (not isinstance(default, str) or default not in symbols):
            with self._at("default"):
                self._fail(f"default {excerpt(json.dumps(default))} is not a symbol of the enum")
        enum = Enum(
            name=name,
            aliases=self._aliases(node, name.namespace),
            doc=_text(node, "doc"),
            symbols=list(symbols),
            default=default,
            properties=self._properties(node, _ENUM_ATTRIBUTES),
        )
        return self._define(enum)

    def _fixed(self, node: dict[str, Json], namespace: str) -> Fixed:
        name = self._name(node, namespace)
        size = node.get("size")
        # In JSON true is no number, in Python it is.
        if type(size) is not int or not 0 <= size <= MAX_FIXED_SIZE:
            self._fail(f"a fixed type needs a 'size' from 0 to {MAX_FIXED_SIZE}")
        fixed = Fixed(
            name=name,
            aliases=self._aliases(node, name.namespace),
            doc=_text(node, "doc"),
            size=size,
            properties=self._properties(node, _TYPE_ATTRIBUTES),
        )
        return self._define(fixed)

    def _define(self, named: N) -> N:
        """Register a named type. A second definition counts as a use of the first if it says the same."""
        first = self._names.setdefault(named.name.full, named)
        if first is named:
            return named
        if type(first) is not type(named) or not _say_the_same(first, named):
            self._fail(f"type {excerpt(named.name.full)} is defined twice")
        return first

    def _name(self, node: dict[str, Json], namespace: str) -> Name:
        text = node.get("name")
        if not isinstance(text, str):
            self._fail(f"missing 'name' of {node['type']}")
        own_namespace = _text(node, "namespace")
        name = _qualify(text, namespace if own_namespace is None else own_namespace)
        with self._at("name"):
            self._check_name(name.simple)
            self._check_length(name)
            if not name.namespace and name.simple in PRIMITIVES:
                self._fail(f"{name.simple} is the name of a primitive type")
        if name.namespace and not _NAMESPACE.fullmatch(name.namespace):
            with self._at("name" if "." in text else "namespace"):
                for part in name.namespace.split("."):
                    self._check_name(part)
        return name

    def _check_length(self, name: Name) -> None:
        if len(name.namespace) + len(name.simple) > MAX_NAME_CHARACTERS:
            self._fail(f"name {excerpt(name.simple)} has more than {MAX_NAME_CHARACTERS} characters")

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            self._fail(f"invalid name {excerpt(name)!r}: only A-Z, a-z, 0-9 and _, and no digit first")

    def _aliases(self, node: dict[str, Json], namespace: str) -> list[Name]:
        aliases: dict[Name, None] = {}
        for text in self._alias_texts(node):
            alias = _qualify(text, namespace)
            with self._at("aliases"):
                self._check_name(alias.simple)
                self._check_length(alias)
            aliases[alias] = None
        return list(aliases)

    def _alias_texts(self, node: dict[str, Json]) -> list[str]:
        nodes = node.get("aliases", [])
        if not isinstance(nodes, list):
            self._fail("'aliases' is a list of strings")
        texts: dict[str, None] = {}
        for each in nodes:
            if not isinstance(each, str):
                self._fail("'aliases' is a list of strings")
            texts[each] = None
        return list(texts)

    def _properties(self, node: dict[str, Json], reserved: Collection[str]) -> dict[str, Json]:
        properties = {key: value for key, value in node.items() if key not in reserved}
        for key, value in properties.items():
            if isinstance(value, dict | list) and _is_nested_deeper(value, MAX_DEPTH):
                self._fail(f"property {excerpt(key)} is nested more than {MAX_DEPTH} deep")
        return properties

    def _default(self, node: dict[str, Json], field_type: AvroType) -> Default | None:
        if "default" not in node:
            return None
        value = node["default"]
        if (
            field_type.kind in (Kind.FLOAT, Kind.DOUBLE)
            and isinstance(value, str)
            and _NUMBER.fullmatch(value)
        ):
            value = float(value)
        with self._at("default"):
            if _is_nested_deeper(value, MAX_DEPTH):
                self._fail(f"default is nested more than {MAX_DEPTH} deep")
            if not self._is_value(value, field_type):
                shown = excerpt(json.dumps(value, ensure_ascii=False))
                self._fail(f"default {shown} is not a value of type {_shown_type(field_type)}")
        return Default(value)

    def _is_value(self, value: Json, of: AvroType) -> bool:
        """Return whether a JSON value is one of a type, as defaults write them."""
        self._default_checks += 1
        if self._default_checks > MAX_DEFAULT_CHECKS:
            self._fail("defaults are too large to check")
        match of:
            case Primitive(kind=kind):
                return _is_primitive_value(value, kind)
            case Fixed(size=size):
                return _is_byte_string(value) and len(value) == size
            case Enum():
                return isinstance(value, str) and value in of.symbol_set
            case Array(items=items):
                return isinstance(value, list) and all(self._is_value(each, items) for each in value)
            case Map(values=values):
                return isinstance(value, dict) and all(
                    self._is_value(each, values) for each in value.values()
                )
            case Union(branches=branches):
                return any(self._is_value(value, branch) for branch in branches)
        if not isinstance(value, dict):
            return False
        if not of.is_complete:
            self._fail(f"default contains record {excerpt(of.name.full)}, whose definition has not ended")
        # Defaults of the record's own fields have been checked with these.
        return all(
            self._is_value(value[each.name], each.type) if each.name in value else each.default is not None
            for each in of.fields
        )


def _text(node: dict[str, Json], attribute: str) -> str | None:
    value = node.get(attribute)
    return value if isinstance(value, str) else None


def _qualify(text: str, namespace: str) -> Name:
    before, dot, simple = text.rpartition(".")
    return Name(before if dot else namespace, simple)


def _is_primitive_value(value: Json, kind: Kind) -> bool:
    match kind:
        case Kind.NULL:
            return value is None
        case Kind.BOOLEAN:
            return isinstance(value, bool)
        case Kind.INT:
            return type(value) is int and -MAX_INT - 1 <= value <= MAX_INT
        case Kind.LONG:
            return type(value) is int and -MAX_LONG - 1 <= value <= MAX_LONG
        case Kind.FLOAT | Kind.DOUBLE:
            return isinstance(value, int | float) and not isinstance(value, bool)
        case Kind.BYTES:
            return _is_byte_string(value)
    return isinstance(value, str)


def _is_byte_string(value: Json) -> TypeGuard[str]:
    return isinstance(value, str) and (value.isascii() or max(value) <= "\u00ff")


def _shown_type(of: AvroType) -> str:
    if isinstance(of, Union):
        return excerpt(f"[{', '.join(_shown_type(branch) for branch in of.branches[:10])}]")
    return excerpt(of.name.full) if isinstance(of, Record | Enum | Fixed) else of.kind.value


def _say_the_same(first: AvroType, second: AvroType) -> bool:
    """Compare types as Avro's Java library does: without documentation and aliases."""
    if first is second:
        return True
    if not _is_same_json(dict(first.properties), dict(second.properties)):
        return False
    match first, second:
        case Primitive(), Primitive():
            return first.kind is second.kind
        case Array(), Array():
            return _say_the_same(first.items, second.items)
        case Map(), Map():
            return _say_the_same(first.values, second.values)
        case Union(), Union():
            return len(first.branches) == len(second.branches) and all(
                map(_say_the_same, first.branches, second.branches)
            )
        case Enum(), Enum():
            return first.name == second.name and first.symbols == second.symbols
        case Fixed(), Fixed():
            return first.name == second.name and first.size == second.size
        case Record(), Record():
            return (
                first.name == second.name
                and first.is_complete
                and len(first.fields) == len(second.fields)
                and all(map(_is_same_field, first.fields, second.fields))
            )
    return False


def _is_same_field(first: Field, second: Field) -> bool:
    return (
        first.name == second.name
        and first.order == second.order
        and (first.default is None) == (second.default is None)
        and _is_same_json(first.default and first.default.value, second.default and second.default.value)
        and _is_same_json(dict(first.properties), dict(second.properties))
        and _say_the_same(first.type, second.type)
    )


def _is_same_json(first: Json, second: Json) -> bool:
    # Not ==: Python takes 1, 1.0 and true for equal.
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
