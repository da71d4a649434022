"""Results on standard output as tables, JSON or YAML; messages on standard error.

Nothing is coloured, cut off or paged. A table that is too wide for the terminal is turned on its
side: one line a field.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .yaml import Plain, yaml

FORMATS = ("table", "json", "yaml")
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column names; a None is shown as a dash."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


class Output:
    """Prints in the format the user chose."""

    def __init__(self, form: str) -> None:
        self.form = form

    def show(self, data: Plain, *tables: Table) -> None:
        """A result: `data` for programs, the same in `tables` for people."""
        match self.form:
            case "json":
                print(json.dumps(data, indent=2, ensure_ascii=False))
            case "yaml":
                print(yaml(data))
            case _:
                # Width 0 stands for a pipe or a file, which has no edge.
                width = shutil.get_terminal_size((0, 0)).columns
                blocks = [block for table in tables for block in render(table, width)]
                if blocks:
                    print("\n\n".join(blocks))

    def done(self, data: Mapping[str, Plain], message: str) -> None:
        """What was done: data for programs, a sentence for people."""
        if self.form == "table":
            say(message)
        else:
            self.show(dict(data))


def say(message: str) -> None:
    """A message to whoever sits at the terminal."""
    print(message, file=sys.stderr)


def moment(timestamp_ms: int) -> str | None:
    """A point in time as people read it; None for those before 1970 and beyond what a date can say."""
    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return None


def render(table: Table, width: int) -> Iterator[str]:
    """A table as blocks of text no wider than `width`, if that can be; 0 is any width."""
    cells = [[_cell(value) for value in row] for row in table.rows]
    title = [f"{table.title}:"] if table.title else []
    if not cells:
        if title:
            yield f"{table.title}: none"
        return
    widths = [max(map(len, column)) for column in zip(table.columns, *cells, strict=True)]
    if not width or sum(widths) + len(_GAP) * (len(widths) - 1) <= width:
        head = [name.upper() for name in table.columns]
        yield "\n".join(title + [_line(row, widths) for row in [head, *cells]])
    else:
        yield from _sideways(table.columns, cells, title)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _sideways(columns: Sequence[str], cells: list[list[str]], title: list[str]) -> Iterator[str]:
    indent = max(map(len, columns))
    for row in cells:
        lines = [f"{name.ljust(indent)}  {cell}" for name, cell in zip(columns, row, strict=True)]
        yield "\n".join(title + lines)
        title = []


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ",".join(map(str, value)) or "-"
        case _:
            return str(value)
