"""Decides whether a reader's schema can read all data of a writer's schema.

Applies the rules of Avro's Java library, which Confluent's registry uses, and its names of the differences:
types match by unqualified name or alias, numbers and strings are promoted, logical types do not count.

Two types are compared once however often they meet. Recursive types are compatible unless a difference is
found: comparing starts with that assumption for every pair and withdraws it where a pair turns out to differ.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from alpacamq.registry.schema import Incompatibility

from .types import Array, AvroType, Enum, Field, Fixed, Kind, Map, Named, Primitive, Record, Union, excerpt

# Comparisons of fields, symbols and branches: schemas of strangers could ask for one per pair of types.
MAX_COMPARISONS = 100_000
MAX_REPORTED = 100


class Rule(StrEnum):
    """The kinds of differences, by Confluent's names."""

    NAME_MISMATCH = "NAME_MISMATCH"
    FIXED_SIZE_MISMATCH = "FIXED_SIZE_MISMATCH"
    MISSING_ENUM_SYMBOLS = "MISSING_ENUM_SYMBOLS"
    READER_FIELD_MISSING_DEFAULT_VALUE = "READER_FIELD_MISSING_DEFAULT_VALUE"
    TYPE_MISMATCH = "TYPE_MISMATCH"
    MISSING_UNION_BRANCH = "MISSING_UNION_BRANCH"
    # Ours: the comparison was given up.
    TOO_COMPLEX = "TOO_COMPLEX"


PROMOTIONS: Mapping[Kind, frozenset[Kind]] = {
    Kind.LONG: frozenset({Kind.INT}),
    Kind.FLOAT: frozenset({Kind.INT, Kind.LONG}),
    Kind.DOUBLE: frozenset({Kind.INT, Kind.LONG, Kind.FLOAT}),
    Kind.BYTES: frozenset({Kind.STRING}),
    Kind.STRING: frozenset({Kind.BYTES}),
}


def incompatibilities(reader: AvroType, writer: AvroType) -> list[Incompatibility]:
    """Return the differences for which the reader cannot read data of the writer, up to `MAX_REPORTED`."""
    try:
        root = _Comparison().compare(reader, writer)
    except _TooComplex:
        reason = f"the schemas are too large to compare: more than {MAX_COMPARISONS} comparisons"
        return [Incompatibility(rule=Rule.TOO_COMPLEX, path="/", message=reason)]
    return _report(root)


class _TooComplex(Exception):
    """The comparison takes more steps than allowed."""


class _Difference(NamedTuple):
    """A difference between the two types of a pair, at a place below them."""

    rule: Rule
    path: str
    message: str


class _Part(NamedTuple):
    """A pair that decides about a larger one. `missing` is reported instead of the part's own differences."""

    path: str
    pair: "_Pair"
    missing: str | None = None


class _Pair:
    """A reader's type and a writer's type that data may bring together."""

    __slots__ = ("differs", "findings", "is_choice", "reader", "tolerated", "used_by", "writer")

    def __init__(self, reader: AvroType, writer: AvroType) -> None:
        self.reader = reader
        self.writer = writer
        self.findings: list[_Difference | _Part] = []
        # One part that is compatible suffices.
        self.is_choice = False
        # How many more parts may differ before the pair does.
        self.tolerated = 0
        self.used_by: list[_Pair] = []
        self.differs = False


class _Comparison:
    """Finds the pairs of types that two schemas bring together, and which of them differ."""

    def __init__(self) -> None:
        # Keyed by identity. The pairs keep their types alive.
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._open: list[_Pair] = []
        self._branches: dict[int, BranchIndex] = {}
        self._comparisons = 0

    def compare(self, reader: AvroType, writer: AvroType) -> _Pair:
        root = self._pair(reader, writer)
        while self._open:
            pair = self._open.pop()
            pair.findings = list(self._findings(pair))
            parts = [each.pair for each in pair.findings if isinstance(each, _Part)]
            for part in parts:
                part.used_by.append(pair)
            pair.differs = not parts if pair.is_choice else len(parts) < len(pair.findings)
            pair.tolerated = len(parts) - 1 if pair.is_choice else 0
        self._withdraw_compatibility()
        return root

    def _withdraw_compatibility(self) -> None:
        differing = [pair for pair in self._pairs.values() if pair.differs]
        while differing:
            for user in differing.pop().used_by:
                if user.tolerated:
                    user.tolerated -= 1
                elif not user.differs:
                    user.differs = True
                    differing.append(user)

    def _spend(self, comparisons: int) -> None:
        self._comparisons += comparisons
        if self._comparisons > MAX_COMPARISONS:
            raise _TooComplex

    def _pair(self, reader: AvroType, writer: AvroType) -> _Pair:
        self._spend(1)
        key = id(reader), id(writer)
        if key not in self._pairs:
            self._pairs[key] = pair = _Pair(reader, writer)
            self._open.append(pair)
        return self._pairs[key]

    def _findings(self, pair: _Pair) -> Iterator[_Difference | _Part]:
        match pair.reader, pair.writer:
            case Union() as reader, Union() as writer:
                for index, branch in enumerate(writer.branches):
                    yield _Part(str(index), self._pair(reader, branch), missing=_missing_branch(branch))
            case reader, Union() as writer:
                for index, branch in enumerate(writer.branches):
                    yield _Part(str(index), self._pair(reader, branch))
            case Union() as reader, writer:
                yield from self._choice(pair, reader, writer)
            case Array() as reader, Array() as writer:
                yield _Part("items", self._pair(reader.items, writer.items))
            case Map() as reader, Map() as writer:
                yield _Part("values", self._pair(reader.values, writer.values))
            case Record() as reader, Record() as writer:
                yield from self._name(reader, writer)
                yield from self._fields(reader, writer)
            case Enum() as reader, Enum() as writer:
                yield from self._name(reader, writer)
                self._spend(len(writer.symbols))
                yield from _symbol_differences(reader, writer)
            case Fixed() as reader, Fixed() as writer:
                yield from self._name(reader, writer)
                if reader.size != writer.size:
                    message = (
                        f"fixed type {excerpt(reader.name.full)} has {reader.size} bytes;"
                        f" the writer's has {writer.size}"
                    )
                    yield _Difference(Rule.FIXED_SIZE_MISMATCH, "size", message)
            case reader, writer:
                if reader.kind is not writer.kind and writer.kind not in PROMOTIONS.get(reader.kind, ()):
                    message = f"data of type {writer.kind.value} cannot be read as {reader.kind.value}"
                    yield _Difference(Rule.TYPE_MISMATCH, "", message)

    def _choice(self, pair: _Pair, reader: Union, writer: AvroType) -> Iterator[_Difference | _Part]:
        pair.is_choice = True
        missing = _missing_branch(writer)
        index = self._branches.get(id(reader))
        if index is None:
            self._spend(len(reader.branches))
            index = self._branches[id(reader)] = BranchIndex(reader)
        # In a choice this is the difference to report if no part is compatible.
        yield _Difference(Rule.MISSING_UNION_BRANCH, "", missing)
        for branch in index.candidates(writer):
            yield _Part("", self._pair(branch, writer))

    def _name(self, reader: Named, writer: Named) -> Iterator[_Difference]:
        self._spend(len(reader.aliases))
        if names_match(reader, writer):
            return
        message = (
            f"{reader.kind.value} {excerpt(reader.name.full)} has neither the name nor an alias of the"
            f" writer's {excerpt(writer.name.full)}"
        )
        yield _Difference(Rule.NAME_MISMATCH, "name", message)

    def _fields(self, reader: Record, writer: Record) -> Iterator[_Difference | _Part]:
        for position, field in enumerate(reader.fields):
            path = f"fields/{position}"
            self._spend(1 + len(field.aliases))
            found = writer_fields(field, writer)
            if len(found) > 1:
                names = excerpt(" and ".join(each.name for each in found[:10]))
                message = (
                    f"field {excerpt(field.name)} and its aliases match several fields of the writer: {names}"
                )
                yield _Difference(Rule.NAME_MISMATCH, path, message)
            elif found and found[0].type.kind is field.type.kind and isinstance(field.type, Primitive):
                continue  # the most frequent case, and not worth a pair
            elif found:
                yield _Part(f"{path}/type", self._pair(field.type, found[0].type))
            elif field.default is None:
                message = f"field {excerpt(field.name)} has no default, and the writer's schema lacks it"
                yield _Difference(Rule.READER_FIELD_MISSING_DEFAULT_VALUE, path, message)


class BranchIndex:
    """Finds the branches of a reader's union that may match a writer's type, without trying all of them."""

    def __init__(self, union: Union) -> None:
        self._unnamed: dict[Kind, AvroType] = {}
        self._named: dict[tuple[Kind, str], list[AvroType]] = {}
        for branch in union.branches:
            if isinstance(branch, Record | Enum | Fixed):
                for name in {branch.name.simple, *(_alias_key(alias.full) for alias in branch.aliases)}:
                    self._named.setdefault((branch.kind, name), []).append(branch)
            else:
                self._unnamed[branch.kind] = branch

    def candidates(self, writer: AvroType) -> Iterable[AvroType]:
        """Return the branches that have the type's name, or that its kind can be read as."""
        if isinstance(writer, Record | Enum | Fixed):
            yield from self._named.get((writer.kind, writer.name.simple), ())
            yield from self._named.get((writer.kind, _alias_key(writer.name.full)), ())
            return
        for kind, branch in self._unnamed.items():
            if kind is writer.kind or writer.kind in PROMOTIONS.get(kind, ()):
                yield branch


def _alias_key(full_name: str) -> str:
    return f"alias:{full_name}"  # no name contains a colon


def names_match(reader: Named, writer: Named) -> bool:
    """Return whether a reader's type has the simple name of the writer's, or its full name as an alias."""
    return reader.name.simple == writer.name.simple or writer.name in reader.aliases


def writer_fields(field: Field, writer: Record) -> Sequence[Field]:
    """Return the fields of the writer that have the name of a reader's field or one of its aliases."""
    fields = writer.fields_by_name
    return [fields[name] for name in dict.fromkeys([field.name, *field.aliases]) if name in fields]


def _symbol_differences(reader: Enum, writer: Enum) -> Iterator[_Difference]:
    missing = [symbol for symbol in writer.symbols if symbol not in reader.symbol_set]
    if missing and reader.default is None:
        shown = excerpt(", ".join(missing[:20]))
        message = f"enum {excerpt(reader.name.full)} has no default and lacks symbols of the writer: {shown}"
        yield _Difference(Rule.MISSING_ENUM_SYMBOLS, "symbols", message)


def _missing_branch(writer: AvroType) -> str:
    named = f" {excerpt(writer.name.full)}" if isinstance(writer, Record | Enum | Fixed) else ""
    return f"no branch of the reader's union can read the writer's type {writer.kind.value}{named}"


class _Place(NamedTuple):
    """The end of a path. A chain of steps, because paths through recursive types can be long."""

    step: str
    outer: "_Place | None"


def _report(root: _Pair) -> list[Incompatibility]:
    reported: list[Incompatibility] = []
    seen: set[int] = set()
    stack: list[tuple[_Place | None, _Pair | _Difference]] = [(None, root)]
    while stack and len(reported) < MAX_REPORTED:
        place, found = stack.pop()
        if isinstance(found, _Difference):
            reported.append(Incompatibility(rule=found.rule, path=_path(place), message=found.message))
        elif found.differs and id(found) not in seen:
            seen.add(id(found))
            stack.extend((_Place(step, place), each) for step, each in reversed(list(_reasons(found, seen))))
    return reported


def _reasons(pair: _Pair, seen: Collection[int]) -> Iterator[tuple[str, _Pair | _Difference]]:
    if pair.is_choice and _has_seen_part(pair, seen):
        return
    for each in pair.findings:
        if isinstance(each, _Difference):
            yield each.path, each
        elif pair.is_choice or not each.pair.differs:
            continue
        elif each.missing is None:
            yield each.path, each.pair
        elif not _has_seen_part(each.pair, seen):
            yield each.path, _Difference(Rule.MISSING_UNION_BRANCH, "", each.missing)


def _has_seen_part(choice: _Pair, seen: Collection[int]) -> bool:
    """Return whether a recursive type leads back to a pair whose differences are reported anyway."""
    return any(isinstance(each, _Part) and id(each.pair) in seen for each in choice.findings)


def _path(place: _Place | None) -> str:
    steps: list[str] = []
    while place is not None:
        if place.step:
            steps.append(place.step)
        place = place.outer
    return "/" + "/".join(reversed(steps))
