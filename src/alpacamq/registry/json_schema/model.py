"""Schemas as typed nodes: what the rules of compatibility compare.

A schema becomes one node if its keywords are about one type, else a product (`allOf`) of several: `type`
takes the keywords of its types; `enum`, `const`, `not`, combinations and conditions are nodes of their own.
Nodes are compared by identity, and references lead to the node of their target: recursive schemas are graphs.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from alpacamq.registry.schema import MAX_DEPTH, InvalidSchema

from .documents import WITH_SCHEMAS, Documents, Draft, Place
from .text import digest, identity

# Distinct schemas that references lead to. The validator's time to build is quadratic in them.
MAX_REFERENCED = 1000

_NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRING = ("minLength", "maxLength", "pattern")
_OBJECT = (
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
)
_MODERN_OBJECT = ("dependentRequired", "dependentSchemas", "unevaluatedProperties")
_ARRAY = ("items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains")
_MODERN_ARRAY = ("prefixItems", "unevaluatedItems")

Amount = int | Decimal


class Node(msgspec.Struct, eq=False, kw_only=True):
    """A schema, or a part of one."""

    has_default: bool = False
    is_connect_bytes: bool = False


class Anything(Node, eq=False):
    """`true` and {}."""


class Nothing(Node, eq=False):
    """`false`."""


class Boolean(Node, eq=False):
    """`true` or `false` as data."""


class Null(Node, eq=False):
    """Null as data."""


class String(Node, eq=False):
    """Strings, or the limits of strings."""

    min_length: Amount | None
    max_length: Amount | None
    pattern: str | None


class Number(Node, eq=False):
    """Numbers, or the limits of numbers."""

    is_integer: bool
    minimum: Amount | None
    maximum: Amount | None
    exclusive_minimum: Amount | None
    exclusive_maximum: Amount | None
    multiple_of: Amount | None


class Const(Node, eq=False):
    """One value, by its identity."""

    value: str


class Enum(Node, eq=False):
    """Several values, by their identity."""

    values: frozenset[str]


class Not(Node, eq=False):
    """Everything but what another schema accepts."""

    inner: Node


class Combined(Node, eq=False):
    """allOf, anyOf, oneOf, and `type` with several types.

    Members have a hash as key, or their name, so that equal ones count once; `occurrences` has all.
    """

    criterion: str
    members: Mapping[bytes, Node]
    occurrences: Sequence[Node]


class Conditional(Node, eq=False):
    """if, then and else."""

    branches: Sequence[Node]


class Object(Node, eq=False):
    """Objects, or the limits of objects. Without `additional` any further property is accepted."""

    properties: Mapping[str, Node]
    required: frozenset[str]
    pattern_properties: Mapping[str, Node]
    additional: Node | None
    unevaluated: Node | None
    names: Node | None
    min_properties: Amount | None
    max_properties: Amount | None
    required_by: Mapping[str, frozenset[str]]
    schema_by: Mapping[str, Node]


class Array(Node, eq=False):
    """Arrays, or the limits of arrays: `every` is for all items, `items` are for the first ones."""

    every: Node | None
    items: Sequence[Node]
    additional: Node | None
    unevaluated: Node | None
    contains: Node | None
    min_items: Amount | None
    max_items: Amount | None
    min_contains: Amount | None
    max_contains: Amount | None
    is_unique: bool


class MetaSchema(Node, eq=False):
    """A reference to the meta-schema of a draft."""

    uri: str


class Reference(Node, eq=False):
    """A schema inside another one, or what $ref leads to; `target` is set once it is translated."""

    target: Node | None = None


def followed(node: Node) -> Node:
    """Return the node that references lead to."""
    while isinstance(node, Reference):
        assert node.target is not None
        node = node.target
    return node


def build(documents: Documents) -> Node:
    """Translate a schema and everything that its references reach.

    Raises InvalidSchema if a reference leads nowhere, or if documents refer to one another in a circle.
    """
    return _Builder(documents).build()


class _Builder:
    """Translates the schemas of some documents into nodes."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._nodes: dict[int, Reference] = {}
        self._digests: dict[int, bytes] = {}
        self._pending: list[tuple[Reference, dict[str, Any]]] = []
        self._references: deque[tuple[Reference, str, Place]] = deque()
        self._uses: dict[str, set[str]] = {document.name: set() for document in documents.all}

    def build(self) -> Node:
        main = self._documents.main
        root = self._node(main.root)
        targets: set[int] = set()
        followable: list[tuple[Reference, str, Place]] = []
        self._translate_pending()
        while self._references:
            reference, uri, place = self._references.popleft()
            target = self._documents.resolve(uri, place)
            if target.place is None:
                reference.target = MetaSchema(uri=target.schema)
                continue
            if target.place.document is not place.document:
                self._uses[place.document.name].add(target.place.document.name)
            reference.target = self._node(target.schema)
            self._translate_pending()
            followable.append((reference, uri, place))
            targets.add(id(reference.target))
            if len(targets) > MAX_REFERENCED:
                raise InvalidSchema(f"The schema refers to more than {MAX_REFERENCED} definitions")
        _check_loops(followable)
        self._check_documents()
        return root

    def _check_documents(self) -> None:
        depths: dict[str, int] = {}
        left = {name: set(used) for name, used in self._uses.items()}
        while ready := [name for name, used in left.items() if used <= depths.keys()]:
            for name in ready:
                depths[name] = 1 + max((depths[used] for used in left.pop(name)), default=0)
        if left:
            names = ", ".join(name or "the schema itself" for name in sorted(left))
            raise InvalidSchema(f"References between schemas form a circle: {names}")
        if max(depths.values()) > MAX_DEPTH:
            raise InvalidSchema(f"References between schemas are more than {MAX_DEPTH} levels deep")

    def _node(self, schema: Any) -> Node:
        if isinstance(schema, bool):
            return Anything() if schema else Nothing()
        if known := self._nodes.get(id(schema)):
            return known
        # Translated later: schemas are nested too deeply for recursion.
        node = self._nodes[id(schema)] = Reference(has_default="default" in schema)
        self._pending.append((node, schema))
        return node

    def _translate_pending(self) -> None:
        while self._pending:
            reference, schema = self._pending.pop()
            reference.target = self._translated(schema, self._documents.place(schema))
            reference.target.is_connect_bytes = schema.get("connect.type") == "bytes"

    def _child(self, schema: Mapping[str, Any], draft: Draft, keyword: str) -> Node | None:
        is_known = keyword in WITH_SCHEMAS[draft]
        if not is_known or not isinstance(schema.get(keyword), (dict, bool)):
            return None
        return self._node(schema[keyword])

    def _named(self, schema: Mapping[str, Any], keyword: str) -> dict[str, Node]:
        return {
            name: self._node(each)
            for name, each in schema.get(keyword, {}).items()
            if isinstance(each, (dict, bool))
        }

    def _listed(self, schema: Mapping[str, Any], keyword: str) -> list[Node]:
        return [self._node(each) for each in schema[keyword]]

    def _reference(self, uri: str, place: Place) -> Reference:
        reference = Reference()
        self._references.append((reference, uri, place))
        return reference

    def _translated(self, schema: dict[str, Any], place: Place) -> Node:
        draft = place.document.draft
        if isinstance(uri := schema.get("$ref"), str) and not draft.is_modern:
            return self._reference(uri, place)
        parts = list(self._parts(schema, place, draft))
        if not parts:
            return Anything()
        if len(parts) == 1:
            return parts[0]
        named = {f"{type(each).__name__} {number}".encode(): each for number, each in enumerate(parts)}
        return Combined("allOf", named, parts)

    def _parts(self, schema: dict[str, Any], place: Place, draft: Draft) -> Iterator[Node]:
        if draft.is_modern:
            for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(uri := schema.get(keyword), str):
                    yield self._reference(uri, place)
        if "enum" in schema:
            yield Enum(frozenset(identity(each) for each in schema["enum"]))
        for criterion in ("allOf", "anyOf", "oneOf"):
            if criterion in schema:
                members = self._listed(schema, criterion)
                distinct = {
                    digest(each, self._digests): node
                    for each, node in zip(schema[criterion], members, strict=True)
                }
                yield Combined(criterion, distinct, members)
        if inner := self._child(schema, draft, "not"):
            yield Not(inner)
        if "const" in schema and draft is not Draft.DRAFT_4:
            yield Const(identity(schema["const"]))
        types = schema.get("type", [])
        if isinstance(types, list):
            if types:
                typed = {name.encode(): self._typed(name, schema, draft) for name in types}
                yield Combined("anyOf", typed, list(typed.values()))
        else:
            yield self._typed(types, schema, draft)
            types = [types]
        yield from self._untyped(types, schema, draft)
        branches = [
            node for keyword in ("if", "then", "else") if (node := self._child(schema, draft, keyword))
        ]
        if branches and draft not in (Draft.DRAFT_4, Draft.DRAFT_6):
            yield Conditional(branches)

    def _typed(self, name: str, schema: dict[str, Any], draft: Draft) -> Node:
        match name:
            case "string":
                return self._string(schema)
            case "number" | "integer":
                return self._number(schema, draft, is_integer=name == "integer")
            case "boolean":
                return Boolean()
            case "null":
                return Null()
            case "array":
                return self._array(schema, draft)
            case _:
                return self._object(schema, draft)

    def _untyped(self, types: Sequence[str], schema: dict[str, Any], draft: Draft) -> Iterator[Node]:
        """Yield nodes of the keywords that are about other types than `type` names."""
        array: tuple[str, ...] = _ARRAY
        objects: tuple[str, ...] = _OBJECT
        string: tuple[str, ...] = _STRING
        if draft.is_modern:
            array, objects = (*_ARRAY, *_MODERN_ARRAY), (*_OBJECT, *_MODERN_OBJECT)
        else:
            string = (*_STRING, "format")
        if "array" not in types and not schema.keys().isdisjoint(array):
            yield self._array(schema, draft)
        if "object" not in types and not schema.keys().isdisjoint(objects):
            yield self._object(schema, draft)
        if {"number", "integer"}.isdisjoint(types) and not schema.keys().isdisjoint(_NUMBER):
            yield self._number(schema, draft, is_integer=False)
        if "string" not in types and not schema.keys().isdisjoint(string):
            yield self._string(schema)

    @staticmethod
    def _string(schema: dict[str, Any]) -> String:
        return String(schema.get("minLength"), schema.get("maxLength"), schema.get("pattern"))

    @staticmethod
    def _number(schema: dict[str, Any], draft: Draft, *, is_integer: bool) -> Number:
        minimum, maximum = schema.get("minimum"), schema.get("maximum")
        over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if draft is Draft.DRAFT_4:  # booleans that make the other limits exclusive
            over = minimum if over else None
            under = maximum if under else None
        return Number(is_integer, minimum, maximum, over, under, schema.get("multipleOf"))

    def _object(self, schema: dict[str, Any], draft: Draft) -> Object:
        dependencies = schema.get("dependencies" if not draft.is_modern else "dependentRequired", {})
        return Object(
            properties=self._named(schema, "properties"),
            required=frozenset(schema.get("required", ())),
            pattern_properties=self._named(schema, "patternProperties"),
            additional=self._unless_true(schema, draft, "additionalProperties"),
            unevaluated=self._child(schema, draft, "unevaluatedProperties") if draft.is_modern else None,
            names=self._child(schema, draft, "propertyNames"),
            min_properties=schema.get("minProperties"),
            max_properties=schema.get("maxProperties"),
            required_by={
                name: frozenset(each) for name, each in dependencies.items() if isinstance(each, list)
            },
            schema_by=self._named(schema, "dependentSchemas" if draft.is_modern else "dependencies"),
        )

    def _array(self, schema: dict[str, Any], draft: Draft) -> Array:
        every: Node | None = None
        items: list[Node] = []
        additional: Node | None = None
        if draft is Draft.DRAFT_2020_12:
            items = self._listed(schema, "prefixItems") if "prefixItems" in schema else []
            rest = self._unless_true(schema, draft, "items")
            if items or isinstance(rest, Nothing):
                additional = rest
            else:
                every = rest
        else:
            additional = self._unless_true(schema, draft, "additionalItems")
            if isinstance(schema.get("items"), list):
                items = self._listed(schema, "items")
            else:
                every = self._child(schema, draft, "items")
        has_contains = draft.is_modern and "contains" in schema
        return Array(
            every=every,
            items=items,
            additional=additional,
            unevaluated=self._child(schema, draft, "unevaluatedItems") if draft.is_modern else None,
            contains=self._child(schema, draft, "contains") if draft is not Draft.DRAFT_4 else None,
            min_items=schema.get("minItems"),
            max_items=schema.get("maxItems"),
            min_contains=schema.get("minContains", 1) if has_contains else None,
            max_contains=schema.get("maxContains") if has_contains else None,
            is_unique=schema.get("uniqueItems", False),
        )

    def _unless_true(self, schema: dict[str, Any], draft: Draft, keyword: str) -> Node | None:
        return None if schema.get(keyword) is True else self._child(schema, draft, keyword)


def _check_loops(references: Sequence[tuple[Reference, str, Place]]) -> None:
    ends: set[int] = set()
    for first, uri, place in references:
        seen: set[int] = set()
        node: Node = first
        while isinstance(node, Reference) and id(node) not in ends:
            if id(node) in seen:
                raise InvalidSchema(f"{place}: reference {uri!r} leads back to itself")
            seen.add(id(node))
            assert node.target is not None
            node = node.target
        ends |= seen


def _in_place(node: Node) -> Sequence[Node]:
    """Return the nodes that check the same value."""
    match node:
        case Reference():
            return (node.target,) if node.target else ()
        case Combined():
            return node.occurrences
        case Conditional():
            return node.branches
        case Not():
            return (node.inner,)
        case Object():
            return tuple(node.schema_by.values())
        case _:
            return ()


def _inside(node: Node) -> tuple[Sequence[Node], Sequence[Node]]:
    """Return the nodes for values inside a value: those of which one applies, and those that all may."""
    match node:
        case Object():
            rest = [each for each in (node.additional, node.unevaluated, node.names) if each]
            return tuple(node.properties.values()), (*node.pattern_properties.values(), *rest)
        case Array():
            rest = [each for each in (node.additional, node.unevaluated, node.every, node.contains) if each]
            return node.items, rest
        case _:
            return (), ()


def evaluations(root: Node) -> int:
    """Return in how many ways a value can be checked, at most: references can multiply them.

    The validator checks each occurrence of a reference anew, but remembers results where references are
    recursive; so these count once.
    """
    counts: dict[int, int] = {}
    pending: list[tuple[Node, bool]] = [(root, False)]
    open_nodes: set[int] = set()
    while pending:
        node, are_children_counted = pending.pop()
        in_place, (one, each_of) = _in_place(node), _inside(node)
        if are_children_counted:
            open_nodes.discard(id(node))
            count = 1 + sum(counts.get(id(child), 1) for child in (*in_place, *each_of))
            counts[id(node)] = count + max((counts.get(id(child), 1) for child in one), default=0)
        elif id(node) not in counts and id(node) not in open_nodes:
            open_nodes.add(id(node))
            pending.append((node, True))
            pending.extend((child, False) for child in (*in_place, *one, *each_of))
    return counts[id(root)]
