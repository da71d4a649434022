"""Cells of tables: ages, sizes and states for people; JSON and YAML have exact values instead."""

import json
import time
import unicodedata
from dataclasses import dataclass
from enum import StrEnum

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# Largest amount shown in each unit: 119 s, but 2 min.
_SPANS = ((1000, 120, "s"), (60_000, 120, "min"), (3_600_000, 48, "h"), (86_400_000, 0, "d"))


class Tint(StrEnum):
    """Meaning of a colour, with its ANSI code."""

    GOOD = "32"
    WARNING = "33"
    BAD = "31"
    ACCENT = "36"
    STRONG = "1"
    FAINT = "2"

    def on(self, text: str) -> str:
        return f"\x1b[{self.value}m{text}\x1b[0m" if text else text


_STATES = {
    **dict.fromkeys(("stable", "running", "completed", "ok", "yes", "complete_commit"), Tint.GOOD),
    **dict.fromkeys(("empty", "cancelling", "cancelled", "ongoing", "assigning"), Tint.WARNING),
    **dict.fromkeys(("draining", "drained", "stopping", "connecting"), Tint.WARNING),
    **dict.fromkeys(("fenced", "none", "backoff", "closed"), Tint.BAD),
    **dict.fromkeys(("reconciling", "preparingrebalance", "completingrebalance"), Tint.WARNING),
    **dict.fromkeys(("dead", "failed", "degraded", "unreachable"), Tint.BAD),
}


# C0, DEL and C1, except newline and tab.
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class Cell:
    """Text with a colour and an alignment."""

    text: str
    tint: Tint | None = None
    is_number: bool = False


def cell_of(value: object) -> Cell:
    """Format any value as a cell; None is a dash."""
    match value:
        case Cell():
            return value
        case None | "":
            return Cell("-", Tint.FAINT)
        case bool():
            return Cell("yes" if value else "no")
        case int() | float():
            return Cell(str(value), is_number=True)
        case list() | tuple():
            return Cell(printable(",".join(map(str, value)))) if value else Cell("-", Tint.FAINT)
        case _:
            return Cell(printable(str(value)))


def printable(text: str) -> str:
    """Return text on one line, as JSON if it contains unprintable characters."""
    if text.isprintable():
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else json.dumps(text)


def escape_controls(text: str) -> str:
    """Escape control characters, which could change the terminal; JSON stays equivalent."""
    return text.translate(_CONTROLS)


def state(text: str) -> Cell:
    """Format a state with a colour for its severity."""
    return Cell(printable(text), _STATES.get(text.lower()))


def lag(messages: int | None) -> Cell:
    if messages is None:
        return Cell("-", Tint.FAINT, is_number=True)
    return Cell(str(messages), Tint.WARNING if messages else Tint.GOOD, is_number=True)


def size(number_bytes: int | None) -> Cell:
    """Format bytes with a unit: 1.5 MiB."""
    if number_bytes is None:
        return Cell("-", Tint.FAINT, is_number=True)
    return Cell(size_text(number_bytes), is_number=True)


def size_text(number_bytes: float) -> str:
    for unit in _UNITS:
        if abs(number_bytes) < 1024 or unit == _UNITS[-1]:
            break
        number_bytes /= 1024
    shown = f"{number_bytes:.0f}" if unit == "B" or number_bytes >= 100 else f"{number_bytes:.1f}"
    return f"{shown} {unit}"


def age(timestamp_ms: int | None) -> Cell:
    """Format a timestamp relative to now."""
    if timestamp_ms is None or timestamp_ms < 0:
        return Cell("-", Tint.FAINT)
    return Cell(age_text(timestamp_ms, time.time_ns() // 1_000_000))


def age_text(timestamp_ms: int, now_ms: int) -> str:
    apart_ms = abs(now_ms - timestamp_ms)
    if apart_ms < 1000:
        return "now"
    span = span_text(apart_ms)
    return f"{span} ago" if timestamp_ms < now_ms else f"in {span}"


def span_text(length_ms: int) -> str:
    """Format a duration in one unit: 90 s, 5 min, 3 h."""
    for unit_ms, most, unit in _SPANS:
        if not most or length_ms < most * unit_ms:
            return f"{length_ms // unit_ms} {unit}"
    raise AssertionError("the last unit has no limit")


def width(text: str) -> int:
    """Return the number of columns that text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )
