"""Filter expressions over messages: `value.total > 100 and headers.source == "shop"`.

Owns the language: comparisons, `and`, `or`, `not` and parentheses. The cost of an expression is bounded by
its length, its depth and its number of comparisons.
"""

import re
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from .records import Record

MAX_CHARACTERS = 2000
MAX_COMPARISONS = 20
MAX_DEPTH = 20

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Step = str | int
_Test = Callable[["_Message"], bool]
_Operand = Callable[["_Message"], Json]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<text>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|(?P<mark>==|!=|<=|>=|[<>()\[\].])|(?P<end>$))"
)
_ORDERS: dict[str, Callable[[float | str, float | str], bool]] = {
    "<": lambda one, other: one < other,  # type: ignore[operator]  # both are numbers or both are texts
    "<=": lambda one, other: one <= other,  # type: ignore[operator]
    ">": lambda one, other: one > other,  # type: ignore[operator]
    ">=": lambda one, other: one >= other,  # type: ignore[operator]
}
_CONSTANTS: dict[str, Json] = {"true": True, "false": False, "null": None}
_FIELDS = ("key", "value", "headers", "partition", "offset", "timestamp")
_EXAMPLE = 'as in: value.total > 100 and key == "alice"'


class InvalidFilter(ValueError):
    """The text is not a filter; the message says where and why."""


class Filter:
    """Tells which messages match an expression; InvalidFilter if it is not one."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise InvalidFilter(f"is longer than {MAX_CHARACTERS} characters")
        self._test = _Parser(text).whole()

    def matches(self, partition: int, record: Record) -> bool:
        """Return whether a record of this partition matches."""
        return self._test(_Message(partition, record))


class _Message:
    """A message as expressions see it. Its value is parsed when an expression looks at it."""

    __slots__ = ("_value", "partition", "record")

    def __init__(self, partition: int, record: Record) -> None:
        self.partition = partition
        self.record = record
        self._value: Json | type[_Message] = _Message  # until it is parsed

    @property
    def value(self) -> Json:
        """The JSON of the value, its text if it is not JSON, or None if it is not text."""
        if self._value is _Message:
            self._value = _parsed(self.record.value)
        return self._value  # type: ignore[return-value]

    def field(self, name: str) -> Json:
        record = self.record
        match name:
            case "value":
                return self.value
            case "key":
                return _text(record.key)
            case "headers":
                return {header.key: _text(header.value) for header in record.headers}
            case "partition":
                return self.partition
            case "offset":
                return record.offset
        return record.timestamp_ms


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return None


def _parsed(data: bytes | None) -> Json:
    try:
        parsed: Json = msgspec.json.decode(data or b"")
    except (msgspec.DecodeError, RecursionError):  # or nested too deeply
        return _text(data)
    return parsed


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """Parses an expression by recursive descent into nested functions."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._comparisons = 0
        self._token = self._next()

    def whole(self) -> _Test:
        test = self._either()
        if self._token.kind != "end":
            raise self._error("expected and, or, or the end")
        return test

    def _next(self) -> _Token:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found.lastgroup is None:
            at = len(self._text) - len(self._text[self._at :].lstrip())
            raise InvalidFilter(f"character {at + 1}: unexpected {self._text[at]!r}; {_EXAMPLE}")
        self._at = found.end()
        kind = found.lastgroup
        return _Token(kind, found[kind], found.start(kind))

    def _take(self) -> _Token:
        taken, self._token = self._token, self._next()
        return taken

    def _takes(self, *words: str) -> str | None:
        if self._token.kind in ("name", "mark") and self._token.text in words:
            return self._take().text
        return None

    def _error(self, problem: str) -> InvalidFilter:
        found = repr(self._token.text) if self._token.text else "the end"
        return InvalidFilter(f"character {self._token.at + 1}: {problem}, not {found}; {_EXAMPLE}")

    def _either(self) -> _Test:
        tests = [self._all()]
        while self._takes("or"):
            tests.append(self._all())
        return tests[0] if len(tests) == 1 else lambda message: any(test(message) for test in tests)

    def _all(self) -> _Test:
        tests = [self._negatable()]
        while self._takes("and"):
            tests.append(self._negatable())
        return tests[0] if len(tests) == 1 else lambda message: all(test(message) for test in tests)

    def _negatable(self) -> _Test:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidFilter(f"is nested more than {MAX_DEPTH} levels deep")
        if self._takes("not"):
            negated = self._negatable()
            test: _Test = lambda message: not negated(message)  # noqa: E731 - the other branches call
        elif self._takes("("):
            test = self._either()
            if not self._takes(")"):
                raise self._error("expected )")
        else:
            test = self._comparison()
        self._depth -= 1
        return test

    def _comparison(self) -> _Test:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise InvalidFilter(f"has more than {MAX_COMPARISONS} comparisons")
        is_value = self._token == ("name", "value", self._token.at)
        left, steps = self._operand()
        operator = self._takes("==", "!=", "contains", *_ORDERS)
        if operator is None:
            return lambda message: left(message) is True
        right, _ = self._operand()
        if operator == "contains":
            # The whole value is searched as it is written.
            whole = is_value and not steps
            return lambda message: _contains(
                _text(message.record.value) if whole else left(message), right(message)
            )
        if operator == "==":
            return lambda message: _equal(left(message), right(message))
        if operator == "!=":
            return lambda message: not _equal(left(message), right(message))
        order = _ORDERS[operator]
        return lambda message: _ordered(left(message), right(message), order)

    def _operand(self) -> tuple[_Operand, list[Step]]:
        kind, text, _ = self._token
        if kind in ("number", "text"):
            constant = self._constant()
            return (lambda _: constant), []
        if kind == "name" and text in _CONSTANTS:
            self._take()
            return (lambda _: _CONSTANTS[text]), []
        if kind != "name" or text not in _FIELDS:
            raise self._error(f"expected {', '.join(_FIELDS)}, a number, a quoted text, true, false or null")
        self._take()
        steps: list[Step] = []
        while mark := self._takes(".", "["):
            if mark == ".":
                if self._token.kind != "name":
                    raise self._error("expected the name of a member")
                steps.append(self._take().text)
                continue
            step = self._constant()
            if not isinstance(step, str | int):
                raise InvalidFilter("an index must be a whole number or a quoted name")
            steps.append(step)
            if not self._takes("]"):
                raise self._error("expected ]")
        if not steps:
            return (lambda message: message.field(text)), steps
        return (lambda message: _member(message.field(text), steps)), steps

    def _constant(self) -> str | int | float:
        if self._token.kind not in ("number", "text"):
            raise self._error("expected a number or a quoted text")
        token = self._take()
        try:
            found: str | int | float = msgspec.json.decode(token.text)
        except msgspec.DecodeError:
            raise InvalidFilter(f"character {token.at + 1}: {token.text} is not as in JSON") from None
        return found


def _member(value: Json, steps: list[Step]) -> Json:
    """Return a member of a value; None if there is none."""
    for step in steps:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def _equal(one: Json, other: Json) -> bool:
    # In Python, True is 1.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _ordered(one: Json, other: Json, order: Callable[[float | str, float | str], bool]) -> bool:
    """Compare two numbers or two texts; values of other or different types have no order."""
    if isinstance(one, str) and isinstance(other, str):
        return order(one, other)
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    return isinstance(one, int | float) and isinstance(other, int | float) and order(one, other)


def _contains(whole: Json, part: Json) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, dict):
        return isinstance(part, str) and part in whole
    return isinstance(whole, list) and any(_equal(each, part) for each in whole)
