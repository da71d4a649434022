"""Filters that Spark 4.1 and later pushes down: those on where and when a record is narrow a batch read."""

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
from .predicates import Interval, Narrowing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_US_PER_MS = 1000
_ALWAYS_THERE = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


class _PushFilters:
    """The reader's `pushFilters`, in the disguise of the base class's.

    A reader that has one of its own is refused by Spark while pushdown is switched off, which it is
    by default. Spark tells by what is bound, so this shows what an ordinary reader would.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: "FilteringReader") -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class FilteringReader(BatchReader):
    """Takes the filters it can apply exactly, and leaves the others to Spark."""

    @property
    def pushFilters(self) -> _PushFilters:  # noqa: N802 - Spark's name
        return _PushFilters(self)

    def narrow(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply what can be applied; what is left is returned."""
        left = []
        for each in filters:
            narrowed = narrowed_by(self.narrowing, each)
            if narrowed is None:
                left.append(each)
            else:
                self.narrowing = narrowed
        return left


def narrowed_by(narrowing: Narrowing, condition: Filter) -> Narrowing | None:
    """What is left under one more condition; None if it is not one we can hold exactly."""
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(path) != 1:
        return None
    column = path[0]
    if isinstance(condition, IsNotNull):
        return narrowing if column in _ALWAYS_THERE else None
    if column == "topic":
        names = _listed(condition, str)
        return None if names is None else narrowing.with_topics(names)
    if column == "partition" and (numbers := _listed(condition, int)) is not None:
        return narrowing.with_partitions(numbers)
    interval = _interval(condition, column)
    if interval is None:
        return None
    if column == "timestamp":
        return replace(narrowing, timestamp_ms=narrowing.timestamp_ms.and_(interval))
    if column == "offset":
        return replace(narrowing, offset=narrowing.offset.and_(interval))
    return replace(narrowing, partition=narrowing.partition.and_(interval)) if column == "partition" else None


def _listed(condition: Filter, kind: type) -> frozenset[Any] | None:
    """The values of an equality or a list, all of one kind."""
    if isinstance(condition, In):
        values = condition.value
    elif isinstance(condition, (EqualTo, EqualNullSafe)):
        values = (condition.value,)
    else:
        return None
    return frozenset(values) if all(type(value) is kind for value in values) else None


def _interval(condition: Filter, column: str) -> Interval | None:
    """The numbers that a comparison leaves; of times, milliseconds."""
    value = getattr(condition, "value", None)
    unit = 1
    if column == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        value, unit = (value - _EPOCH) // _MICROSECOND, _US_PER_MS
    if type(value) is not int:
        return None
    # The first whole number not below the value, and the first above it.
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
