"""Caches blocks of stored batches, for readers of single records: queues and delays.

A block is the result of one read of the log. The cache is LRU, bounded in bytes: a consumer that takes ten
records at a time from a batch of a thousand unpacks it once.
"""

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from operator import itemgetter
from typing import NamedTuple, TypeVar

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.readable import Readable
from alpacamq.broker.remote.views import AnyPartition, RemotePartition
from alpacamq.model.batch import COMPRESSION_MASK, HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, read_header
from alpacamq.model.compression import TooMuchData
from alpacamq.model.control import CommittedFilter
from alpacamq.model.errors import AlpacaError, CorruptBatch, DamagedLog, PartitionNotReady, StorageFailed
from alpacamq.model.headers import LANE
from alpacamq.model.lanes import LANES_BY_NAME, Lane
from alpacamq.model.record_index import IndexedBatch, holds_its_records, is_gapless
from alpacamq.model.records import Record
from alpacamq.queues.messages import OffsetRange, Outline
from alpacamq.telemetry.logs import get_logger

# Called in any thread with a batch that is whole but cannot be unpacked.
Unreadable = Callable[[BatchHeader, CorruptBatch], None]

_LANE = LANE.encode()
# Batches of one read whose times are kept.
_MAX_TIMES = 1024
_LANES = {name.encode(): lane for name, lane in LANES_BY_NAME.items()}


class Stored(NamedTuple):
    """A batch with visible records: its header and its position in the bytes it was read from."""

    header: BatchHeader
    start: int
    end: int
    may_have_lanes: bool

    @property
    def is_packed(self) -> bool:
        return self.header.attributes & COMPRESSION_MASK != 0

    @property
    def is_plain(self) -> bool:
        """Whether it has no gaps, and all its messages are in the normal lane."""
        return not self.may_have_lanes and is_gapless(self.header)


def stored_batches(data: bytes, aborted: Sequence[tuple[int, int]]) -> Iterator[Stored]:
    """Yield the batches in `data` with visible records.

    `aborted` lists producer id and first offset of aborted transactions.
    """
    committed = CommittedFilter(aborted)
    view = memoryview(data)
    hit = _find_lane(data, 0)
    at = 0
    while at < len(data):
        header = read_header(data, at)
        end = at + header.size
        if committed.shows(header, view[at:end]):
            is_packed = header.attributes & COMPRESSION_MASK != 0
            if is_packed or holds_its_records(header, header.size - HEADER_BYTES):
                if hit < at:
                    hit = _find_lane(data, at)
                yield Stored(header, at, end, is_packed or hit < end)
        at = end


class Runs:
    """Merges neighbouring messages of one lane into ranges, added in ascending order."""

    __slots__ = ("_keys", "_runs", "_with_keys")

    def __init__(self, *, with_keys: bool) -> None:
        self._with_keys = with_keys
        self._runs: list[OffsetRange] = []
        self._keys: list[list[bytes | None]] = []

    def add(self, first: int, last: int, lane: Lane, keys: list[bytes | None]) -> None:
        if self._runs:
            before = self._runs[-1]
            if before.last + 1 == first and before.lane is lane:
                self._runs[-1] = OffsetRange(before.first, last, lane)
                self._keys[-1] += keys
                return
        self._runs.append(OffsetRange(first, last, lane))
        self._keys.append(list(keys))

    def add_batch(self, batch: IndexedBatch) -> None:
        """Add every message of an unpacked batch."""
        offsets = batch.offsets
        values = batch.header_values(_LANE)
        keys = batch.keys() if self._with_keys else []
        if values is None and isinstance(offsets, range):
            if offsets:
                self.add(offsets[0], offsets[-1], Lane.NORMAL, keys)
            return
        for place, offset in enumerate(offsets):
            lane = Lane.NORMAL if values is None else lane_of(values[place])
            self.add(offset, offset, lane, keys[place : place + 1])

    def add_plain(self, header: BatchHeader) -> None:
        """Add every message of a batch without lanes or gaps."""
        self.add(header.base_offset, header.last_offset, Lane.NORMAL, [])

    def finished(self) -> list[OffsetRange]:
        if not self._with_keys:
            return self._runs
        return [run._replace(keys=tuple(keys)) for run, keys in zip(self._runs, self._keys, strict=True)]


def lane_of(value: bytes | None) -> Lane:
    """Return the lane that a header names; the normal lane for unknown names."""
    return Lane.NORMAL if value is None else _LANES.get(value.strip().lower(), Lane.NORMAL)


class BatchTimes:
    """First offset and timestamp of batches; of every second, fourth, … if there are many."""

    __slots__ = ("found",)

    def __init__(self, batches: Iterable[Stored] = ()) -> None:
        self.found: list[tuple[int, int]] = []
        for stored in batches:
            self.add(stored.header)

    def add(self, header: BatchHeader) -> None:
        by_broker = header.attributes & LOG_APPEND_TIME
        time_ms = header.max_timestamp if by_broker else header.base_timestamp
        self.found.append((header.base_offset, time_ms))
        if len(self.found) > _MAX_TIMES:
            del self.found[1::2]


def outlined(
    data: bytes,
    aborted: Sequence[tuple[int, int]],
    limit_bytes: int,
    unreadable: "Unreadable",
    *,
    with_keys: bool = False,
) -> tuple[list[OffsetRange], list[tuple[int, int]]]:
    """Return the ranges of all batches in `data`, and their times."""
    runs, times = Runs(with_keys=with_keys), BatchTimes()
    for stored in stored_batches(data, aborted):
        times.add(stored.header)
        if stored.is_plain and not with_keys:
            runs.add_plain(stored.header)
        else:
            try:
                runs.add_batch(IndexedBatch(memoryview(data)[stored.start : stored.end], limit_bytes))
            except CorruptBatch as error:
                unreadable(stored.header, error)
    return runs.finished(), times.found


def _find_lane(data: bytes, at: int) -> int:
    hit = data.find(_LANE, at)
    return len(data) if hit < 0 else hit


log = get_logger(__name__)
T = TypeVar("T")

BLOCK_BYTES = 64 << 10
# A block that is read from another broker: a call costs more than its bytes.
REMOTE_BLOCK_BYTES = 256 << 10
# Larger reads and batches would block the event loop.
_READ_ON_LOOP_BYTES = 256 << 10
_PACKED_ON_LOOP_BYTES = 32 << 10
_UNPACKED_ON_LOOP_BYTES = 1 << 20
# Compaction or retention may change the segments while they are checked.
_ATTEMPTS = 5
_BLOCK_OVERHEAD_BYTES = 600
_BATCH_OVERHEAD_BYTES = 300


class Block:
    """Consecutive whole batches of one partition, without uncommitted ones.

    The cache may hold a block for each message: of few objects, which collections of garbage scan.
    """

    __slots__ = ("_batches", "_data", "_firsts", "_indexed", "_keyed_outline", "_limit_bytes", "_outline",
                 "_times", "first_offset", "next_offset", "size_bytes", "unreadable")  # fmt: skip

    def __init__(
        self,
        data: bytes,
        next_offset: int,
        aborted: Sequence[tuple[int, int]],
        limit: int,
        unreadable: Unreadable,
    ) -> None:
        self.unreadable = unreadable
        self.first_offset = read_header(data).base_offset
        self.next_offset = next_offset
        self._data = data
        self._limit_bytes = limit
        self._batches: Sequence[Stored] = tuple(stored_batches(data, aborted))
        # Tuples of numbers are not scanned.
        self._firsts = tuple([stored.header.base_offset for stored in self._batches])
        self._times = tuple(BatchTimes(self._batches).found)
        self._indexed: dict[int, IndexedBatch | None] = {}
        self._outline: Sequence[OffsetRange] | None = None
        self._keyed_outline: Sequence[OffsetRange] | None = None
        self.size_bytes = len(data) + _BLOCK_OVERHEAD_BYTES + _BATCH_OVERHEAD_BYTES * len(self._batches)

    @property
    def is_heavy(self) -> bool:
        """Whether unpacking the block would block the event loop."""
        return any(
            stored.header.size > (_PACKED_ON_LOOP_BYTES if stored.is_packed else _READ_ON_LOOP_BYTES)
            for stored in self._batches
        )

    def prepare(self) -> None:
        """Unpack all batches; in any thread, before the block is shared."""
        for place in range(len(self._batches)):
            self._index(place)

    def unpack_within(self, room_bytes: int) -> bool:
        """Unpack compressed batches; false if they exceed `room_bytes`: few bytes may expand to many."""
        for place, stored in enumerate(self._batches):
            if stored.is_packed:
                if room_bytes <= 0:
                    return False
                try:
                    batch = self._unpacked(stored, min(room_bytes, self._limit_bytes))
                except TooMuchData:
                    return False
                except CorruptBatch:
                    continue  # reported on access
                self._keep(place, batch)
                room_bytes -= batch.size_bytes
        return True

    def outline(self, offset: int, *, with_keys: bool) -> Outline:
        """Return the outline from `offset` on."""
        if (runs := self._keyed_outline if with_keys else self._outline) is None:
            runs = self._runs(with_keys=with_keys)
            if with_keys:
                self._keyed_outline = runs
            else:
                self._outline = runs
            self.size_bytes += sum(150 + 60 * len(run.keys or ()) for run in runs)
        times = self._times
        if runs and runs[0].first < offset:
            runs = ranges_from(runs, offset)
            times = times[max(bisect_right(times, offset, key=itemgetter(0)) - 1, 0) :]
        return Outline(runs, self.next_offset, times)

    def record(self, offset: int) -> Record | None:
        """Return the record at `offset`; None if it does not exist or is unreadable."""
        place = bisect_right(self._firsts, offset) - 1
        if place < 0 or (batch := self._index(place)) is None:
            return None
        offsets = batch.offsets
        within = offset - offsets.start if isinstance(offsets, range) else bisect_left(offsets, offset)
        if within >= len(offsets) or offsets[within] != offset:
            return None
        return self.record_in(batch, within)

    def gapless_batch(self, offset: int) -> IndexedBatch | None:
        """Return the batch with a record at `offset`; None unless it has one at each of its offsets."""
        place = bisect_right(self._firsts, offset) - 1
        if place < 0 or (batch := self._index(place)) is None:
            return None
        offsets = batch.offsets
        return batch if isinstance(offsets, range) and offset in offsets else None

    def record_in(self, batch: IndexedBatch, within: int) -> Record | None:
        """Return the record at an index of a batch; None if it is unreadable."""
        try:
            return batch.record(within)
        except CorruptBatch as error:
            self.unreadable(batch.header, error)
            return None

    def _runs(self, *, with_keys: bool) -> list[OffsetRange]:
        runs = Runs(with_keys=with_keys)
        for place, stored in enumerate(self._batches):
            if stored.is_plain and not with_keys:
                runs.add_plain(stored.header)
            elif (batch := self._index(place)) is not None:
                try:
                    runs.add_batch(batch)
                except CorruptBatch as error:
                    self.unreadable(stored.header, error)
        return runs.finished()

    def _index(self, place: int) -> IndexedBatch | None:
        if place not in self._indexed:
            stored = self._batches[place]
            try:
                self._keep(place, self._unpacked(stored, self._limit_bytes))
            except CorruptBatch as error:
                self.unreadable(stored.header, error)
                self._indexed[place] = None
        return self._indexed[place]

    def _unpacked(self, stored: Stored, limit_bytes: int) -> IndexedBatch:
        return IndexedBatch(memoryview(self._data)[stored.start : stored.end], limit_bytes, stored.header)

    def _keep(self, place: int, batch: IndexedBatch) -> None:
        self._indexed[place] = batch
        self.size_bytes += batch.size_bytes


def ranges_from(runs: Sequence[OffsetRange], offset: int) -> list[OffsetRange]:
    """Return the part of the ranges from `offset` on."""
    kept = []
    for run in runs:
        if run.first >= offset:
            kept.append(run)
        elif run.last >= offset:
            keys = run.keys[offset - run.first :] if run.keys is not None else None
            kept.append(OffsetRange(offset, run.last, run.lane, keys))
    return kept


class StoredBlocks:
    """An LRU cache of blocks, at most `limit_bytes` large."""

    def __init__(self, executor: Executor, *, limit_bytes: int, unpacked_limit_bytes: int) -> None:
        self._executor = executor
        self._limit_bytes = limit_bytes
        self._unpacked_limit_bytes = unpacked_limit_bytes
        # In order of use, each with the size it is accounted with.
        self._blocks: OrderedDict[tuple[AnyPartition, int], tuple[Block, int]] = OrderedDict()
        self._firsts: dict[AnyPartition, list[int]] = {}
        # One for all blocks of a partition.
        self._unreadable: dict[AnyPartition, Unreadable] = {}
        self._bytes = 0

    def cached(self, partition: AnyPartition, offset: int) -> Block | None:
        """Return the cached block that contains `offset`."""
        firsts = self._firsts.get(partition)
        if not firsts or (place := bisect_right(firsts, offset)) == 0:
            return None
        key = (partition, firsts[place - 1])
        block, counted = self._blocks[key]
        if offset >= block.next_offset:
            return None
        if block.size_bytes != counted:
            self._bytes += block.size_bytes - counted
            self._blocks[key] = (block, block.size_bytes)
        self._blocks.move_to_end(key)
        self._make_room()
        return block

    def load_now(self, partition: AnyPartition, offset: int, limit_offset: int) -> Block | None:
        """Load the block that starts with the batch that contains `offset`; None if that would take long."""
        stored = _stored_here(partition, offset)
        if stored is None:
            return None
        limit_offset = min(limit_offset, stored.last_stable_offset)
        try:
            part = stored.read(offset, BLOCK_BYTES, limit_offset, at_least_one=True)
        except AlpacaError:
            if stored is partition:
                raise
            return None  # the leader has it
        if part is None:
            return None
        try:
            if not part.verified or part.length > _READ_ON_LOOP_BYTES:
                return None
            aborted = stored.aborted_between(offset, part.next_offset)
            block = self._block(partition, part.read(), part.next_offset, aborted)
        finally:
            part.release()
        if block.is_heavy or not block.unpack_within(_UNPACKED_ON_LOOP_BYTES):
            return None
        self._keep(partition, block)
        return block

    async def load(self, partition: AnyPartition, offset: int, limit_offset: int) -> Block | None:
        """Load a block, however long it takes; None if there is nothing before `limit_offset`.

        `limit_offset` is no later than the end of what can be read. Raises PartitionNotReady if another
        broker leads the partition and does not know yet that records at `offset` are committed.
        """
        stored = _stored_here(partition, offset)
        if isinstance(partition, RemotePartition):
            block = None
            if stored is not None:
                with suppress(AlpacaError):  # the leader has what this replica has lost
                    block = await self._load(partition, stored, offset, limit_offset)
            if block is None:
                block = await self._fetch(partition, offset, is_committed=True)
                if block is not None:
                    self._keep(partition, block)
            return block
        return await self._load(partition, partition, offset, limit_offset)

    async def load_uncommitted(self, partition: AnyPartition, offset: int) -> Block | None:
        """Load a block with the records of open and aborted transactions too, which is not cached.

        None if there is nothing before the high watermark. Raises PartitionNotReady as `load` does.
        """
        if isinstance(partition, RemotePartition):
            return await self._fetch(partition, offset, is_committed=False)
        end = partition.high_watermark
        part = await verified_read(partition, offset, BLOCK_BYTES, end, self._executor)
        if part is None:
            return None
        return await in_thread(self._executor, part, self._prepared, partition, part, ())

    async def _load(
        self, partition: AnyPartition, stored: Partition, offset: int, limit_offset: int
    ) -> Block | None:
        """Load a block from a replica of this broker."""
        limit_offset = min(limit_offset, stored.last_stable_offset)
        part = await verified_read(stored, offset, BLOCK_BYTES, limit_offset, self._executor)
        if part is None:
            return None
        aborted = stored.aborted_between(offset, part.next_offset)
        block = await in_thread(self._executor, part, self._prepared, partition, part, aborted)
        self._keep(partition, block)
        return block

    async def _fetch(self, partition: RemotePartition, offset: int, *, is_committed: bool) -> Block | None:
        found = await partition.read(offset, REMOTE_BLOCK_BYTES, committed=is_committed)
        if not found.data:
            if offset >= found.bounds.readable_end(committed=is_committed):
                # A new leader learns later what its predecessor had committed, and which transactions.
                raise PartitionNotReady(f"offset {offset} of {partition.identity} cannot be read yet")
            return None
        block = self._block(partition, found.data, found.next_offset, found.aborted)
        if block.is_heavy or not block.unpack_within(_UNPACKED_ON_LOOP_BYTES):
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(self._executor, block.prepare))
        return block

    def forget(self, topic: str) -> None:
        """Drop the blocks of a deleted topic."""
        for partition in [partition for partition in self._firsts if partition.identity.topic == topic]:
            for first in self._firsts.pop(partition):
                self._bytes -= self._blocks.pop((partition, first))[1]
            self._unreadable.pop(partition, None)

    def _prepared(self, partition: AnyPartition, part: Readable, aborted: Sequence[tuple[int, int]]) -> Block:
        block = self._block(partition, part.read(), part.next_offset, aborted)
        block.prepare()
        return block

    def _block(
        self, partition: AnyPartition, data: bytes, next_offset: int, aborted: Sequence[tuple[int, int]]
    ) -> Block:
        unreadable = self._unreadable.get(partition) or report_unreadable(partition)
        return Block(data, next_offset, aborted, self._unpacked_limit_bytes, unreadable)

    def _keep(self, partition: AnyPartition, block: Block) -> None:
        key = (partition, block.first_offset)
        if (former := self._blocks.pop(key, None)) is not None:
            self._bytes -= former[1]
        else:
            insort(self._firsts.setdefault(partition, []), block.first_offset)
            self._unreadable.setdefault(partition, block.unreadable)
        self._blocks[key] = (block, block.size_bytes)
        self._bytes += block.size_bytes
        self._make_room()

    def _make_room(self) -> None:
        # The last one stays, however large: its reader is about to use it.
        while self._bytes > self._limit_bytes and len(self._blocks) > 1:
            (partition, first), (_, counted) = self._blocks.popitem(last=False)
            self._bytes -= counted
            firsts = self._firsts[partition]
            del firsts[bisect_left(firsts, first)]
            if not firsts:
                del self._firsts[partition]
                del self._unreadable[partition]


def _stored_here(partition: AnyPartition, offset: int) -> Partition | None:
    """Return the replica to read at `offset`; None if it has to be read from another broker."""
    return partition.replica_with(offset) if isinstance(partition, RemotePartition) else partition


async def verified_read(
    partition: Partition, offset: int, max_bytes: int, limit_offset: int, executor: Executor
) -> Readable | None:
    """Read whole batches from `offset` on, verified if this process has not seen their bytes before."""
    for _ in range(_ATTEMPTS):
        part = partition.read(offset, max_bytes, limit_offset, at_least_one=True)
        if part is None or part.verified:
            return part
        with suppress(DamagedLog):  # batches around it can be read; else the next read raises
            await in_thread(executor, part, partition.verify, part)
    raise StorageFailed(f"{partition.identity} keeps changing while it is read at {offset}")


def report_unreadable(partition: AnyPartition) -> Unreadable:
    """Return a callback that counts and logs unreadable batches of a partition."""

    def unreadable(header: BatchHeader, error: CorruptBatch) -> None:
        partition.skipped_batches += 1
        log.warning(
            "unreadable_batch",
            partition=str(partition.identity),
            base_offset=header.base_offset,
            reason=str(error),
        )

    return unreadable


async def in_thread(executor: Executor, part: Readable, work: Callable[..., T], *arguments: object) -> T:
    """Run work on a slice in a thread and release the slice after it, even if the caller is cancelled."""
    working = asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
    working.add_done_callback(lambda _: part.release())
    return await asyncio.shield(working)
