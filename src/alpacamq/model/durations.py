"""Durations as users write them: 500ms, 30s, 15m, 2h, 7d, 1w, or with words as in "10 minutes"."""

import re

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(
    r"([0-9]{1,12}) ?(ms|s|m|h|d|w|milliseconds?|seconds?|minutes?|hours?|days?|weeks?)", re.ASCII
)


def parse_duration(text: str) -> int:
    """Return the milliseconds of a duration; ValueError if the text is not one."""
    if (found := _DURATION.fullmatch(text.strip())) is None:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 30s, 15m, 2h or 7d")
    unit = found[2]
    if unit not in _UNIT_MS:
        unit = "ms" if unit.startswith("milli") else unit[0]
    return int(found[1]) * _UNIT_MS[unit]


def format_duration(duration_ms: int) -> str:
    """Format a duration in its largest whole unit up to days: 90m, 7d."""
    for unit in ("d", "h", "m", "s"):
        size = _UNIT_MS[unit]
        if duration_ms >= size and duration_ms % size == 0:
            return f"{duration_ms // size}{unit}"
    return f"{duration_ms}ms"
