"""How the broker did lately: a bounded number of series in memory, one number each every few seconds.

For charts that have something to show when somebody first looks. It begins again with the broker; whoever
needs more keeps the metrics.
"""

import asyncio
import math
from array import array
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from alpacamq.broker.broker import Broker
from alpacamq.model.errors import AlpacaError
from alpacamq.model.topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from alpacamq.telemetry.logs import get_logger

from .lag import group_names, lags
from .stats import totals_of

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


log = get_logger(__name__)

# Groups whose offsets are asked for at each look; each costs tens of microseconds.
MAX_GROUPS = 200
RATES = (Measure.PUBLISHED, Measure.CONSUMED)


class Source(NamedTuple):
    """Who counts: a topic, or a group on a topic as a consumer or as a queue."""

    measure: Measure
    topic: str
    group: str = ""
    is_queue: bool = False


class Sampler:
    """Looks at the broker every few seconds."""

    def __init__(self, broker: Broker, history: History) -> None:
        self._broker = broker
        self._history = history
        self._counted: Mapping[Source, int] | None = None
        self._counted_at = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.sample()
            except Exception:  # a chart with a gap is no reason to end the broker
                log.exception("history_sample_failed")
            await asyncio.sleep(INTERVAL_S)

    async def sample(self) -> None:
        """One look, put into the history."""
        now = self._broker.clock.monotonic()
        counts: dict[Source, int] = {}
        levels: Counter[SeriesKey] = Counter({SeriesKey(Measure.LAG): 0})
        self._look_at_topics(counts)
        self._look_at_queues(counts, levels)
        with suppress(AlpacaError):  # the coordinators are not ready: they are left out this time
            await self._look_at_groups(counts, levels)
        numbers: dict[SeriesKey, float] = dict(levels)
        if self._counted is not None and now > self._counted_at:
            for key, grown in growth(self._counted, counts).items():
                numbers[key] = grown / (now - self._counted_at)
        self._counted, self._counted_at = counts, now
        self._history.record(self._broker.clock.now_ms(), numbers)

    def _look_at_topics(self, counts: dict[Source, int]) -> None:
        topics = self._broker.topics
        for name in topics.image.topics:
            if name not in INTERNAL_TOPICS:
                written = sum(each.high_watermark for each in topics.partitions_of(name))
                counts[Source(Measure.PUBLISHED, name)] = written

    def _look_at_queues(self, counts: dict[Source, int], levels: Counter[SeriesKey]) -> None:
        for queue in self._broker.queues.stats():
            group, topic = queue.queue
            totals = totals_of([queue])
            levels[SeriesKey(Measure.READY, topic, group)] = totals.ready
            levels[SeriesKey(Measure.IN_FLIGHT, topic, group)] = totals.in_flight
            _add_lag(levels, topic, group, totals.ready + totals.in_flight + totals.resting)
            counts[Source(Measure.CONSUMED, topic, group, is_queue=True)] = totals.acked_total

    async def _look_at_groups(self, counts: dict[Source, int], levels: Counter[SeriesKey]) -> None:
        if OFFSETS_TOPIC not in self._broker.topics.image.topics:
            return
        groups = await group_names(self._broker, MAX_GROUPS)
        for each in await lags(self._broker, groups):
            _add_lag(levels, each.topic, each.group, each.messages)
            counts[Source(Measure.CONSUMED, each.topic, each.group)] = each.reached


def _add_lag(levels: Counter[SeriesKey], topic: str, group: str, messages: int) -> None:
    levels[SeriesKey(Measure.LAG, topic, group)] += messages
    levels[SeriesKey(Measure.LAG)] += messages


def growth(before: Mapping[Source, int], counts: Mapping[Source, int]) -> Counter[SeriesKey]:
    """By how much topics, and all of them together, have grown in each measure."""
    found: Counter[SeriesKey] = Counter({SeriesKey(measure): 0 for measure in RATES})
    for source, count in counts.items():
        # A topic that is new was empty; where a group that is new began, nobody knows.
        known = before.get(source, 0 if source.measure is Measure.PUBLISHED else count)
        # Not less than nothing: a group may go back, and a topic of the same name may be another.
        grown = max(count - known, 0)
        found[SeriesKey(source.measure, source.topic)] += grown
        found[SeriesKey(source.measure)] += grown
        if source.measure is Measure.PUBLISHED:
            found[SeriesKey(Measure.CONSUMED, source.topic)] += 0
    return found


K = TypeVar("K", bound=Hashable)

WINDOW_SECONDS = 10.0
MAX_COUNTERS = 100_000


class _Sample(NamedTuple, Generic[K]):
    at: float
    counts: Mapping[K, int]


class Rates(Generic[K]):
    """Rates over the last ten to twenty seconds, or since somebody first looked."""

    def __init__(self) -> None:
        self._base: _Sample[K] | None = None
        self._newer: _Sample[K] | None = None

    def per_second(self, counts: Mapping[K, int], now: float) -> dict[K, float | None]:
        """For each counter its growth, None where it was not there the last time."""
        base = self._base
        rates: dict[K, float | None] = {}
        for key, count in counts.items():
            before = None if base is None else base.counts.get(key)
            rates[key] = None
            if base is not None and before is not None and now > base.at:
                rates[key] = round(max(count - before, 0) / (now - base.at), 3)
        self._remember(counts, now)
        return rates

    def _remember(self, counts: Mapping[K, int], now: float) -> None:
        if self._newer is not None and now - self._newer.at < WINDOW_SECONDS:
            return
        sample = _Sample(now, dict(islice(counts.items(), MAX_COUNTERS)))
        self._base = sample if self._newer is None else self._newer
        self._newer = sample
