"""Metrics of consumer groups."""

import asyncio
from collections import Counter

from alpacamq.broker.broker import Broker
from alpacamq.coordinator.groups import GroupStats
from alpacamq.telemetry import metrics_catalogue as m

from .exposition import Exposition, Labels
from .selection import OTHER, Selection

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
