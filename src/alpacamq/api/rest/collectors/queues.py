"""Queues and their lanes in figures."""

from collections.abc import Sequence

from alpacamq.api.rest.exposition import Exposition, Labels
from alpacamq.api.rest.handlers.queue_figures import QueueTotals, lanes_of, totals_of
from alpacamq.broker.broker import Broker
from alpacamq.queues.messages import DescribeReply, QueueId
from alpacamq.telemetry import metrics_catalogue as m

from .oldest import OldestMessages
from .selection import OTHER, Remainder, Selection

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
    """Every queue, the longest by name. Lanes and ages are known of those with a name only."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._selection: Selection[QueueId] = Selection(limit)
        self._remainder: Remainder[QueueId] = Remainder(len(_COUNTS))
        self._oldest = OldestMessages(broker)

    async def collect(self, text: Exposition) -> int:
        """How many queues have no figures of their own."""
        queues = {each.queue: each for each in self._broker.queues.figures()}
        totals = {queue: totals_of([figures]) for queue, figures in queues.items()}
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
        (*queue.queue, lane): figures
        for queue in found
        for lane, figures in lanes_of(queue.partitions).items()
    }
    text.add(m.LANE_READY, {labels: each.ready for labels, each in lanes.items()})
    text.add(m.LANE_IN_FLIGHT, {labels: each.in_flight for labels, each in lanes.items()})
    text.add(m.LANE_ENQUEUED, {labels: each.enqueued_total for labels, each in lanes.items()})
    text.add(m.LANE_DELIVERED, {labels: each.delivered_total for labels, each in lanes.items()})
