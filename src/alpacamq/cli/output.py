"""Results on standard output as tables, JSON or YAML; messages on standard error.

Nothing is cut off or paged, and coloured only on a terminal, unless told otherwise. A table that is too
wide for the terminal is turned on its side: one line a field.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from .cells import Cell, Tint, cell_of, harmless, width
from .yaml import Plain, yaml

FORMATS = ("table", "json", "yaml")
COLORS = ("auto", "always", "never")
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names; a None is shown as a dash, columns of numbers keep to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


class Output:
    """Prints in the format the user chose."""

    def __init__(self, form: str, *, is_coloured: bool = False) -> None:
        self.form = form
        self.is_coloured = is_coloured

    def show(self, data: Plain, *tables: Table) -> None:
        """A result: `data` for programs, the same in `tables` for people."""
        match self.form:
            case "json":
                print(json_text(data, indent=2))
            case "yaml":
                print(yaml(data))
            case _:
                # Width 0 stands for a pipe or a file, which has no edge.
                columns = shutil.get_terminal_size((0, 0)).columns
                blocks = [
                    block
                    for table in tables
                    for block in render(table, columns, is_coloured=self.is_coloured)
                ]
                if blocks:
                    print("\n\n".join(blocks))

    def done(self, data: Mapping[str, Plain], message: str) -> None:
        """What was done: data for programs, a sentence for people."""
        if self.form == "table":
            say(message)
        else:
            self.show(dict(data))


def say(message: str) -> None:
    """A message to whoever sits at the terminal; parts of it may have come from anybody."""
    print(harmless(message), file=sys.stderr)


def json_text(data: Plain, indent: int | None = None) -> str:
    """JSON that can be read on a terminal: JSON itself lets some control characters stand."""
    return harmless(json.dumps(data, indent=indent, ensure_ascii=False))


def wants_colour(choice: str, stream: TextIO) -> bool:
    """Whether to colour what goes to a stream: as told, else on terminals whose user has not said no."""
    if choice == "auto":
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return choice == "always"


def moment(timestamp_ms: int) -> str | None:
    """A point in time as programs read it; None for those before 1970 and beyond what a date can say."""
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return None


def render(table: Table, columns: int, *, is_coloured: bool = False) -> Iterator[str]:
    """A table as blocks of text no wider than `columns`, if that can be; 0 is any width."""
    rows = [[cell_of(value) for value in row] for row in table.rows]
    title = [f"{table.title}:"] if table.title else []
    if not rows:
        if title:
            yield f"{table.title}: none"
        return
    heads = [
        Cell(name.upper(), Tint.STRONG, is_number=_is_of_numbers(column))
        for name, column in zip(table.columns, zip(*rows, strict=True), strict=True)
    ]
    widths = [max(width(each.text) for each in column) for column in zip(heads, *rows, strict=True)]
    if not columns or sum(widths) + len(_GAP) * (len(widths) - 1) <= columns:
        yield "\n".join(title + [_line(row, heads, widths, is_coloured) for row in [heads, *rows]])
    else:
        yield from _sideways(table.columns, rows, title, is_coloured)


def _is_of_numbers(column: Sequence[Cell]) -> bool:
    return any(each.is_number for each in column) and all(
        each.is_number or each.text == "-" for each in column
    )


def _line(row: Sequence[Cell], heads: Sequence[Cell], widths: Sequence[int], is_coloured: bool) -> str:
    parts = []
    for cell, head, columns in zip(row, heads, widths, strict=True):
        gap = " " * (columns - width(cell.text))
        shown = _tinted(cell, is_coloured)
        parts.append(gap + shown if head.is_number else shown + gap)
    return _GAP.join(parts).rstrip()


def _sideways(
    columns: Sequence[str],
    rows: list[list[Cell]],
    title: list[str],
    is_coloured: bool,
) -> Iterator[str]:
    indent = max(map(len, columns))
    for row in rows:
        lines = []
        for name, cell in zip(columns, row, strict=True):
            head = _tinted(Cell(name, Tint.STRONG), is_coloured)
            lines.append(f"{head}{' ' * (indent - len(name))}  {_tinted(cell, is_coloured)}".rstrip())
        yield "\n".join(title + lines)
        title = []


def _tinted(cell: Cell, is_coloured: bool) -> str:
    return cell.tint.on(cell.text) if is_coloured and cell.tint is not None else cell.text
