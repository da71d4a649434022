"""Results on standard output as tables, JSON or YAML; messages on standard error.

Output is neither truncated nor paged, and by default coloured only on a terminal. A table that is too
wide for the terminal is printed with one field per line.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from .cells import Cell, Tint, cell_of, escape_controls, width
from .yaml import Plain, yaml

FORMATS = ("table", "json", "yaml")
COLORS = ("auto", "always", "never")
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names; None is shown as a dash, columns of numbers are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


class Output:
    """Prints in the chosen format."""

    def __init__(self, form: str, *, is_coloured: bool = False) -> None:
        self.form = form
        self.is_coloured = is_coloured

    def show(self, data: Plain, *tables: Table) -> None:
        """Print a result: `data` as JSON or YAML, or the same as `tables`."""
        match self.form:
            case "json":
                print(json_text(data, indent=2))
            case "yaml":
                print(yaml(data))
            case _:
                # Width 0 means unlimited: a pipe or a file.
                columns = shutil.get_terminal_size((0, 0)).columns
                blocks = [
                    block
                    for table in tables
                    for block in render(table, columns, is_coloured=self.is_coloured)
                ]
                if blocks:
                    print("\n\n".join(blocks))

    def done(self, data: Mapping[str, Plain], message: str) -> None:
        """Print the outcome of a change: data as JSON or YAML, or a message."""
        if self.form == "table":
            print_message(message)
        else:
            self.show(dict(data))


def print_message(message: str) -> None:
    """Print a message to standard error, with control characters escaped."""
    print(escape_controls(message), file=sys.stderr)


def json_text(data: Plain, indent: int | None = None) -> str:
    """Encode as JSON that is safe on a terminal: JSON itself allows some control characters."""
    text = json.dumps(data, ensure_ascii=False)
    if indent is not None:
        import msgspec  # not for --help

        # json indents in Python code, which takes most of the time of a long list.
        text = msgspec.json.format(text, indent=indent)
    return escape_controls(text)


def wants_colour(choice: str, stream: TextIO) -> bool:
    """Return whether to colour a stream; auto means terminals unless NO_COLOR is set."""
    if choice == "auto":
        return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return choice == "always"


def timestamp_text(timestamp_ms: int) -> str | None:
    """Format a timestamp as ISO 8601; None before 1970 and beyond the range of dates."""
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return None


def render(table: Table, columns: int, *, is_coloured: bool = False) -> Iterator[str]:
    """Render a table as blocks of text no wider than `columns`, if possible; 0 is unlimited."""
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
