"""Predicates of a read on topic, partition, offset and timestamp, all of which must hold. Pure."""

from dataclasses import dataclass, replace

from alpacamq.model.ids import TopicPartition

_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Interval:
    """Integers from `low` to before `high`."""

    low: int = _LEAST
    high: int = _MOST

    def __contains__(self, number: int) -> bool:
        return self.low <= number < self.high

    def and_(self, other: "Interval") -> "Interval":
        return Interval(max(self.low, other.low), min(self.high, other.high))


EVERY_NUMBER = Interval()


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicates:
    """A conjunction of predicates; initially everything matches."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition: Interval = EVERY_NUMBER
    offset: Interval = EVERY_NUMBER
    timestamp_ms: Interval = EVERY_NUMBER

    def admits(self, place: TopicPartition) -> bool:
        """Return whether a partition can contain matching records."""
        return (
            (self.topics is None or place.topic in self.topics)
            and (self.partitions is None or place.partition in self.partitions)
            and place.partition in self.partition
        )

    def with_topics(self, names: frozenset[str]) -> "Predicates":
        return replace(self, topics=names if self.topics is None else self.topics & names)

    def with_partitions(self, numbers: frozenset[int]) -> "Predicates":
        return replace(self, partitions=numbers if self.partitions is None else self.partitions & numbers)
