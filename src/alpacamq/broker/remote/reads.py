"""Reads any partition of the cluster, wherever its leader is.

A partition that is led here is read at once. A replica that follows serves what lies below its own high
watermark, for readers that accept it. Everything else is a call to the leader, and calls for several
partitions are one call per leader. Reads change nothing, so a call whose leader moved, or whose link was
lost, is simply made again, within a bound.

A long poll waits at the leader, in legs: a leader that is silent is noticed after the first of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from alpacamq.broker.partition.leader import Partition, delete_before
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.values import RemoteError, decode_error, encode_error
from alpacamq.broker.read.record_reader import Limits, RecordReader
from alpacamq.broker.slices import in_slices
from alpacamq.broker.tracing.partition import Origin
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.log.reader import Slice, TimestampOffset
from alpacamq.model.errors import (
    AlpacaError,
    InvalidRequest,
    OffsetOutOfRange,
    PartitionNotReady,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.logs import get_logger

from .read_values import (
    AwaitRecords,
    Bounds,
    CompactedSize,
    CompactPartition,
    DeleteRecords,
    FetchedBatches,
    FetchedPage,
    FindTimestamps,
    FlushPartition,
    FoundBounds,
    FoundOffsets,
    ReadBatches,
    ReadBounds,
    ReadRecords,
)
from .routing import CALL_MS, MAX_PAUSE_SECONDS, MAX_PLACES, RETRIED, LeaderCalls, Retries

log = get_logger(__name__)

R = TypeVar("R")
T = TypeVar("T")

# Bytes that one read returns at most, unless its first batch or record is larger.
MAX_READ_BYTES: Final = 16 << 20
# Records that one read returns at most.
MAX_READ_RECORDS: Final = 100_000
# How long a search by timestamp may take at a leader: it may read much.
SEARCH_MS: Final = 10_000
COMPACTION_MS: Final = 600_000
# A long poll is made of calls that wait this long at most.
LEG_MS: Final = 5000
# How long the bounds of a partition wait for a new leader to learn its end.
SETTLE_SECONDS: Final = 2.0
SETTLE_PAUSE_SECONDS: Final = 0.01
# A verified piece up to this size is read at once: a thread would cost more.
_AT_ONCE_BYTES: Final = 64 << 10


def bounds_of(partition: Partition) -> Bounds:
    """Return the bounds of an open partition."""
    return Bounds(
        partition.start_offset,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.end_offset,
        partition.leader_epoch,
        partition.size_bytes,
        partition.written_bytes,
        partition.fetched_messages,
        partition.fetched_bytes,
    )


def place_of(partition: Partition) -> PartitionId:
    """Return the id of an open partition."""
    return PartitionId(partition.topic_id, partition.identity.partition)


def covers(partition: Partition, offset: int, *, committed: bool) -> bool:
    """Return whether a replica can serve a read without its leader: it has committed records at the offset.

    Not while it is truncated or lacks records: then it is about to become another log.
    """
    following = partition.following
    end = partition.last_stable_offset if committed else partition.high_watermark
    return (
        following is not None
        and not following.is_cutting
        and partition.is_sound
        and not partition.log.has_lost_data
        and partition.start_offset <= offset < end
    )


class PartitionWaiter:
    """Signals new records in any of several partitions."""

    def __init__(self) -> None:
        self._has_records = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return after new records since the last wait, or after the timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._has_records.wait()
        except TimeoutError:
            return
        self._has_records.clear()

    def wake(self, _added_bytes: int = 0) -> None:
        self._has_records.set()


@contextmanager
def waiting_for_records(partitions: Iterable[Partition]) -> Iterator[PartitionWaiter]:
    """Watch partitions of this broker for new records inside the block."""
    watched = list(partitions)
    waiter = PartitionWaiter()
    for partition in watched:
        partition.watch(waiter, waiter.wake)
    try:
        yield waiter
    finally:
        for partition in watched:
            partition.unwatch(waiter)


class RemoteReads:
    """Reads partitions for all APIs and services of a broker."""

    def __init__(
        self,
        leaders: LeaderCalls,
        executor: Executor,
        *,
        unpacked_limit_bytes: int,
        compact: Callable[[Partition], Awaitable[bool]],
    ) -> None:
        """`compact` compacts a partition of this broker; false if there was nothing to compact."""
        self._compact = compact
        self._leaders = leaders
        self._topics = leaders.topics
        self._executor = executor
        self._records = RecordReader(executor, unpacked_limit_bytes)

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {
            ReadBounds: self._serve_bounds,
            ReadBatches: self._serve_batches,
            ReadRecords: self._serve_records,
            FindTimestamps: self._serve_timestamps,
            AwaitRecords: self._serve_waiting,
            FlushPartition: self._serve_flush,
            DeleteRecords: self._serve_deletion,
            CompactPartition: self._serve_compaction,
        }

    def is_led_here(self, place: PartitionId) -> bool:
        """Return whether reading a partition needs no call."""
        return self._leaders.led(place) is not None

    # Bounds.

    async def bounds(
        self, places: Sequence[PartitionId], *, retry_ms: int | None = None
    ) -> list[Bounds | AlpacaError]:
        """Return the bounds of partitions as their leaders know them, or why they are not known.

        Looks for leaders that do not answer for `retry_ms`, by default as long as a failover takes.
        """
        led = [each for place in places if (each := self._leaders.led(place)) is not None]
        left_seconds = await self._settle(led, SETTLE_SECONDS)
        if len(led) == len(places):
            return [bounds_of(partition) for partition in led]

        async def local(partition: Partition) -> Bounds:
            """Return the bounds of a partition, which may be led here only since the request began."""
            nonlocal left_seconds
            left_seconds = await self._settle([partition], left_seconds)
            return bounds_of(partition)

        return await self._leaders.ask_each(places, local, self._call_bounds, retry_ms)

    async def _settle(self, partitions: Sequence[Partition], within_seconds: float) -> float:
        """Wait until new leaders know their end: all that former ones may have acknowledged.

        Not for long: without enough replicas in sync a leader does not learn it. Returns the time left.
        """
        unsettled = [each for each in partitions if not each.covers_former_epochs]
        while unsettled and within_seconds > 0:
            await asyncio.sleep(SETTLE_PAUSE_SECONDS)
            within_seconds -= SETTLE_PAUSE_SECONDS
            unsettled = [each for each in unsettled if each.is_leading and not each.covers_former_epochs]
        return within_seconds

    async def bounds_at(self, place: PartitionId) -> Bounds:
        """Return the bounds of one partition."""
        (found,) = await self.bounds([place])
        if isinstance(found, AlpacaError):
            raise found
        return found

    async def _call_bounds(
        self, leader: BrokerId, places: Sequence[PartitionId]
    ) -> list[Bounds | AlpacaError | None]:
        reply = await self._leaders.call(leader, ReadBounds(places=tuple(places)), CALL_MS)
        return _merged(len(places), reply.found, reply.errors)

    # Batches.

    async def read_batches(
        self,
        place: PartitionId,
        offset: int,
        max_bytes: int,
        *,
        committed: bool,
        wait_ms: int = 0,
        may_follow: bool = True,
    ) -> FetchedBatches:
        """Read whole batches from the one with `offset` on, about `max_bytes` of them, at least one.

        If there is none, wait for one. With `may_follow`, a replica of this broker may serve the read; its
        bounds can be older than the leader's. Raises OffsetOutOfRange and DamagedLog.
        """
        max_bytes = min(max(max_bytes, 1), MAX_READ_BYTES)
        if not wait_ms and (partition := self._leaders.led(place)) is not None:
            return await self._batches(partition, offset, max_bytes, committed=committed)
        if may_follow and (replica := self._follower(place, offset, committed=committed)) is not None:
            return await self._batches(replica, offset, max_bytes, committed=committed)

        async def local(wait_ms: int) -> FetchedBatches:
            return await self._led_batches(place, offset, max_bytes, committed=committed, wait_ms=wait_ms)

        def request(wait_ms: int) -> ReadBatches:
            return ReadBatches(
                place=place, offset=offset, max_bytes=max_bytes, committed=committed, wait_ms=wait_ms
            )

        return await self._poll(place, local, request, lambda found: bool(found.data), wait_ms)

    async def _led_batches(
        self, place: PartitionId, offset: int, max_bytes: int, *, committed: bool, wait_ms: int
    ) -> FetchedBatches:
        async def read(partition: Partition) -> FetchedBatches:
            return await self._batches(partition, offset, max_bytes, committed=committed)

        return await self._read_or_wait(place, read, lambda found: bool(found.data), wait_ms)

    async def _batches(
        self, partition: Partition, offset: int, max_bytes: int, *, committed: bool
    ) -> FetchedBatches:
        bounds = bounds_of(partition)
        end_offset = bounds.readable_end(committed=committed)
        part = partition.read(offset, max_bytes, end_offset, at_least_one=True)
        if part is None:
            return FetchedBatches(bounds=bounds, next_offset=offset)
        next_offset = part.next_offset
        aborted = tuple(partition.aborted_between(offset, next_offset)) if committed else ()
        return FetchedBatches(
            bounds=bounds,
            next_offset=next_offset,
            aborted=aborted,
            data=await self._bytes(partition, part),
        )

    async def _bytes(self, partition: Partition, part: Slice) -> bytes:
        if part.verified and part.length <= _AT_ONCE_BYTES:
            try:
                return part.read()
            finally:
                part.release()

        def read() -> bytes:
            if not part.verified:
                partition.verify(part)
            return part.read()

        reading = asyncio.get_running_loop().run_in_executor(self._executor, read)
        # The file stays open until the thread is done, even if the reader is cancelled.
        reading.add_done_callback(lambda _: part.release())
        return await asyncio.shield(reading)

    # Records.

    async def read_page(
        self,
        place: PartitionId,
        offset: int,
        limits: Limits,
        *,
        committed: bool,
        wait_ms: int = 0,
        reader: Origin | None = None,
    ) -> FetchedPage:
        """Read records from `offset` on; if there are none, wait for some. Raises OffsetOutOfRange.

        A long range without visible records ends the page, which is empty then and has a later offset.
        With a `reader` the leader reads: it has the traces.
        """
        limits = _capped(limits)
        if not wait_ms and (partition := self._leaders.led(place)) is not None:
            return await self._traced_page(partition, offset, limits, committed=committed, reader=reader)
        if reader is None and (replica := self._follower(place, offset, committed=committed)) is not None:
            return await self._page(replica, offset, limits, committed=committed)

        async def local(wait_ms: int) -> FetchedPage:
            return await self._led_page(
                place, offset, limits, committed=committed, wait_ms=wait_ms, reader=reader
            )

        def request(wait_ms: int) -> ReadRecords:
            return ReadRecords(
                place=place,
                offset=offset,
                limits=limits,
                committed=committed,
                wait_ms=wait_ms,
                reader=reader,
            )

        return await self._poll(place, local, request, lambda found: _has_content(found, offset), wait_ms)

    async def _led_page(
        self,
        place: PartitionId,
        offset: int,
        limits: Limits,
        *,
        committed: bool,
        wait_ms: int,
        reader: Origin | None,
    ) -> FetchedPage:
        async def read(partition: Partition) -> FetchedPage:
            return await self._traced_page(partition, offset, limits, committed=committed, reader=reader)

        return await self._read_or_wait(place, read, lambda found: _has_content(found, offset), wait_ms)

    async def _traced_page(
        self, partition: Partition, offset: int, limits: Limits, *, committed: bool, reader: Origin | None
    ) -> FetchedPage:
        found = await self._page(partition, offset, limits, committed=committed)
        if reader is not None and partition.traces is not None:
            partition.traces.read(found.page.records, reader)
        return found

    async def _page(
        self, partition: Partition, offset: int, limits: Limits, *, committed: bool
    ) -> FetchedPage:
        page = await self._records.read(partition, offset, limits, committed=committed)
        return FetchedPage(page, bounds_of(partition))

    # Timestamps.

    async def offset_for_timestamp(self, place: PartitionId, timestamp_ms: int) -> TimestampOffset | None:
        """Return the first record at or after a timestamp; None if there is none."""
        (found,) = await self.offsets_for_timestamp([place], timestamp_ms)
        if isinstance(found, AlpacaError):
            raise found
        return found

    async def offsets_for_timestamp(
        self, places: Sequence[PartitionId], timestamp_ms: int
    ) -> list[TimestampOffset | AlpacaError | None]:
        """Return the first record of each partition at or after a timestamp, or why that is not known."""

        async def local(partition: Partition) -> TimestampOffset | None:
            return await self._search(partition, timestamp_ms)

        async def call(
            leader: BrokerId, some: Sequence[PartitionId]
        ) -> list[TimestampOffset | AlpacaError | None]:
            request = FindTimestamps(places=tuple(some), timestamp_ms=timestamp_ms)
            reply = await self._leaders.call(leader, request, SEARCH_MS)
            return _merged(len(some), reply.found, reply.errors)

        return await self._leaders.ask_each(places, local, call)

    async def _search(self, partition: Partition, timestamp_ms: int) -> TimestampOffset | None:
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, partition.offset_for_timestamp, timestamp_ms, partition.high_watermark
        )

    # Waiting.

    async def wait(self, positions: Mapping[PartitionId, int], wait_ms: int, *, committed: bool) -> None:
        """Return once one of the partitions may have records at its offset, or after `wait_ms`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        led = {place: partition for place in positions if (partition := self._leaders.led(place)) is not None}
        with waiting_for_records(led.values()) as waiter:
            if any(_is_beyond(led[place], positions[place], committed=committed) for place in led):
                return
            elsewhere = {place: offset for place, offset in positions.items() if place not in led}
            if not elsewhere:
                await waiter.wait(wait_ms / 1000)
                return
            if self._leaders.is_alone:
                return  # the reader finds out why it cannot be read
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._wait_elsewhere(elsewhere, deadline, committed=committed))
                task.add_done_callback(lambda _: waiter.wake())
                await waiter.wait(wait_ms / 1000)
                task.cancel()

    async def _wait_elsewhere(
        self, positions: Mapping[PartitionId, int], deadline: float, *, committed: bool
    ) -> None:
        """Wait at the leaders until one of them has records, or ceases to lead."""
        loop = asyncio.get_running_loop()
        retries = Retries(0)
        while (left_ms := int((deadline - loop.time()) * 1000)) > 0:
            by_leader: dict[BrokerId, list[PartitionId]] = {}
            for place in positions:
                try:
                    by_leader.setdefault(self._leaders.leader(place, retries), []).append(place)
                except AlpacaError:
                    if not self._topics.exists(place.topic_id.bytes, place.partition):
                        return  # deleted
                    # There is no leader now, but there will be one.
            if self._leaders.node_id in by_leader:
                return  # the reader finds it here
            if not by_leader:
                await retries.pause()
                continue
            leg_ms = min(left_ms, LEG_MS)
            calls = [
                self._wait_at(leader, [(each, positions[each]) for each in some], leg_ms, committed=committed)
                for leader, some in by_leader.items()
            ]
            if await _any_true(calls):
                return

    async def _wait_at(
        self, leader: BrokerId, positions: Sequence[tuple[PartitionId, int]], leg_ms: int, *, committed: bool
    ) -> bool:
        """Wait for one leg at a leader; false if there is nothing new."""
        loop = asyncio.get_running_loop()
        until = loop.time() + leg_ms / 1000
        request = AwaitRecords(positions=tuple(positions), committed=committed, wait_ms=leg_ms)
        try:
            await self._leaders.call(leader, request, leg_ms + CALL_MS)
        except AlpacaError as error:
            if not isinstance(error, RETRIED):
                log.warning("await_records_failed", node=leader, reason=str(error))
            # The reader looks again, and finds the new leader. Not at once: its election takes time.
            await asyncio.sleep(MAX_PAUSE_SECONDS)
            return True
        return loop.time() < until

    # Changes.

    async def flush(self, place: PartitionId, offset: int | None = None) -> int:
        """Return the flushed offset once all before `offset`, or the whole log, is on the leader's disk."""

        async def local(_wait_ms: int) -> int:
            return await self._flush(self._leaders.led_or_raise(place), offset)

        return await self._leaders.ask(place, local, lambda _: FlushPartition(place=place, offset=offset), 0)

    async def delete_before(self, place: PartitionId, offset: int) -> Bounds:
        """Delete the records before an offset that is no later than the high watermark; -1 is the latter."""

        async def local(_wait_ms: int) -> Bounds:
            return await self._delete(self._leaders.led_or_raise(place), offset)

        return await self._leaders.ask(place, local, lambda _: DeleteRecords(place=place, offset=offset), 0)

    async def compact(self, place: PartitionId) -> CompactedSize:
        """Compact a partition at its leader, up to its last record."""

        async def local(_wait_ms: int) -> CompactedSize:
            return await self._compacted(self._leaders.led_or_raise(place))

        def request(_wait_ms: int) -> CompactPartition:
            return CompactPartition(place=place)

        # The time of a wait: it may take long.
        return await self._leaders.ask(place, local, request, COMPACTION_MS)

    async def _compacted(self, partition: Partition) -> CompactedSize:
        before_bytes = partition.size_bytes
        return CompactedSize(await self._compact(partition), before_bytes, partition.size_bytes)

    async def _flush(self, partition: Partition, offset: int | None) -> int:
        end_offset = partition.end_offset
        if offset is not None and offset > end_offset:
            raise OffsetOutOfRange(f"{partition.identity} ends at {end_offset}, before {offset}")
        await partition.flush_to(end_offset if offset is None else offset)
        return partition.log.flushed_offset

    async def _delete(self, partition: Partition, offset: int) -> Bounds:
        high_watermark = partition.high_watermark
        offset = high_watermark if offset == -1 else offset
        if not 0 <= offset <= high_watermark:
            raise OffsetOutOfRange(f"{partition.identity} is readable up to {high_watermark}, not {offset}")
        await delete_before(partition, offset, self._executor)
        return bounds_of(partition)

    # Calls of other brokers.

    async def _serve_bounds(self, request: ReadBounds, _peer: Peer) -> FoundBounds:
        _check_count(request.places)
        found: list[Bounds | None] = []
        errors: dict[int, RemoteError] = {}
        left_seconds = SETTLE_SECONDS
        async for some in in_slices(request.places):
            led = [each for place in some if (each := self._leaders.led(place)) is not None]
            left_seconds = await self._settle(led, left_seconds)
            for place in some:
                partition = self._leaders.led(place)
                if partition is None:
                    errors[len(found)] = encode_error(self._leaders.absence(place))
                found.append(None if partition is None else bounds_of(partition))
        return FoundBounds(found, errors)

    async def _serve_batches(self, request: ReadBatches, _peer: Peer) -> FetchedBatches:
        return await self._led_batches(
            request.place,
            request.offset,
            min(max(request.max_bytes, 1), MAX_READ_BYTES),
            committed=request.committed,
            wait_ms=request.wait_ms,
        )

    async def _serve_records(self, request: ReadRecords, _peer: Peer) -> FetchedPage:
        return await self._led_page(
            request.place,
            request.offset,
            _capped(request.limits),
            committed=request.committed,
            wait_ms=request.wait_ms,
            reader=request.reader,
        )

    async def _serve_timestamps(self, request: FindTimestamps, _peer: Peer) -> FoundOffsets:
        _check_count(request.places)
        found: list[TimestampOffset | None] = []
        errors: dict[int, RemoteError] = {}
        for place in request.places:
            try:
                found.append(await self._search(self._leaders.led_or_raise(place), request.timestamp_ms))
            except AlpacaError as error:
                errors[len(found)] = encode_error(error)
                found.append(None)
        return FoundOffsets(found, errors)

    async def _serve_waiting(self, request: AwaitRecords, _peer: Peer) -> None:
        _check_count(request.positions)
        positions = dict(request.positions)
        led = {place: self._leaders.led_or_raise(place) for place in positions}
        with waiting_for_records(led.values()) as waiter:
            if not any(
                _is_beyond(partition, positions[place], committed=request.committed)
                for place, partition in led.items()
            ):
                await waiter.wait(request.wait_ms / 1000)

    async def _serve_flush(self, request: FlushPartition, _peer: Peer) -> int:
        if self._leaders.topics.power_lost:
            # The other broker has not heard yet that records may be lost.
            raise PartitionNotReady("the last power loss is not settled yet")
        return await self._flush(self._leaders.led_or_raise(request.place), request.offset)

    async def _serve_deletion(self, request: DeleteRecords, _peer: Peer) -> Bounds:
        return await self._delete(self._leaders.led_or_raise(request.place), request.offset)

    async def _serve_compaction(self, request: CompactPartition, _peer: Peer) -> CompactedSize:
        return await self._compacted(self._leaders.led_or_raise(request.place))

    # Steps.

    def _follower(self, place: PartitionId, offset: int, *, committed: bool) -> Partition | None:
        """Return a replica of this broker that may serve a read in place of its leader."""
        if self._leaders.is_alone or self._leaders.led(place) is not None:
            return None
        replica = self._topics.followed(place.topic_id.bytes, place.partition)
        return replica if replica is not None and covers(replica, offset, committed=committed) else None

    async def _poll(
        self,
        place: PartitionId,
        local: Callable[[int], Awaitable[R]],
        request: Callable[[int], Request[R]],
        is_enough: Callable[[R], bool],
        wait_ms: int,
    ) -> R:
        """Ask the leader of a partition, leg by leg, until there is something to read or time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while True:
            left_ms = max(int((deadline - loop.time()) * 1000), 0)
            found = await self._leaders.ask(place, local, request, min(left_ms, LEG_MS))
            if is_enough(found) or left_ms <= LEG_MS:
                return found

    async def _read_or_wait(
        self,
        place: PartitionId,
        read: Callable[[Partition], Awaitable[R]],
        is_enough: Callable[[R], bool],
        wait_ms: int,
    ) -> R:
        """Read a partition that is led here, until there is something to read or time is up."""
        partition = self._leaders.led_or_raise(place)
        found = await read(partition)
        if is_enough(found) or not wait_ms:
            return found
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        with waiting_for_records([partition]) as waiter:
            while not is_enough(found := await read(partition)):
                if (left_seconds := deadline - loop.time()) <= 0:
                    break
                await waiter.wait(left_seconds)
                if self._leaders.led(place) is not partition:
                    raise self._leaders.absence(place)
        return found


def _capped(limits: Limits) -> Limits:
    """Return limits that fit into one reply."""
    if limits.size_bytes <= MAX_READ_BYTES and limits.records <= MAX_READ_RECORDS:
        return limits
    return Limits(
        records=min(limits.records, MAX_READ_RECORDS),
        size_bytes=min(limits.size_bytes, MAX_READ_BYTES),
        before_offset=limits.before_offset,
    )


def _is_beyond(partition: Partition, offset: int, *, committed: bool) -> bool:
    end = partition.last_stable_offset if committed else partition.high_watermark
    return end > offset


def _has_content(found: FetchedPage, offset: int) -> bool:
    """Return whether a page brings its reader on: records, reports of damage, or a later offset."""
    page = found.page
    return bool(page.records or page.skipped) or page.next_offset != offset


def _check_count(places: Sequence[object]) -> None:
    if len(places) > MAX_PLACES:
        raise InvalidRequest(f"{len(places)} partitions in one call; the limit is {MAX_PLACES}")


def _merged(
    count: int, found: Sequence[T | None], errors: Mapping[int, RemoteError]
) -> list[T | AlpacaError | None]:
    """Put the errors of a reply into their places."""
    merged: list[T | AlpacaError | None] = list(found)
    for index, error in errors.items():
        if index < len(merged):
            merged[index] = decode_error(error)
    if len(merged) != count:
        raise InvalidRequest(f"{len(merged)} answers to {count} questions")
    return merged


async def _any_true(calls: Sequence[Awaitable[bool]]) -> bool:
    """Return true as soon as one of the calls does, and false when all have returned false."""
    async with asyncio.TaskGroup() as group:
        tasks = {group.create_task(_awaited(call)) for call in calls}
        pending: set[asyncio.Task[bool]] = tasks
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(not task.cancelled() and task.exception() is None and task.result() for task in done):
                for task in pending:
                    task.cancel()
                return True
    return False


async def _awaited(call: Awaitable[bool]) -> bool:
    return await call
