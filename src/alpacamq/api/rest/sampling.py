"""Takes the numbers of the history: counts of topics, groups and queues, and how fast they grow."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

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


class Sampler:
    """Looks at the broker every few seconds."""

    def __init__(self, broker: Broker, history: History) -> None:
        self._broker = broker
        self._history = history
        self._counted: Mapping[SeriesKey, int] = {}
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
        now, counts, levels = self._broker.clock.monotonic(), Counter[SeriesKey](), Counter[SeriesKey]()
        self._count_published(counts)
        self._count_queues(counts, levels)
        with suppress(AlpacaError):  # the coordinators are not ready: they are left out this time
            await self._count_groups(counts, levels)
        levels[SeriesKey(Measure.LAG)] += 0
        elapsed = now - self._counted_at
        numbers: dict[SeriesKey, float] = dict(levels)
        for key, count in counts.items():
            if key in self._counted and elapsed > 0:
                # Not less than nothing: a group may go back, and a topic of the same name may be new.
                numbers[key] = max(count - self._counted[key], 0) / elapsed
        self._counted, self._counted_at = counts, now
        self._history.record(self._broker.clock.now_ms(), numbers)

    def _count_published(self, counts: Counter[SeriesKey]) -> None:
        topics = self._broker.topics
        for name in topics.image.topics:
            if name not in INTERNAL_TOPICS:
                written = sum(each.high_watermark for each in topics.partitions_of(name))
                _count(counts, Measure.PUBLISHED, name, written)
                _count(counts, Measure.CONSUMED, name, 0)

    def _count_queues(self, counts: Counter[SeriesKey], levels: Counter[SeriesKey]) -> None:
        for queue in self._broker.queues.figures():
            group, topic = queue.queue
            totals = totals_of([queue])
            levels[SeriesKey(Measure.READY, topic, group)] = totals.ready
            levels[SeriesKey(Measure.IN_FLIGHT, topic, group)] = totals.in_flight
            waiting = totals.ready + totals.in_flight + totals.resting
            levels[SeriesKey(Measure.LAG, topic, group)] += waiting
            levels[SeriesKey(Measure.LAG)] += waiting
            _count(counts, Measure.CONSUMED, topic, totals.acked_total)

    async def _count_groups(self, counts: Counter[SeriesKey], levels: Counter[SeriesKey]) -> None:
        if OFFSETS_TOPIC not in self._broker.topics.image.topics:
            return
        groups = await group_names(self._broker)
        for each in await lags(self._broker, groups[:MAX_GROUPS]):
            levels[SeriesKey(Measure.LAG, each.topic, each.group)] += each.messages
            levels[SeriesKey(Measure.LAG)] += each.messages
            _count(counts, Measure.CONSUMED, each.topic, each.reached)


def _count(counts: Counter[SeriesKey], measure: Measure, topic: str, count: int) -> None:
    counts[SeriesKey(measure, topic)] += count
    counts[SeriesKey(measure)] += count
