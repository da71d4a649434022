"""Counters and histograms of the broker.

This module does not know formats or metric names. Each component gets the part it updates, or None
if metrics are disabled. All of it belongs to the event loop's thread.
"""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

# Upper bounds of buckets, in seconds. The last bucket is unbounded and not listed.
REQUEST_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
FLUSH_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LOOP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LATE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0)


class Histogram:
    """Histogram with fixed buckets, and the sum of its values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        # One more than there are bounds, for values beyond the last.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value, `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class RequestStats:
    """Durations of requests of one kind, and number of errors by name."""

    __slots__ = ("refusals", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(REQUEST_SECONDS)
        self.refusals: dict[str, int] = {}

    def refused(self, reason: str) -> None:
        self.refusals[reason] = self.refusals.get(reason, 0) + 1


class ListenerStats:
    """Stats of one listener. The number of request kinds is bounded by the code."""

    __slots__ = (
        "calls_open",
        "evicted",
        "failed_handshakes",
        "filtered",
        "handshakes",
        "kinds",
        "opened",
        "received_bytes",
        "refused",
        "sent_bytes",
        "shut",
    )

    def __init__(self) -> None:
        # Connections: accepted, closed, refused, and closed ones that were idle
        # and evicted for another.
        self.opened = 0
        self.shut = 0
        self.refused = 0
        self.evicted = 0
        # Closed because the listener does not serve their address.
        self.filtered = 0
        # TLS handshakes that were completed, and that failed.
        self.handshakes = 0
        self.failed_handshakes = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        # Of gRPC: calls in progress, streams among them.
        self.calls_open = 0
        self.kinds: dict[str, RequestStats] = {}

    def of(self, kind: str) -> RequestStats:
        """Return the stats of one kind of request."""
        if (found := self.kinds.get(kind)) is None:
            found = self.kinds[kind] = RequestStats()
        return found


class FlushStats:
    """Stats of fsyncs."""

    __slots__ = ("failed", "postponed", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(FLUSH_SECONDS)
        self.failed = 0
        # For lack of descriptors; each is retried.
        self.postponed = 0


class ForwardStats:
    """Requests that this broker has sent to state machines of others, by kind."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        self.kinds: dict[str, RequestStats] = {}

    def called(self, kind: str, error: str, seconds: float) -> None:
        """Count a call; `error` is empty if it succeeded."""
        if (stats := self.kinds.get(kind)) is None:
            stats = self.kinds[kind] = RequestStats()
        stats.seconds.observe(seconds)
        if error:
            stats.refused(error)


class ReplicationStats:
    """Counters of replication."""

    __slots__ = ("in_sync_expands", "in_sync_shrinks", "received_bytes", "sent_bytes")

    def __init__(self) -> None:
        # Bytes fetched from leaders and sent to followers.
        self.received_bytes = 0
        self.sent_bytes = 0
        # Of partitions led here.
        self.in_sync_shrinks = 0
        self.in_sync_expands = 0


class SeriesLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of series whose labels are chosen by users."""

    max_topics: int = 1000
    max_groups: int = 1000


class Metrics:
    """All counters, by component."""

    def __init__(self, limits: SeriesLimits | None = None) -> None:
        self.limits = limits or SeriesLimits()
        self.listeners = {name: ListenerStats() for name in ("kafka", "http", "sqs", "registry", "grpc")}
        self.flushes = FlushStats()
        self.forwarded = ForwardStats()
