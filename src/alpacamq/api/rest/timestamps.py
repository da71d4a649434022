"""Moments and durations as users write them.

A moment is milliseconds since 1970 or a date with time and offset (RFC 3339); a duration is a
number of milliseconds, or text such as "30s" or "5m". What is answered is in milliseconds always.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.model.topics import INT64_MAX

Timestamp = Annotated[int, Meta(ge=0, le=INT64_MAX)] | Annotated[datetime, Meta(tz=True)]
Duration = Annotated[str, Meta(pattern=r"^[0-9]{1,12}(ms|s|m|h|d)$", examples=["30s", "5m"])]

# A moment where everything is text, as in a query: what is a number of seconds to a parser is refused.
TimestampText = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,15}|[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3])"
        r":[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))$",
        examples=["2026-01-31T12:00:00Z", "1769860800000"],
    ),
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)
_UNITS_MS: Mapping[str, int] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def epoch_ms(moment: Timestamp) -> int:
    """Milliseconds since 1970; before that, they are negative."""
    if isinstance(moment, int):
        return moment
    return (moment - _EPOCH) // _MILLISECOND


def parse_epoch_ms(moment: TimestampText) -> int:
    """Milliseconds since 1970 of a moment that is well-formed; ValueError if there is no such day."""
    if moment.isdigit():
        return int(moment)
    return epoch_ms(msgspec.convert(moment, datetime))


def parse_epoch_us(moment: TimestampText) -> int:
    """As `moment_text_ms`, in microseconds."""
    if moment.isdigit():
        return int(moment) * 1000
    return (msgspec.convert(moment, datetime) - _EPOCH) // _MICROSECOND


def duration_ms(duration: Duration) -> int:
    """Milliseconds of a duration that is well-formed."""
    digits = duration.rstrip("smhd\n")
    return int(digits) * _UNITS_MS[duration[len(digits) :].strip()]
