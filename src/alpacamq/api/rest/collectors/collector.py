"""All of /metrics."""

import asyncio
from contextlib import suppress

from alpacamq.api.rest.exposition import Exposition, Labels
from alpacamq.api.rest.traffic import Traffic
from alpacamq.broker.broker import Broker
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry import metrics_catalogue as m
from alpacamq.telemetry.metrics import Metrics

from . import doors, process
from .coordination import collect_delays, collect_transactions
from .groups import GroupCollector
from .queues import QueueCollector
from .topics import TopicCollector


class Collector:
    """Puts together what is shown, and remembers which names are."""

    def __init__(self, broker: Broker, metrics: Metrics, traffic: Traffic) -> None:
        self._broker = broker
        self._metrics = metrics
        self._traffic = traffic
        limits = metrics.limits
        self._topics = TopicCollector(broker, limits.max_topics)
        self._groups = GroupCollector(broker, limits.max_groups)
        self._queues = QueueCollector(broker, limits.max_groups)
        # Collecting gives way to other work; two at a time would be in each other's way.
        self._collecting = asyncio.Lock()

    async def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        async with self._collecting:
            text = Exposition()
            process.collect(text, self._broker)
            doors.collect(text, self._metrics, self._traffic)
            await asyncio.sleep(0)
            dropped: dict[Labels, float] = {
                ("topic",): await self._topics.collect(text),
                ("group",): await self._groups.collect(text),
                ("queue",): await self._queues.collect(text),
            }
            text.add(m.SERIES_DROPPED, dropped)
            for part in (collect_delays, collect_transactions):
                # A part that cannot answer now is left out: the others are of use without it.
                with suppress(AlpacaError):
                    await part(text, self._broker)
            await asyncio.sleep(0)
            return text.encode()
