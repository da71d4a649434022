"""Reads backlogs for queues: cached and small parts at once, the rest by scans in threads."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from time import thread_time

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.readable import Readable
from alpacamq.broker.remote.views import AnyPartition, PartitionViews, RemotePartition, is_only_copy
from alpacamq.broker.topics import Topics
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import AlpacaError, DamagedLog, PartitionNotReady
from alpacamq.model.ids import TopicName
from alpacamq.model.ports import Clock
from alpacamq.model.topics import Topic, TopicConfig
from alpacamq.queues.messages import Outline, ReadBacklog
from alpacamq.telemetry.logs import get_logger

from .block_cache import (
    BLOCK_BYTES,
    Block,
    StoredBlocks,
    in_thread,
    outlined,
    ranges_from,
    report_unreadable,
    verified_read,
)

log = get_logger(__name__)

# Bounds of a scan, which shares the interpreter with the event loop and must not hold it for long. The size
# adapts to the time a scan takes: batches with few records take longer per byte.
_MIN_SCAN_BYTES = 1 << 20
_MAX_SCAN_BYTES = 4 << 20
_SHORT_SECONDS = 0.004
_LONG_SECONDS = 0.016
# After a scan, the scanner rests as long as it worked.
_LONGEST_REST_SECONDS = 0.1
_SCANS_AT_ONCE = 2
# Number of scans ahead of the queues' requests.
_AHEAD = 4
_MAX_RUNS = 200_000

Deliver = Callable[[Outline], None]


class _Fetched:
    """Batches that were read from another broker."""

    __slots__ = ("_data", "next_offset")

    def __init__(self, data: bytes, next_offset: int) -> None:
        self._data = data
        self.next_offset = next_offset

    def read(self) -> bytes:
        return self._data


class _Scan:
    """A scan in progress, and the reads that wait for it."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []


class BacklogScans:
    """The scans in progress and the results of recent ones. `run` owns their tasks."""

    def __init__(
        self, blocks: StoredBlocks, clock: Clock, executor: Executor, *, unpacked_limit_bytes: int
    ) -> None:
        self._blocks = blocks
        self._clock = clock
        self._executor = executor
        self._unpacked_limit_bytes = unpacked_limit_bytes
        self._scans: dict[tuple[AnyPartition, int], _Scan] = {}
        self._found: OrderedDict[tuple[AnyPartition, int], Outline] = OrderedDict()
        self._found_runs = 0
        self._room = asyncio.Semaphore(_SCANS_AT_ONCE)
        self._unused: dict[AnyPartition, set[int]] = {}
        self._scan_bytes = _MIN_SCAN_BYTES
        self._rest_until = 0.0
        self._tasks: asyncio.TaskGroup | None = None
        self._failing: set[AnyPartition] = set()
        self._reported_damage: set[tuple[AnyPartition, tuple[int, int] | None]] = set()

    async def run(self) -> None:
        """Own the tasks until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # start nothing new while the rest ends

    def found(self, partition: AnyPartition, offset: int) -> Outline | None:
        """Return the result of a recent scan from `offset`."""
        if (outline := self._found.get((partition, offset))) is not None:
            self._mark_used(partition, offset)
        return outline

    def start(
        self, partition: AnyPartition, offset: int, then: Callable[[], None] | None = None, *, with_keys: bool
    ) -> None:
        """Scan from `offset` on, unless that is in progress, and call `then` when the scan has ended."""
        key = (partition, offset)
        if self._tasks is None or (then is None and key in self._found):
            return
        if (scan := self._scans.get(key)) is None:
            scan = self._scans[key] = _Scan()
            self._tasks.create_task(self._scan(partition, offset, scan, with_keys=with_keys))
        if then is not None:
            scan.waiting.append(then)

    def join(self, partition: AnyPartition, offset: int, then: Callable[[], None]) -> bool:
        """Wait for a scan from `offset` that is in progress; false if there is no such scan."""
        if (scan := self._scans.get((partition, offset))) is None:
            return False
        scan.waiting.append(then)
        return True

    def read_uncommitted(self, partition: AnyPartition, read: ReadBacklog, deliver: Deliver) -> None:
        """Read records of open and aborted transactions too, in a thread; nothing is cached."""
        if self._tasks is not None:
            self._tasks.create_task(self._read_uncommitted(partition, read, deliver))

    async def _read_uncommitted(self, partition: AnyPartition, read: ReadBacklog, deliver: Deliver) -> None:
        offset = read.offset
        outline = Outline((), offset)
        try:
            offset, end = max(offset, partition.start_offset), partition.high_watermark
            outline = Outline((), offset)
            scan = partial(self._outline_of, with_keys=read.with_keys)
            if isinstance(partition, RemotePartition):
                found = await partition.read(offset, _MIN_SCAN_BYTES, committed=False)
                if found.data:
                    fetched = _Fetched(found.data, found.next_offset)
                    outline, _ = await asyncio.get_running_loop().run_in_executor(
                        self._executor, scan, partition, fetched, offset, ()
                    )
            else:
                part = await verified_read(partition, offset, _MIN_SCAN_BYTES, end, self._executor)
                if part is not None:
                    outline, _ = await in_thread(self._executor, part, scan, partition, part, offset, ())
        except DamagedLog as error:
            if error.offsets is None or not is_only_copy(partition):
                self.report(partition, error)
            else:
                self.report_damage(partition, error)
                outline = Outline((), max(offset, min(error.offsets[1], end)))
        except Exception as error:  # noqa: BLE001 - a bug costs the queues of one partition, not the broker
            self.report(partition, error)
        self._call(partition, partial(deliver, outline))

    def forget(self, topic: str) -> None:
        """Drop all state of a deleted topic."""
        for key in [key for key in self._found if key[0].identity.topic == topic]:
            self._drop(key)
        self._failing = {partition for partition in self._failing if partition.identity.topic != topic}
        self._reported_damage = {each for each in self._reported_damage if each[0].identity.topic != topic}

    def report(self, partition: AnyPartition, error: Exception) -> None:
        """Log once that a partition cannot be read; queues stop there."""
        if partition not in self._failing:
            self._failing.add(partition)
            report = log.error if isinstance(error, AlpacaError) else log.exception
            report("queue_cannot_read", partition=str(partition.identity), reason=str(error))

    def report_damage(self, partition: AnyPartition, error: DamagedLog) -> None:
        """Log once that queues skip damaged offsets."""
        if (partition, error.offsets) not in self._reported_damage:
            self._reported_damage.add((partition, error.offsets))
            log.error("queue_skips_damage", partition=str(partition.identity), reason=str(error))

    async def _scan(self, partition: AnyPartition, offset: int, scan: _Scan, *, with_keys: bool) -> None:
        next_offset = None
        try:
            if isinstance(partition, RemotePartition):
                # Its leader may be slow to answer: the others do not wait for it.
                await self._load_remote(partition, offset)
            else:
                async with self._room:
                    await asyncio.sleep(max(self._rest_until - self._clock.monotonic(), 0))
                    next_offset = await self._scan_part(partition, offset, with_keys=with_keys)
        except Exception as error:  # noqa: BLE001 - a bug costs the queues of one partition, not the broker
            self.report(partition, error)
        else:
            self._failing.discard(partition)
        finally:
            del self._scans[partition, offset]
            for then in scan.waiting:
                self._call(partition, then)
        if next_offset is not None and len(self._unused.get(partition, ())) < _AHEAD:
            self.start(partition, next_offset, with_keys=False)

    def _call(self, partition: AnyPartition, then: Callable[[], None]) -> None:
        try:
            then()
        except Exception as error:  # noqa: BLE001 - a bug costs one reader, not all that wait for the scan
            self.report(partition, error)

    async def _scan_part(self, partition: Partition, offset: int, *, with_keys: bool) -> int | None:
        """Scan some of what follows; return where to continue, if that is far from the end."""
        stable_offset = partition.last_stable_offset
        try:
            part = await verified_read(partition, offset, self._scan_bytes, stable_offset, self._executor)
        except DamagedLog:
            return None  # the next read skips the damage
        if part is None:
            return None
        if with_keys or (part.next_offset == stable_offset and part.length <= _MIN_SCAN_BYTES):
            part.release()
            # Near the end, messages are delivered soon: their block is worth caching.
            await self._blocks.load(partition, offset, stable_offset)
            return None
        aborted = partition.aborted_between(offset, part.next_offset)
        outline, seconds = await in_thread(
            self._executor, part, self._outline_of, partition, part, offset, aborted
        )
        self._keep((partition, offset), outline)
        self._unused.setdefault(partition, set()).add(offset)
        if seconds < _SHORT_SECONDS:
            self._scan_bytes = min(2 * self._scan_bytes, _MAX_SCAN_BYTES)
        elif seconds > _LONG_SECONDS:
            self._scan_bytes = max(self._scan_bytes // 2, _MIN_SCAN_BYTES)
        self._rest_until = self._clock.monotonic() + min(seconds, _LONGEST_REST_SECONDS)
        return part.next_offset

    async def _load_remote(self, partition: RemotePartition, offset: int) -> None:
        """Cache a block, whose messages are delivered soon; skip damage."""
        stable_offset, start_offset = partition.last_stable_offset, partition.start_offset
        try:
            await self._blocks.load(partition, max(offset, start_offset), stable_offset)
        except DamagedLog as error:
            if error.offsets is None or not is_only_copy(partition):
                raise
            self.report_damage(partition, error)
            skipped = Outline((), max(offset, start_offset, min(error.offsets[1], stable_offset)))
            self._keep((partition, offset), skipped)

    def _outline_of(
        self,
        partition: AnyPartition,
        part: "Readable | _Fetched",
        offset: int,
        aborted: Sequence[tuple[int, int]],
        *,
        with_keys: bool = False,
    ) -> tuple[Outline, float]:
        """Return the outline of a slice, and the CPU time of this thread."""
        began = thread_time()
        unreadable = report_unreadable(partition)
        runs, times = outlined(
            part.read(), aborted, self._unpacked_limit_bytes, unreadable, with_keys=with_keys
        )
        return Outline(ranges_from(runs, offset), part.next_offset, times), thread_time() - began

    def _keep(self, key: tuple[AnyPartition, int], outline: Outline) -> None:
        if key in self._found:
            self._drop(key)
        self._found[key] = outline
        self._found_runs += _size(outline)
        while self._found_runs > _MAX_RUNS and len(self._found) > 1:
            self._drop(next(iter(self._found)))

    def _drop(self, key: tuple[AnyPartition, int]) -> None:
        self._found_runs -= _size(self._found.pop(key))
        self._mark_used(*key)

    def _mark_used(self, partition: AnyPartition, offset: int) -> None:
        if (unused := self._unused.get(partition)) is not None:
            unused.discard(offset)
            if not unused:
                del self._unused[partition]


def _size(outline: Outline) -> int:
    """Return the number of ranges and times that an outline keeps."""
    return len(outline.ranges) + len(outline.times) + 1


# Bytes of one partition that may be read on the event loop in one turn.
_TURN_BYTES = 4 * BLOCK_BYTES
# With more messages than this behind a block, the rest is scanned ahead of the next request.
_FAR_MESSAGES = 2000
# Scans for one read at most.
_MAX_SCANS = 2


def _is_end_known(partition: Partition) -> bool:
    """Return whether the end of a led partition is the end of everything committed, under any leader."""
    return partition.covers_former_epochs and partition.high_watermark >= partition.log.end_offset


class BacklogReader:
    """Reads outlines of partitions for all queues."""

    def __init__(
        self, topics: Topics, views: PartitionViews, blocks: StoredBlocks, scans: BacklogScans
    ) -> None:
        self._topics = topics
        self._views = views
        self._blocks = blocks
        self._scans = scans
        self._turn_bytes: dict[AnyPartition, int] = {}
        # The ends of partitions of other brokers that have lost records, as they say themselves.
        self.lost_tails: dict[PartitionId, int] = {}

    @property
    def version(self) -> int:
        return self._topics.image.version

    def topic(self, name: str) -> Topic | None:
        return self._topics.image.topics.get(TopicName(name))

    def config(self, topic: str) -> TopicConfig | None:
        topics = self._topics
        found = topics.image.topics.get(TopicName(topic))
        return None if found is None else topics.config_of(found)

    def bounds(self, topic: str, partition: int, *, is_committed: bool = True) -> tuple[int, int]:
        if (found := self._views.find(topic, partition)) is None:
            raise PartitionNotReady(f"partition {partition} of topic {topic!r} cannot be read now")
        return found.start_offset, found.last_stable_offset if is_committed else found.high_watermark

    def leader_end(self, topic: str, partition: int) -> int | None:
        if (found := self._topics.find(topic.encode(), partition)) is None:
            self._check_not_leader(topic, partition)
            return self._lost_tail(topic, partition)
        end_offset = found.log.end_offset
        if len(found.replicas) > 1:
            # What a power loss has cut here came back from a replica that had it.
            return end_offset if _is_end_known(found) else None
        # Records appended since the start have reused the offsets of lost ones.
        return end_offset if found.cut_offset is None else min(found.cut_offset, end_offset)

    def _lost_tail(self, topic: str, partition: int) -> int | None:
        found = self.topic(topic) if self.lost_tails else None
        return None if found is None else self.lost_tails.get(PartitionId(found.id, partition))

    def _check_not_leader(self, topic: str, partition: int) -> None:
        """Raise PartitionNotReady if this broker leads a partition that it has not opened."""
        found = self.topic(topic)
        state = None if found is None else self._topics.image.partition(PartitionId(found.id, partition))
        if state is not None and state.leader == self._topics.node_id:
            raise PartitionNotReady(f"partition {partition} of topic {topic!r} is being opened")

    def is_remote(self, read: ReadBacklog) -> bool:
        """Return whether another broker leads the partition of a read."""
        return isinstance(self._views.find(read.queue.topic, read.partition), RemotePartition)

    def read(self, read: ReadBacklog, deliver: Deliver) -> None:
        """Read some of a partition and give it to `deliver`, now or when a scan has ended.

        An outline that ends where it begins means that nothing can be read.
        """
        partition = self._views.find(read.queue.topic, read.partition)
        if partition is None:
            deliver(Outline((), read.offset))
            return
        if not read.is_committed:
            self._scans.read_uncommitted(partition, read, deliver)
            return
        # The scan may be for a queue without keys, or meet damage that a read skips: it is read again then.
        after = partial(self._read, partition, read, deliver, 1)
        if not self._scans.join(partition, read.offset, after):
            self._read(partition, read, deliver, 0)

    def _read(self, partition: AnyPartition, read: ReadBacklog, deliver: Deliver, scans: int) -> None:
        """Deliver what is known or can be read at once; else scan, unless scans have found nothing."""
        try:
            outline = self._known(partition, read) or self._loaded(partition, read, is_forced=scans > 0)
        except AlpacaError as error:
            self._scans.report(partition, error)
            outline = Outline((), read.offset)
        if outline is None and scans < _MAX_SCANS:
            after = partial(self._read, partition, read, deliver, scans + 1)
            self._scans.start(partition, read.offset, after, with_keys=read.with_keys)
        else:
            deliver(outline or Outline((), read.offset))

    def _known(self, partition: AnyPartition, read: ReadBacklog) -> Outline | None:
        """Return what a scan has found, or what a cached block holds."""
        stable_offset = partition.last_stable_offset
        if max(read.offset, partition.start_offset) >= stable_offset:
            return Outline((), read.offset)
        outline = self._scans.found(partition, read.offset)
        if outline is not None and not (read.with_keys and outline.ranges):
            self._spend(partition, _TURN_BYTES)
            return outline
        block = self._blocks.cached(partition, read.offset)
        return None if block is None else self._outline(partition, block, read)

    def _loaded(self, partition: AnyPartition, read: ReadBacklog, *, is_forced: bool) -> Outline | None:
        """Read a block on the event loop, unless too much was read in this turn; then None."""
        if self._turn_bytes.get(partition, 0) >= _TURN_BYTES and not is_forced:
            return None
        self._spend(partition, BLOCK_BYTES)
        offset, stable_offset = max(read.offset, partition.start_offset), partition.last_stable_offset
        try:
            block = self._blocks.load_now(partition, offset, stable_offset)
        except DamagedLog as error:
            if error.offsets is None or not is_only_copy(partition):
                raise
            self._scans.report_damage(partition, error)
            return Outline((), max(offset, min(error.offsets[1], stable_offset)))
        return None if block is None else self._outline(partition, block, read)

    def _outline(self, partition: AnyPartition, block: Block, read: ReadBacklog) -> Outline:
        if not read.with_keys and partition.last_stable_offset - block.next_offset > _FAR_MESSAGES:
            self._scans.start(partition, block.next_offset, with_keys=False)
        return block.outline(max(read.offset, partition.start_offset), with_keys=read.with_keys)

    def _spend(self, partition: AnyPartition, count: int) -> None:
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._turn_bytes.clear)
        self._turn_bytes[partition] = self._turn_bytes.get(partition, 0) + count
