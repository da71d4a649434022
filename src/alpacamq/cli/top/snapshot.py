"""Snapshots of a broker's stats: rates from two samples, lag trends from several."""

from collections import deque
from dataclasses import dataclass, field

from alpacamq.cli.yaml import Plain
from alpacamq.client.http.connection import HttpApi
from alpacamq.client.http.health import (
    HELD,
    broker_stats,
    group_stats,
    health,
    queue_stats,
    topic_stats,
)
from alpacamq.wire.queues import QueueStats
from alpacamq.wire.stats import GroupStats, Stats, TopicStats

_TREND = 8
_MAX_TRENDS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Stats of the broker at one time; `at_s` is on a monotonic clock."""

    at_s: float
    stats: Stats
    trouble: str | None
    topics: list[TopicStats]
    groups: list[GroupStats]
    queues: list[QueueStats]


def sample(api: HttpApi, at_s: float) -> Sample:
    return Sample(
        at_s=at_s,
        stats=broker_stats(api),
        trouble=health(api),
        topics=topic_stats(api),
        groups=group_stats(api),
        queues=queue_stats(api),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic; rates are None if it was not in the previous sample."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    in_rate: float | None
    out_rate: float | None
    in_bytes_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group in a topic, its rate, and its recent lags, latest last."""

    group: str
    topic: str
    lag: int
    rate: float | None
    trend: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue and its rates."""

    group: str
    topic: str
    ready: int
    in_flight: int
    resting: int
    dead_lettered: int
    received_rate: float | None
    acked_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Data of one frame."""

    stats: Stats
    trouble: str | None
    in_rate: float
    out_rate: float
    topics: list[TopicRow]
    groups: list[GroupRow]
    queues: list[QueueRow]

    def plain(self) -> dict[str, Plain]:
        return {
            "broker": {
                **{name: getattr(self.stats, name) for name in HELD},
                "trouble": self.trouble,
                "in_per_second": round(self.in_rate, 1),
                "out_per_second": round(self.out_rate, 1),
            },
            "topics": [
                {
                    "topic": each.topic,
                    "partitions": each.partitions,
                    "messages": each.messages,
                    "size_bytes": each.size_bytes,
                    "in_per_second": _rounded(each.in_rate),
                    "out_per_second": _rounded(each.out_rate),
                    "in_bytes_per_second": _rounded(each.in_bytes_rate),
                }
                for each in self.topics
            ],
            "groups": [
                {
                    "group": each.group,
                    "topic": each.topic,
                    "lag": each.lag,
                    "lag_change": each.trend[-1] - each.trend[0],
                    "per_second": _rounded(each.rate),
                }
                for each in self.groups
            ],
            "queues": [
                {
                    "group": each.group,
                    "topic": each.topic,
                    "ready": each.ready,
                    "in_flight": each.in_flight,
                    "resting": each.resting,
                    "dead_lettered": each.dead_lettered,
                    "received_per_second": _rounded(each.received_rate),
                    "acked_per_second": _rounded(each.acked_rate),
                }
                for each in self.queues
            ],
        }


@dataclass(slots=True)
class SnapshotHistory:
    """Keeps the last sample, and recent lags of each group."""

    last: Sample | None = None
    _lags: dict[tuple[str, str], deque[int]] = field(default_factory=dict)

    def add(self, now: Sample) -> Snapshot:
        """Compute a snapshot from a sample and the previous ones."""
        before = self.last
        elapsed_s = 0.0 if before is None else now.at_s - before.at_s
        self.last = now
        received = _received(now.queues)
        old_received = {} if before is None else _received(before.queues)
        old_topics = {} if before is None else {each.topic: each for each in before.topics}
        topics = [
            _topic_row(
                each,
                old_topics.get(each.topic),
                received.get(each.topic, 0) - old_received.get(each.topic, 0),
                elapsed_s,
            )
            for each in now.topics
        ]
        return Snapshot(
            stats=now.stats,
            trouble=now.trouble,
            in_rate=sum(each.in_rate or 0.0 for each in topics),
            out_rate=sum(each.out_rate or 0.0 for each in topics),
            topics=topics,
            groups=self._groups(now, before, elapsed_s),
            queues=_queues(now, before, elapsed_s),
        )

    def _groups(self, now: Sample, before: Sample | None, elapsed_s: float) -> list[GroupRow]:
        old = {} if before is None else {(each.group, each.topic): each for each in before.groups}
        # Only for existing groups, so that the history does not grow without bound.
        lags = {(each.group, each.topic): each.lag for each in now.groups[:_MAX_TRENDS]}
        self._lags = {key: self._lags.get(key, deque(maxlen=_TREND)) for key in lags}
        for key, trend in self._lags.items():
            trend.append(lags[key])
        rows = []
        for each in now.groups:
            earlier = old.get((each.group, each.topic))
            rate = None
            if earlier is not None:
                rate = _rate(each.committed_total - earlier.committed_total, elapsed_s)
            late = tuple(self._lags.get((each.group, each.topic), (each.lag,)))
            rows.append(GroupRow(group=each.group, topic=each.topic, lag=each.lag, rate=rate, trend=late))
        return rows


def _topic_row(now: TopicStats, before: TopicStats | None, received: int, elapsed_s: float) -> TopicRow:
    in_rate = out_rate = in_bytes_rate = None
    if before is not None:
        in_rate = _rate(now.written_total - before.written_total, elapsed_s)
        out_rate = _rate(now.fetched_total - before.fetched_total + received, elapsed_s)
        in_bytes_rate = _rate(now.written_bytes_total - before.written_bytes_total, elapsed_s)
    return TopicRow(
        topic=now.topic,
        partitions=now.partitions,
        messages=now.messages,
        size_bytes=now.size_bytes,
        in_rate=in_rate,
        out_rate=out_rate,
        in_bytes_rate=in_bytes_rate,
    )


def _queues(now: Sample, before: Sample | None, elapsed_s: float) -> list[QueueRow]:
    old = {} if before is None else {(each.group, each.topic): each.totals for each in before.queues}
    rows = []
    for each in now.queues:
        totals, earlier = each.totals, old.get((each.group, each.topic))
        received = acked = None
        if earlier is not None:
            received = _rate(totals.received_total - earlier.received_total, elapsed_s)
            acked = _rate(totals.acked_total - earlier.acked_total, elapsed_s)
        rows.append(
            QueueRow(
                group=each.group,
                topic=each.topic,
                ready=totals.ready,
                in_flight=totals.in_flight,
                resting=totals.resting,
                dead_lettered=totals.dead_lettered_total,
                received_rate=received,
                acked_rate=acked,
            )
        )
    return rows


def _received(queues: list[QueueStats]) -> dict[str, int]:
    by_topic: dict[str, int] = {}
    for each in queues:
        by_topic[each.topic] = by_topic.get(each.topic, 0) + each.totals.received_total
    return by_topic


def _rate(grown: int, elapsed_s: float) -> float | None:
    """Return the rate per second; 0 if the counter decreased, after a restart or an offset reset."""
    return max(grown, 0) / elapsed_s if elapsed_s > 0 else None


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)
