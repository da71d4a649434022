"""Moments and durations as users write them.

A moment is milliseconds since 1970 or a date with time and offset (RFC 3339); a duration is a
number of milliseconds, or text such as "30s" or "5m". What is answered is in milliseconds always.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta

from alpacamq.model.topics import INT64_MAX

Moment = Annotated[int, Meta(ge=0, le=INT64_MAX)] | Annotated[datetime, Meta(tz=True)]
Duration = Annotated[str, Meta(pattern=r"^[0-9]{1,12}(ms|s|m|h|d)$", examples=["30s", "5m"])]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS_MS: Mapping[str, int] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def moment_ms(moment: Moment) -> int:
    """Milliseconds since 1970; before that, they are negative."""
    if isinstance(moment, int):
        return moment
    return (moment - _EPOCH) // _MILLISECOND


def duration_ms(duration: Duration) -> int:
    """Milliseconds of a duration that is well-formed."""
    digits = duration.rstrip("smhd\n")
    return int(digits) * _UNITS_MS[duration[len(digits) :].strip()]
