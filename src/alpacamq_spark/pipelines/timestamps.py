"""Times and spans of time as users write them in a pipeline. Pure but for the zone, which is UTC."""

import re
from datetime import UTC, datetime, timedelta

_SPAN = re.compile(
    r"([0-9]{1,12}) ?(ms|s|m|h|d|w|milliseconds?|seconds?|minutes?|hours?|days?|weeks?)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SPANS = "a time span like 30s, 15m, 1h, 7d or '10 minutes'"
MOMENTS = "a time like 2026-01-31T12:00:00Z, or how long ago like 15m, 1h or 7d"


def parse_span(text: str) -> int:
    """Milliseconds in a span of time, or ValueError."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not {SPANS}")
    unit = found[2]
    if unit.startswith("milli"):
        unit = "ms"
    elif unit != "ms":
        unit = unit[0]
    return int(found[1]) * _UNIT_MS[unit]


def parse_timestamp(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of a time, or of one so long before `now_ms`; or ValueError."""
    if _SPAN.fullmatch(text.strip()):
        return max(0, now_ms - parse_span(text))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not {MOMENTS}") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def format_timestamp(timestamp_ms: int) -> str:
    """A time as people read it."""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{timestamp_ms} ms"


def show_span(span_ms: int) -> str:
    """A span in its largest whole unit: 90m, 7d."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if span_ms >= size and span_ms % size == 0:
            return f"{span_ms // size}{unit}"
    return f"{span_ms}ms"
