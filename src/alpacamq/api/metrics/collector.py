"""Collects all metrics for /metrics."""

import asyncio
import os
import platform
import resource
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from alpacamq import __version__
from alpacamq.broker.broker import Broker
from alpacamq.broker.health import all_checks
from alpacamq.coordinator.groups import GroupStats
from alpacamq.coordinator.transactions.transaction import ListTransactions
from alpacamq.model.errors import AlpacaError
from alpacamq.model.topics import TRANSACTIONS_TOPIC
from alpacamq.telemetry import metrics_catalogue as m
from alpacamq.telemetry.metrics import Metrics

from . import collector as process
from . import requests
from .exposition import Exposition, Labels
from .queues import QueueCollector
from .requests import Traffic
from .selection import OTHER, Selection
from .stats import all_transactions, stats_of
from .topics import TopicCollector

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# Field of /proc/self/stat after the name in parentheses: start of the process, in ticks since boot.
_STARTED_FIELD = 19


def collect(text: Exposition, broker: Broker) -> None:
    labels = (__version__, platform.python_version(), str(broker.settings.node_id), broker.cluster_id)
    text.add(m.BUILD_INFO, {labels: 1})
    text.add(m.HEALTH, {(name,): int(check.is_ok) for name, check in all_checks(broker).items()})
    usage = resource.getrusage(resource.RUSAGE_SELF)
    text.one(m.CPU_SECONDS, usage.ru_utime + usage.ru_stime)
    with suppress(OSError):  # not available without /proc
        size_pages, resident_pages, *_ = Path("/proc/self/statm").read_text().split()
        text.one(m.RESIDENT_MEMORY, int(resident_pages) * _PAGE_BYTES)
        text.one(m.VIRTUAL_MEMORY, int(size_pages) * _PAGE_BYTES)
        text.one(m.OPEN_FDS, sum(1 for _ in Path("/proc/self/fd").iterdir()))
        text.one(m.START_TIME, _started_at())
    text.one(m.MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with suppress(OSError):  # the health check reports the disk error; the other metrics are still needed
        room = os.statvfs(broker.settings.data_directory)
        text.one(m.DISK_FREE, room.f_bavail * room.f_frsize)
        text.one(m.DISK_SIZE, room.f_blocks * room.f_frsize)
    text.histograms(m.LOOP_LAG, [((), broker.event_loop.lag)])
    text.one(m.LOOP_STALLS, broker.event_loop.stalls)
    if broker.metrics is not None:
        text.histograms(m.FLUSH_SECONDS, [((), broker.metrics.flushes.seconds)])
        text.one(m.FLUSH_FAILURES, broker.metrics.flushes.failed)
        text.one(m.FLUSHES_POSTPONED, broker.metrics.flushes.postponed)


def _started_at() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(boot_at + int(fields[_STARTED_FIELD]) / _TICKS, 2)


# Offsets read before yielding to the event loop.
_AT_ONCE = 1000


class GroupCollector:
    """Metrics of all groups; those with the largest lag have series of their own."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._groups: Selection[str] = Selection(limit)
        self._lags: Selection[tuple[str, str]] = Selection(limit)

    async def collect(self, text: Exposition) -> int:
        """Add all metrics; return how many groups, or groups in a topic, have no series of their own."""
        states: Counter[Labels] = Counter()
        sizes: dict[str, tuple[int, int]] = {}  # members and rebalances
        behind: dict[str, int] = {}
        lags: dict[tuple[str, str], int] = {}
        looked_at = 0
        async for some in self._broker.groups.stats():
            for each in some:
                name = each.group.group
                states[(each.group.state,)] += 1
                sizes[name] = each.members, each.rebalances
                by_topic = self._lags_of(each)
                behind[name] = sum(by_topic.values())
                lags.update({(name, topic): lag for topic, lag in by_topic.items()})
                looked_at += 1 + len(each.committed)
                if looked_at >= _AT_ONCE:
                    looked_at = 0
                    await asyncio.sleep(0)
        shown = sorted(await self._groups.choose(behind))
        await asyncio.sleep(0)
        text.add(m.GROUPS, states or {("Empty",): 0})
        text.add(m.GROUP_MEMBERS, {(name,): sizes[name][0] for name in shown})
        text.add(m.GROUP_REBALANCES, {(name,): sizes[name][1] for name in shown})
        pairs = await self._lags.choose(lags)
        await asyncio.sleep(0)
        samples: dict[Labels, float] = {pair: lags[pair] for pair in sorted(pairs)}
        if len(lags) > len(pairs):
            samples[OTHER, OTHER] = sum(lags.values()) - sum(lags[pair] for pair in pairs)
        await asyncio.sleep(0)
        text.add(m.GROUP_LAG, samples)
        await asyncio.sleep(0)
        return max(len(sizes) - len(shown), len(lags) - len(pairs))

    def _lags_of(self, group: GroupStats) -> dict[str, int]:
        """Return the lag of a group in each topic."""
        find = self._broker.topics.find
        lags: dict[str, int] = {}
        for (topic, index), committed in group.committed.items():
            if (partition := find(topic.encode(), index)) is not None:
                behind = max(partition.high_watermark - committed.offset, 0)
                lags[topic] = lags.get(topic, 0) + behind
        return lags


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
