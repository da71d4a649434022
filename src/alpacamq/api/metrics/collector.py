"""Collects all metrics for /metrics."""

import asyncio
from contextlib import suppress

from alpacamq.broker.broker import Broker
from alpacamq.coordinator.transactions.transaction import ListTransactions
from alpacamq.model.errors import AlpacaError
from alpacamq.model.topics import TRANSACTIONS_TOPIC
from alpacamq.telemetry import metrics_catalogue as m
from alpacamq.telemetry.metrics import Metrics

from . import process, requests
from .exposition import Exposition, Labels
from .groups import GroupCollector
from .queues import QueueCollector
from .requests import Traffic
from .stats import all_transactions, stats_of
from .topics import TopicCollector


async def collect_delays(text: Exposition, broker: Broker) -> None:
    stats = await broker.delays.stats()
    text.one(m.DELAYED, stats.pending)
    text.one(m.DELAYED_SCHEDULED, stats.scheduled_total)
    text.one(m.DELAYED_DELIVERED, stats.fired_total)
    text.one(m.DELAYED_CANCELLED, stats.cancelled_total)
    text.one(m.DELAYED_DROPPED, stats.dropped_total)
    text.histograms(m.DELAYED_LATE, [((), broker.delays.late_seconds)])


async def collect_transactions(text: Exposition, broker: Broker) -> None:
    text.add(
        m.TRANSACTIONS_ENDED,
        {
            ("committed",): broker.transactions.committed,
            ("aborted",): broker.transactions.aborted,
        },
    )
    text.one(m.HANGING_TRANSACTIONS, len(broker.transactions.hanging.found))
    found = []
    if TRANSACTIONS_TOPIC in broker.topics.image.topics:
        found = await all_transactions(broker, ListTransactions())
    stats = stats_of(found)
    text.add(m.TRANSACTIONAL_IDS, {(state,): count for state, count in stats.by_state.items()})
    now_ms = broker.clock.now_ms()
    oldest_ms = now_ms if stats.oldest_started is None else stats.oldest_started
    text.one(m.OLDEST_TRANSACTION, max(now_ms - oldest_ms, 0) / 1000)


class Collector:
    """Runs all collectors, one request at a time."""

    def __init__(self, broker: Broker, metrics: Metrics, traffic: Traffic) -> None:
        self._broker = broker
        self._metrics = metrics
        self._traffic = traffic
        limits = metrics.limits
        self._topics = TopicCollector(broker, limits.max_topics)
        self._groups = GroupCollector(broker, limits.max_groups)
        self._queues = QueueCollector(broker, limits.max_groups)
        # Collecting yields to other work; concurrent collections would interfere.
        self._collecting = asyncio.Lock()

    async def text(self) -> bytes:
        """Return all metrics in Prometheus' format."""
        async with self._collecting:
            text = Exposition()
            process.collect(text, self._broker)
            requests.collect(text, self._metrics, self._traffic)
            await asyncio.sleep(0)
            dropped: dict[Labels, float] = {
                ("topic",): await self._topics.collect(text),
                ("group",): await self._groups.collect(text),
                ("queue",): await self._queues.collect(text),
            }
            text.add(m.SERIES_DROPPED, dropped)
            for part in (collect_delays, collect_transactions):
                # An unavailable part is left out: the others are useful without it.
                with suppress(AlpacaError):
                    await part(text, self._broker)
            await asyncio.sleep(0)
            return text.encode()
