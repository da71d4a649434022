"""The patterns members subscribe with: RE2's syntax, matched against whole topic names.

Anyone may send a pattern, so matching must not be the kind that takes exponential time on a bad one.
The pattern becomes an automaton that reads each character of a name once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from alpacamq.model.errors import InvalidRegularExpression

from .pattern_syntax import AtEdge, Choice, Node, OneOf, Repeat, Sequence, parse

MAX_STATES = 500
_MAX_KNOWN_STEPS = 10_000


class TopicPattern:
    """A regular expression; `matches` says whether it is about all of a name."""

    def __init__(self, text: str) -> None:
        automaton = _Automaton()
        entry = automaton.build(parse(text), automaton.ACCEPT)
        self._readers = automaton.readers
        # Sets of readers as the bits of a number: bit n is the nth reader, the last bit is "accepted".
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
        """The readers that are ready after those that were have read `character`."""
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
    """Reads one character, if it is one of these, and goes on to the state `follow`."""

    characters: frozenset[str]
    follow: int


@dataclass(slots=True)
class _Fork:
    """Goes on to each of its states, without reading; perhaps only at an edge of the name."""

    follow: list[int]
    edge: AtEdge | None = None


@dataclass(slots=True)
class _Automaton:
    """States by number: readers count from 0 up, forks from FORKS up; ACCEPT is the end."""

    ACCEPT = -1
    FORKS = MAX_STATES

    readers: list[_Reader] = field(default_factory=list)
    forks: list[_Fork] = field(default_factory=list)

    def build(self, node: Node, follow: int) -> int:
        """The state at which `node` begins, if `follow` comes after it."""
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
            if entry == follow:  # nothing, however often, is nothing
                break
            follow = entry
        return follow

    def _fork(self, fork: _Fork) -> int:
        self._check_room()
        self.forks.append(fork)
        return self.FORKS + len(self.forks) - 1

    def _check_room(self) -> None:
        if len(self.readers) + len(self.forks) >= MAX_STATES:
            raise InvalidRegularExpression("the pattern, its repetitions written out, is too large")

    def reached(self, state: int, *, at_start: bool = False, at_end: bool = False) -> set[int]:
        """The readers, and perhaps ACCEPT, that can be reached from `state` without reading."""
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
