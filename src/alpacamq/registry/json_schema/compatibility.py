"""Compares a reader's schema with a writer's by Confluent's rules for JSON Schema.

Confluent's registry compares schemas node by node. Strictly: an optional property added to an object that
accepts further properties is incompatible, because the writer may have written anything under its name. Not
compared are `patternProperties`, `propertyNames`, `contains`, `if`/`then`/`else`, `format`, annotations, and
whether a schema that has only the limits of a type, such as `minLength`, also names the type.

Pairs of nodes are compared once each and count as compatible until they prove not to be, which also ends
recursion: a pair is incompatible if a rule is broken in it, or in a pair inside it.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import NamedTuple

from alpacamq.registry.schema import Incompatibility

from .documents import Path
from .model import (
    Amount,
    Anything,
    Array,
    Combined,
    Const,
    Enum,
    MetaSchema,
    Node,
    Not,
    Nothing,
    Number,
    Object,
    String,
    followed,
)
from .text import MAX_DIGITS, pointer

# Pairs of nodes in one comparison beyond a few for each node, and look-ups of verdicts: about half a second.
MAX_PAIRS = 20_000
_PAIRS_PER_NODE = 4
MAX_LOOKUPS = 500_000
_LOOKUPS_PER_PATTERN = 4
MAX_REPORTED = 100

_SUM = ("anyOf", "oneOf")
_EXACT = Context(prec=4 * MAX_DIGITS)


class Difference(NamedTuple):
    """A broken rule at a path below the compared nodes."""

    rule: str
    path: Path
    message: str


class Nested(NamedTuple):
    """Two nodes below the compared ones that must be compatible."""

    path: Path
    writer: Node
    reader: Node


Finding = Difference | Nested
Pair = tuple[Node, Node]
# Returns the node of the first pattern that matches a property's name.
Matcher = Callable[[Mapping[str, Node], str], Node | None]


class TooManyComparisons(Exception):
    """The comparison takes too long."""


def compare(writer: Node, reader: Node, matching: Matcher) -> Sequence[Incompatibility]:
    """Return the reasons why a reader cannot read all data of a writer, at most 100 of them."""
    comparison = _Comparison(matching)
    try:
        comparison.run(writer, reader)
        return comparison.report(writer, reader)
    except TooManyComparisons:
        message = "the schemas are too complex to compare: their combinations and references multiply"
        return [Incompatibility("SCHEMA_TOO_COMPLEX", "#/", message)]


class _Comparison:
    """Finds which pairs of nodes are compatible, as the greatest fixed point, and why others are not."""

    def __init__(self, matching: Matcher) -> None:
        self._matching = matching
        self._verdicts: dict[Pair, bool] = {}
        self._writers: set[Node] = set()
        self._order: dict[Pair, int] = {}
        self._dependents: dict[Pair, set[Pair]] = {}
        self._new: list[Pair] = []
        self._again: list[tuple[int, Pair]] = []
        self._is_queued: set[Pair] = set()
        self._current: Pair | None = None
        self._lookups = 0

    def run(self, writer: Node, reader: Node) -> None:
        """Compare two nodes and everything that this leads to."""
        self._is_compatible(writer, reader)
        while self._new or self._again:
            # New pairs first, and the innermost of those to look at again: fewer are looked at twice.
            pair = self._new.pop() if self._new else heapq.heappop(self._again)[1]
            self._is_queued.discard(pair)
            if not self._verdicts[pair]:
                continue
            self._current = pair
            # Not only up to the first broken rule: the report needs the verdicts of all nested pairs.
            verdicts = [self._is_kept(finding) for finding in self._findings(*pair)]
            if all(verdicts):
                continue
            self._verdicts[pair] = False
            for dependent in self._dependents.pop(pair, ()):
                if self._verdicts[dependent] and dependent not in self._is_queued:
                    self._is_queued.add(dependent)
                    heapq.heappush(self._again, (-self._order[dependent], dependent))

    def report(self, writer: Node, reader: Node) -> list[Incompatibility]:
        """Return the broken rules. What references lead to is reported once, with the shortest path."""
        found: list[Incompatibility] = []
        self._current = None
        pending: deque[tuple[Pair, Path]] = deque([((followed(writer), followed(reader)), ())])
        seen = {pending[0][0]}
        while pending and len(found) < MAX_REPORTED:
            pair, path = pending.popleft()
            if self._verdicts.get(pair, True):
                continue
            for finding in self._findings(*pair):
                at = path + finding.path
                if isinstance(finding, Difference):
                    found.append(Incompatibility(finding.rule, f"#{pointer(at) or '/'}", finding.message))
                elif (child := (followed(finding.writer), followed(finding.reader))) not in seen:
                    seen.add(child)
                    pending.append((child, at))
        return found[:MAX_REPORTED]

    def _is_kept(self, finding: Finding) -> bool:
        return isinstance(finding, Nested) and self._is_compatible(finding.writer, finding.reader)

    def _is_compatible(self, writer: Node, reader: Node) -> bool:
        pair = followed(writer), followed(reader)
        verdict = self._verdicts.get(pair)
        if self._current is None and verdict is not None:
            return verdict
        self._count(1)
        if verdict is None:
            verdict = self._verdicts[pair] = True
            self._writers.add(pair[0])
            self._order[pair] = len(self._order)
            self._new.append(pair)
        if verdict and self._current is not None:
            self._dependents.setdefault(pair, set()).add(self._current)
        return verdict

    def _count(self, lookups: int) -> None:
        self._lookups += lookups
        limit = MAX_PAIRS + _PAIRS_PER_NODE * len(self._writers)
        if self._lookups > MAX_LOOKUPS or len(self._verdicts) > limit:
            raise TooManyComparisons

    def _findings(self, writer: Node, reader: Node) -> Iterator[Finding]:
        if self._has_compatible_member(writer, reader):
            return
        if type(writer) is not type(reader):
            is_wider = isinstance(writer, Nothing) or isinstance(reader, Anything)
            if not is_wider and not (writer.is_connect_bytes and reader.is_connect_bytes):
                yield Difference(
                    "TYPE_CHANGED",
                    (),
                    f"the writer has {_described(writer)}, the reader {_described(reader)}",
                )
            return
        match reader:
            case String():
                assert isinstance(writer, String)
                yield from _strings(writer, reader)
            case Number():
                assert isinstance(writer, Number)
                yield from _numbers(writer, reader)
            case Const():
                assert isinstance(writer, Const)
                if writer.value != reader.value:
                    message = (
                        f"the writer writes {_short(writer.value)}, the reader accepts {_short(reader.value)}"
                    )
                    yield Difference("ENUM_ARRAY_CHANGED", ("const",), message)
            case Enum():
                assert isinstance(writer, Enum)
                yield from _enums(writer, reader)
            case Combined():
                assert isinstance(writer, Combined)
                yield from self._combined(writer, reader)
            case Not():
                assert isinstance(writer, Not)
                if not self._is_compatible(reader.inner, writer.inner):
                    message = "the reader's `not` excludes values that the writer's does not"
                    yield Difference("NOT_TYPE_EXTENDED", ("not",), message)
            case Object():
                assert isinstance(writer, Object)
                yield from self._objects(writer, reader)
            case Array():
                assert isinstance(writer, Array)
                yield from self._arrays(writer, reader)
            case MetaSchema():
                assert isinstance(writer, MetaSchema)
                if writer.uri != reader.uri:
                    message = f"the writer has {_described(writer)}, the reader {_described(reader)}"
                    yield Difference("TYPE_CHANGED", (), message)
            case _:
                pass

    def _has_compatible_member(self, writer: Node, reader: Node) -> bool:
        """Compare a node with the members of a combination, where one of them is enough."""
        match writer, reader:
            case Combined(), Combined():
                return False
            case _, Combined() if len(reader.members) == 1 or reader.criterion in _SUM:
                return any(self._is_compatible(writer, each) for each in reader.members.values())
            case Combined(), _ if len(writer.members) == 1 or writer.criterion == "allOf":
                return any(self._is_compatible(each, reader) for each in writer.members.values())
            case _:
                return False

    def _combined(self, writer: Combined, reader: Combined) -> Iterator[Finding]:
        theirs, ours = writer.members, reader.members
        if writer.criterion != reader.criterion and not (
            reader.criterion == "anyOf"
            or (len(theirs) == 1 and (len(ours) == 1 or reader.criterion == "oneOf"))
            or (len(ours) == 1 and writer.criterion == "allOf")
        ):
            message = f"the writer has {writer.criterion}, the reader {reader.criterion}"
            yield Difference("COMBINED_TYPE_CHANGED", (), message)
            return
        counts = f"the writer has {len(theirs)} schemas in {writer.criterion}, the reader {len(ours)}"
        if len(theirs) < len(ours) and reader.criterion == "allOf":
            yield Difference("PRODUCT_TYPE_EXTENDED", (), counts)
        if len(theirs) > len(ours) and writer.criterion in _SUM:
            yield Difference("SUM_TYPE_NARROWED", (), counts)
        if _largest_matching(theirs, ours, self._is_compatible) < min(len(theirs), len(ours)):
            yield Difference("COMBINED_TYPE_SUBSCHEMAS_CHANGED", (), self._unmatched(writer, reader))

    def _unmatched(self, writer: Combined, reader: Combined) -> str:
        """Name a schema of the writer that no schema of the reader accepts, and why, if one is alike."""
        for place, theirs in enumerate(writer.members.values()):
            if any(self._is_compatible(theirs, ours) for ours in reader.members.values()):
                continue
            message = f"nothing in the reader's {reader.criterion} accepts {_described(followed(theirs))}"
            alike = [
                ours for ours in reader.members.values() if type(followed(ours)) is type(followed(theirs))
            ]
            if len(alike) == 1:
                for finding in self._findings(followed(theirs), followed(alike[0])):
                    if isinstance(finding, Difference):
                        return f"{message}: {finding.message}"
            return f"{message} (number {place + 1} of the writer's)"
        return f"the schemas of the writer's {writer.criterion} have too few counterparts in the reader's"

    def _objects(self, writer: Object, reader: Object) -> Iterator[Finding]:
        newly_required = reader.required - writer.required
        for name, ours in reader.properties.items():
            if name in newly_required and name in writer.properties and not ours.has_default:
                message = f"the reader requires {name!r} and has no default; for the writer it is optional"
                yield Difference("REQUIRED_ATTRIBUTE_ADDED", ("required", name), message)
        for name, theirs in writer.properties.items():
            if name in reader.properties:
                yield Nested(("properties", name), theirs, reader.properties[name])
            else:
                yield from self._removed_property(name, theirs, reader)
        for name in reader.properties:
            if name not in writer.properties:
                yield from self._added_property(name, writer, reader)
        yield from _dependencies(writer, reader)
        yield from _rest("additionalProperties", "properties", writer.additional, reader.additional)
        yield from _unevaluated("unevaluatedProperties", "properties", writer.unevaluated, reader.unevaluated)
        yield from _upper("maxProperties", writer.max_properties, reader.max_properties)
        yield from _lower("minProperties", writer.min_properties, reader.min_properties)

    def _removed_property(self, name: str, theirs: Node, reader: Object) -> Iterator[Finding]:
        if _is_open(reader):
            return
        path = ("properties", name)
        if cover := self._cover(name, reader):
            if not self._is_compatible(theirs, cover):
                yield Difference(
                    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                    path,
                    f"the reader lacks {name!r}, and its schema for further properties does not accept it",
                )
                yield Nested(path, theirs, cover)
        elif not isinstance(followed(theirs), Nothing):
            message = f"the reader lacks {name!r}, and no schema of further properties covers it"
            yield Difference("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", path, message)

    def _added_property(self, name: str, writer: Object, reader: Object) -> Iterator[Finding]:
        ours = reader.properties[name]
        path = ("properties", name)
        is_required = name in reader.required
        if _is_open(writer):
            if isinstance(followed(ours), Anything):
                return
            rule = "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
            if is_required and ours.has_default:
                rule = "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL"
            elif is_required:
                rule = "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
            message = f"the writer accepts further properties and may have written anything as {name!r}"
            yield Difference(rule, path, message)
            return
        if (cover := self._cover(name, writer)) and not self._is_compatible(cover, ours):
            yield Difference(
                "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                path,
                f"the writer's schema for further properties allows other values of {name!r}",
            )
            yield Nested(path, cover, ours)
        if is_required and not ours.has_default:
            message = f"the reader requires {name!r} and has no default; the writer does not know it"
            yield Difference("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", path, message)

    def _cover(self, name: str, schema: Object) -> Node | None:
        """Return the schema of further properties that applies to a name, if one does."""
        self._count(_LOOKUPS_PER_PATTERN * len(schema.pattern_properties))
        if found := self._matching(schema.pattern_properties, name):
            return found
        if schema.additional is not None:
            return None if isinstance(schema.additional, Nothing) else schema.additional
        return _partial(schema.unevaluated)

    def _arrays(self, writer: Array, reader: Array) -> Iterator[Finding]:
        if reader.every and writer.every:
            yield Nested(("items",), writer.every, reader.every)
        elif reader.every:
            message = "the reader has a schema for items, the writer has none"
            yield Difference("SCHEMA_ADDED", ("items",), message)
        for place, (theirs, ours) in enumerate(zip(writer.items, reader.items, strict=False)):
            yield Nested(("items", place), theirs, ours)
        for place in range(len(reader.items), len(writer.items)):
            yield from self._removed_item(place, writer.items[place], reader)
        for place in range(len(writer.items), len(reader.items)):
            yield from self._added_item(place, writer, reader.items[place])
        yield from _rest("additionalItems", "items", writer.additional, reader.additional)
        yield from _unevaluated("unevaluatedItems", "items", writer.unevaluated, reader.unevaluated)
        yield from _upper("maxItems", writer.max_items, reader.max_items)
        yield from _lower("minItems", writer.min_items, reader.min_items)
        if reader.is_unique and not writer.is_unique:
            message = "the reader requires unique items, the writer does not"
            yield Difference("UNIQUE_ITEMS_ADDED", ("uniqueItems",), message)
        yield from _upper("maxContains", writer.max_contains, reader.max_contains)
        yield from _lower("minContains", writer.min_contains, reader.min_contains)

    def _removed_item(self, place: int, theirs: Node, reader: Array) -> Iterator[Finding]:
        path = ("items", place)
        if reader.additional is None and _is_open_unevaluated(reader.unevaluated):
            return
        if cover := _items_cover(reader):
            if not self._is_compatible(theirs, cover):
                yield Difference(
                    "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                    path,
                    f"the reader lacks item {place}, and its schema for further items does not accept it",
                )
                yield Nested(path, theirs, cover)
        elif not isinstance(followed(theirs), Nothing):
            message = f"the reader lacks item {place} and accepts no further items"
            yield Difference("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", path, message)

    def _added_item(self, place: int, writer: Array, ours: Node) -> Iterator[Finding]:
        path = ("items", place)
        if writer.additional is None and _is_open_unevaluated(writer.unevaluated):
            if not isinstance(followed(ours), Anything):
                message = f"the writer accepts further items and may have written anything as item {place}"
                yield Difference("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", path, message)
        elif (cover := _items_cover(writer)) and not self._is_compatible(cover, ours):
            yield Difference(
                "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                path,
                f"the writer's schema for further items allows other values of item {place}",
            )
            yield Nested(path, cover, ours)


def _strings(writer: String, reader: String) -> Iterator[Difference]:
    yield from _upper("maxLength", writer.max_length, reader.max_length)
    yield from _lower("minLength", writer.min_length, reader.min_length)
    if reader.pattern is not None and reader.pattern != writer.pattern:
        if writer.pattern is None:
            message = f"the reader requires the pattern {_short(reader.pattern)!r}, the writer has none"
            yield Difference("PATTERN_ADDED", ("pattern",), message)
        else:
            patterns = _short(writer.pattern), _short(reader.pattern)
            message = "the writer has the pattern {!r}, the reader {!r}".format(*patterns)
            yield Difference("PATTERN_CHANGED", ("pattern",), message)


def _numbers(writer: Number, reader: Number) -> Iterator[Difference]:
    yield from _upper("maximum", writer.maximum, reader.maximum)
    yield from _lower("minimum", writer.minimum, reader.minimum)
    yield from _upper("exclusiveMaximum", writer.exclusive_maximum, reader.exclusive_maximum)
    yield from _lower("exclusiveMinimum", writer.exclusive_minimum, reader.exclusive_minimum)
    yield from _multiples(writer.multiple_of, reader.multiple_of)
    if reader.is_integer and not writer.is_integer:
        yield Difference("TYPE_NARROWED", (), "the writer has numbers, the reader integers")


def _multiples(theirs: Amount | None, ours: Amount | None) -> Iterator[Difference]:
    if ours is None or theirs == ours:
        return
    if theirs is None:
        message = f"the reader requires multiples of {ours}, the writer does not"
        yield Difference("MULTIPLE_OF_ADDED", ("multipleOf",), message)
    elif _remainder(theirs, ours) != 0:
        rule = "MULTIPLE_OF_EXPANDED" if _remainder(ours, theirs) == 0 else "MULTIPLE_OF_CHANGED"
        message = f"the writer has multiples of {theirs}, the reader requires multiples of {ours}"
        yield Difference(rule, ("multipleOf",), message)


def _remainder(amount: Amount, divisor: Amount) -> Decimal:
    return _EXACT.remainder(Decimal(amount), Decimal(divisor))


def _enums(writer: Enum, reader: Enum) -> Iterator[Difference]:
    if missing := writer.values - reader.values:
        rule = "ENUM_ARRAY_NARROWED" if reader.values < writer.values else "ENUM_ARRAY_CHANGED"
        names = ", ".join(_short(each) for each in sorted(missing)[:5])
        yield Difference(rule, ("enum",), f"the reader lacks {names}")


def _upper(keyword: str, theirs: Amount | None, ours: Amount | None) -> Iterator[Difference]:
    if ours is None:
        return
    if theirs is None:
        message = f"the reader limits {keyword} to {ours}, the writer has no limit"
        yield Difference(f"{_constant(keyword)}_ADDED", (keyword,), message)
    elif ours < theirs:
        message = f"{keyword} is {theirs} for the writer and only {ours} for the reader"
        yield Difference(f"{_constant(keyword)}_DECREASED", (keyword,), message)


def _lower(keyword: str, theirs: Amount | None, ours: Amount | None) -> Iterator[Difference]:
    if ours is None:
        return
    if theirs is None:
        message = f"the reader requires {keyword} {ours}, the writer has no limit"
        yield Difference(f"{_constant(keyword)}_ADDED", (keyword,), message)
    elif ours > theirs:
        message = f"{keyword} is {theirs} for the writer and {ours} for the reader"
        yield Difference(f"{_constant(keyword)}_INCREASED", (keyword,), message)


def _dependencies(writer: Object, reader: Object) -> Iterator[Finding]:
    for name, ours in reader.required_by.items():
        path = ("dependencies", name)
        theirs = writer.required_by.get(name)
        missing = ", ".join(sorted(ours - (theirs or frozenset())))
        message = f"with {name!r} the reader requires further properties: {missing}"
        if theirs is None:
            yield Difference("DEPENDENCY_ARRAY_ADDED", path, message)
        elif not ours <= theirs:
            rule = "DEPENDENCY_ARRAY_EXTENDED" if theirs < ours else "DEPENDENCY_ARRAY_CHANGED"
            yield Difference(rule, path, message)
    for name, node in reader.schema_by.items():
        path = ("dependencies", name)
        if name in writer.schema_by:
            yield Nested(path, writer.schema_by[name], node)
        else:
            message = f"with {name!r} the reader requires a further schema, the writer does not"
            yield Difference("DEPENDENCY_SCHEMA_ADDED", path, message)


def _rest(keyword: str, kind: str, theirs: Node | None, ours: Node | None) -> Iterator[Finding]:
    """Compare additionalProperties or additionalItems: None accepts anything."""
    if isinstance(ours, Nothing):
        if not isinstance(theirs, Nothing):
            message = f"the reader accepts no further {kind}, the writer does"
            yield Difference(f"{_constant(keyword)}_REMOVED", (keyword,), message)
    elif ours is not None and theirs is None:
        message = f"the reader has a schema for further {kind}, the writer has none"
        yield Difference(f"{_constant(keyword)}_NARROWED", (keyword,), message)
    elif ours is not None and theirs is not None and not isinstance(theirs, Nothing):
        yield Nested((keyword,), theirs, ours)


def _unevaluated(keyword: str, kind: str, theirs: Node | None, ours: Node | None) -> Iterator[Finding]:
    if ours is None:
        return
    if isinstance(followed(ours), Nothing):
        if theirs is None or not isinstance(followed(theirs), Nothing):
            message = f"the reader accepts no {kind} that no schema evaluates, the writer does"
            yield Difference(f"{_constant(keyword)}_REMOVED", (keyword,), message)
    elif theirs is None or (
        isinstance(followed(theirs), Anything) and not isinstance(followed(ours), Anything)
    ):
        message = f"the reader has a schema for {kind} that no schema evaluates, the writer has none"
        yield Difference(f"{_constant(keyword)}_NARROWED", (keyword,), message)
    elif not isinstance(followed(theirs), Nothing):
        yield Nested((keyword,), theirs, ours)


def _is_open(schema: Object) -> bool:
    return (
        schema.additional is None
        and not schema.pattern_properties
        and _is_open_unevaluated(schema.unevaluated)
    )


def _is_open_unevaluated(node: Node | None) -> bool:
    return node is None or isinstance(followed(node), Anything)


def _partial(node: Node | None) -> Node | None:
    """Return a schema that accepts some values and refuses others."""
    return None if node is None or isinstance(followed(node), (Anything, Nothing)) else node


def _items_cover(schema: Array) -> Node | None:
    if schema.additional is not None:
        return None if isinstance(schema.additional, Nothing) else schema.additional
    return _partial(schema.unevaluated)


def _largest_matching(
    left: Mapping[bytes, Node], right: Mapping[bytes, Node], is_edge: Callable[[Node, Node], bool]
) -> int:
    """Return how many nodes of both sides can be paired, each once. Tries nodes with the same key first."""
    nodes, others = list(left.values()), list(right.values())
    place_of_key = {key: place for place, key in enumerate(right)}
    first = [place_of_key.get(key, place) for place, key in enumerate(left)]

    def edges(node: int) -> Iterator[int]:
        for offset in range(len(others)):
            place = (first[node] + offset) % len(others)
            if is_edge(nodes[node], others[place]):
                yield place

    place_of: dict[int, int] = {}  # left to right
    node_at: dict[int, int] = {}  # right to left
    for start in range(len(nodes)):
        reached_from: dict[int, int] = {}
        queue = deque([start])
        free: int | None = None
        while queue and free is None:
            node = queue.popleft()
            for place in edges(node):
                if place not in reached_from:
                    reached_from[place] = node
                    if place not in node_at:
                        free = place
                        break
                    queue.append(node_at[place])
        # Along the path to the free place, each node moves to the place that was reached from it.
        while free is not None:
            node = reached_from[free]
            before = place_of.get(node)
            place_of[node], node_at[free] = free, node
            free = before
    return len(place_of)


def _constant(keyword: str) -> str:
    return "".join(f"_{each}" if each.isupper() else each.upper() for each in keyword)


def _described(node: Node) -> str:
    match node:
        case Anything():
            return "any value"
        case Nothing():
            return "no value"
        case Number():
            return "an integer" if node.is_integer else "a number"
        case Combined():
            return f"{node.criterion} of {len(node.members)} schemas"
        case Const():
            return f"the constant {_short(node.value)}"
        case Enum():
            return "an enumeration"
        case Not():
            return "a negation"
        case MetaSchema():
            return f"the meta-schema {node.uri}"
        case _:
            name = type(node).__name__.lower()
            return f"an {name}" if name[0] in "ao" else name if name == "null" else f"a {name}"


def _short(text: str) -> str:
    return text if len(text) <= 50 else f"{text[:49]}…"
