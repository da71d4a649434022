"""The documents of a schema, which are its text and its dependencies, and where references lead."""

import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from alpacamq.registry.schema import MAX_DEPTH, InvalidSchema

from .text import pointer

# What relative references are resolved against, unless the schema has an $id.
BASE = "json-schema:///"

Path = tuple[str | int, ...]


class Draft(Enum):
    """The drafts of JSON Schema, in their order, by the URI of their meta-schema."""

    DRAFT_4 = "http://json-schema.org/draft-04/schema#"
    DRAFT_6 = "http://json-schema.org/draft-06/schema#"
    DRAFT_7 = "http://json-schema.org/draft-07/schema#"
    DRAFT_2019_09 = "https://json-schema.org/draft/2019-09/schema"
    DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"

    @property
    def id_keyword(self) -> str:
        return "id" if self is Draft.DRAFT_4 else "$id"

    @property
    def is_modern(self) -> bool:
        """Whether keywords beside $ref count, and arrays and dependencies have their newer keywords."""
        return self in (Draft.DRAFT_2019_09, Draft.DRAFT_2020_12)


# By the URI without its scheme and fragment.
_DRAFTS = {
    **{draft.value.partition(":")[2].removesuffix("#"): draft for draft in Draft},
    "//json-schema.org/schema": Draft.DRAFT_4,
}
_META_SCHEMA = re.compile(r"https?://json-schema\.org/(draft-0[467]/schema|draft/20(19-09|20-12)/)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

# The keywords whose values are schemas, lists of schemas and objects of schemas.
SINGLE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
# Those that a draft knows. What another keyword contains is no schema, unless a reference leads there.
_SINCE_DRAFT_6 = frozenset(["contains", "propertyNames"])
_SINCE_DRAFT_7 = _SINCE_DRAFT_6 | {"else", "if", "then"}
_SINCE_2019 = _SINCE_DRAFT_7 | {
    "$defs",
    "contentSchema",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
}
_DRAFT_4 = frozenset((*SINGLE, *LISTS, *NAMED)) - _SINCE_2019 - {"prefixItems"}
WITH_SCHEMAS = {
    Draft.DRAFT_4: _DRAFT_4,
    Draft.DRAFT_6: _DRAFT_4 | _SINCE_DRAFT_6,
    Draft.DRAFT_7: _DRAFT_4 | _SINCE_DRAFT_7,
    Draft.DRAFT_2019_09: _DRAFT_4 | _SINCE_2019,
    Draft.DRAFT_2020_12: _DRAFT_4 - {"additionalItems"} | _SINCE_2019 | {"prefixItems"},
}

_REFERENCES = frozenset(["$ref", "$dynamicRef", "$recursiveRef"])

# Schemas inside a schema and its dependencies: they take about 40 µs each to parse.
MAX_SCHEMAS = 20_000


def draft_of(document: Any, default: Draft = Draft.DRAFT_7) -> Draft:
    """Return the draft that `$schema` names. Unknown meta-schemas count as the default."""
    uri = document.get("$schema") if isinstance(document, dict) else None
    if not isinstance(uri, str) or not uri.startswith(("http:", "https:")):
        return default
    return _DRAFTS.get(uri.partition(":")[2].removesuffix("#"), default)


def subschemas(schema: dict[str, Any], draft: Draft) -> Iterator[tuple[Path, Any]]:
    """Yield the schemas directly inside a schema, with the path to each."""
    known = WITH_SCHEMAS[draft]
    for keyword, value in schema.items():
        if keyword not in known:
            continue
        if keyword in SINGLE and isinstance(value, (dict, bool)):
            yield (keyword,), value
        elif keyword in LISTS and isinstance(value, list):
            yield from (((keyword, place), each) for place, each in enumerate(value))
        elif keyword in NAMED and isinstance(value, dict):
            yield from (
                ((keyword, name), each) for name, each in value.items() if isinstance(each, (dict, bool))
            )


class Document(NamedTuple):
    """A schema or a dependency, as JSON."""

    name: str
    uri: str
    root: Any
    draft: Draft


class Place(NamedTuple):
    """Where a schema is: its document, the path in it, and the URI that its references are relative to."""

    document: Document
    path: Path
    base: str

    def __str__(self) -> str:
        at = pointer(self.path) or "/"
        at = at if len(at) <= 200 else f"…{at[-200:]}"
        return f"{at} of {self.document.name}" if self.document.name else at


class Target(NamedTuple):
    """What a reference leads to: a schema and its place, or a meta-schema, which has no place."""

    schema: Any
    place: Place | None


class Documents:
    """A schema with its dependencies, indexed by URI."""

    def __init__(
        self, root: Any, dependencies: Sequence[tuple[str, Any]], check: Callable[[Document, Path], None]
    ) -> None:
        self._check = check
        draft = draft_of(root)
        base = _own_uri(root, draft, BASE)
        self.main = Document("", base, _with_defs(root, draft), draft)
        self.all = [
            Document(name, _resolved(base, name), _with_defs(each, draft), draft_of(each, draft))
            for name, each in dependencies
        ]
        self.all.append(self.main)
        self._named = {document.name: document for document in self.all}
        self._resources: dict[str, Target] = {}
        self._anchors: dict[str, Target] = {}
        self._places: dict[int, Place] = {}
        self.patterns: set[str] = set()
        for document in self.all:
            self._add(document.uri, Target(document.root, Place(document, (), document.uri)))
            self.index(document.root, Place(document, (), document.uri))

    def index(self, schema: Any, place: Place) -> None:
        """Record the places, ids and anchors of a schema and of those inside it."""
        pending = [(schema, place, 1)]
        while pending:
            schema, place, depth = pending.pop()
            if depth > MAX_DEPTH:
                raise InvalidSchema(f"{place}: schemas are nested more than {MAX_DEPTH} levels")
            if not isinstance(schema, dict) or id(schema) in self._places:
                continue
            document, path, base = place
            if document.draft.is_modern or "$ref" not in schema:
                base = _own_uri(schema, document.draft, base)
            place = Place(document, path, base)
            if base != document.uri:
                self._add(base, Target(schema, place))
            self._places[id(schema)] = place
            if len(self._places) > MAX_SCHEMAS:
                raise InvalidSchema(f"The schema contains more than {MAX_SCHEMAS} schemas")
            self._add_patterns(schema)
            for name in self._anchor_names(schema, document.draft):
                self._anchors.setdefault(f"{base}#{name}", Target(schema, place))
            for step, child in subschemas(schema, document.draft):
                pending.append((child, Place(document, path + step, base), depth + 1))

    def place(self, schema: Any) -> Place:
        """Return the place of an indexed schema."""
        return self._places[id(schema)]

    def resolve(self, reference: str, place: Place) -> Target:
        """Return what a reference in a schema leads to."""
        uri, _, fragment = _resolved(place.base, reference).partition("#")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"{uri}#{fragment}")
        else:
            found = self._resources.get(uri) or self._by_name(reference.partition("#")[0], uri)
            if found and found.place and fragment:
                found = self._descend(found.schema, found.place, fragment)
        if found:
            return found
        if _META_SCHEMA.match(uri):
            return Target(f"{uri}#{fragment}", None)
        raise InvalidSchema(
            f"{place}: unresolved reference {reference!r}; it must lead to a place in the schema"
            " or to one of its references"
        )

    def size(self, schema: dict[str, Any]) -> int:
        """Return how many schemas are in a schema; all, if there are references in it."""
        size = 0
        pending: list[Any] = [schema]
        while pending:
            each = pending.pop()
            if isinstance(each, dict):
                size += 1
                if not _REFERENCES.isdisjoint(each):
                    return len(self._places)
                pending.extend(child for _, child in subschemas(each, self.place(each).document.draft))
        return size

    def address(self, place: Place) -> tuple[str, Path]:
        """Return the URI of the resource that a place is in, which changes with $id, and the path in it."""
        start = self._resources[place.base].place
        assert start is not None
        return place.base, place.path[len(start.path) :]

    @property
    def resources(self) -> dict[str, Any]:
        """The dependencies by the URIs that references resolve to."""
        return {
            uri: target.schema
            for uri, target in self._resources.items()
            if target.place and not target.place.path and target.place.document is not self.main
        }

    def _by_name(self, name: str, uri: str) -> Target | None:
        """Find a dependency by its name where the $id of another one makes the name a different URI."""
        document = self._named.get(name) if name else None
        if document is None:
            return None
        start = Place(document, (), document.uri)
        self._resources[uri] = Target(document.root, self._places.get(id(document.root), start))
        return self._resources[uri]

    def _add(self, uri: str, target: Target) -> None:
        self._resources.setdefault(uri.removesuffix("#"), target)

    def _add_patterns(self, schema: dict[str, Any]) -> None:
        if isinstance(pattern := schema.get("pattern"), str):
            self.patterns.add(pattern)
        if isinstance(properties := schema.get("patternProperties"), dict):
            self.patterns |= properties.keys()

    def _descend(self, schema: Any, place: Place, fragment: str) -> Target | None:
        value, path, base = schema, place.path, place.base
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and step in value:
                value, path = value[step], (*path, step)
            elif isinstance(value, list) and step.isdecimal() and len(step) < 10 and int(step) < len(value):
                value, path = value[int(step)], (*path, int(step))
            else:
                return None
            if known := self._places.get(id(value)):
                base = known.base
        if not isinstance(value, (dict, bool)):
            return None
        target = Place(place.document, path, base)
        if isinstance(value, dict) and id(value) not in self._places:
            # Not where JSON Schema has schemas, as in #/components/x.
            self._check(place.document._replace(root=value), path)
            self.index(value, target)
        return Target(value, self._places.get(id(value), target))

    @staticmethod
    def _anchor_names(schema: dict[str, Any], draft: Draft) -> Iterator[str]:
        if draft.is_modern:
            yield from (
                name
                for name in (schema.get("$anchor"), schema.get("$dynamicAnchor"))
                if isinstance(name, str)
            )
        elif isinstance(own := schema.get(draft.id_keyword), str) and own.startswith("#") and own != "#":
            yield own[1:]


def _own_uri(schema: Any, draft: Draft, base: str) -> str:
    own = schema.get(draft.id_keyword) if isinstance(schema, dict) else None
    if not isinstance(own, str) or own.startswith("#"):
        return base
    return _resolved(base, own).partition("#")[0]


def _resolved(base: str, reference: str) -> str:
    try:
        if _SCHEME.match(reference):
            urlsplit(reference)  # raises if it is no URI
            return reference
        if reference.startswith("#") or not reference:
            return base + reference
        scheme, colon, rest = base.partition(":")
        if not rest.startswith("/"):  # a URN has no relative references
            return reference
        # urljoin knows only the schemes of the web.
        return f"{scheme}{colon}{urljoin(f'http:{rest}', reference).removeprefix('http:')}"
    except ValueError as error:
        raise InvalidSchema(f"Invalid URI {reference!r}: {error}") from None


def _with_defs(root: Any, draft: Draft) -> Any:
    """Return a document that names its draft, and whose `definitions` are also found under #/$defs.

    Confluent's registry looks for definitions under both names.
    """
    if not isinstance(root, dict):
        return root
    root = dict(root)
    if isinstance(root.get("$schema", ""), str):
        root["$schema"] = draft_of(root, draft).value
    definitions = root.get("definitions")
    if isinstance(definitions, dict) and definitions and isinstance(root.get("$defs", {}), dict):
        root["$defs"] = {**definitions, **root.get("$defs", {})}
    return root
