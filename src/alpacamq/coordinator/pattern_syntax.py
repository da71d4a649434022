"""RE2's syntax for regular expressions, as far as it can matter for topic names, turned into a tree.

Topic names are made of few characters, so a set of characters is written out as those of them it holds.
What RE2 does not have either (back-references, looking around) is refused; so is what can say nothing about
a topic name (Unicode classes, word boundaries).
"""

import string
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, TypeAlias

from alpacamq.model.errors import InvalidRegularExpression

MAX_LENGTH = 256
MAX_NESTING = 50
MAX_REPEAT = 1_000  # as in RE2

LEGAL = frozenset(string.ascii_letters + string.digits + "._-")
_DIGITS = frozenset(string.digits)
_WORDS = frozenset(string.ascii_letters + string.digits + "_")
_NOTHING: frozenset[str] = frozenset()
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _NOTHING}
_NAMED_CLASSES = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": LEGAL,
    "blank": _NOTHING,
    "cntrl": _NOTHING,
    "digit": _DIGITS,
    "graph": LEGAL,
    "lower": frozenset(string.ascii_lowercase),
    "print": LEGAL,
    "punct": frozenset("._-"),
    "space": _NOTHING,
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORDS,
    "xdigit": frozenset(string.hexdigits),
}
_MAX_CODE_POINT = 0x10FFFF
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class AtEdge(Enum):
    """Matches nothing, at one end of the name only."""

    START = "^"
    END = "$"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character, of these."""

    characters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sequence:
    """All of these, one after another."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of these."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same so many times; no `most` is no limit."""

    part: "Node"
    least: int
    most: int | None


Node: TypeAlias = OneOf | Sequence | Choice | Repeat | AtEdge


def parse(text: str) -> Node:
    """The tree of a regular expression, or InvalidRegularExpression saying what is wrong."""
    if len(text) > MAX_LENGTH:
        raise InvalidRegularExpression(f"a pattern has at most {MAX_LENGTH} characters, this one {len(text)}")
    return _Parser(text).parse()


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignores_case = False

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            self._fail("')' without '('")
        return node

    def _choice(self) -> Node:
        # A flag set inside a group holds to the end of that group.
        ignores_case = self._ignores_case
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._ignores_case = ignores_case
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            if self._take("\\Q"):
                parts += self._quoted()
            elif (part := self._atom()) is not None:
                parts.append(self._repeated(part))
        return Sequence(tuple(parts))

    def _quoted(self) -> Iterable[Node]:
        end = self._text.find("\\E", self._at)
        quoted = self._text[self._at : end if end >= 0 else None]
        self._at = end + 2 if end >= 0 else len(self._text)
        return [self._one_of(character) for character in quoted]

    def _atom(self) -> Node | None:
        """The next thing that can be repeated; None if it was only a flag."""
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._one_of(self._set())
            case ".":
                return OneOf(LEGAL)
            case "^":
                return AtEdge.START
            case "$":
                return AtEdge.END
            case "*" | "+" | "?":
                return self._fail(f"nothing to repeat before {character!r}")
            case "\\":
                return self._escape()
            case _:
                return self._one_of(character)

    def _repeated(self, part: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return part
        self._take("?")  # which of several ways a repetition matches makes no difference here
        if self._bounds() is not None:
            self._fail("a repetition cannot be repeated")
        return Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """How often to repeat, if that is said next."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self._text.find("}", self._at)
        if end < 0 or not self._text.startswith("{", self._at):
            return None
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        # As in RE2, braces that hold anything else stand for themselves.
        if not (set(least) <= _DIGITS and set(most) <= _DIGITS and least):
            return None
        self._at = end + 1
        lower, upper = int(least), int(most) if most else None if comma else int(least)
        if lower > MAX_REPEAT or (upper is not None and not lower <= upper <= MAX_REPEAT):
            self._fail(f"cannot repeat {least}{comma}{most} times")
        return lower, upper

    def _group(self) -> Node | None:
        if self._depth == MAX_NESTING:
            self._fail(f"groups are nested more than {MAX_NESTING} deep")
        ignores_case = self._ignores_case
        if self._take("?") and not self._take(":"):
            if self._take("P<") or (
                self._take("<") and self._text[self._at : self._at + 1] not in ("=", "!")
            ):
                self._group_name()
            elif self._flags():
                return None
        self._depth += 1
        node = self._choice()
        self._depth -= 1
        self._ignores_case = ignores_case
        if not self._take(")"):
            self._fail("'(' without ')'")
        return node

    def _group_name(self) -> None:
        name, closed, _ = self._text[self._at :].partition(">")
        if not closed or not name or not set(name) <= _WORDS:
            self._fail("a group has no proper name")
        self._at += len(name) + 1

    def _flags(self) -> bool:
        """Read flags; True if they stand alone, False if a group follows them."""
        value = True
        while (character := self._next()) not in ":)":
            if character == "i":
                self._ignores_case = value
            elif character == "-" and value:
                value = False
            elif character not in "msU":  # which are about lines and greed
                self._fail(f"'(?{character}' is not supported")
        return character == ")"

    def _escape(self) -> Node:
        character = self._next()
        match character:
            case "A":
                return AtEdge.START
            case "z":
                return AtEdge.END
            case _:
                return self._one_of(self._escaped(character))

    def _escaped(self, character: str) -> frozenset[str] | str:
        """What `character` means after a backslash, inside brackets or out."""
        if (named := _CLASSES.get(character.lower())) is not None:
            return named if character.islower() else LEGAL - named
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            return self._code_point()
        if character.isalnum():
            self._fail(f"'\\{character}' is not supported")
        return character

    def _code_point(self) -> str:
        if self._take("{"):
            digits, closed, _ = self._text[self._at :].partition("}")
            self._at += len(digits) + len(closed)
        else:
            digits = self._text[self._at : self._at + 2]
            closed = digits[1:]
            self._at += len(digits)
        if not (digits and closed and set(digits) <= _NAMED_CLASSES["xdigit"]):
            self._fail("'\\x' without a number")
        number = int(digits, 16)
        return chr(number) if number <= _MAX_CODE_POINT else self._fail("'\\x' with too large a number")

    def _set(self) -> frozenset[str]:
        """The characters of a bracket expression, up to its ']'."""
        is_negated = self._take("^")
        found: set[str] = set()
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            if self._take("[:"):
                found |= self._named_class()
                continue
            low = self._member()
            if isinstance(low, str) and self._text.startswith("-", self._at) and not self._closes_after("-"):
                self._at += 1
                high = self._member()
                if not isinstance(high, str) or high < low:
                    self._fail("a range in brackets runs backwards")
                found |= {each for each in LEGAL if low <= each <= high}
            else:
                found |= {low} if isinstance(low, str) else low
        if self._ignores_case:
            found |= _both_cases(found)
        return LEGAL - found if is_negated else LEGAL & found

    def _closes_after(self, sign: str) -> bool:
        return self._text.startswith(sign + "]", self._at)

    def _member(self) -> frozenset[str] | str:
        character = self._next()
        return self._escaped(self._next()) if character == "\\" else character

    def _named_class(self) -> frozenset[str]:
        name, closed, _ = self._text[self._at :].partition(":]")
        known = _NAMED_CLASSES.get(name.removeprefix("^"))
        if not closed or known is None:
            self._fail(f"'[:{name[:10]}' is not a class of characters")
        self._at += len(name) + 2
        return LEGAL - known if name.startswith("^") else known

    def _one_of(self, characters: frozenset[str] | str) -> OneOf:
        chosen = frozenset(characters)
        return OneOf((_both_cases(chosen) if self._ignores_case else chosen) & LEGAL)

    def _next(self) -> str:
        if self._at == len(self._text):
            self._fail("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _fail(self, reason: str) -> NoReturn:
        raise InvalidRegularExpression(f"{self._text!r} is not a regular expression we take: {reason}")


def _both_cases(characters: Iterable[str]) -> frozenset[str]:
    return frozenset(each for character in characters for each in (character.lower(), character.upper()))
