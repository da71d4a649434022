"""Builds the Python source of a generated function: lines, the fields they handle, constants."""

from collections.abc import Iterator
from contextlib import contextmanager
from struct import calcsize
from typing import Any

import msgspec


class FixedFields(msgspec.Struct, frozen=True):
    """Adjacent fixed-width values that one line reads, each with its field and size."""

    fields: tuple[tuple[str, int], ...]

    def field_at(self, left: int) -> tuple[str, int]:
        """Return the first field that does not fit in `left` bytes, and the bytes left at that point."""
        for name, size in self.fields:
            if size > left:
                return name, left
            left -= size
        raise AssertionError("the run fits")


class CodeWriter:
    """The body of one function, built line by line."""

    def __init__(self, signature: str) -> None:
        self._lines = [signature]
        self._depth = 1
        self._names = 0
        self.constants: dict[str, Any] = {}
        # Fields by line number, to find the field of an error without a cost in the normal case.
        self.fields_by_line: dict[int, FixedFields] = {}
        self.field = ""

    def emit(self, line: str, fixed: FixedFields | None = None) -> None:
        self._lines.append("    " * self._depth + line)
        self.fields_by_line[len(self._lines)] = fixed or FixedFields(((self.field, 1),))

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.emit(opening)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def inside(self, field: str) -> Iterator[None]:
        """Attribute the lines emitted inside to `field`."""
        outer = self.field
        self.field = f"{outer}.{field}" if outer else field
        yield
        self.field = outer

    def name(self, stem: str) -> str:
        """Return an unused variable name."""
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        """Return a name for `value` in the function's globals."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(stem)
        self.constants[name] = value
        return name

    def compile(self, title: str) -> dict[str, Any]:
        """Compile the function; return its globals."""
        code = compile("\n".join(self._lines) + "\n", f"<{title}>", "exec")
        space = dict(self.constants)
        exec(code, space)  # noqa: S102 - generated from our own tables
        return space


def size_of(code: str) -> int:
    return calcsize(f">{code}")
