"""Consumer groups in figures."""

import asyncio
from collections import Counter

from alpacamq.api.rest.exposition import Exposition
from alpacamq.broker.broker import Broker
from alpacamq.coordinator.group_figures import GroupFigures
from alpacamq.telemetry import metrics_catalogue as m

from .selection import OTHER, Selection

# So many offsets are looked at before others get their turn of the event loop.
_AT_ONCE = 2000


class GroupCollector:
    """Every group, those furthest behind by name."""

    def __init__(self, broker: Broker, limit: int) -> None:
        self._broker = broker
        self._groups: Selection[str] = Selection(limit)
        self._lags: Selection[tuple[str, str]] = Selection(limit)

    async def collect(self, text: Exposition) -> int:
        """How many groups, or groups in a topic, have no figures of their own."""
        groups = self._broker.coordinators.group_figures()
        lags = await self._lags_of(groups)
        behind = Counter({each.group.group: 0 for each in groups})
        for (group, _), lag in lags.items():
            behind[group] += lag
        chosen = self._groups.choose(behind)
        shown = sorted(
            (each for each in groups if each.group.group in chosen), key=lambda each: each.group.group
        )
        text.add(m.GROUPS, Counter((each.group.state,) for each in groups) or {("Empty",): 0})
        text.add(m.GROUP_MEMBERS, {(each.group.group,): each.members for each in shown})
        text.add(m.GROUP_REBALANCES, {(each.group.group,): each.rebalances for each in shown})
        pairs = self._lags.choose(lags)
        samples: dict[tuple[str, ...], float] = {pair: lags[pair] for pair in sorted(pairs)}
        if len(lags) > len(pairs):
            samples[OTHER, OTHER] = sum(lag for pair, lag in lags.items() if pair not in pairs)
        text.add(m.GROUP_LAG, samples)
        return max(len(groups) - len(shown), len(lags) - len(pairs))

    async def _lags_of(self, groups: list[GroupFigures]) -> dict[tuple[str, str], int]:
        find = self._broker.topics.find
        lags: Counter[tuple[str, str]] = Counter()
        looked_at = 0
        for group in groups:
            for (topic, index), committed in group.committed.items():
                if (partition := find(topic.encode(), index)) is not None:
                    behind = max(partition.high_watermark - committed.offset, 0)
                    lags[group.group.group, topic] += behind
            looked_at += len(group.committed)
            if looked_at >= _AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)
        return dict(lags)
