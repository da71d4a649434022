"""Samples the broker for its history: rates of topics and groups, lag of groups, rates of queue lanes.

Each broker samples what it leads and coordinates.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from alpacamq.coordinator.messages import FetchOffsetsRequest
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.ports import Clock
from alpacamq.model.topics import INTERNAL_TOPICS, OFFSETS_TOPIC
from alpacamq.telemetry.history import History, Measure, Rates, SeriesKey
from alpacamq.telemetry.logs import get_logger

from .groups import Groups
from .queue.service import Queues
from .remote.reads import RemoteReads
from .slices import first_names, in_slices
from .topics import Topics

log = get_logger(__name__)

INTERVAL_S = 2.0
# Between samples that take long, because there are many topics, queues or groups.
MAX_INTERVAL_S = 10.0
_MAX_SHARE = 0.05
# Groups whose offsets are read per sample; each costs tens of microseconds.
MAX_GROUPS = 200
# Of those beyond, this many are looked at to count them.
_MAX_UNSAMPLED = 10_000
_UNKNOWN_TOPIC = "?"
_GROUPS_PER_SLICE = 50
_TOPICS_PER_SLICE = 50
_RATES = (Measure.PUBLISHED, Measure.CONSUMED)


class GroupLag(NamedTuple):
    """Messages after the committed offsets of a group in a topic, and those before, over all partitions."""

    group: str
    topic: str
    messages: int
    reached: int


class GroupLags:
    """Computes the lag of groups from their committed offsets."""

    def __init__(self, topics: Topics, groups: Groups, reads: RemoteReads) -> None:
        self._topics = topics
        self._groups = groups
        self._reads = reads

    async def group_names(self, limit: int, prefix: str = "") -> list[str]:
        """Return the first groups by name, of all brokers."""
        return await first_names(await self._groups.group_ids(), limit, prefix=prefix)

    async def group_names_here(self, limit: int) -> tuple[list[str], list[str]]:
        """Return the first groups by name that this broker coordinates, and some of the others."""
        groups = await self._groups.group_ids_here()
        first = await first_names(groups, limit)
        known = set(first)
        return first, [group for group in islice(groups, _MAX_UNSAMPLED) if group not in known]

    async def of(self, groups: list[str]) -> list[GroupLag]:
        """Return the lag of each group in each topic with committed offsets.

        Partitions whose leaders do not answer are left out.
        """
        found: list[GroupLag] = []
        async for some in in_slices(groups, _GROUPS_PER_SLICE):
            offsets = {group: await self._offsets(group) for group in some}
            ends = await self._ends({place for each in offsets.values() for place in each})
            for group, committed in offsets.items():
                found += _lags(group, committed, ends)
        return found

    async def _offsets(self, group: str) -> dict[TopicPartition, int]:
        reply = await self._groups.ask(FetchOffsetsRequest(group=group))
        return {
            TopicPartition(TopicName(each.topic), each.partition): each.offset
            for each in reply.offsets
            if each.offset >= 0  # to clients, a negative offset is none
        }

    async def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        topics = self._topics
        places = {
            each: topics.place(*each)
            for each in partitions
            if topics.exists(each.topic.encode(), each.partition)
        }
        bounds = await self._reads.bounds(list(places.values()), retry_ms=0)
        return {
            partition: found.high_watermark
            for partition, found in zip(places, bounds, strict=True)
            if not isinstance(found, AlpacaError)
        }


def _lags(
    group: str, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[GroupLag]:
    by_topic: dict[str, GroupLag] = {}
    for partition, offset in committed.items():
        if (end := ends.get(partition)) is not None:
            so_far = by_topic.get(partition.topic, GroupLag(group, partition.topic, 0, 0))
            by_topic[partition.topic] = so_far._replace(
                messages=so_far.messages + max(end - offset, 0), reached=so_far.reached + offset
            )
    return (lag for _, lag in sorted(by_topic.items()))


class LaneKey(NamedTuple):
    """A lane of one partition of a queue."""

    group: str
    topic: str
    partition: int
    lane: str


class LaneRates:
    """Rates at which queue lanes fill and empty."""

    def __init__(self) -> None:
        self.enqueued: Rates[LaneKey] = Rates()
        self.delivered: Rates[LaneKey] = Rates()


class CounterKey(NamedTuple):
    """A counter of a topic, or of a group on a topic as a consumer or as a queue."""

    measure: Measure
    topic: str
    group: str = ""
    is_queue: bool = False


class Sampler:
    """Adds a sample to the history every few seconds."""

    def __init__(self, topics: Topics, queues: Queues, lags: GroupLags, clock: Clock) -> None:
        self.history = History()
        self._topics = topics
        self._queues = queues
        self._lags = lags
        self._clock = clock
        self._counts: Mapping[CounterKey, int] | None = None
        self._counted_at = 0.0

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            began = self._clock.monotonic()
            try:
                await self.sample()
            except Exception:  # a gap in a chart is no reason to stop the broker
                log.exception("history_sample_failed")
            took = self._clock.monotonic() - began
            await asyncio.sleep(min(max(INTERVAL_S, took / _MAX_SHARE), MAX_INTERVAL_S))

    async def sample(self) -> None:
        """Add one sample."""
        now = self._clock.monotonic()
        counts: dict[CounterKey, int] = {}
        levels: Counter[SeriesKey] = Counter({SeriesKey(Measure.LAG): 0})
        await self._sample_topics(counts)
        await self._sample_queues(counts, levels)
        unsampled: list[str] = []
        with suppress(AlpacaError):  # coordinators that are not ready are left out of this sample
            unsampled = await self._sample_groups(counts, levels)
        numbers: dict[SeriesKey, float] = dict(levels)
        if self._counts is not None and now > self._counted_at:
            for key, grown in growth(self._counts, counts).items():
                numbers[key] = grown / (now - self._counted_at)
        self._counts, self._counted_at = counts, now
        self.history.forget_topics_except(self._topics.image.topics)
        self.history.record(
            self._clock.now_ms(),
            numbers,
            [SeriesKey(Measure.LAG, _UNKNOWN_TOPIC, group) for group in unsampled],
        )

    async def _sample_topics(self, counts: dict[CounterKey, int]) -> None:
        async for some in in_slices(list(self._topics.image.topics), _TOPICS_PER_SLICE):
            for name in some:
                if name not in INTERNAL_TOPICS:
                    written = sum(each.written_messages for each in self._topics.replicas_of(name))
                    counts[CounterKey(Measure.PUBLISHED, name)] = written

    async def _sample_queues(self, counts: dict[CounterKey, int], levels: Counter[SeriesKey]) -> None:
        for queue in await self._queues.levels():
            group, topic = queue.queue
            levels[SeriesKey(Measure.READY, topic, group)] = queue.ready
            levels[SeriesKey(Measure.IN_FLIGHT, topic, group)] = queue.in_flight
            _add_lag(levels, topic, group, queue.ready + queue.in_flight + queue.backoff)
            counts[CounterKey(Measure.CONSUMED, topic, group, is_queue=True)] = queue.acked_total

    async def _sample_groups(self, counts: dict[CounterKey, int], levels: Counter[SeriesKey]) -> list[str]:
        """Add the lag of groups; return those that were too many."""
        if OFFSETS_TOPIC not in self._topics.image.topics:
            return []
        groups, unsampled = await self._lags.group_names_here(MAX_GROUPS)
        for each in await self._lags.of(groups):
            _add_lag(levels, each.topic, each.group, each.messages)
            counts[CounterKey(Measure.CONSUMED, each.topic, each.group)] = each.reached
        return unsampled


def _add_lag(levels: Counter[SeriesKey], topic: str, group: str, messages: int) -> None:
    levels[SeriesKey(Measure.LAG, topic, group)] += messages
    levels[SeriesKey(Measure.LAG)] += messages


def growth(before: Mapping[CounterKey, int], counts: Mapping[CounterKey, int]) -> Counter[SeriesKey]:
    """Return how much each topic, and all topics together, have grown in each measure."""
    found: Counter[SeriesKey] = Counter({SeriesKey(measure): 0 for measure in _RATES})
    for key, count in counts.items():
        # A new topic was empty; the start offset of a new group is unknown.
        known = before.get(key, 0 if key.measure is Measure.PUBLISHED else count)
        # Never negative: a group may reset its offsets, and a topic may be recreated under the same name.
        grown = max(count - known, 0)
        found[SeriesKey(key.measure, key.topic)] += grown
        found[SeriesKey(key.measure)] += grown
        if key.measure is Measure.PUBLISHED:
            found[SeriesKey(Measure.CONSUMED, key.topic)] += 0
    return found
