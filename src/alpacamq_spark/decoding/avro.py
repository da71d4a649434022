"""Describes Avro values as the registry decodes them.

Types become those that Spark's `from_avro` gives them, with stable names for the branches of unions. In
addition times of day are text, and a type that contains itself is JSON text where it does.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from alpacamq.registry.avro.json_form import BYTE_CODEC, NUMBERS_BY_NAME, json_type, type_name, usual_type
from alpacamq.registry.avro.types import (
    Array,
    AvroType,
    Enum,
    Fixed,
    Kind,
    Primitive,
    Record,
    Union,
    logical_type,
)
from alpacamq.registry.avro.types import Map as AvroMap

from .layout import JSON_TEXT, MAX_DEPTH, Growth, Layout, Leaf, List, Map, Misfit, a_list, an_object, same

MAX_PRECISION = 38


def avro_layout(root: AvroType) -> Layout:
    """Return the layout of the values of a type. Raises UnusableSchema."""
    return _Builder().build(root, "", ())


class _Builder:
    def __init__(self) -> None:
        self._growth = Growth()

    def build(self, of: AvroType, path: str, outer: Sequence[Record]) -> Layout:
        match of:
            case Record():
                if any(each is of for each in outer) or len(outer) >= MAX_DEPTH:
                    return self._growth.leaf(JSON_TEXT)
                inner = (*outer, of)
                fields = {
                    each.name: self.build(each.type, f"{path}.{each.name}", inner) for each in of.fields
                }
                return self._growth.object(fields, path.lstrip("."))
            case Array():
                return List(self.build(of.items, f"{path}[]", outer), a_list)
            case AvroMap():
                return Map(self.build(of.values, f"{path}[]", outer), an_object)
            case Union():
                return self._union(of, path, outer)
            case Enum():
                return self._growth.leaf(Leaf(StringType()))
            case Primitive() | Fixed():
                return self._growth.leaf(_leaf(of))

    def _union(self, of: Union, path: str, outer: Sequence[Record]) -> Layout:
        branches = [each for each in of.branches if each.kind is not Kind.NULL]
        tags = {type_name(each) for each in of.branches}
        if len(branches) == 1:
            return _untagged(self.build(branches[0], path, outer), tags)
        if {each.kind for each in branches} == {Kind.INT, Kind.LONG} and not any(map(logical_type, branches)):
            return self._growth.leaf(Leaf(LongType(), lambda value: _branch_value(value, tags)))
        if {each.kind for each in branches} == {Kind.FLOAT, Kind.DOUBLE}:
            return self._growth.leaf(Leaf(DoubleType(), lambda value: _number(_branch_value(value, tags))))
        members = member_names(branches)
        fields = {
            member: self.build(branch, f"{path}.{member}", outer)
            for member, branch in zip(members, branches, strict=True)
        }
        if not fields:
            return self._growth.leaf(Leaf(StringType()))
        return self._growth.object(fields, path.lstrip("."), _Branches(branches, members, tags).read)


def member_names(branches: Sequence[AvroType]) -> list[str]:
    """Name the branches of a union as Spark does with stable identifiers; full names where those clash."""
    simple = [
        each.name.simple if isinstance(each, Record | Enum | Fixed) else each.kind.value for each in branches
    ]
    lower = [name.lower() for name in simple]
    full = [type_name(each).replace(".", "_") for each in branches]
    return [
        f"member_{name if lower.count(name.lower()) == 1 else whole}"
        for name, whole in zip(simple, full, strict=True)
    ]


class _Branches:
    """Tells by a value of a union which branch it is of."""

    def __init__(self, branches: Sequence[AvroType], members: Sequence[str], tags: set[str]) -> None:
        self._tags = tags
        self._by_name = {type_name(each): member for each, member in zip(branches, members, strict=True)}
        # Only a type that a single branch has stands without the name of its branch.
        self._by_type = {usual_type(each): member for each, member in zip(branches, members, strict=True)}

    def read(self, value: Any) -> Mapping[str, Any]:
        if _is_tagged(value, self._tags):
            [(tag, inner)] = value.items()
            return {self._by_name[tag]: inner}
        kind = json_type(value)
        if kind is None or kind not in self._by_type:
            raise Misfit(f"no branch of the union has {type(value).__name__}")
        return {self._by_type[kind]: value}


def _is_tagged(value: Any, tags: set[str]) -> bool:
    return isinstance(value, dict) and len(value) == 1 and next(iter(value)) in tags


def _branch_value(value: Any, tags: set[str]) -> Any:
    return next(iter(value.values())) if _is_tagged(value, tags) else value


def _untagged(layout: Layout, tags: set[str]) -> Layout:
    """Return the layout of an optional value: an object may stand under the name of its type."""
    if isinstance(layout, Leaf | List):
        return layout
    return type(layout)(
        layout.fields if not isinstance(layout, Map) else layout.value,  # type: ignore[arg-type]
        lambda value: an_object(_branch_value(value, tags)),
    )


def _number(value: Any) -> float:
    return NUMBERS_BY_NAME[value] if isinstance(value, str) else float(value)


def _bytes(value: str) -> bytes:
    return value.encode(BYTE_CODEC)


def _date(value: Any) -> date:
    if not isinstance(value, str):
        raise Misfit(f"no date is {value} days from 1970")
    return date.fromisoformat(value)


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, str):
        raise Misfit(f"no date is at {value}")
    return datetime.fromisoformat(value)  # with or without a time zone, as the type is


def _decimal(value: str) -> Decimal:
    try:
        return Decimal(value)
    except InvalidOperation:
        raise Misfit(f"{value!r} is no decimal") from None


_PRIMITIVES: Mapping[Kind, Leaf] = {
    Kind.NULL: Leaf(StringType()),
    Kind.BOOLEAN: Leaf(BooleanType()),
    Kind.INT: Leaf(IntegerType()),
    Kind.LONG: Leaf(LongType()),
    Kind.FLOAT: Leaf(FloatType(), _number),
    Kind.DOUBLE: Leaf(DoubleType(), _number),
    Kind.BYTES: Leaf(BinaryType(), _bytes),
    Kind.FIXED: Leaf(BinaryType(), _bytes),
    Kind.STRING: Leaf(StringType()),
}


def _leaf(of: Primitive | Fixed) -> Leaf:
    name = logical_type(of)
    match name:
        case "date":
            return Leaf(DateType(), _date)
        case "time-millis" | "time-micros":
            return Leaf(StringType(), str)
        case "uuid":
            return Leaf(StringType(), same)
        case "decimal":
            precision, scale = of.properties["precision"], of.properties.get("scale", 0)
            assert isinstance(precision, int) and isinstance(scale, int)  # noqa: PT018 - logical_type checks
            if precision > MAX_PRECISION:
                return Leaf(StringType(), same)
            return Leaf(DecimalType(precision, scale), _decimal)
        case None | "duration" | "big-decimal":
            return _PRIMITIVES[of.kind]
    is_local = name is not None and name.startswith("local-")
    return Leaf(TimestampNTZType() if is_local else TimestampType(), _timestamp)
