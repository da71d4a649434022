"""How the broker did lately: a bounded number of series in memory, one number each every few seconds.

For charts that have something to show when somebody first looks. It begins again with the broker; whoever
needs more keeps the metrics.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

INTERVAL_S = 2.0
SLOTS = 1800
# 14 KiB each when they are full.
MAX_SERIES = 500


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
            if key not in self._series and len(self._series) < MAX_SERIES:
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
        slots = [number % SLOTS for number in range(max(self._count - SLOTS, 0), self._count)]
        slots = [slot for slot in slots if self._times_ms[slot] > after_ms]
        # Steps begin at multiples of their length, so that the same moments fall together at every look.
        step = max(math.ceil(len(slots) / points), 1)
        first = self._count - len(slots)
        steps: dict[int, list[int]] = {}
        for place, slot in enumerate(slots):
            steps.setdefault((first + place) // step, []).append(slot)
        together = list(steps.values())[-points:]
        return Excerpt(
            times_ms=[self._times_ms[each[-1]] for each in together],
            values=[[_mean(self._series[key].values, each) for each in together] for key in keys],
        )


def _mean(values: "array[float]", slots: Sequence[int]) -> float | None:
    known = [values[slot] for slot in slots if not math.isnan(values[slot])]
    return round(sum(known) / len(known), 3) if known else None
