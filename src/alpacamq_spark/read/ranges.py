"""Offset ranges of tasks, and how a batch is split and limited. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from alpacamq.model.ids import TopicPartition

from .positions import Offsets


@dataclass(frozen=True)
class OffsetRange(InputPartition):  # type: ignore[misc]
    """Offsets of one partition, from `start` to before `end`: the input of a task."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition} from {self.start} to before {self.end}"


def between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the ranges between two positions; a partition not in `start` is new and begins at 0."""
    return [
        OffsetRange(partition, start.get(partition, 0), until)
        for partition, until in sorted(end.items())
        if until > start.get(partition, 0)
    ]


def split(ranges: Sequence[OffsetRange], *, at_least: int | None, at_most: int | None) -> list[OffsetRange]:
    """Split ranges into at least `at_least` ranges of at most `at_most` offsets."""
    total = sum(map(len, ranges))
    parts: list[OffsetRange] = []
    for each in ranges:
        wanted = 1
        if at_least is not None and len(ranges) < at_least:
            wanted = max(1, round(len(each) * at_least / total))
        if at_most is not None:
            wanted = max(wanted, -(-len(each) // at_most))
        parts += _cut(each, min(wanted, len(each)))
    return parts


def _cut(whole: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    edges = [whole.start + len(whole) * index // parts for index in range(parts + 1)]
    return (OffsetRange(whole.partition, *edge) for edge in pairwise(edges))


def limited(start: Offsets, end: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return the end of a batch of about `limit` records on the way to `end`.

    Half of the limit is divided evenly, so that no partition waits for the backlog of another, the
    rest by backlog. A partition with a backlog advances by at least one record; one that ends before
    its start moves back to its end.
    """
    waiting = {each.partition: len(each) for each in between(start, end)}
    if sum(waiting.values()) <= limit:
        return dict(end)
    even = max(1, limit // 2 // len(waiting))
    taken = {partition: min(even, size) for partition, size in waiting.items()}
    left = limit - sum(taken.values())
    rest = {partition: size - taken[partition] for partition, size in waiting.items()}
    total = sum(rest.values())
    if left > 0 and total > 0:
        for partition, size in rest.items():
            taken[partition] += min(size, left * size // total)
    return {
        partition: min(until, start.get(partition, 0) + taken.get(partition, 0))
        for partition, until in end.items()
    }
