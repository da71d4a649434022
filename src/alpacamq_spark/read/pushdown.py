"""Filter pushdown on Spark 4.1 and later: filters on topic, partition, offset and time limit a read."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from .batch import BatchReader
from .predicates import Interval, Predicates

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_US_PER_MS = 1000
_ALWAYS_THERE = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


class _PushFilters:
    """The reader's `pushFilters`, which looks like the base class's to Spark.

    While pushdown is disabled, as it is by default, Spark rejects readers that override `pushFilters`.
    It compares the bound function, so this object exposes that of the base class.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: "FilteringReader") -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.apply_filters(filters)


class FilteringReader(BatchReader):
    """Applies the filters that it can apply exactly, and leaves the others to Spark."""

    @property
    def pushFilters(self) -> _PushFilters:  # noqa: N802 - Spark's name
        return _PushFilters(self)

    def apply_filters(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply supported filters; return the others."""
        left = []
        for each in filters:
            narrowed = with_filter(self.predicates, each)
            if narrowed is None:
                left.append(each)
            else:
                self.predicates = narrowed
        return left


def with_filter(predicates: Predicates, condition: Filter) -> Predicates | None:
    """Add a filter to the predicates; None if it cannot be applied exactly."""
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(path) != 1:
        return None
    column = path[0]
    if isinstance(condition, IsNotNull):
        return predicates if column in _ALWAYS_THERE else None
    if column == "topic":
        names = _listed(condition, str)
        return None if names is None else predicates.with_topics(names)
    if column == "partition" and (numbers := _listed(condition, int)) is not None:
        return predicates.with_partitions(numbers)
    interval = _interval(condition, column)
    if interval is None:
        return None
    if column == "timestamp":
        return replace(predicates, timestamp_ms=predicates.timestamp_ms.and_(interval))
    if column == "offset":
        return replace(predicates, offset=predicates.offset.and_(interval))
    return (
        replace(predicates, partition=predicates.partition.and_(interval)) if column == "partition" else None
    )


def _listed(condition: Filter, kind: type) -> frozenset[Any] | None:
    """Return the values of an equality or IN filter if they all have the type `kind`."""
    if isinstance(condition, In):
        values = condition.value
    elif isinstance(condition, (EqualTo, EqualNullSafe)):
        values = (condition.value,)
    else:
        return None
    return frozenset(values) if all(type(value) is kind for value in values) else None


def _interval(condition: Filter, column: str) -> Interval | None:
    """Return the interval that a comparison allows; timestamps in milliseconds."""
    value = getattr(condition, "value", None)
    unit = 1
    if column == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        value, unit = (value - _EPOCH) // _MICROSECOND, _US_PER_MS
    if type(value) is not int:
        return None
    # The first integer not below the value, and the first above it.
    from_, after = -(-value // unit), value // unit + 1
    match condition:
        case EqualTo() | EqualNullSafe():
            return Interval(from_, after)
        case GreaterThan():
            return Interval(low=after)
        case GreaterThanOrEqual():
            return Interval(low=from_)
        case LessThan():
            return Interval(high=from_)
        case LessThanOrEqual():
            return Interval(high=after)
        case _:
            return None
