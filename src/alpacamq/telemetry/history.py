"""Time series of the last hour and rates of counters, in bounded memory.

Series are for charts that show data on first view. They are lost on restart; long-term storage is the
task of a metrics system.
"""

import math
from array import array
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from heapq import nlargest
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", int, float)

SLOTS = 1800
# Of topics and groups, for each measure. A series takes 14 KiB when full.
MAX_SERIES = 250
# Of a series' weight per sample: it halves in about a minute.
_DECAY = 0.98
# How much larger a new series must be than the smallest to take its place, so that equals do not alternate.
_MARGIN = 2.0
# Per excerpt, so that it takes the event loop milliseconds.
MAX_NUMBERS = 20_000

RATE_WINDOW_SECONDS = 10.0
MAX_COUNTERS = 100_000


class Measure(StrEnum):
    """A measured quantity. Rates are in messages a second."""

    PUBLISHED = "published"
    CONSUMED = "consumed"
    LAG = "lag"
    READY = "ready"
    IN_FLIGHT = "in_flight"


class SeriesKey(NamedTuple):
    """Identity of a series; without topic and group it covers the whole broker."""

    measure: Measure
    topic: str = ""
    group: str = ""


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    """Timestamps, and for each series a number or None at each of them."""

    times_ms: list[int]
    values: list[list[float | None]]


class _Series:
    __slots__ = ("seen_at", "values", "weight")

    def __init__(self) -> None:
        self.values = array("d", [math.nan]) * SLOTS
        self.seen_at = 0
        # The highest of the latest values, each decayed by its age.
        self.weight = 0.0


class History:
    """The last `SLOTS` samples of each series, in ring buffers.

    At most `MAX_SERIES` of a measure are kept: the largest. Series without samples and idle ones make room.
    """

    def __init__(self) -> None:
        self._times_ms = array("q", [0]) * SLOTS
        self._series: dict[SeriesKey, _Series] = {}
        self._count = 0
        self.omitted: frozenset[SeriesKey] = frozenset()
        """Series of the last sample that are not kept."""

    def record(
        self, now_ms: int, numbers: Mapping[SeriesKey, float], unmeasured: Iterable[SeriesKey] = ()
    ) -> None:
        """Add one sample per series; `unmeasured` are others, which count as omitted."""
        slot = self._count % SLOTS
        self._count += 1
        self._times_ms[slot] = now_ms
        for key in [key for key, each in self._series.items() if each.seen_at <= self._count - SLOTS]:
            del self._series[key]
        self.omitted = frozenset(unmeasured) | self._add_series(numbers)
        for key, series in self._series.items():
            found = numbers.get(key)
            series.values[slot] = math.nan if found is None else found
            series.weight = max(series.weight * _DECAY, found or 0.0)
            if found is not None:
                series.seen_at = self._count

    def forget_topics_except(self, topics: Container[str]) -> None:
        """Remove the series of topics that do not exist any more."""
        for key in [key for key in self._series if key.topic and key.topic not in topics]:
            del self._series[key]

    def _add_series(self, numbers: Mapping[SeriesKey, float]) -> set[SeriesKey]:
        """Add new series as far as there is room; return the others."""
        new: dict[Measure, list[SeriesKey]] = {}
        for key in numbers:
            if key in self._series:
                continue
            if key.topic:
                new.setdefault(key.measure, []).append(key)
            else:  # series of the whole broker are few, and always kept
                self._series[key] = _Series()
        omitted: set[SeriesKey] = set()
        for measure, keys in new.items():
            kept = {key for key in self._series if key.measure is measure and key.topic}
            largest = nlargest(MAX_SERIES, keys, key=numbers.__getitem__)
            added = largest[: max(MAX_SERIES - len(kept), 0)]
            added += self._make_room(kept, largest[len(added) :], numbers)
            self._series.update((key, _Series()) for key in added)
            omitted.update(set(keys).difference(added))
        return omitted

    def _make_room(
        self, kept: set[SeriesKey], new: Sequence[SeriesKey], numbers: Mapping[SeriesKey, float]
    ) -> Sequence[SeriesKey]:
        """Remove series that have ended or are smaller than new ones; return those that replace them."""
        if not new or not numbers[new[0]]:
            return ()
        weights = {key: self._series[key].weight if key in numbers else -1.0 for key in kept}
        replaced = 0
        for old, key in zip(sorted(kept, key=weights.__getitem__), new, strict=False):
            if numbers[key] <= weights[old] * _MARGIN or not numbers[key]:
                break
            del self._series[old]
            replaced += 1
        return new[:replaced]

    def series(self) -> list[SeriesKey]:
        """Return the keys of all series, sorted."""
        return sorted(self._series)

    def excerpt(self, keys: Sequence[SeriesKey], after_ms: int, points: int) -> Excerpt:
        """Return the samples after `after_ms`, averaged down to at most `points` values per series."""
        points = max(min(points, MAX_NUMBERS // max(len(keys), 1)), 1)
        first = self._count
        oldest = max(self._count - SLOTS, 0)
        while first > oldest and self._times_ms[(first - 1) % SLOTS] > after_ms:
            first -= 1
        # Steps begin at multiples of their length, so that repeated requests average the same samples. An
        # incomplete step at the front is left out.
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
    """Return samples `begin` to before `end` of a ring, counted from the first sample ever recorded."""
    slot = begin % SLOTS
    return ring[slot : slot + end - begin] + ring[: max(slot + end - begin - SLOTS, 0)]


def _means(values: "array[float]", step: int) -> list[float | None]:
    """Return the mean of each `step` values, and of the remainder."""
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


class _CounterSample(NamedTuple, Generic[K]):
    at: float
    counts: Mapping[K, int]


class Rates(Generic[K]):
    """Rates of counters over the last ten to twenty seconds, or since the first call."""

    def __init__(self) -> None:
        self._base: _CounterSample[K] | None = None
        self._newer: _CounterSample[K] | None = None

    def per_second(self, counts: Mapping[K, int], now: float) -> dict[K, float | None]:
        """Return the growth of each counter per second, None for those absent in the last sample."""
        base = self._base
        rates: dict[K, float | None] = {}
        for key, count in counts.items():
            before = None if base is None else base.counts.get(key)
            rates[key] = None
            if base is not None and before is not None and now > base.at:
                rates[key] = round(max(count - before, 0) / (now - base.at), 3)
        self._keep(counts, now)
        return rates

    def _keep(self, counts: Mapping[K, int], now: float) -> None:
        if self._newer is not None and now - self._newer.at < RATE_WINDOW_SECONDS:
            return
        sample = _CounterSample(now, dict(islice(counts.items(), MAX_COUNTERS)))
        self._base = sample if self._newer is None else self._newer
        self._newer = sample
