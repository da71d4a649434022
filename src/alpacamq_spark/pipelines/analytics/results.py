"""Results of analytics as plain values, for reports, tables and plots. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alpacamq_spark.pipelines.run import Plain
from alpacamq_spark.pipelines.timestamps import format_timestamp

Table = tuple[str, list[tuple[object, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """Totals of a topic; sizes and latencies are the 50th, 90th and 99th percentile."""

    topic: str
    records: int
    size: int
    first_ms: int
    last_ms: int
    sizes: tuple[int, ...]
    latencies: tuple[int, ...]
    slowest_ms: int | None
    distinct_keys: int
    without_key: int

    @property
    def records_per_s(self) -> float:
        """The rate from the first record to the last, or over a second if that is shorter."""
        return self.records * 1000 / max(1000, self.last_ms - self.first_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStats:
    """A topic in one time window."""

    topic: str
    start_ms: int
    records: int
    size: int
    records_per_s: float
    bytes_per_s: float
    sizes: tuple[int, ...]
    latencies: tuple[int, ...]
    slowest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """The records of a topic in one partition."""

    topic: str
    partition: int
    records: int
    size: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShare:
    """The records of a topic with one key."""

    topic: str
    key: str
    records: int
    size: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticsResults:
    """All statistics."""

    window_ms: int
    topics: Sequence[TopicStats]
    windows: Sequence[WindowStats]
    partitions: Sequence[PartitionLoad]
    keys: Sequence[KeyShare]

    def plain(self) -> Mapping[str, Plain]:
        """Return the results as values for programs."""
        return {
            "window_ms": self.window_ms,
            "topics": [
                {
                    "topic": each.topic,
                    "records": each.records,
                    "bytes": each.size,
                    "first": format_timestamp(each.first_ms),
                    "last": format_timestamp(each.last_ms),
                    "records_per_s": round(each.records_per_s, 3),
                    "size": quantiles(each.sizes),
                    "latency_ms": _latency(each.latencies, each.slowest_ms),
                    "distinct_keys": each.distinct_keys,
                    "without_key": each.without_key,
                }
                for each in self.topics
            ],
            "windows": [
                {
                    "topic": each.topic,
                    "start": format_timestamp(each.start_ms),
                    "records": each.records,
                    "bytes": each.size,
                    "records_per_s": round(each.records_per_s, 3),
                    "bytes_per_s": round(each.bytes_per_s, 3),
                    "size": quantiles(each.sizes),
                    "latency_ms": _latency(each.latencies, each.slowest_ms),
                }
                for each in self.windows
            ],
            "keys": [
                {
                    "topic": each.topic,
                    "key": each.key,
                    "records": each.records,
                    "bytes": each.size,
                    "share": round(each.share, 6),
                }
                for each in self.keys
            ],
            "partitions": [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "records": each.records,
                    "bytes": each.size,
                    "share": round(each.share, 6),
                }
                for each in self.partitions
            ],
        }

    def tables(self) -> Mapping[str, Table]:
        """Return tables by name: columns in Spark's DDL, and rows."""
        counts = "records BIGINT, bytes BIGINT"
        rates = "records_per_s DOUBLE, bytes_per_s DOUBLE"
        three = "{0}_p50 BIGINT, {0}_p90 BIGINT, {0}_p99 BIGINT"
        measures = f"{three.format('size')}, {three.format('latency_ms')}, latency_ms_max BIGINT"
        return {
            "windows": (
                f"topic STRING, start_ms BIGINT, {counts}, {rates}, {measures}",
                [
                    (
                        each.topic,
                        each.start_ms,
                        each.records,
                        each.size,
                        each.records_per_s,
                        each.bytes_per_s,
                        *_padded(each.sizes),
                        *_padded(each.latencies),
                        each.slowest_ms,
                    )
                    for each in self.windows
                ],
            ),
            "keys": (
                f"topic STRING, key STRING, {counts}, share DOUBLE",
                [(each.topic, each.key, each.records, each.size, each.share) for each in self.keys],
            ),
            "partitions": (
                f"topic STRING, partition INT, {counts}, share DOUBLE",
                [
                    (each.topic, each.partition, each.records, each.size, each.share)
                    for each in self.partitions
                ],
            ),
        }


def quantiles(found: Sequence[int]) -> Plain:
    """Return the 50th, 90th and 99th percentile; None without measurements."""
    return dict(zip(("p50", "p90", "p99"), found, strict=True)) if found else None


def _latency(found: Sequence[int], slowest_ms: int | None) -> Plain:
    shown = quantiles(found)
    return {**shown, "max": slowest_ms} if isinstance(shown, Mapping) else None


def _padded(found: Sequence[int]) -> tuple[int | None, ...]:
    return tuple(found) if found else (None, None, None)
