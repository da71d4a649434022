"""Defines how Avro values look in JSON.

The form is that of Avro's specification, which defaults in schemas and other tools use, made easier to read
and to write by hand:

- Bytes and fixed values are strings with one character per byte, U+0000 to U+00FF.
- Logical types are shown as text; see `logical`. Their numbers are taken as well.
- NaN and the infinities, which JSON lacks, are the strings "NaN", "Infinity" and "-Infinity".
- The value of a union stands for itself where its JSON type says which branch it is of. Otherwise it is
  {"branch": value}, with the name of the type: "int", "map", or the full name of a named type. Both forms are
  taken. An object with a single key that is the name of a branch is always the latter.
"""

from collections import Counter
from enum import StrEnum

from .logical import text_form
from .types import AvroType, Enum, Fixed, Kind, Record, Union

NUMBERS_BY_NAME = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
# One character per byte.
BYTE_CODEC = "latin-1"


class JsonType(StrEnum):
    """The types of JSON values."""

    NULL = "null"
    BOOLEAN = "boolean"
    NUMBER = "number"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"


_JSON_TYPES: dict[type, JsonType] = {
    type(None): JsonType.NULL,
    bool: JsonType.BOOLEAN,
    int: JsonType.NUMBER,
    float: JsonType.NUMBER,
    str: JsonType.STRING,
    list: JsonType.ARRAY,
    dict: JsonType.OBJECT,
}
_USUAL_TYPES: dict[Kind, JsonType] = {
    Kind.NULL: JsonType.NULL,
    Kind.BOOLEAN: JsonType.BOOLEAN,
    Kind.INT: JsonType.NUMBER,
    Kind.LONG: JsonType.NUMBER,
    Kind.FLOAT: JsonType.NUMBER,
    Kind.DOUBLE: JsonType.NUMBER,
    Kind.BYTES: JsonType.STRING,
    Kind.STRING: JsonType.STRING,
    Kind.ENUM: JsonType.STRING,
    Kind.FIXED: JsonType.STRING,
    Kind.ARRAY: JsonType.ARRAY,
    Kind.MAP: JsonType.OBJECT,
    Kind.RECORD: JsonType.OBJECT,
}


def json_type(value: object) -> JsonType | None:
    """Return the JSON type of a value, None if JSON has none for it."""
    return _JSON_TYPES.get(type(value))


def usual_type(of: AvroType) -> JsonType:
    """Return the JSON type of values of a type that is no union; a few may have no readable form."""
    return _USUAL_TYPES[of.kind] if text_form(of) is None else JsonType.STRING


def may_be_text_or_number(of: AvroType) -> bool:
    """Return whether values of a type can be a number as well as a string."""
    return of.kind in (Kind.FLOAT, Kind.DOUBLE) or text_form(of) is not None


def type_name(of: AvroType) -> str:
    """Return the name of a type as a branch of a union."""
    return of.name.full if isinstance(of, Record | Enum | Fixed) else of.kind.value


class UnionForm:
    """How the values of a union look."""

    def __init__(self, union: Union) -> None:
        self.branches = union.branches
        self.names = {type_name(branch): index for index, branch in enumerate(union.branches)}
        self.types = [usual_type(branch) for branch in union.branches]
        self.null = self.names.get(Kind.NULL)
        others = [index for index in range(len(union.branches)) if index != self.null]
        # The branch of every value that is not null, if there is only one.
        self.only_branch = others[0] if len(others) == 1 else None
        counts = Counter(self.types)
        self._is_sole_of_its_type = [counts[each] == 1 for each in self.types]

    def shown(self, index: int, value: object) -> object:
        """Return a value of a branch as it looks in the union."""
        is_plain = self.only_branch is not None or (
            self._is_sole_of_its_type[index] and json_type(value) is self.types[index]
        )
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in self.names:
            is_plain = False
        return value if is_plain else {type_name(self.branches[index]): value}

    def is_always_plain(self, index: int) -> bool:
        """Return whether no value of a branch needs the name of the branch."""
        if self.types[index] is JsonType.OBJECT:
            return False
        if self.only_branch is not None or index == self.null:
            return True
        return self._is_sole_of_its_type[index] and not may_be_text_or_number(self.branches[index])
