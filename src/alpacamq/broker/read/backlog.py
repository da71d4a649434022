"""Reads backlogs for queues: what is cached or small at once, the rest by scans in threads."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from time import thread_time

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.readable import Readable
from alpacamq.broker.topics import Topics
from alpacamq.model.errors import AlpacaError, DamagedLog
from alpacamq.model.ports import Clock
from alpacamq.model.topics import TopicConfig
from alpacamq.queues.messages import ReadBacklog
from alpacamq.queues.views import OffsetRange, Outline
from alpacamq.telemetry.logs import get_logger

from .block_cache import BLOCK_BYTES, Block, StoredBlocks, in_thread, passed_over, verified_read
from .lane_index import outlined

log = get_logger(__name__)

# A scan is as long as it may be without keeping the interpreter, which it shares with the event loop, from
# that for long. Batches of few records take longer than bytes.
_MIN_SCAN_BYTES = 1 << 20
_MAX_SCAN_BYTES = 4 << 20
_SHORT_SECONDS = 0.004
_LONG_SECONDS = 0.016
# Then it rests as long as it worked.
_LONGEST_REST_SECONDS = 0.1
_SCANS_AT_ONCE = 2
# How many scans go on ahead of those who ask.
_AHEAD = 4
_MAX_RUNS = 200_000

Deliver = Callable[[Outline], None]


class _Scan:
    """A scan in progress, and the reads that wait for it."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []


class BacklogScans:
    """Scans under way, and what the last ones found. `run` owns their tasks."""

    def __init__(
        self, blocks: StoredBlocks, clock: Clock, executor: Executor, *, unpacked_limit_bytes: int
    ) -> None:
        self._blocks = blocks
        self._clock = clock
        self._executor = executor
        self._unpacked_limit_bytes = unpacked_limit_bytes
        self._scans: dict[tuple[Partition, int], _Scan] = {}
        self._found: OrderedDict[tuple[Partition, int], Outline] = OrderedDict()
        self._found_runs = 0
        self._room = asyncio.Semaphore(_SCANS_AT_ONCE)
        self._unasked: dict[Partition, set[int]] = {}
        self._scan_bytes = _MIN_SCAN_BYTES
        self._rest_until = 0.0
        self._tasks: asyncio.TaskGroup | None = None
        self._failing: set[Partition] = set()
        self._passed_over: set[tuple[Partition, tuple[int, int] | None]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await asyncio.Event().wait()
            finally:
                self._tasks = None  # nothing new begins while the rest ends

    def found(self, partition: Partition, offset: int) -> Outline | None:
        """What a scan from `offset` found, if that is not long ago."""
        if (outline := self._found.get((partition, offset))) is not None:
            self._asked(partition, offset)
        return outline

    def start(
        self, partition: Partition, offset: int, then: Callable[[], None] | None = None, *, with_keys: bool
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

    def join(self, partition: Partition, offset: int, then: Callable[[], None]) -> bool:
        """Wait for a scan from `offset` that is in progress; false if there is none."""
        if (scan := self._scans.get((partition, offset))) is None:
            return False
        scan.waiting.append(then)
        return True

    def forget(self, topic: str) -> None:
        """The topic is no more."""
        for key in [key for key in self._found if key[0].identity.topic == topic]:
            self._drop(key)
        self._failing = {partition for partition in self._failing if partition.identity.topic != topic}
        self._passed_over = {each for each in self._passed_over if each[0].identity.topic != topic}

    def report(self, partition: Partition, error: Exception) -> None:
        """Say once that a partition cannot be read; a queue goes no further there."""
        if partition not in self._failing:
            self._failing.add(partition)
            say = log.error if isinstance(error, AlpacaError) else log.exception
            say("queue_cannot_read", partition=str(partition.identity), reason=str(error))

    def passed_over(self, partition: Partition, error: DamagedLog) -> None:
        """Say once that queues go on behind what is damaged."""
        if (partition, error.offsets) not in self._passed_over:
            self._passed_over.add((partition, error.offsets))
            log.error("queue_passes_over_damage", partition=str(partition.identity), reason=str(error))

    async def _scan(self, partition: Partition, offset: int, scan: _Scan, *, with_keys: bool) -> None:
        next_offset = None
        try:
            async with self._room:
                await asyncio.sleep(max(self._rest_until - self._clock.monotonic(), 0))
                next_offset = await self._look(partition, offset, with_keys=with_keys)
        except Exception as error:  # noqa: BLE001 - a bug costs the queues of one partition, not the broker
            self.report(partition, error)
        else:
            self._failing.discard(partition)
        finally:
            del self._scans[partition, offset]
            for then in scan.waiting:
                then()
        if next_offset is not None and len(self._unasked.get(partition, ())) < _AHEAD:
            self.start(partition, next_offset, with_keys=False)

    async def _look(self, partition: Partition, offset: int, *, with_keys: bool) -> int | None:
        """Look at some of what follows; where to go on, if that is far from the end."""
        stable_offset = partition.last_stable_offset
        try:
            part = await verified_read(partition, offset, self._scan_bytes, stable_offset, self._executor)
        except DamagedLog:
            return None  # who asks again is told to go on behind it
        if part is None:
            return None
        if with_keys or (part.next_offset == stable_offset and part.length <= _MIN_SCAN_BYTES):
            part.release()
            # Near the end, what is looked at is delivered soon: it is worth keeping.
            await self._blocks.load(partition, offset, stable_offset)
            return None
        aborted = partition.aborted_between(offset, part.next_offset)
        runs, seconds = await in_thread(self._executor, part, self._runs_of, partition, part, offset, aborted)
        self._keep((partition, offset), Outline(runs, part.next_offset))
        self._unasked.setdefault(partition, set()).add(offset)
        if seconds < _SHORT_SECONDS:
            self._scan_bytes = min(2 * self._scan_bytes, _MAX_SCAN_BYTES)
        elif seconds > _LONG_SECONDS:
            self._scan_bytes = max(self._scan_bytes // 2, _MIN_SCAN_BYTES)
        self._rest_until = self._clock.monotonic() + min(seconds, _LONGEST_REST_SECONDS)
        return part.next_offset

    def _runs_of(
        self, partition: Partition, part: Readable, offset: int, aborted: Sequence[tuple[int, int]]
    ) -> tuple[list[OffsetRange], float]:
        """What lies in a slice, and how long this thread worked on it."""
        began = thread_time()
        runs = outlined(part.read(), aborted, self._unpacked_limit_bytes, passed_over(partition))
        kept = [
            run if run.first >= offset else run._replace(first=offset) for run in runs if run.last >= offset
        ]
        return kept, thread_time() - began

    def _keep(self, key: tuple[Partition, int], outline: Outline) -> None:
        if key in self._found:
            self._drop(key)
        self._found[key] = outline
        self._found_runs += len(outline.ranges) + 1
        while self._found_runs > _MAX_RUNS and len(self._found) > 1:
            self._drop(next(iter(self._found)))

    def _drop(self, key: tuple[Partition, int]) -> None:
        self._found_runs -= len(self._found.pop(key).ranges) + 1
        self._asked(*key)

    def _asked(self, partition: Partition, offset: int) -> None:
        if (unasked := self._unasked.get(partition)) is not None:
            unasked.discard(offset)
            if not unasked:
                del self._unasked[partition]


# What one partition may have read on the event loop in one turn of it.
_TURN_BYTES = 4 * BLOCK_BYTES
# With more than this behind what was read, the rest is looked through ahead of the next question.
_FAR_MESSAGES = 2000


class BacklogReader:
    """Reads partitions in outline, for all queues."""

    def __init__(self, topics: Topics, blocks: StoredBlocks, scans: BacklogScans) -> None:
        self._topics = topics
        self._blocks = blocks
        self._scans = scans
        self._turn_bytes: dict[Partition, int] = {}

    def config(self, topic: str) -> TopicConfig | None:
        partitions = self._topics.partitions_of(topic)
        return partitions[0].config if partitions else None

    def partitions(self, topic: str) -> int:
        return len(self._topics.partitions_of(topic))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        found = self._topics.find(topic.encode(), partition)
        return (0, 0) if found is None else (found.log.start_offset, found.last_stable_offset)

    def cut_offset(self, topic: str, partition: int) -> int | None:
        found = self._topics.find(topic.encode(), partition)
        return None if found is None else found.cut_offset

    def read(self, read: ReadBacklog, deliver: Deliver) -> None:
        """Read some of a partition and give it to `deliver`, now or when a scan has ended.

        An outline that ends where it begins says that nothing can be read.
        """
        partition = self._topics.find(read.queue.topic.encode(), read.partition)
        if partition is None:
            deliver(Outline((), read.offset))
            return

        def after_scan() -> None:
            outline = self._known(partition, read)
            deliver(Outline((), read.offset) if outline is None else outline)

        if self._scans.join(partition, read.offset, after_scan):
            return
        try:
            outline = self._known(partition, read) or self._loaded(partition, read)
        except AlpacaError as error:
            self._scans.report(partition, error)
            outline = Outline((), read.offset)
        if outline is None:
            self._scans.start(partition, read.offset, after_scan, with_keys=read.with_keys)
        else:
            deliver(outline)

    def _known(self, partition: Partition, read: ReadBacklog) -> Outline | None:
        """Return what a scan has found, or what a cached block holds."""
        stable_offset = partition.last_stable_offset
        if max(read.offset, partition.start_offset) >= stable_offset:
            return Outline((), read.offset)
        if not read.with_keys and (outline := self._scans.found(partition, read.offset)) is not None:
            self._spend(partition, _TURN_BYTES)
            return outline
        block = self._blocks.cached(partition, read.offset)
        return None if block is None else self._outline(partition, block, read)

    def _loaded(self, partition: Partition, read: ReadBacklog) -> Outline | None:
        """Read a block on the event loop, unless too much was read in this turn; then None."""
        if self._turn_bytes.get(partition, 0) >= _TURN_BYTES:
            return None
        self._spend(partition, BLOCK_BYTES)
        offset, stable_offset = max(read.offset, partition.start_offset), partition.last_stable_offset
        try:
            block = self._blocks.load_now(partition, offset, stable_offset)
        except DamagedLog as error:
            if error.offsets is None:
                raise
            self._scans.passed_over(partition, error)
            return Outline((), max(offset, min(error.offsets[1], stable_offset)))
        return None if block is None else self._outline(partition, block, read)

    def _outline(self, partition: Partition, block: Block, read: ReadBacklog) -> Outline:
        if not read.with_keys and partition.last_stable_offset - block.next_offset > _FAR_MESSAGES:
            self._scans.start(partition, block.next_offset, with_keys=False)
        return block.outline(max(read.offset, partition.start_offset), with_keys=read.with_keys)

    def _spend(self, partition: Partition, count: int) -> None:
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._turn_bytes.clear)
        self._turn_bytes[partition] = self._turn_bytes.get(partition, 0) + count
