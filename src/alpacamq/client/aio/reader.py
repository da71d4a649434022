"""Reads a topic from an offset or a time, without a group.

    async with Reader(cluster, "orders", start="-1h", until="now") as reader:
        async for record in reader: ...
        records = await reader.take(500)              # or many at a time
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from alpacamq.model.ids import TopicPartition
from alpacamq.model.records import Header

from .cluster import Cluster, Isolation


class ConsumedRecord(NamedTuple):
    """A record that was read, and where."""

    partition: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @property
    def topic(self) -> str:
        return self.partition.topic


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """A time as milliseconds since 1970."""

    timestamp_ms: int


# "earliest", "latest" (also "now"), a time before now such as "-1h", ISO 8601, a time, or offsets by partition.
Position = str | At | Mapping[int, int]


def parse_position(text: str, now_ms: int) -> str | At:
    """Return "earliest", "latest" or a time. Raises ValueError."""
    ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How much is fetched ahead."""

    isolation: Isolation = Isolation.COMMITTED
    # Fetched and not read yet, in all and of each partition.
    buffer_bytes: int = 16 << 20
    partition_bytes: int = 1 << 20
    max_wait_ms: int = 500


class Reader:
    """An asynchronous iterator over the records of a topic; it ends at `until`, or never."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        start: Position = "earliest",
        until: Position | None = None,
        partitions: Collection[int] | None = None,
        settings: FetchSettings | None = None,
    ) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> ConsumedRecord: ...

    async def take(self, max_records: int = 500, wait_s: float | None = None) -> list[ConsumedRecord]:
        """Return records of one partition; empty after `wait_s` without any, or at the end."""
        ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record that was read, by partition."""
        ...

    def seek(self, partition: int, offset: int) -> None: ...

    async def close(self) -> None: ...
