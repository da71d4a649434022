"""How long things took: counts in buckets that are each within one per cent of what they hold."""

from collections.abc import Sequence

QUANTILES: Sequence[tuple[str, float]] = (
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
)
# Below 256 microseconds a bucket for each; above, 128 for every doubling.
_LINEAR_BITS = 8
_HALF = 1 << (_LINEAR_BITS - 1)
# Up to a day; whatever takes longer counts as that.
_MAX_US = 86_400 * 1_000_000


class Histogram:
    """Durations in microseconds; its size does not depend on how many there are."""

    __slots__ = ("_counts", "max_us", "total")

    def __init__(self) -> None:
        self._counts = [0] * (_bucket(_MAX_US) + 1)
        self.total = 0
        self.max_us = 0

    def add(self, duration_us: int, count: int = 1) -> None:
        """`count` things took this long each."""
        self._counts[_bucket(min(max(duration_us, 0), _MAX_US))] += count
        self.total += count
        self.max_us = max(self.max_us, duration_us)

    def merge(self, other: "Histogram") -> None:
        self._counts = [ours + theirs for ours, theirs in zip(self._counts, other._counts, strict=True)]
        self.total += other.total
        self.max_us = max(self.max_us, other.max_us)

    def at(self, quantile: float) -> float:
        """What this share of all things did not exceed, in milliseconds."""
        wanted = quantile * self.total
        reached = 0
        for bucket, count in enumerate(self._counts):
            reached += count
            if count and reached >= wanted:
                return min(_highest_us(bucket), self.max_us) / 1000
        return 0.0

    def summary(self) -> dict[str, float]:
        """The quantiles people ask for, and the worst, in milliseconds."""
        return {name: self.at(quantile) for name, quantile in QUANTILES} | {"max": self.max_us / 1000}


def _bucket(duration_us: int) -> int:
    shift = max(0, duration_us.bit_length() - _LINEAR_BITS)
    return shift * _HALF + (duration_us >> shift)


def _highest_us(bucket: int) -> int:
    """The longest duration that falls into a bucket."""
    if bucket < 2 * _HALF:
        return bucket
    shift = bucket // _HALF - 1
    return ((bucket - shift * _HALF + 1) << shift) - 1
