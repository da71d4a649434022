"""Metrics of topics."""

import asyncio
from typing import NamedTuple

from alpacamq.broker.broker import Broker
from alpacamq.telemetry import metrics_catalogue as m

from .exposition import Exposition
from .selection import OTHER, Remainder, Selection

# Partitions read before yielding to the event loop.
_AT_ONCE = 500


class _Levels(NamedTuple):
    """Levels of a topic."""

    partitions: int = 0
    size_bytes: int = 0
    messages: int = 0
    damaged: int = 0


class _Counts(NamedTuple):
    """Counters of a topic."""

    written: int = 0
    written_bytes: int = 0
    written_batches: int = 0
    fetched: int = 0
    fetched_bytes: int = 0
    skipped_batches: int = 0


_LEVELS = (m.TOPIC_PARTITIONS, m.TOPIC_SIZE, m.TOPIC_MESSAGES, m.TOPIC_DAMAGED)
_COUNTS = (
    m.TOPIC_WRITTEN,
    m.TOPIC_WRITTEN_BYTES,
    m.TOPIC_WRITTEN_BATCHES,
    m.TOPIC_FETCHED,
    m.TOPIC_FETCHED_BYTES,
    m.TOPIC_SKIPPED,
)


class TopicCollector:
    """Metrics of all topics; the largest have series of their own."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._topics = broker.topics
        self._selection: Selection[str] = Selection(limit)
        self._remainder: Remainder[str] = Remainder(len(_Counts()))

    async def collect(self, text: Exposition) -> int:
        """Add all metrics; return how many topics have no series of their own."""
        found = await self._stats()
        shown = await self._selection.choose({name: levels.size_bytes for name, (levels, _) in found.items()})
        levels = {name: found[name][0] for name in sorted(shown)}
        counts = {name: found[name][1] for name in levels}
        others = found.keys() - shown
        sums = self._remainder.add_up({name: found[name][1] for name in others})
        if others or any(sums):
            levels[OTHER] = _Levels(*map(sum, zip(*(found[name][0] for name in others), strict=True)))
            counts[OTHER] = _Counts(*sums)
        text.one(m.TOPICS, len(found))
        text.one(m.PARTITIONS, sum(each.partitions for each, _ in found.values()))
        for place, metric in enumerate(_LEVELS):
            text.add(metric, {(name,): each[place] for name, each in levels.items()})
        for place, metric in enumerate(_COUNTS):
            text.add(metric, {(name,): each[place] for name, each in counts.items()})
        return len(others)

    async def _stats(self) -> dict[str, tuple[_Levels, _Counts]]:
        found: dict[str, tuple[_Levels, _Counts]] = {}
        looked_at = 0
        for name in list(self._topics.image.topics):
            partitions = self._topics.partitions_of(name)
            found[name] = (
                _Levels(
                    partitions=len(partitions),
                    size_bytes=sum(each.size_bytes for each in partitions),
                    messages=sum(each.high_watermark - each.start_offset for each in partitions),
                    damaged=sum(not each.is_sound for each in partitions),
                ),
                _Counts(
                    written=sum(each.high_watermark for each in partitions),
                    written_bytes=sum(each.written_bytes for each in partitions),
                    written_batches=sum(each.written_batches for each in partitions),
                    fetched=sum(each.fetched_messages for each in partitions),
                    fetched_bytes=sum(each.fetched_bytes for each in partitions),
                    skipped_batches=sum(each.skipped_batches for each in partitions),
                ),
            )
            looked_at += len(partitions)
            if looked_at >= _AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
        return found
