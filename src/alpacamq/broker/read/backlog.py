"""Looking through partitions in the background, for what would take too long on the event loop."""

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
from alpacamq.queues.views import Outline, Run
from alpacamq.telemetry.logs import get_logger

from .block_cache import BLOCK_BYTES, StoredBlocks, in_thread, passed_over, read_all, verified_read
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

# Called with topic and partition when more of it is known.
Told = Callable[[str, int], None]


class _Scan:
    """A scan under way, and whom to tell when it has ended."""

    __slots__ = ("ended", "told")

    def __init__(self) -> None:
        self.told: set[Told] = set()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()


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

    def is_under_way(self, partition: Partition, offset: int) -> bool:
        """Whether a scan from `offset` has begun: who asked for it is told when it ends."""
        return (partition, offset) in self._scans

    def start(self, partition: Partition, offset: int, told: Told, *, with_keys: bool) -> None:
        """Look at what lies from `offset` on, unless that is being done already."""
        key = (partition, offset)
        if self._tasks is None or key in self._found:
            return
        if (scan := self._scans.get(key)) is None:
            scan = self._scans[key] = _Scan()
            self._tasks.create_task(self._scan(partition, offset, scan, with_keys=with_keys))
        scan.told.add(told)

    async def ended(self, topic: str) -> bool:
        """Wait for the scans of a topic; false if there are none."""
        ending = [
            scan.ended for (partition, _), scan in self._scans.items() if partition.identity.topic == topic
        ]
        if ending:
            await asyncio.wait(ending)
        return bool(ending)

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
            for told in scan.told:
                told(*partition.identity)
        finally:
            del self._scans[partition, offset]
            scan.ended.set_result(None)
        if next_offset is not None and len(self._unasked.get(partition, ())) < _AHEAD:
            for told in scan.told:
                self.start(partition, next_offset, told, with_keys=False)

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
        aborted = partition.log.transactions.aborted_between(offset, part.next_offset)
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
    ) -> tuple[list[Run], float]:
        """What lies in a slice, and how long this thread worked on it."""
        began = thread_time()
        runs = outlined(read_all(part), aborted, self._unpacked_limit_bytes, passed_over(partition))
        kept = [
            run if run.first >= offset else run._replace(first=offset) for run in runs if run.last >= offset
        ]
        return kept, thread_time() - began

    def _keep(self, key: tuple[Partition, int], outline: Outline) -> None:
        if key in self._found:
            self._drop(key)
        self._found[key] = outline
        self._found_runs += len(outline.runs) + 1
        while self._found_runs > _MAX_RUNS and len(self._found) > 1:
            self._drop(next(iter(self._found)))

    def _drop(self, key: tuple[Partition, int]) -> None:
        self._found_runs -= len(self._found.pop(key).runs) + 1
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


class QueueLog:
    """The partitions of all topics in outline, for all shards."""

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

    def outline(self, topic: str, partition: int, offset: int, told: Told, *, with_keys: bool) -> Outline:
        """What lies from `offset` on, as far as it is known; `told` is called when there is more."""
        nothing = Outline((), offset)
        if (found := self._topics.find(topic.encode(), partition)) is None:
            return nothing
        offset = max(offset, found.log.start_offset)
        stable_offset = found.last_stable_offset
        if offset >= stable_offset:
            return Outline((), offset)
        if not with_keys and (outline := self._scans.found(found, offset)) is not None:
            self._spend(found, _TURN_BYTES)
            return outline
        if self._scans.is_under_way(found, offset):
            self._scans.start(found, offset, told, with_keys=with_keys)  # not anew: to be told as well
            return nothing
        block = self._blocks.cached(found, offset)
        if block is None and self._turn_bytes.get(found, 0) < _TURN_BYTES:
            self._spend(found, BLOCK_BYTES)
            try:
                block = self._blocks.load_now(found, offset, stable_offset)
            except DamagedLog as error:
                if error.offsets is None:
                    self._scans.report(found, error)
                    return nothing
                self._scans.passed_over(found, error)
                return Outline((), max(offset, min(error.offsets[1], stable_offset)))
            except AlpacaError as error:
                self._scans.report(found, error)
                return nothing
        if block is None:
            self._scans.start(found, offset, told, with_keys=with_keys)
            return nothing
        if not with_keys and stable_offset - block.next_offset > _FAR_MESSAGES:
            self._scans.start(found, block.next_offset, told, with_keys=False)
        return block.outline(offset, with_keys=with_keys)

    def _spend(self, partition: Partition, count: int) -> None:
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._turn_bytes.clear)
        self._turn_bytes[partition] = self._turn_bytes.get(partition, 0) + count


class ShardView:
    """The log as the engine of one shard sees it, which is told when there is more."""

    def __init__(self, log: QueueLog, told: Told) -> None:
        self._log = log
        self._told = told

    def config(self, topic: str) -> TopicConfig | None:
        return self._log.config(topic)

    def partitions(self, topic: str) -> int:
        return self._log.partitions(topic)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._log.bounds(topic, partition)

    def cut_offset(self, topic: str, partition: int) -> int | None:
        return self._log.cut_offset(topic, partition)

    def outline(self, topic: str, partition: int, offset: int, *, with_keys: bool) -> Outline:
        return self._log.outline(topic, partition, offset, self._told, with_keys=with_keys)
