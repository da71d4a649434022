"""Metrics of queues and their lanes."""

import asyncio
from collections.abc import Iterable, Sequence

from alpacamq.broker.broker import Broker
from alpacamq.model.batch import HEADER_BYTES, read_header
from alpacamq.model.errors import AlpacaError
from alpacamq.queues.messages import DescribeReply, QueueId
from alpacamq.telemetry import metrics_catalogue as m
from alpacamq.wire.queues import QueueTotals

from .exposition import Exposition, Labels
from .selection import OTHER, Remainder, Selection
from .stats import lanes_of, totals_of

# Batch headers read per collection; queues that are left out are read first in the next.
MAX_READS = 500

# Topic, partition and offset.
_Place = tuple[str, int, int]


class OldestMessages:
    """Timestamps of the oldest unprocessed messages of queues, cached by position."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._written_ms: dict[_Place, int] = {}

    async def ages(self, queues: Iterable[DescribeReply]) -> dict[Labels, float]:
        """Return the age in seconds of the oldest message by queue, 0 for an empty queue."""
        places = {queue.queue: _places(queue) for queue in queues}
        wanted = {place for each in places.values() for place in each}
        known = {place: at for place, at in self._written_ms.items() if place in wanted}
        for place in list(wanted - known.keys())[:MAX_READS]:
            if (written_ms := await self._read(*place)) is not None:
                known[place] = written_ms
        self._written_ms = known
        now_ms = self._broker.clock.now_ms()
        ages: dict[Labels, float] = {}
        for queue, of_queue in places.items():
            first_ms = min((known[place] for place in of_queue if place in known), default=now_ms)
            ages[queue] = max(now_ms - first_ms, 0) / 1000
        return ages

    async def _read(self, topic: str, index: int, offset: int) -> int | None:
        partition = self._broker.topics.find(topic.encode(), index)
        if partition is None:
            return None
        try:
            found = partition.read(offset, 1, partition.high_watermark, at_least_one=True)
            if found is None:
                return None
            loop = asyncio.get_running_loop()
            try:
                data = await loop.run_in_executor(
                    self._broker.work_threads, found.handle.read, HEADER_BYTES, found.position
                )
            finally:
                found.release()
            return read_header(data).base_timestamp
        except (AlpacaError, OSError):  # damaged or deleted meanwhile
            return None


def _places(queue: DescribeReply) -> list[_Place]:
    return [
        (queue.queue.topic, each.partition, each.oldest_offset)
        for each in queue.partitions
        if each.oldest_offset is not None
    ]


_LEVELS = {
    m.QUEUE_READY: "ready",
    m.QUEUE_IN_FLIGHT: "in_flight",
    m.QUEUE_RESTING: "resting",
    m.QUEUE_WAITING: "waiting_receives",
}
_COUNTS = {
    m.QUEUE_RECEIVED: "received_total",
    m.QUEUE_ACKED: "acked_total",
    m.QUEUE_NACKED: "nacked_total",
    m.QUEUE_REJECTED: "rejected_total",
    m.QUEUE_EXPIRED: "expired_leases_total",
    m.QUEUE_DEAD_LETTERED: "dead_lettered_total",
    m.QUEUE_REDELIVERED: "redelivered_total",
}


class QueueCollector:
    """Metrics of all queues; the longest have series of their own, including lanes and ages."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._selection: Selection[QueueId] = Selection(limit)
        self._remainder: Remainder[QueueId] = Remainder(len(_COUNTS))
        self._oldest = OldestMessages(broker)

    async def collect(self, text: Exposition) -> int:
        """Add all metrics; return how many queues have no series of their own."""
        queues = {each.queue: each for each in self._broker.queues.stats()}
        totals = {queue: totals_of([stats]) for queue, stats in queues.items()}
        lengths = {queue: each.ready + each.in_flight for queue, each in totals.items()}
        chosen = await self._selection.choose(lengths)
        shown = sorted(chosen)
        others = queues.keys() - chosen
        text.one(m.QUEUES, len(queues))
        for metric, name in _LEVELS.items():
            samples: dict[Labels, float] = {queue: getattr(totals[queue], name) for queue in shown}
            if others:
                samples[OTHER, OTHER] = sum(getattr(totals[queue], name) for queue in others)
            text.add(metric, samples)
        sums = self._remainder.add_up({queue: _counts(totals[queue]) for queue in others})
        for place, (metric, name) in enumerate(_COUNTS.items()):
            samples = {queue: getattr(totals[queue], name) for queue in shown}
            if others or any(sums):
                samples[OTHER, OTHER] = sums[place]
            text.add(metric, samples)
        found = [queues[queue] for queue in shown]
        text.add(m.QUEUE_OLDEST, await self._oldest.ages(found))
        _lanes(text, found)
        return len(others)


def _counts(totals: QueueTotals) -> Sequence[int]:
    return [getattr(totals, name) for name in _COUNTS.values()]


def _lanes(text: Exposition, found: Sequence[DescribeReply]) -> None:
    lanes = {
        (*queue.queue, lane): stats for queue in found for lane, stats in lanes_of(queue.partitions).items()
    }
    text.add(m.LANE_READY, {labels: each.ready for labels, each in lanes.items()})
    text.add(m.LANE_IN_FLIGHT, {labels: each.in_flight for labels, each in lanes.items()})
    text.add(m.LANE_ENQUEUED, {labels: each.enqueued_total for labels, each in lanes.items()})
    text.add(m.LANE_DELIVERED, {labels: each.delivered_total for labels, each in lanes.items()})
