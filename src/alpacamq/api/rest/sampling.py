"""Takes the numbers of the history: counts of topics, groups and queues, and how fast they grow."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from alpacamq.broker.broker import Broker
from alpacamq.model.errors import AlpacaError
from alpacamq.model.topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from alpacamq.telemetry.logs import get_logger

from .handlers.queue_figures import totals_of
from .history import INTERVAL_S, History, Measure, SeriesKey
from .lag import group_names, lags

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
        for queue in self._broker.queues.figures():
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
