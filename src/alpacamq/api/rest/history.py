"""How the broker did lately: a bounded number of series in memory, one number each every few seconds.

For charts that have something to show when somebody first looks. It begins again with the broker; whoever
needs more keeps the metrics.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

T = TypeVar("T", int, float)

INTERVAL_S = 2.0
SLOTS = 1800
# 14 KiB each when they are full.
MAX_SERIES = 500
# Of one answer, so that it takes the event loop milliseconds.
MAX_NUMBERS = 20_000


class Measure(StrEnum):
    """What is measured. Rates are in messages a second."""

    PUBLISHED = "published"
    CONSUMED = "consumed"
    LAG = "lag"
    READY = "ready"
    IN_FLIGHT = "in_flight"


class SeriesKey(NamedTuple):
    """A series: of the whole broker where both names are empty."""

    measure: Measure
    topic: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Moments, and for each series a number or None at each of them."""

    times_ms: list[int]
    values: list[list[float | None]]


class _Series:
    __slots__ = ("seen_at", "values")

    def __init__(self) -> None:
        self.values = array("d", [math.nan]) * SLOTS
        self.seen_at = 0


class History:
    """The last hour, in as many slots; the oldest is written over."""

    def __init__(self) -> None:
        self._times_ms = array("q", [0]) * SLOTS
        self._series: dict[SeriesKey, _Series] = {}
        self._count = 0

    def record(self, now_ms: int, numbers: Mapping[SeriesKey, float]) -> None:
        """Add a moment. What was not there before is taken while there is room for it."""
        slot = self._count % SLOTS
        self._count += 1
        self._times_ms[slot] = now_ms
        for key in [key for key, each in self._series.items() if each.seen_at <= self._count - SLOTS]:
            del self._series[key]
        for key in numbers:
            # Those of the whole broker are few, and always wanted.
            if key not in self._series and (len(self._series) < MAX_SERIES or not key.topic):
                self._series[key] = _Series()
        for key, series in self._series.items():
            found = numbers.get(key)
            series.values[slot] = math.nan if found is None else found
            if found is not None:
                series.seen_at = self._count

    def series(self) -> list[SeriesKey]:
        """The series there are, in order."""
        return sorted(self._series)

    def excerpt(self, keys: Sequence[SeriesKey], after_ms: int, points: int) -> Excerpt:
        """What came after a moment, as at most so many points: each the mean of those it stands for."""
        points = max(min(points, MAX_NUMBERS // max(len(keys), 1)), 1)
        first = self._count
        oldest = max(self._count - SLOTS, 0)
        while first > oldest and self._times_ms[(first - 1) % SLOTS] > after_ms:
            first -= 1
        # Steps begin at multiples of their length, so that the same moments fall together at every look; a
        # part of one in front is left out.
        step = math.ceil((self._count - first) / points) or 1
        begin = -(-first // step) * step
        if begin >= self._count:
            begin = first
        times = _in_order(self._times_ms, begin, self._count)
        return Excerpt(
            times_ms=list(times[step - 1 : len(times) - 1 : step]) + list(times[-1:]),
            values=[_means(_in_order(self._series[key].values, begin, self._count), step) for key in keys],
        )


def _in_order(ring: "array[T]", begin: int, end: int) -> "array[T]":
    """What a ring holds from one moment to before another, counted from the first there ever was."""
    place = begin % SLOTS
    return ring[place : place + end - begin] + ring[: max(place + end - begin - SLOTS, 0)]


def _means(values: "array[float]", step: int) -> list[float | None]:
    """The mean of each `step` values, and of those that are left."""
    whole = len(values) - len(values) % step
    chunks: list[Sequence[float]] = list(zip(*[iter(values[:whole])] * step, strict=True))
    if whole < len(values):
        chunks.append(values[whole:])
    return [_mean(chunk) for chunk in chunks]


def _mean(values: Sequence[float]) -> float | None:
    total = sum(values)
    if math.isnan(total):
        values = [value for value in values if not math.isnan(value)]
        total = sum(values)
    return round(total / len(values), 3) if values else None
