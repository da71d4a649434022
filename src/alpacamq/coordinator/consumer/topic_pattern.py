"""Subscription patterns in RE2 syntax, matched against whole topic names.

Any client may send a pattern, so matching must not take exponential time. A pattern is compiled to an
automaton that reads each character of a name once.
"""

import string
from collections.abc import Iterable
from dataclasses import dataclass, field
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
    """Matches the empty string at one end of the name."""

    START = "^"
    END = "$"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Matches one of these characters."""

    characters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Matches all parts in order."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Matches any of the options."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Matches a part `least` to `most` times; None is no limit."""

    part: "Node"
    least: int
    most: int | None


Node: TypeAlias = OneOf | Sequence | Choice | Repeat | AtEdge


def parse(text: str) -> Node:
    """Parse a regular expression; raise InvalidRegularExpression."""
    if len(text) > MAX_LENGTH:
        raise InvalidRegularExpression(f"pattern too long: {len(text)} characters, the limit is {MAX_LENGTH}")
    return _Parser(text).parse()


class _Parser:
    """A recursive descent parser."""

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
        # A flag set inside a group applies to the end of that group.
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
        """Parse the next repeatable part; return None if it was only a flag."""
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
        self._take("?")  # lazy repetition: makes no difference to whether a name matches
        if self._bounds() is not None:
            self._fail("a repetition cannot be repeated")
        return Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """Parse a repetition count, if one follows."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self._text.find("}", self._at)
        if end < 0 or not self._text.startswith("{", self._at):
            return None
        least, comma, most = self._text[self._at + 1 : end].partition(",")
        # As in RE2, braces with other contents are literals.
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
        """Parse flags; return True if they stand alone, False if a group follows."""
        value = True
        while (character := self._next()) not in ":)":
            if character == "i":
                self._ignores_case = value
            elif character == "-" and value:
                value = False
            elif character not in "msU":  # about lines and greed: no effect here
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
        """Return the characters of an escape sequence."""
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
        """Parse a bracket expression up to its ']'."""
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
            self._fail(f"'[:{name[:10]}' is not a character class")
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
        raise InvalidRegularExpression(f"invalid regular expression {self._text!r}: {reason}")


def _both_cases(characters: Iterable[str]) -> frozenset[str]:
    return frozenset(each for character in characters for each in (character.lower(), character.upper()))


MAX_STATES = 500
_MAX_KNOWN_STEPS = 10_000


class TopicPattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        automaton = _Automaton()
        entry = automaton.build(parse(text), automaton.ACCEPT)
        self._readers = automaton.readers
        # Sets of readers are bit masks: bit n is the nth reader, the last bit is "accepted".
        self._accepted = 1 << len(self._readers)
        self._start = self._bits(automaton.reached(entry, at_start=True, at_end=False))
        self._inside = [self._bits(automaton.reached(each.follow)) for each in self._readers]
        self._at_end = [self._bits(automaton.reached(each.follow, at_end=True)) for each in self._readers]
        self._reading: dict[str, int] = {}
        for place, reader in enumerate(self._readers):
            for character in reader.characters:
                self._reading[character] = self._reading.get(character, 0) | 1 << place
        self._steps: dict[tuple[int, str], int] = {}

    def matches(self, name: str) -> bool:
        if not name:
            return False
        ready = self._start
        for character in name[:-1]:
            step = (ready, character)
            if step not in self._steps:
                if len(self._steps) >= _MAX_KNOWN_STEPS:
                    self._steps.clear()
                self._steps[step] = self._read(ready, character, self._inside)
            ready = self._steps[step]
            if not ready:
                return False
        return self._read(ready, name[-1], self._at_end) & self._accepted != 0

    def _read(self, ready: int, character: str, following: list[int]) -> int:
        """Return the active readers after reading `character`."""
        reading = ready & self._reading.get(character, 0)
        after = 0
        while reading:
            lowest = reading & -reading
            after |= following[lowest.bit_length() - 1]
            reading ^= lowest
        return after

    def _bits(self, readers: Iterable[int]) -> int:
        bits = 0
        for reader in readers:
            bits |= self._accepted if reader == _Automaton.ACCEPT else 1 << reader
        return bits


@dataclass(slots=True)
class _Reader:
    """Reads one of these characters, and continues at the state `follow`."""

    characters: frozenset[str]
    follow: int


@dataclass(slots=True)
class _Fork:
    """Continues at each of its states without reading, optionally only at an edge of the name."""

    follow: list[int]
    edge: AtEdge | None = None


@dataclass(slots=True)
class _Automaton:
    """Numbered states: readers count from 0, forks from FORKS; ACCEPT is the end."""

    ACCEPT = -1
    FORKS = MAX_STATES

    readers: list[_Reader] = field(default_factory=list)
    forks: list[_Fork] = field(default_factory=list)

    def build(self, node: Node, follow: int) -> int:
        """Return the first state of `node`, followed by `follow`."""
        match node:
            case OneOf(characters):
                self._check_room()
                self.readers.append(_Reader(characters, follow))
                return len(self.readers) - 1
            case AtEdge():
                return self._fork(_Fork([follow], node))
            case Sequence(parts):
                for part in reversed(parts):
                    follow = self.build(part, follow)
                return follow
            case Choice(options):
                return self._fork(_Fork([self.build(option, follow) for option in options]))
            case Repeat(part, least, most):
                return self._build_repeat(part, least, most, follow)

    def _build_repeat(self, part: Node, least: int, most: int | None, follow: int) -> int:
        if most is None:
            loop = _Fork([follow])
            entry = self._fork(loop)
            loop.follow.append(self.build(part, entry))
            follow = entry
        else:
            after = follow
            for _ in range(most - least):
                follow = self._fork(_Fork([after, self.build(part, follow)]))
        for _ in range(least):
            entry = self.build(part, follow)
            if entry == follow:  # a repetition of the empty string
                break
            follow = entry
        return follow

    def _fork(self, fork: _Fork) -> int:
        self._check_room()
        self.forks.append(fork)
        return self.FORKS + len(self.forks) - 1

    def _check_room(self) -> None:
        if len(self.readers) + len(self.forks) >= MAX_STATES:
            raise InvalidRegularExpression("pattern too large after expanding its repetitions")

    def reached(self, state: int, *, at_start: bool = False, at_end: bool = False) -> set[int]:
        """Return the readers, and possibly ACCEPT, that are reachable from `state` without reading."""
        holds = {AtEdge.START: at_start, AtEdge.END: at_end, None: True}
        found: set[int] = set()
        seen: set[int] = set()
        open_states = [state]
        while open_states:
            state = open_states.pop()
            if state < self.FORKS:
                found.add(state)
            elif state not in seen:
                seen.add(state)
                fork = self.forks[state - self.FORKS]
                if holds[fork.edge]:
                    open_states += fork.follow
        return found
