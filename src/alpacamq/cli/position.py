"""Positions in a log as users write them: earliest, latest, an offset, a time, a time ago."""

import argparse
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from alpacamq.model.durations import parse_duration
from alpacamq.model.ids import TopicPartition

if TYPE_CHECKING:
    from alpacamq.client.kafka.cluster import Cluster
    from alpacamq.client.kafka.offsets import Extent

HELP = (
    "earliest, latest, an offset (1200), a time (2026-01-31T12:00:00Z; UTC if no zone is given), "
    "or a time ago (30s, 15m, 1h, 7d)"
)
_MAX_OFFSET = 2**63 - 1
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Earliest:
    """The start of the log."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """An offset, or the nearest existing one."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time; the end of the log if no record is that late."""

    timestamp_ms: int


Position = Earliest | Latest | AtOffset | AtTime


def parse_position(text: str) -> Position:
    """Parse a position; ArgumentTypeError if it is invalid."""
    words: dict[str, Position] = {"earliest": Earliest(), "latest": Latest()}
    if text in words:
        return words[text]
    if text.isascii() and text.isdigit() and int(text) <= _MAX_OFFSET:
        return AtOffset(int(text))
    with suppress(ValueError):
        return AtTime(max(0, time.time_ns() // 1_000_000 - parse_duration(text.removeprefix("-"))))
    try:
        return AtTime(_epoch_ms(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a position: {HELP}") from None


def parse_timestamp(text: str) -> int:
    """Parse a timestamp to milliseconds since 1970; ArgumentTypeError if it is invalid."""
    try:
        return max(0, _epoch_ms(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T12:00:00Z") from None


def _epoch_ms(text: str) -> int:
    parsed = datetime.fromisoformat(text)
    parsed = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return (parsed - _EPOCH) // timedelta(milliseconds=1)


def locate(
    cluster: "Cluster", position: Position, extents: "dict[TopicPartition, Extent]"
) -> dict[TopicPartition, int]:
    """Resolve a position to an offset in each partition."""
    match position:
        case Earliest():
            return {partition: extent.start for partition, extent in extents.items()}
        case Latest():
            return {partition: extent.end for partition, extent in extents.items()}
        case AtOffset(offset):
            return {partition: extent.nearest(offset) for partition, extent in extents.items()}
        case AtTime(timestamp_ms):
            return _at_time(cluster, timestamp_ms, extents)


def _at_time(
    cluster: "Cluster", timestamp_ms: int, extents: "dict[TopicPartition, Extent]"
) -> dict[TopicPartition, int]:
    from alpacamq.client.kafka.offsets import offsets_at

    found = offsets_at(cluster, extents, timestamp_ms)
    offsets = {}
    for partition, extent in extents.items():
        offset = found[partition]
        offsets[partition] = extent.end if offset is None else extent.nearest(offset)
    return offsets


@dataclass(frozen=True, slots=True)
class Selection:
    """A topic, or some of its partitions."""

    topic: str
    partitions: Sequence[int]

    @classmethod
    def parse(cls, text: str) -> "Selection":
        """Parse TOPIC or TOPIC:0,3."""
        topic, colon, numbers = text.partition(":")
        words = numbers.split(",") if colon else []
        if not topic or not all(word.isascii() and word.isdigit() for word in words):
            raise argparse.ArgumentTypeError(f"{text!r} must have the form TOPIC or TOPIC:0,3")
        return cls(topic, [int(word) for word in words])
