"""Counts of the requests this door has answered."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple


class Answered(NamedTuple):
    """A method on a path as the table of routes has it, and the status of the answer."""

    method: str
    path: str
    status: int


class Traffic:
    """How often each route was answered with each status: there are only so many of those."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, str, int]] = Counter()

    def count(self, method: str, path: str, status: int) -> None:
        self._answers[method, path, status] += 1

    def __iter__(self) -> Iterator[tuple[Answered, int]]:
        for answered, count in sorted(self._answers.items()):
            yield Answered(*answered), count
