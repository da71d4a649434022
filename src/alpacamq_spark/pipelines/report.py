"""What a run or a question brings: the same for programs, as plain data, and for people, as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Plain: TypeAlias = bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"] | None


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under column names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A result; `notes` are sentences for whoever sits at the terminal."""

    data: Mapping[str, Plain]
    sections: Sequence[Section] = ()
    notes: Sequence[str] = field(default_factory=tuple)
