"""Checks schemas against their meta-schema, and data against schemas, with jsonschema-rs.

jsonschema-rs decides whether a value is valid. It remembers results of recursive references, so that this
takes linear time; to explain why a value is invalid can take exponential time. So the place of a mismatch is
found here, by descending into the part that is invalid.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from alpacamq.registry.schema import MAX_DEPTH, InvalidData, InvalidSchema, Mismatch

from .documents import BASE, LISTS, NAMED, SINGLE, Document, Documents, Draft, Path, Place, subschemas
from .model import Node
from .text import nesting, pointer

if TYPE_CHECKING:
    import jsonschema_rs

# Ways in which one value can be checked, as by 17 levels of allOf with twice the same reference: about 10 ms.
MAX_EVALUATIONS = 100_000
# Regular expressions of a schema, in atoms after repetitions are unrolled: about 100 ms to compile.
MAX_PATTERN_ATOMS = 100_000
_ATOMS_PER_PATTERN = 50
_ATOMS_PER_UNICODE_CLASS = 1000
# Patterns with look-around or back-references need backtracking, whose time is limited by both.
_MAX_BACKTRACKS = 1000
MAX_BACKTRACKED_BYTES = 8 << 10
# To find places of mismatches, validators of parts of a schema are built and kept: those of so many schemas.
# That takes under a second and 150 MB for the largest schemas; further places are named less exactly.
_MAX_PART_SCHEMAS = 30_000
# Values checked to find one place, and patterns that names of properties are matched with.
_MAX_CHECKS = 10_000
_MAX_SEARCHED_PATTERNS = 50
_MAX_MESSAGE = 300

_REPETITION = re.compile(r"\{(\d{1,9})(?:,(\d{0,9}))?\}")
# A class without an end reaches to the end of the pattern: no pattern is scanned twice.
_CLASS = re.compile(r"\[\^?(?:\\.|[^\]\\])*(?:\]|\\?\Z)", re.DOTALL)
# Keywords that say by themselves why a value is invalid.
_LOCAL = (
    "const",
    "contentEncoding",
    "contentMediaType",
    "dependentRequired",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "type",
    "uniqueItems",
)


def check_schema(document: Document, start: Path) -> None:
    """Raise InvalidSchema with a JSON pointer if a document is not valid by the meta-schema of its draft.

    The path is that to the document's root, if it is a part of another document.
    """
    import jsonschema_rs

    if isinstance(document.root, bool) and document.draft is not Draft.DRAFT_4:
        return
    if not isinstance(document.root, dict):
        raise InvalidSchema("A JSON schema must be an object or a boolean")
    meta = {"$schema": document.draft.value}
    if jsonschema_rs.meta.is_valid({**document.root, **meta}):
        return
    pending: list[tuple[Path, Any]] = [(start, document.root)]
    while pending:
        path, schema = pending.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise InvalidSchema(f"{_at(document, path)}: a schema must be an object or a boolean")
        try:
            jsonschema_rs.meta.validate({**_shallow(schema), **meta})
        except jsonschema_rs.ValidationError as error:
            at = _at(document, path + tuple(error.instance_path))
            raise InvalidSchema(f"{at}: {_cut(error.message)}") from None
        pending.extend((path + step, child) for step, child in subschemas(schema, document.draft))
    raise InvalidSchema(f"{_at(document, start)}: the schema does not match its meta-schema")


def check_patterns(patterns: Collection[str]) -> None:
    """Raise InvalidSchema if regular expressions take too long to compile."""
    # Each character of a class takes time, too, though it is not repeated.
    if (
        sum(map(len, patterns)) > MAX_PATTERN_ATOMS
        or sum(_ATOMS_PER_PATTERN + _atoms(pattern) for pattern in patterns) > MAX_PATTERN_ATOMS
    ):
        raise InvalidSchema("The regular expressions of the schema are too large")


class PatternMatcher:
    """Matches names of properties with the patterns of `patternProperties`."""

    def __init__(self) -> None:
        self._validators: dict[str, jsonschema_rs.Validator] = {}

    def first(self, patterns: Mapping[str, Node], name: str) -> Node | None:
        """Return the node of the first pattern that matches a name."""
        return next((node for pattern, node in patterns.items() if self.matches(pattern, name)), None)

    def matches(self, pattern: str, name: str) -> bool:
        """Tell whether a pattern matches a name."""
        import jsonschema_rs

        if pattern not in self._validators:
            schema = {"pattern": pattern}
            try:
                built = jsonschema_rs.Draft7Validator(schema, pattern_options=jsonschema_rs.RegexOptions())
            except jsonschema_rs.ValidationError:
                built = jsonschema_rs.Draft7Validator(schema, pattern_options=_backtracking())
            self._validators[pattern] = built
        return self._validators[pattern].is_valid(name)


class Validator:
    """Checks values against one schema."""

    def __init__(self, documents: Documents, evaluations: int) -> None:
        import jsonschema_rs

        self._documents = documents
        self._is_too_complex = evaluations > MAX_EVALUATIONS
        main = _MAIN if documents.main.uri == BASE else documents.main.uri
        resources = [*documents.resources.items(), (main, documents.main.root)]
        try:
            self._registry = jsonschema_rs.Registry(resources, retriever=_refuse)
        except ValueError as error:
            raise InvalidSchema(_cut(str(error))) from None
        self._options: jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions
        self._options = jsonschema_rs.RegexOptions()
        self._is_backtracking = False
        try:
            self._validator = self._built(documents.main.root, documents.main.draft)
        except jsonschema_rs.ValidationError:
            self._options = _backtracking()
            self._is_backtracking = True
            try:
                self._validator = self._built(documents.main.root, documents.main.draft)
            except jsonschema_rs.ValidationError as error:
                at = _at(documents.main, tuple(error.instance_path))
                raise InvalidSchema(f"{at}: {_cut(error.message)}") from None
        except ValueError as error:
            raise InvalidSchema(_cut(str(error))) from None
        self._is_valid = self._validator.is_valid
        self._is_limited = self._is_too_complex or self._is_backtracking
        self._parts: dict[int, jsonschema_rs.Validator] = {}
        self._local: dict[int, jsonschema_rs.Validator] = {}
        self._part_schemas_left = _MAX_PART_SCHEMAS

    def mismatch(self, data: bytes | memoryview) -> Mismatch | None:
        """Check one value."""
        try:
            self.decode(data)
        except InvalidData as error:
            return error.mismatch
        return None

    def decode(self, data: bytes | memoryview) -> Any:
        """Parse and check one value. Raises InvalidData."""
        if type(data) is not bytes:
            data = bytes(data)
        try:
            value = _decode(data)
        except RecursionError:
            raise _invalid(_TOO_DEEP) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _invalid(f"invalid JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
        # More bytes than brackets of so many levels, and more brackets: only then can the value be too deep.
        if len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH < nesting(value):
            raise _invalid(_TOO_DEEP)
        if self._is_limited and (limit := self._limit(data)):
            raise _invalid(limit)
        if not self._is_valid(value):
            path, message = _Search(self, self._documents).run(value)
            raise InvalidData(Mismatch(pointer(path), _cut(message)))
        return value

    def encode(self, value: object) -> bytes:
        """Write and check one value. Raises InvalidData."""
        try:
            data = _encode(value)
        except RecursionError:
            raise _invalid(_TOO_DEEP) from None
        except (TypeError, ValueError, OverflowError) as error:
            raise _invalid(f"not a JSON value: {error}") from None
        self.decode(data)
        return data

    def _limit(self, data: bytes) -> str | None:
        """Return why data cannot be checked in bounded time."""
        if self._is_too_complex:
            return "the schema is too complex to check values: its references multiply"
        if len(data) > MAX_BACKTRACKED_BYTES:
            return (
                f"the value has more than {MAX_BACKTRACKED_BYTES} bytes, the limit for patterns with"
                " look-around or back-references"
            )
        return None

    def refuses(self, schema: Any, place: Place, value: Any) -> bool:
        """Tell whether a value is known not to match a part of the schema."""
        if isinstance(schema, bool):
            return not schema
        part = self._parts.get(id(schema)) or self._part(schema, place)
        return part is not None and not part.is_valid(value)

    def _part(self, schema: dict[str, Any], place: Place) -> "jsonschema_rs.Validator | None":
        import jsonschema_rs

        self._part_schemas_left -= self._documents.size(schema)
        if self._part_schemas_left < 0:
            return None
        base, path = self._documents.address(place)
        reference = {"$ref": f"{_MAIN if base == BASE else base}#{quote(pointer(path))}"}
        try:
            part = self._parts[id(schema)] = self._built(reference, place.document.draft)
        except jsonschema_rs.ValidationError:
            return None  # it cannot be addressed
        return part

    def explain(
        self, schema: dict[str, Any], draft: Draft, value: Any
    ) -> "jsonschema_rs.ValidationError | None":
        """Return why a value does not match a schema by itself, without the schemas inside it."""
        import jsonschema_rs

        local = self._local.get(id(schema))
        if local is None:
            local = self._local[id(schema)] = self._built(_local(schema, draft), draft)
        try:
            local.validate(value)
        except jsonschema_rs.ValidationError as error:
            return error
        return None

    def _built(self, schema: Any, draft: Draft) -> "jsonschema_rs.Validator":
        import jsonschema_rs

        kinds = {
            Draft.DRAFT_4: jsonschema_rs.Draft4Validator,
            Draft.DRAFT_6: jsonschema_rs.Draft6Validator,
            Draft.DRAFT_7: jsonschema_rs.Draft7Validator,
            Draft.DRAFT_2019_09: jsonschema_rs.Draft201909Validator,
            Draft.DRAFT_2020_12: jsonschema_rs.Draft202012Validator,
        }
        return kinds[draft](schema, registry=self._registry, pattern_options=self._options, offline=True)


# A schema, where it is, the way into the value, and the value there.
Step = tuple[Any, Place, Path, Any]


class _Search:
    """Descends from an invalid value to the innermost part of it that a schema refuses."""

    def __init__(self, validator: Validator, documents: Documents) -> None:
        self._validator = validator
        self._documents = documents
        self._matcher = PatternMatcher()
        self._checks_left = _MAX_CHECKS

    def run(self, value: Any) -> tuple[Path, str]:
        main = self._documents.main
        schema, place = main.root, Place(main, (), main.uri)
        path: Path = ()
        # Each step leads into the value, or to another schema for it; only references can lead in circles.
        for _ in range(4 * MAX_DEPTH):
            if isinstance(schema, bool):
                return path, "no value is allowed here"
            place = self._documents.place(schema)
            step = self._step(schema, place, value)
            if step is None:
                return self._reason(schema, place, path, value)
            schema, place, steps, value = step
            path += steps
        return path, "the value does not match the schema"

    def _step(self, schema: dict[str, Any], place: Place, value: Any) -> Step | None:
        """Return the first schema that the value, or something in it, must match and does not."""
        for step in self._inner(schema, place, value):
            self._checks_left -= 1
            if self._checks_left < 0:
                return None
            inner, at, _, part = step
            if self._validator.refuses(inner, at, part):
                return step
        return None

    def _inner(self, schema: dict[str, Any], place: Place, value: Any) -> Iterator[Step]:
        """Yield the schemas that a valid value must match: for itself first, then for what it contains."""
        is_modern = place.document.draft.is_modern
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(uri := schema.get(keyword), str) and (is_modern or keyword == "$ref"):
                target = self._documents.resolve(uri, place)
                if target.place:
                    yield target.schema, target.place, (), value
        if "$ref" in schema and not is_modern:
            return
        for index, each in enumerate(schema.get("allOf", ())):
            yield each, _below(place, "allOf", index), (), value
        for keyword in ("anyOf", "oneOf"):
            yield from self._likely(schema, place, keyword, value)
        if isinstance(value, dict):
            yield from self._properties(schema, place, value)
        elif isinstance(value, list):
            yield from self._items(schema, place, value)

    def _likely(self, schema: dict[str, Any], place: Place, keyword: str, value: Any) -> Iterator[Step]:
        """Yield the only alternative whose type is that of the value, as with "null or object"."""
        members = schema.get(keyword, ())
        likely = [index for index, each in enumerate(members) if _may_be(each, value)]
        if len(likely) == 1:
            yield members[likely[0]], _below(place, keyword, likely[0]), (), value

    def _properties(self, schema: dict[str, Any], place: Place, value: dict[str, Any]) -> Iterator[Step]:
        known = schema.get("properties", {})
        for name, each in known.items():
            if name in value:
                yield each, _below(place, "properties", name), (name,), value[name]
        patterns = schema.get("patternProperties", {})
        rest = schema.get("additionalProperties")
        for name in value if len(patterns) <= _MAX_SEARCHED_PATTERNS else ():
            matching = [pattern for pattern in patterns if self._matcher.matches(pattern, name)]
            for pattern in matching:
                yield patterns[pattern], _below(place, "patternProperties", pattern), (name,), value[name]
            if not matching and name not in known and isinstance(rest, dict):
                yield rest, _below(place, "additionalProperties"), (name,), value[name]
        keyword = "dependentSchemas" if place.document.draft.is_modern else "dependencies"
        for name, each in schema.get(keyword, {}).items():
            if name in value and isinstance(each, (dict, bool)):
                yield each, _below(place, keyword, name), (), value

    @staticmethod
    def _items(schema: dict[str, Any], place: Place, value: list[Any]) -> Iterator[Step]:
        is_newest = place.document.draft is Draft.DRAFT_2020_12
        first, rest = ("prefixItems", "items") if is_newest else ("items", "additionalItems")
        listed = schema.get(first, [])
        if not isinstance(listed, list):
            listed, rest = [], "items"
        for index, (each, item) in enumerate(zip(listed, value, strict=False)):
            yield each, _below(place, first, index), (index,), item
        if isinstance(schema.get(rest), (dict, bool)):
            for index in range(len(listed), len(value)):
                yield schema[rest], _below(place, rest), (index,), value[index]

    def _reason(self, schema: dict[str, Any], place: Place, path: Path, value: Any) -> tuple[Path, str]:
        if error := self._validator.explain(schema, place.document.draft, value):
            return path + tuple(error.instance_path), error.message
        for keyword, message in _COMBINATIONS.items():
            if keyword in schema:
                return path, message
        return path, "the value does not match the schema"


def _local(schema: dict[str, Any], draft: Draft) -> dict[str, Any]:
    """Return the keywords of a schema that say by themselves why a value is invalid."""
    local = {keyword: schema[keyword] for keyword in _LOCAL if keyword in schema}
    if schema.get("additionalProperties") is False:
        local["additionalProperties"] = False
        for keyword in ("properties", "patternProperties"):
            local[keyword] = {name: {} for name in schema.get(keyword, ())}
    if not draft.is_modern:
        dependencies = schema.get("dependencies", {}).items()
        local["dependencies"] = {name: each for name, each in dependencies if isinstance(each, list)}
    return local


# The schema itself among its resources; relative references lead where they do without an $id.
_MAIN = "json-schema:///?schema"
_COMBINATIONS = {
    "oneOf": "the value does not match exactly one of the schemas in oneOf",
    "anyOf": "the value matches none of the schemas in anyOf",
    "not": "the value matches the schema in not",
    "contains": "too few or too many items match the schema in contains",
    "propertyNames": "a property's name does not match the schema in propertyNames",
    "if": "the value does not match the schema in then or else that if selects",
    "unevaluatedProperties": "the value has properties that no schema allows",
    "unevaluatedItems": "the value has items that no schema allows",
}
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_TOO_DEEP = f"the value is nested more than {MAX_DEPTH} levels"


def _invalid(message: str) -> InvalidData:
    return InvalidData(Mismatch("", message))


def _backtracking() -> "jsonschema_rs.FancyRegexOptions":
    import jsonschema_rs

    return jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS)


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not among the references of the schema")


def _shallow(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the schemas inside it left empty."""
    shallow = dict(schema)
    for keyword in SINGLE:
        if isinstance(schema.get(keyword), dict):
            shallow[keyword] = {}
    for keyword in LISTS:
        if isinstance(members := schema.get(keyword), list):
            shallow[keyword] = [{}] * min(len(members), 2)
    for keyword in NAMED:
        if isinstance(members := schema.get(keyword), dict):
            shallow[keyword] = {
                name: {} if isinstance(each, dict) else each for name, each in members.items()
            }
    return shallow


def _atoms(pattern: str) -> int:
    """Estimate how many atoms a regular expression has once its counted repetitions are unrolled."""
    totals = [0]
    last = 0  # of the atom or group that a repetition would repeat
    at = 0
    while at < len(pattern):
        if repetition := _REPETITION.match(pattern, at):
            times = max(int(repetition[1]), int(repetition[2] or 0))
            totals[-1] += last * max(times - 1, 0)
            last *= max(times, 1)
            at = repetition.end()
        elif pattern[at] == "(":
            totals.append(1)
            at += 1
        elif pattern[at] == ")" and len(totals) > 1:
            last = totals.pop()
            totals[-1] += last
            at += 1
        else:
            end = at + 1
            if found := _CLASS.match(pattern, at):
                end = found.end()
            elif pattern[at] == "\\":
                end = at + 2
            atom = pattern[at:end].lower()
            last = 1 + _ATOMS_PER_UNICODE_CLASS * atom.count("\\p")
            totals[-1] += last
            at = end
        if totals[-1] > MAX_PATTERN_ATOMS:
            break
    return sum(totals)


def _may_be(schema: Any, value: Any) -> bool:
    """Tell whether a schema's type may be that of a value."""
    if not isinstance(schema, dict) or "type" not in schema:
        return True
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return not _TYPES[type(value)].isdisjoint(types)


_TYPES: dict[type, frozenset[str]] = {
    dict: frozenset(["object"]),
    list: frozenset(["array"]),
    str: frozenset(["string"]),
    bool: frozenset(["boolean"]),
    int: frozenset(["integer", "number"]),
    float: frozenset(["integer", "number"]),
    type(None): frozenset(["null"]),
}


def _at(document: Document, path: Path) -> str:
    return str(Place(document, path, document.uri))


def _below(place: Place, *steps: str | int) -> Place:
    return place._replace(path=(*place.path, *steps))


def _cut(message: str) -> str:
    """Shorten a message that starts with a long value and ends with what is wrong with it."""
    return message if len(message) <= _MAX_MESSAGE else f"{message[:50]}…{message[51 - _MAX_MESSAGE :]}"
