"""Reads a topic from an offset or a time, without a group.

async with Reader(cluster, "orders", start="-1h", until="now") as reader:
    async for record in reader: ...
    records = await reader.take(500)              # or many at a time
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from alpacamq.client.errors import NotFound
from alpacamq.model.durations import parse_duration
from alpacamq.model.ids import TopicName, TopicPartition

from .cluster import Cluster
from .fetching import At as At
from .fetching import ConsumedRecord as ConsumedRecord
from .fetching import Fetcher, find_offsets
from .fetching import FetchSettings as FetchSettings

# "earliest", "latest" or "now", a time before now such as "-1h", ISO 8601, a time, or offsets by partition.
Position = str | At | Mapping[int, int]

# Records that are decoded at a time.
CHUNK_RECORDS = 500


def parse_position(text: str, now_ms: int) -> str | At:
    """Return "earliest", "latest" or a time. Raises ValueError."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return text
    if text == "now":
        return "latest"
    if text.startswith("-"):
        return At(timestamp_ms=now_ms - parse_duration(text[1:]))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a position: earliest, latest, a time such as 2026-01-31T12:00Z, or -1h"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return At(timestamp_ms=int(found.timestamp() * 1000))


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
    ) -> None:
        self._cluster = cluster
        self._topic = TopicName(topic)
        self._start = _position(start)
        self._until = None if until is None else _position(until)
        self._wanted = partitions
        self._settings = settings or FetchSettings()
        # Records that retention has deleted are skipped.
        self._fetcher = Fetcher(cluster, self._settings, reset="earliest")
        self._chunk: list[ConsumedRecord] = []
        self._next = 0

    async def __aenter__(self) -> Self:
        topic = await self._cluster.topic(self._topic, may_create=False)
        numbers = range(len(topic.leaders)) if self._wanted is None else sorted(set(self._wanted))
        places = [TopicPartition(self._topic, number) for number in numbers]
        for place in places:
            if place.partition not in range(len(topic.leaders)):
                raise NotFound("partition", str(place))
        ends = None if self._until is None else await self._offsets(places, self._until)
        self._fetcher.assign(await self._offsets(places, self._start), ends)
        self._fetcher.start()
        return self

    async def _offsets(
        self, places: list[TopicPartition], where: str | At | Mapping[int, int]
    ) -> dict[TopicPartition, int]:
        if isinstance(where, Mapping):
            if missing := [place for place in places if place.partition not in where]:
                raise ValueError(f"no offset is given for {', '.join(map(str, missing))}")
            return {place: where[place.partition] for place in places}
        return await find_offsets(self._cluster, places, where, self._settings.isolation)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        if self._next >= len(self._chunk):
            await asyncio.sleep(0)
            self._chunk, self._next = await self._take(CHUNK_RECORDS), 0
            if not self._chunk:
                raise StopAsyncIteration
        record = self._chunk[self._next]
        self._next += 1
        return record

    async def take(
        self, max_records: int = CHUNK_RECORDS, wait_s: float | None = None
    ) -> list[ConsumedRecord]:
        """Return records of one partition; empty after `wait_s` without any, or at the end."""
        if max_records < 1:
            raise ValueError("max_records must be at least 1")
        if self._next < len(self._chunk):
            taken = self._chunk[self._next : self._next + max_records]
            self._next += len(taken)
            return taken
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(wait_s):
                return await self._take(max_records)
        except TimeoutError:
            return []

    async def _take(self, max_records: int) -> list[ConsumedRecord]:
        while not (records := self._fetcher.take(max_records)):
            if self._fetcher.is_finished:
                return []
            await self._fetcher.wait()
        return records

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record that was read, by partition."""
        positions = self._fetcher.positions()
        if self._next < len(self._chunk):
            following = self._chunk[self._next]
            positions[following.partition] = following.offset
        return positions

    def seek(self, partition: int, offset: int) -> None:
        """Go on at another offset of a partition."""
        place = TopicPartition(self._topic, partition)
        if self._chunk and self._chunk[0].partition == place:
            self._chunk = []
        elif self._next < len(self._chunk):
            following = self._chunk[self._next]
            self._fetcher.seek(following.partition, following.offset)
            self._chunk = []
        self._fetcher.seek(place, offset)

    async def close(self) -> None:
        """End reading. Idempotent."""
        await self._fetcher.close()


def _position(where: Position) -> str | At | Mapping[int, int]:
    return parse_position(where, time.time_ns() // 1_000_000) if isinstance(where, str) else where
