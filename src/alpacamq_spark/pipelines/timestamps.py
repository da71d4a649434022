"""Parses and formats times and durations of pipeline files. Pure; the time zone is UTC."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

from alpacamq.model import durations
from alpacamq.model.durations import format_duration

__all__ = ["format_duration", "format_timestamp", "parse_duration", "parse_timestamp"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DURATION_FORMAT = "a duration like 30s, 15m, 1h, 7d or '10 minutes'"
TIME_FORMAT = "a time like 2026-01-31T12:00:00Z, or how long ago like 15m, 1h or 7d"


def parse_duration(text: str) -> int:
    """Parse a duration to milliseconds. Raises ValueError."""
    try:
        return durations.parse_duration(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {DURATION_FORMAT}") from None


def parse_timestamp(text: str, now_ms: int) -> int:
    """Parse a time, or a duration before `now_ms`, to milliseconds since 1970. Raises ValueError."""
    with suppress(ValueError):
        return max(0, now_ms - parse_duration(text))
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not {TIME_FORMAT}") from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(milliseconds=1)


def format_timestamp(timestamp_ms: int) -> str:
    """Format a time for display."""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{timestamp_ms} ms"
