"""Python source as it is being written: lines, their fields, and the constants they use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import calcsize
from typing import Any


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring fixed-width values that one line reads, each with its field and size."""

    fields: tuple[tuple[str, int], ...]

    def field_at(self, left: int) -> tuple[str, int]:
        """The first field that `left` bytes are too few for, and the bytes left when its turn comes."""
        for name, size in self.fields:
            if size > left:
                return name, left
            left -= size
        raise AssertionError("the run fits")


class Source:
    """The body of one function, line by line."""

    def __init__(self, signature: str) -> None:
        self._lines = [signature]
        self._depth = 1
        self._names = 0
        self.constants: dict[str, Any] = {}
        # What each line reads, by line number: how an error finds its field without costing the others.
        self.runs: dict[int, Run] = {}
        self.field = ""

    def emit(self, line: str, run: Run | None = None) -> None:
        self._lines.append("    " * self._depth + line)
        self.runs[len(self._lines)] = run or Run(((self.field, 1),))

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.emit(opening)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def inside(self, field: str) -> Iterator[None]:
        """Lines written now belong to `field` of what is being written."""
        outer = self.field
        self.field = f"{outer}.{field}" if outer else field
        yield
        self.field = outer

    def name(self, stem: str) -> str:
        """A variable no other line uses."""
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        """A name for `value` in the function's globals."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(stem)
        self.constants[name] = value
        return name

    def compile(self, title: str) -> dict[str, Any]:
        """The globals in which the finished function lives."""
        code = compile("\n".join(self._lines) + "\n", f"<{title}>", "exec")
        space = dict(self.constants)
        exec(code, space)  # noqa: S102 - our own text, made from our own tables
        return space


def size_of(code: str) -> int:
    return calcsize(f">{code}")
