"""Fetches the records of partitions ahead of their reader, within bounds.

One task for each broker that leads partitions, with a connection of its own, and one that finds the leaders.
Records are decoded when they are taken, some at a time.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

from alpacamq.client.errors import (
    ClientError,
    Closed,
    ErrorCode,
    NotFound,
    OffsetOutOfRange,
    Unreachable,
    refusal,
)
from alpacamq.client.fetched import FetchedBatch, fetched_batches
from alpacamq.model.batch import LOG_APPEND_TIME
from alpacamq.model.errors import AlpacaError
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.records import Header, TimedContent, read_timed_contents
from alpacamq.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

from .cluster import STALE_METADATA, Backoff, Cluster, Isolation

# While partitions are left out of a request, because enough of them is buffered, it must not wait for long.
_SHORT_WAIT_MS = 20
_MAX_BYTES = 16 << 20

# Twice as fast as the named tuple's own constructor, which matters for every record.
_new = tuple.__new__


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How much is fetched ahead."""

    isolation: Isolation = Isolation.COMMITTED
    # Fetched and not read yet, in all and of each partition.
    buffer_bytes: int = 16 << 20
    partition_bytes: int = 1 << 20
    max_wait_ms: int = 500


@dataclass(slots=True, eq=False)
class _Partition:
    """A partition that is read: what is fetched next, what is taken next, and what is between."""

    place: TopicPartition
    position: int
    fetch_offset: int
    end: int | None = None
    is_paused: bool = False
    # Counted up with every seek: what was requested before is not wanted any more.
    version: int = 0
    batches: deque[FetchedBatch] | None = None
    buffered_bytes: int = 0
    # The records of the first batch that are not taken yet.
    contents: Iterator[TimedContent] | None = None

    @property
    def is_finished(self) -> bool:
        return self.end is not None and self.position >= self.end

    @property
    def is_fetched(self) -> bool:
        """Whether everything up to the end has been fetched."""
        return self.end is not None and self.fetch_offset >= self.end


class Fetcher:
    """The fetched records of some partitions."""

    def __init__(self, cluster: Cluster, settings: FetchSettings, *, reset: str | At) -> None:
        """Go on at `reset` where an offset does not exist: "earliest", "latest", a time; "error" raises."""
        self._cluster = cluster
        self._settings = settings
        self._reset = reset
        self._partitions: dict[TopicPartition, _Partition] = {}
        # Those that have batches, in the order in which they are taken.
        self._ready: deque[_Partition] = deque()
        self._buffered_bytes = 0
        self._supervisor: asyncio.Task[None] | None = None
        self._fetching: dict[int, asyncio.Task[None]] = {}
        self._failure: Exception | None = None
        # Whether the last request for metadata was answered.
        self._is_reachable = True
        # Leaders have to be found, there may be something to fetch, there may be something to take.
        self._leaders_changed = asyncio.Event()
        self._room = asyncio.Event()
        self._arrived = asyncio.Event()

    def start(self) -> None:
        self._supervisor = self._cluster.spawn(self._supervise())

    async def close(self) -> None:
        """End all tasks and close the connections."""
        tasks = [task for task in (self._supervisor, *self._fetching.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._fail(Closed("the reader is closed"))
        await self._cluster.release(self)

    # Which partitions are read, and where.

    def assign(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Read more partitions, from these offsets on and up to `ends`."""
        for place, offset in positions.items():
            end = None if ends is None else ends[place]
            self._partitions[place] = _Partition(place, offset, offset, end, batches=deque())
        self._changed()

    def drop(self, places: Iterable[TopicPartition]) -> None:
        """Stop reading partitions."""
        for place in places:
            if (partition := self._partitions.pop(place, None)) is not None:
                self._discard(partition)
        self._changed()

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Go on at another offset."""
        partition = self._partitions[place]
        self._discard(partition)
        partition.position = partition.fetch_offset = offset
        self._changed()

    def pause(self, places: Iterable[TopicPartition], *, is_paused: bool) -> None:
        """Keep back the records of partitions, or deliver them again."""
        for place in places:
            self._partitions[place].is_paused = is_paused
        self._changed()

    def positions(self) -> dict[TopicPartition, int]:
        return {place: each.position for place, each in self._partitions.items()}

    @property
    def is_finished(self) -> bool:
        """Whether all partitions have been read to their end."""
        return all(each.is_finished for each in self._partitions.values())

    def _discard(self, partition: _Partition) -> None:
        partition.version += 1
        self._buffered_bytes -= partition.buffered_bytes
        partition.buffered_bytes = 0
        partition.batches = deque()
        partition.contents = None
        if partition in self._ready:
            self._ready.remove(partition)

    def _changed(self) -> None:
        self._leaders_changed.set()
        self._room.set()
        self._arrived.set()

    # Taking records.

    def take(self, max_records: int) -> list[ConsumedRecord]:
        """Return some records of one partition; empty if nothing has been fetched. Raises what went wrong."""
        if self._failure is not None:
            raise self._failure
        for _ in range(len(self._ready)):
            partition = self._ready[0]
            if partition.is_paused:
                self._ready.rotate(-1)
                continue
            while partition.batches and not partition.is_finished:
                if records := self._decode(partition, max_records):
                    if not partition.batches or partition.is_finished:
                        self._ready.popleft()
                    else:
                        self._ready.rotate(-1)
                    return records
            self._ready.popleft()
            self._room.set()
        return []

    def _decode(self, partition: _Partition, max_records: int) -> list[ConsumedRecord]:
        assert partition.batches
        header, data, is_visible = partition.batches[0]
        if partition.contents is None:
            partition.contents = read_timed_contents(data) if is_visible else iter(())
        place, base, first = partition.place, header.base_offset, header.base_timestamp
        if header.attributes & LOG_APPEND_TIME:
            stamped = header.max_timestamp
            records = [
                _new(ConsumedRecord, (place, base + delta, stamped, key, value, headers))
                for delta, key, value, headers, _ in islice(partition.contents, max_records)
            ]
        else:
            records = [
                _new(ConsumedRecord, (place, base + delta, first + age, key, value, headers))
                for delta, key, value, headers, age in islice(partition.contents, max_records)
            ]
        is_whole = len(records) < max_records
        if records and records[0].offset < partition.position:
            records = [record for record in records if record.offset >= partition.position]
        if is_whole:
            partition.position = max(partition.position, header.next_offset)
            partition.batches.popleft()
            partition.contents = None
            partition.buffered_bytes -= len(data)
            self._buffered_bytes -= len(data)
            self._room.set()
        elif records:
            partition.position = records[-1].offset + 1
        if partition.end is not None and records and records[-1].offset >= partition.end:
            records = [record for record in records if record.offset < partition.end]
            partition.position = partition.end
        return records

    async def wait(self) -> None:
        """Wait until there may be records to take, or partitions have changed."""
        if self._failure is None and all(each.is_paused for each in self._ready):
            self._arrived.clear()
            await self._arrived.wait()
            return
        # Records that are there without waiting must not keep other tasks from running.
        await asyncio.sleep(0)

    def wake(self) -> None:
        """End `wait`."""
        self._arrived.set()

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._arrived.set()

    # Fetching.

    async def _supervise(self) -> None:
        """Find the leaders of partitions, and start a task for each."""
        backoff = Backoff()
        deadline: float | None = None
        try:
            while True:
                self._leaders_changed.clear()
                leaders = {self._cluster.leader_of(place) for place in self._partitions}
                if -1 in leaders:
                    await self._find_leaders()
                    leaders = {self._cluster.leader_of(place) for place in self._partitions}
                for node_id in leaders - {-1}:
                    if node_id not in self._fetching:
                        task = self._cluster.spawn(self._fetch_from(node_id))
                        self._fetching[node_id] = task
                self._room.set()
                if -1 in leaders:
                    deadline = deadline or self._deadline()
                    self._check_topics_exist(deadline)
                    await backoff.wait()
                else:
                    deadline = None
                    backoff.reset()
                    await self._leaders_changed.wait()
        except AlpacaError as error:
            self._fail(error)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._cluster.request_s

    def _check_topics_exist(self, deadline: float) -> None:
        """Raise NotFound for a topic that the cluster has not known for long: it was deleted."""
        if asyncio.get_running_loop().time() > deadline:
            for place in self._partitions:
                if self._is_reachable and self._cluster.known_topic(place.topic) is None:
                    raise NotFound("topic", place.topic)

    async def _find_leaders(self) -> None:
        topics = {place.topic for place in self._partitions if self._cluster.leader_of(place) < 0}
        try:
            await self._cluster.refresh(topics)
            self._is_reachable = True
        except ClientError as error:
            if not error.retriable:
                raise
            self._is_reachable = False

    async def _fetch_from(self, node_id: int) -> None:
        """Fetch from one broker as long as it leads partitions."""
        backoff = Backoff()
        try:
            while True:
                self._room.clear()
                led = [
                    each
                    for each in self._partitions.values()
                    if self._cluster.leader_of(each.place) == node_id
                ]
                if not led:
                    return
                wanted = [each for each in led if self._is_wanted(each)]
                if not wanted:
                    await self._room.wait()
                    continue
                is_partial = any(
                    not each.is_paused and not each.is_fetched for each in led if each not in wanted
                )
                try:
                    answer = await self._request(node_id, wanted, is_partial=is_partial)
                except ClientError as error:
                    if not error.retriable:
                        raise
                    self._cluster.forget(each.place for each in led)
                    self._leaders_changed.set()
                    await backoff.wait()
                    continue
                if not any(data.error_code for _, _, data in answer):
                    backoff.reset()
                for partition, version, data in answer:
                    if partition.version == version and self._partitions.get(partition.place) is partition:
                        await self._accept(partition, data)
                if any(data.error_code for _, _, data in answer):
                    await backoff.wait()
        except (AlpacaError, ValueError) as error:
            self._fail(error)
        finally:
            self._fetching.pop(node_id, None)
            self._leaders_changed.set()

    def _is_wanted(self, partition: _Partition) -> bool:
        return (
            not partition.is_paused
            and not partition.is_fetched
            and partition.buffered_bytes < self._settings.partition_bytes
            and self._buffered_bytes < self._settings.buffer_bytes
        )

    async def _request(
        self, node_id: int, wanted: list[_Partition], *, is_partial: bool
    ) -> list[tuple[_Partition, int, PartitionData]]:
        settings = self._settings
        wait_ms = _SHORT_WAIT_MS if is_partial else settings.max_wait_ms
        # The partition that comes first is served first.
        wanted.sort(key=lambda each: (each.buffered_bytes, each.place))
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=min(_MAX_BYTES, settings.buffer_bytes),
            isolation_level=settings.isolation,
            topics=[
                FetchTopic(
                    topic=name,
                    partitions=[
                        FetchPartition(
                            partition=each.place.partition,
                            fetch_offset=each.fetch_offset,
                            partition_max_bytes=settings.partition_bytes,
                        )
                        for each in those
                    ],
                )
                for name, those in groupby(wanted, attrgetter("place.topic"))
            ],
        )
        requested = {each.place: (each, each.version) for each in wanted}
        timeout_s = wait_ms / 1000 + self._cluster.request_s
        answer = await self._cluster.call(node_id, request, FetchResponse, user=self, timeout_s=timeout_s)
        if answer.error_code:
            raise refusal(f"reading from broker {node_id}", answer.error_code)
        fetched = []
        for topic in answer.responses:
            for data in topic.partitions:
                place = TopicPartition(TopicName(topic.topic), data.partition_index)
                if place not in requested:
                    raise Unreachable(f"broker {node_id} sent {place}, which was not requested")
                partition, version = requested[place]
                fetched.append((partition, version, data))
        return fetched

    async def _accept(self, partition: _Partition, data: PartitionData) -> None:
        """Buffer what was fetched of a partition, or find out where to go on."""
        place, code = partition.place, data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._find_position(partition)
            return
        if code in STALE_METADATA or code == ErrorCode.OFFSET_NOT_AVAILABLE:
            self._cluster.forget([place])
            self._leaders_changed.set()
            return
        if code:
            raise refusal(
                f"reading {place} at {partition.fetch_offset}",
                code,
                topic=place.topic,
                partition=place.partition,
            )
        assert partition.batches is not None
        was_empty = not partition.batches
        for batch in fetched_batches(memoryview(data.records or b""), data.aborted_transactions):
            if batch.header.next_offset <= partition.fetch_offset:
                continue
            partition.batches.append(batch)
            partition.fetch_offset = batch.header.next_offset
            partition.buffered_bytes += len(batch.data)
            self._buffered_bytes += len(batch.data)
        if was_empty and partition.batches:
            self._ready.append(partition)
            self._arrived.set()

    async def _find_position(self, partition: _Partition) -> None:
        """Go on where the reset says, because the offset does not exist."""
        place, offset, version = partition.place, partition.fetch_offset, partition.version
        if self._reset == "error":
            raise OffsetOutOfRange(
                f"reading {place} at {offset}",
                ErrorCode.OFFSET_OUT_OF_RANGE,
                topic=place.topic,
                partition=place.partition,
            )
        found = await find_offsets(self._cluster, [place], self._reset, self._settings.isolation)
        if partition.version == version and partition.fetch_offset == offset:
            partition.fetch_offset = found[place]
            if not partition.batches:
                partition.position = found[place]
                self._arrived.set()  # the end may have been passed


async def find_offsets(
    cluster: Cluster, places: Iterable[TopicPartition], where: str | At, isolation: Isolation
) -> dict[TopicPartition, int]:
    """Return the offsets of "earliest", "latest" or a time, after which the end is."""
    wanted = list(places)
    if not wanted:
        return {}
    if isinstance(where, At):
        found = await cluster.offsets_at(wanted, where.timestamp_ms)
        late = [place for place in wanted if found[place] is None]
        ends = await cluster.end_offsets(late, isolation) if late else {}
        return {place: ends[place] if (offset := found[place]) is None else offset for place in wanted}
    if where == "earliest":
        return await cluster.start_offsets(wanted)
    if where == "latest":
        return await cluster.end_offsets(wanted, isolation)
    raise ValueError(f"{where!r} is not a position: earliest, latest or a time")
