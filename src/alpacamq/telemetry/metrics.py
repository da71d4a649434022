"""What the broker counts while it works: plain numbers that are added to, and read when somebody asks.

Nothing here knows a format or a name that is shown. Whoever counts is given the part it adds to, or None
where counting is switched off. All of it belongs to the event loop's thread.
"""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

# Upper ends of buckets, in seconds. The last bucket, of what took longer, is not named.
REQUEST_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
FLUSH_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LOOP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LATE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0)


class Histogram:
    """How many values fell into each of a few fixed buckets, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        # One more than there are bounds, for what is beyond the last.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Take in a value, which may stand for several that are alike."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class RequestStats:
    """Requests of one kind: how long their answers took, and how many were refused, by the word for why."""

    __slots__ = ("refusals", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(REQUEST_SECONDS)
        self.refusals: dict[str, int] = {}

    def refused(self, reason: str) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + 1


class ListenerStats:
    """What one API has seen. Kinds of requests are those that the code knows, so there are only so many."""

    __slots__ = ("evicted", "kinds", "opened", "received_bytes", "refused", "sent_bytes", "shut")

    def __init__(self) -> None:
        # Connections: those let in, those of them that have ended, those refused, and those of the
        # ended ones that were idle and gave way to another.
        self.opened = 0
        self.shut = 0
        self.refused = 0
        self.evicted = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.kinds: dict[str, RequestStats] = {}

    def of(self, kind: str) -> RequestStats:
        """The figures of one kind of request."""
        if (found := self.kinds.get(kind)) is None:
            found = self.kinds[kind] = RequestStats()
        return found


class FlushStats:
    """Getting data onto the medium."""

    __slots__ = ("failed", "postponed", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(FLUSH_SECONDS)
        self.failed = 0
        # For lack of descriptors; each is tried again.
        self.postponed = 0


class SeriesLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many names that users choose get numbers of their own."""

    max_topics: int = 1000
    max_groups: int = 1000


class Metrics:
    """Everything that is counted, by who counts it."""

    def __init__(self, limits: SeriesLimits | None = None) -> None:
        self.limits = limits or SeriesLimits()
        self.listeners = {name: ListenerStats() for name in ("kafka", "http", "sqs")}
        self.flushes = FlushStats()
