"""Describes values of a JSON schema.

Objects, lists, maps and simple types become columns. What JSON Schema can say and Spark cannot, such as a
choice between types or a tuple, is JSON text, and so is a schema inside itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from pyspark.sql.types import BooleanType, DateType, DoubleType, LongType, StringType, TimestampType

from alpacamq.registry.json_schema.documents import Documents

from .layout import (
    JSON_TEXT,
    MAX_DEPTH,
    Growth,
    Layout,
    Leaf,
    List,
    Map,
    Misfit,
    a_list,
    an_object,
    as_text,
)

_MAX_PARTS = 1000
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


def json_layout(documents: Documents) -> Layout:
    """Return the layout of the values of a schema. Raises UnusableSchema."""
    return _Builder(documents).build()


class _Builder:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._growth = Growth()

    def build(self) -> Layout:
        return self._layout(self._documents.main.root, "", ())

    def _layout(self, schema: Any, path: str, outer: Sequence[int]) -> Layout:
        """Return the layout of a schema; `outer` are the schemas around it."""
        parts: list[Mapping[str, Any]] = []
        for part in self._parts(schema):
            if id(part) in outer or len(parts) > _MAX_PARTS:
                return self._growth.leaf(JSON_TEXT)
            parts.append(part)
        if len(outer) > MAX_DEPTH * 4:
            return self._growth.leaf(JSON_TEXT)
        inner = (*outer, *(id(each) for each in parts))
        kinds = _kinds(parts)
        if kinds == {"object"}:
            return self._object(parts, path, inner)
        if kinds == {"array"}:
            items = next((each["items"] for each in parts if "items" in each), None)
            if isinstance(items, dict) and not any("prefixItems" in each for each in parts):
                return List(self._layout(items, f"{path}[]", inner), a_list)
        if len(kinds) == 1:
            return self._growth.leaf(_leaf(kinds.pop(), parts))
        return self._growth.leaf(JSON_TEXT)

    def _parts(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that apply to the same value: references, allOf, the only choice beside null."""
        pending = [schema]
        seen: set[int] = set()
        while pending:
            part = pending.pop()
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            place = self._documents.place(part)
            if isinstance(uri := part.get("$ref"), str):
                pending.append(self._documents.resolve(uri, place).schema)
                if not place.document.draft.is_modern:
                    continue
            yield part
            if isinstance(every := part.get("allOf"), list):
                pending.extend(reversed(every))
            for word in ("anyOf", "oneOf"):
                if isinstance(choices := part.get(word), list):
                    some = [each for each in choices if not _is_null(each)]
                    if len(some) == 1:
                        pending.append(some[0])

    def _object(self, parts: Sequence[Mapping[str, Any]], path: str, outer: Sequence[int]) -> Layout:
        fields: dict[str, Layout] = {}
        for part in parts:
            for name, inner in _properties(part).items():
                if name not in fields and inner is not False:
                    fields[name] = self._layout(inner, f"{path}.{name}", outer)
        if not fields:
            values = [each["additionalProperties"] for each in parts if "additionalProperties" in each]
            if len(values) == 1 and isinstance(values[0], dict):
                return Map(self._layout(values[0], f"{path}[]", outer), an_object)
        required = frozenset(name for part in parts for name in _required(part) if name in fields)
        return self._growth.object(fields, path.lstrip("."), required=required)


def _properties(part: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = part.get("properties")
    return properties if isinstance(properties, dict) else {}


def _required(part: Mapping[str, Any]) -> Sequence[str]:
    required = part.get("required")
    return [each for each in required if isinstance(each, str)] if isinstance(required, list) else []


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and (schema.get("type") == "null" or schema.get("const", 0) is None)


def _kinds(parts: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the types that a value can have besides null; none if that is not said."""
    kinds: set[str] = set()
    for part in parts:
        given = part.get("type")
        named = {given} if isinstance(given, str) else set(given) if isinstance(given, list) else set()
        named -= {"null"}
        if not named and _properties(part):
            named = {"object"}
        if not named and isinstance(values := part.get("enum"), list) and values:
            named = {"string"} if all(isinstance(each, str | None) for each in values) else set()
        kinds = kinds & named if kinds and named else kinds or named
        if isinstance(part.get("const"), str):
            kinds = kinds or {"string"}
        if any(isinstance(part.get(word), list) and _is_choice(part[word]) for word in ("anyOf", "oneOf")):
            # Objects may have further fields in each choice, other values another type.
            kinds = kinds if kinds == {"object"} else {*kinds, "choice", "other"}
    return {"number"} if kinds == {"integer", "number"} else kinds


def _is_choice(choices: Sequence[Any]) -> bool:
    return sum(not _is_null(each) for each in choices) > 1


def _leaf(kind: str, parts: Sequence[Mapping[str, Any]]) -> Leaf:
    formats = {each.get("format") for each in parts} if kind == "string" else set()
    if "date-time" in formats:
        return Leaf(TimestampType(), _timestamp)
    if "date" in formats:
        return Leaf(DateType(), _date)
    return _LEAVES.get(kind, JSON_TEXT)


def _integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1.0 is an integer in JSON Schema
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise Misfit(f"{type(value).__name__} instead of an integer of 64 bits")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Misfit(f"{type(value).__name__} instead of a number")
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Misfit(f"{type(value).__name__} instead of a boolean")
    return value


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, str) or not _DATE_TIME.fullmatch(value):
        raise Misfit("not a date-time as in RFC 3339")
    return datetime.fromisoformat(value.upper())


def _date(value: Any) -> date:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise Misfit("not a date as in RFC 3339")
    return date.fromisoformat(value)


_LEAVES: Mapping[str, Leaf] = {
    "string": Leaf(StringType(), as_text),
    "integer": Leaf(LongType(), _integer),
    "number": Leaf(DoubleType(), _number),
    "boolean": Leaf(BooleanType(), _boolean),
}
