"""Which of many names have figures of their own, and how the others are added up.

Names are chosen by users, and every name is a series that Prometheus has to keep: there must be an end to
them. Who is chosen stays so, since a series that comes and goes is of little use.
"""

from collections.abc import Hashable, Mapping, Sequence
from heapq import nlargest
from typing import Generic, TypeVar

from alpacamq.api.slices import in_slices

# No topic can have this name.
OTHER = "(other)"

K = TypeVar("K", bound=Hashable)


class Selection(Generic[K]):
    """The largest at the time when there was room for them, for as long as they are there."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chosen: set[K] = set()

    async def choose(self, sizes: Mapping[K, float]) -> set[K]:
        """Those of `sizes` to be shown; others get their turn of the event loop meanwhile."""
        self._chosen = {key for key in self._chosen if key in sizes}
        if (free := self._limit - len(self._chosen)) > 0:
            largest: list[K] = []
            async for some in in_slices(key for key in sizes if key not in self._chosen):
                largest = nlargest(free, largest + some, key=sizes.__getitem__)
            self._chosen.update(largest)
        return self._chosen


class Remainder(Generic[K]):
    """The counters of those that are not shown, added up so that a sum never falls.

    One that is gone takes nothing away: Prometheus would take the lower sum for that of a broker that
    started anew, and show all of it as growth.
    """

    def __init__(self, width: int) -> None:
        self._sums = [0] * width
        self._seen: Mapping[K, Sequence[int]] = {}

    def add_up(self, counters: Mapping[K, Sequence[int]]) -> Sequence[int]:
        """The sums, with what these counters have grown by since the last time."""
        none = [0] * len(self._sums)
        for key, counts in counters.items():
            for place, (before, now) in enumerate(zip(self._seen.get(key, none), counts, strict=True)):
                self._sums[place] += now - before if now >= before else now
        self._seen = counters
        return self._sums
