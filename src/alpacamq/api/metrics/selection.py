"""Selects the names with series of their own, and adds up the others.

Names are chosen by users, and every name is a series that Prometheus stores: their number must be bounded. A
selected name stays selected, because a series with gaps is of little use.
"""

from collections.abc import Hashable, Mapping, Sequence
from heapq import nlargest
from typing import Generic, TypeVar

from alpacamq.broker.slices import in_slices

# No topic can have this name.
OTHER = "(other)"

K = TypeVar("K", bound=Hashable)


class Selection(Generic[K]):
    """A bounded set of names: the largest when selected, kept for as long as they exist."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chosen: set[K] = set()

    async def choose(self, sizes: Mapping[K, float]) -> set[K]:
        """Return the selected names of `sizes`; yields to the event loop."""
        self._chosen = {key for key in self._chosen if key in sizes}
        if (free := self._limit - len(self._chosen)) > 0:
            largest: list[K] = []
            async for some in in_slices(key for key in sizes if key not in self._chosen):
                largest = nlargest(free, largest + some, key=sizes.__getitem__)
            self._chosen.update(largest)
        return self._chosen


class Remainder(Generic[K]):
    """Sums of the counters of names that are not selected. Sums never decrease.

    A deleted name is not subtracted: Prometheus would take the lower sum for a restart of the broker, and
    count all of it as growth.
    """

    def __init__(self, width: int) -> None:
        self._sums = [0] * width
        self._seen: Mapping[K, Sequence[int]] = {}

    def add_up(self, counters: Mapping[K, Sequence[int]]) -> Sequence[int]:
        """Add the growth of these counters since the last call; return the sums."""
        none = [0] * len(self._sums)
        for key, counts in counters.items():
            for place, (before, now) in enumerate(zip(self._seen.get(key, none), counts, strict=True)):
                self._sums[place] += now - before if now >= before else now
        self._seen = counters
        return self._sums
