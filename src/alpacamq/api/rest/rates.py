"""How fast counters grow, found out by looking at them again."""

from collections.abc import Hashable, Mapping
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

WINDOW_SECONDS = 10.0
MAX_COUNTERS = 100_000


class _Sample(NamedTuple, Generic[K]):
    at: float
    counts: Mapping[K, int]


class Rates(Generic[K]):
    """Rates over the last ten to twenty seconds, or since somebody first looked."""

    def __init__(self) -> None:
        self._base: _Sample[K] | None = None
        self._newer: _Sample[K] | None = None

    def per_second(self, counts: Mapping[K, int], now: float) -> dict[K, float | None]:
        """For each counter its growth, None where it was not there the last time."""
        base = self._base
        rates: dict[K, float | None] = {}
        for key, count in counts.items():
            before = None if base is None else base.counts.get(key)
            rates[key] = None
            if base is not None and before is not None and now > base.at:
                rates[key] = round(max(count - before, 0) / (now - base.at), 3)
        self._remember(counts, now)
        return rates

    def _remember(self, counts: Mapping[K, int], now: float) -> None:
        if self._newer is not None and now - self._newer.at < WINDOW_SECONDS:
            return
        sample = _Sample(now, dict(islice(counts.items(), MAX_COUNTERS)))
        self._base = sample if self._newer is None else self._newer
        self._newer = sample
