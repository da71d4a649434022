"""Prints Avro types as the JSON that identifies a schema.

The canonical form is what Avro's Java library prints, because Confluent's registry compares schemas by it:
compact, the attributes in a fixed order, properties and documentation kept. The normalized form also removes
differences in the order of properties and aliases and in how defaults are written. Where Confluent's
normalization changes the meaning (it drops some defaults of unions and moves types out of the empty
namespace) this one does not.
"""

import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from math import isfinite, isinf, isnan
from typing import TypeAlias

from alpacamq.registry.schema import MAX_SCHEMA_BYTES, InvalidSchema

from .types import (
    Array,
    AvroType,
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
    logical_type,
)

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPES = {
    **{chr(code): f"\\u{code:04X}" for code in range(0x20)},
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_KIND_NAMES = frozenset(Kind)
# Of a text. Names can be longer there than where the schema was written.
MAX_PRINTED_CHARACTERS = 16 * MAX_SCHEMA_BYTES

# A text, or a type still to be printed within a namespace.
_Piece: TypeAlias = str | tuple[AvroType, str]


def canonical_text(root: AvroType, imported: Collection[str]) -> str:
    """Print a type. Types of other schemas, named in `imported`, are printed as their names."""
    return _Printer(imported).print(root)


def normalized_text(root: AvroType, imported: Collection[str]) -> str:
    """Print a type without differences that have no meaning."""
    return _NormalPrinter(imported).print(root)


class _Printer:
    """Prints the canonical form. Named types are defined where they occur first."""

    def __init__(self, imported: Collection[str]) -> None:
        self._defined = set(imported)

    def print(self, root: AvroType) -> str:
        # A stack instead of recursion: with the types of other schemas the nesting is not bounded.
        pieces: list[str] = []
        left = MAX_PRINTED_CHARACTERS
        stack: list[_Piece] = [(root, "")]
        while stack:
            piece = stack.pop()
            if isinstance(piece, str):
                pieces.append(piece)
                left -= len(piece)
                if left < 0:
                    raise InvalidSchema(f"schema has more than {MAX_PRINTED_CHARACTERS} characters")
            else:
                stack.extend(reversed(list(self._type(*piece))))
        return "".join(pieces)

    def _type(self, of: AvroType, namespace: str) -> Iterator[_Piece]:
        match of:
            case Primitive():
                name = quote(of.kind.value)
                properties = "".join(self._properties(of))
                yield f'{{"type":{name}{properties}}}' if properties else name
            case Array(items=items):
                yield '{"type":"array","items":'
                yield items, namespace
                yield from self._properties(of)
                yield "}"
            case Map(values=values):
                yield '{"type":"map","values":'
                yield values, namespace
                yield from self._properties(of)
                yield "}"
            case Union(branches=branches):
                for index, branch in enumerate(branches):
                    yield "," if index else "["
                    yield branch, namespace
                yield "]" if branches else "[]"
            case _:
                yield from self._named(of, namespace)

    def _named(self, of: Named, namespace: str) -> Iterator[_Piece]:
        if of.name.full in self._defined:
            yield quote(_relative(of.name, namespace))
            return
        self._defined.add(of.name.full)
        yield f'{{"type":{quote(self._kind(of))},"name":{quote(of.name.simple)}'
        if of.name.namespace != namespace:
            yield f',"namespace":{quote(of.name.namespace)}'
        if (doc := self._doc(of.doc)) is not None:
            yield f',"doc":{quote(doc)}'
        match of:
            case Record(fields=fields):
                yield ',"fields":['
                for index, field in enumerate(fields):
                    yield "," if index else ""
                    yield from self._field(field, of.name.namespace)
                yield "]"
            case Enum(symbols=symbols, default=default):
                yield f',"symbols":[{",".join(map(quote, symbols))}]'
                if default is not None:
                    yield f',"default":{quote(default)}'
            case Fixed(size=size):
                yield f',"size":{size}'
        yield from self._properties(of)
        if of.aliases:
            aliases = (_relative_alias(alias, of.name.namespace) for alias in self._aliases(of.aliases))
            yield f',"aliases":[{",".join(map(quote, aliases))}]'
        yield "}"

    def _field(self, field: Field, namespace: str) -> Iterator[_Piece]:
        yield f'{{"name":{quote(field.name)},"type":'
        yield field.type, namespace
        if field.doc is not None:
            yield f',"doc":{quote(field.doc)}'
        if field.default is not None:
            yield f',"default":{json_text(self._default(field.default.value, field.type))}'
        if field.order != "ascending":
            yield f',"order":{quote(field.order)}'
        if field.aliases:
            yield f',"aliases":[{",".join(map(quote, self._field_aliases(field.aliases)))}]'
        yield from self._properties(field)
        yield "}"

    def _properties(self, of: AvroType | Field) -> Iterator[str]:
        for key, value in of.properties.items():
            yield f",{quote(key)}:{json_text(value)}"

    def _kind(self, of: Named) -> str:
        return "error" if isinstance(of, Record) and of.is_error else of.kind.value

    def _doc(self, doc: str | None) -> str | None:
        return doc

    def _aliases(self, aliases: Sequence[Name]) -> Sequence[Name]:
        return aliases

    def _field_aliases(self, aliases: Sequence[str]) -> Sequence[str]:
        return aliases

    def _default(self, value: Json, of: AvroType) -> Json:  # noqa: ARG002 - the normalized form depends on the type
        return value


class _NormalPrinter(_Printer):
    """Prints the normalized form."""

    def _properties(self, of: AvroType | Field) -> Iterator[str]:
        properties = of.properties
        first: list[str] = []
        if not isinstance(of, Field) and (logical := logical_type(of)):
            first = ["logicalType"]
            if logical == "decimal":
                first += ["precision", "scale"] if properties.get("scale") else ["precision"]
        rest = sorted(properties.keys() - first, key=_sort_key)
        for key in (*first, *rest):
            yield f",{quote(key)}:{json_text(_sorted_json(properties[key]))}"

    def _kind(self, of: Named) -> str:
        return of.kind.value

    def _doc(self, doc: str | None) -> str | None:
        return doc or None

    def _aliases(self, aliases: Sequence[Name]) -> Sequence[Name]:
        return sorted(aliases, key=lambda alias: _sort_key(alias.full))

    def _field_aliases(self, aliases: Sequence[str]) -> Sequence[str]:
        return sorted(aliases, key=_sort_key)

    def _default(self, value: Json, of: AvroType) -> Json:
        return _sorted_json(_typed_default(value, of))


def _relative(name: Name, namespace: str) -> str:
    """Return the shortest text that refers to a type inside a namespace."""
    is_near = name.namespace and name.namespace == namespace and name.simple not in _KIND_NAMES
    return name.simple if is_near else name.full


def _relative_alias(alias: Name, namespace: str) -> str:
    if namespace and not alias.namespace:
        return f".{alias.simple}"  # without the dot the type's own namespace would be assumed
    return _relative(alias, namespace)


def _typed_default(value: Json, of: AvroType) -> Json:
    """Write the numbers of a default as their types do: 1 is 1.0 for a double."""
    if isinstance(of, Union):
        of = next((branch for branch in of.branches if _may_hold(branch, value)), of)
    match value, of:
        case bool(), _:
            return value
        case int() | float(), Primitive(kind=Kind.DOUBLE):
            return _double(value)
        case int() | float(), Primitive(kind=Kind.FLOAT):
            return _single(value)
        case list(), Array(items=items):
            return [_typed_default(each, items) for each in value]
        case dict(), Map(values=values):
            return {key: _typed_default(each, values) for key, each in value.items()}
        case dict(), Record():
            fields = of.fields_by_name
            return {
                key: _typed_default(each, fields[key].type) if key in fields else each
                for key, each in value.items()
            }
    return value


_HELD: Mapping[type, frozenset[Kind]] = {
    type(None): frozenset({Kind.NULL}),
    bool: frozenset({Kind.BOOLEAN}),
    int: frozenset({Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE}),
    float: frozenset({Kind.FLOAT, Kind.DOUBLE}),
    str: frozenset({Kind.STRING, Kind.BYTES, Kind.ENUM, Kind.FIXED}),
    list: frozenset({Kind.ARRAY}),
    dict: frozenset({Kind.MAP, Kind.RECORD}),
}


def _may_hold(of: AvroType, value: Json) -> bool:
    return of.kind in _HELD[type(value)]


def _double(value: float) -> float | int:
    try:
        return float(value)
    except OverflowError:
        return value


def _single(value: float) -> float | int:
    """Round to the shortest number with the same 32-bit float."""
    try:
        bits = struct.pack(">f", value)
    except OverflowError:
        return value
    if not isfinite(value):
        return value
    for digits in range(1, 10):
        shortest = float(f"{value:.{digits}g}")
        if struct.pack(">f", shortest) == bits:
            return shortest
    return float(value)


def _sorted_json(value: Json) -> Json:
    match value:
        case dict():
            return {key: _sorted_json(value[key]) for key in sorted(value, key=_sort_key)}
        case list():
            return [_sorted_json(each) for each in value]
    return value


def _sort_key(text: str) -> bytes:
    return text.encode("utf-16-be")  # Java's order of strings


def quote(text: str) -> str:
    """Write a JSON string with the escapes that Avro's Java library uses."""
    return f'"{_ESCAPED.sub(lambda match: _ESCAPES[match[0]], text)}"'


def json_text(value: Json) -> str:
    """Write compact JSON with the numbers that Avro's Java library writes."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _double_text(value)
        case str():
            return quote(value)
        case list():
            return f"[{','.join(map(json_text, value))}]"
        case dict():
            return f"{{{','.join(f'{quote(key)}:{json_text(each)}' for key, each in value.items())}}}"


def _double_text(value: float) -> str:
    if isnan(value):
        return '"NaN"'
    if isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    fraction = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{fraction}E{exponent + len(digits) - 1}"
