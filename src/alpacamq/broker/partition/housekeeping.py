"""Looks after partitions in the background: retention, compaction, rolling by time, and failing disks.

Visits every partition in turn. The decision takes microseconds on the event loop; the file work runs in a
thread. A partition whose disk fails is reported and skipped; `DiskWatch` tells the node when its disk has
no room or cannot be written or read.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from time import monotonic

from alpacamq.model.errors import AlpacaError, DataInDoubt, DiskFull, StorageFailed
from alpacamq.model.ports import Clock
from alpacamq.telemetry.logs import get_logger

from .leader import Partition

log = get_logger(__name__)


class Housekeeping:
    """Applies retention and compaction to every partition."""

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        executor: Executor,
        clock: Clock,
        interval_ms: int,
        is_worth_compacting: Callable[[Partition], bool] = lambda _partition: True,
    ) -> None:
        """Compact only partitions for which `is_worth_compacting` is true; the log itself cannot tell."""
        self._partitions = partitions
        self._executor = executor
        self._clock = clock
        self._interval_ms = interval_ms
        self._is_worth_compacting = is_worth_compacting
        self._reported: set[str] = set()
        self._compacting: dict[Partition, asyncio.Event] = {}

    async def run(self) -> None:
        """Visit all partitions periodically until cancelled."""
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            for partition in list(self._partitions()):
                await self.clean(partition)

    async def clean(self, partition: Partition) -> None:
        """Clean one partition and log errors."""
        try:
            await self._clean(partition)
        except (AlpacaError, OSError) as error:
            log.error("housekeeping_failed", partition=str(partition.identity), reason=str(error))
        except Exception:
            log.exception("housekeeping_crashed", partition=str(partition.identity))

    def _report_damage(self, partition: Partition) -> None:
        """Log damage that readers have found, once."""
        for damage in partition.log.damages:
            if str(damage) not in self._reported:
                self._reported.add(str(damage))
                log.error("damage_found", partition=str(partition.identity), reason=str(damage))

    async def _clean(self, partition: Partition) -> None:
        self._report_damage(partition)
        now_ms = self._clock.now_ms()
        async with partition.files:
            if partition.is_leading:
                await self._remove_expired(partition, now_ms)
            elif partition.following is not None:
                await self._follow_start(partition, partition.following.leader_start_offset, now_ms)
        if self._is_worth_compacting(partition) and partition not in self._compacting:
            await self._compact(partition, now_ms)

    async def _remove_expired(self, partition: Partition, now_ms: int) -> None:
        partition.log.roll_if_due(now_ms)
        removal = partition.log.begin_retention(now_ms, limit_offset=partition.high_watermark)
        if removal is None:
            return
        # A log start beyond the end that a power cut leaves would hide the next appends. On a
        # full disk the flush is skipped: the removal is what frees space.
        with suppress(StorageFailed):
            await partition.flush_to(removal.start_offset)
        await self._in_thread(removal.run)
        partition.start_moved()
        log.info("segments_deleted", partition=str(partition.identity), start_offset=removal.start_offset)

    async def _follow_start(self, partition: Partition, leader_start: int, now_ms: int) -> None:
        """Remove what the leader has removed: only a leader decides on retention."""
        partition.log.roll_if_due(now_ms)
        # What is not on disk may be lost, and the log would start behind its end.
        start_offset = min(leader_start, partition.log.flushed_offset, partition.high_watermark)
        if start_offset > partition.log.start_offset:
            await self._in_thread(partition.log.begin_delete_before(start_offset).run)
        if (removal := partition.log.begin_trim(now_ms)) is not None:
            await self._in_thread(removal.run)

    async def compact(self, partition: Partition) -> bool:
        """Compact a partition now, up to its last record; return whether there was anything to compact.

        Records of open transactions and those after them are left.
        """
        await partition.seal()
        while (running := self._compacting.get(partition)) is not None:
            await running.wait()
        return await self._compact(partition, self._clock.now_ms(), force=True)

    async def _compact(self, partition: Partition, now_ms: int, *, force: bool = False) -> bool:
        compaction = None
        if not partition.files.locked():  # a log that is being truncated is compacted later
            compaction = partition.log.begin_compaction(
                now_ms,
                limit_offset=partition.high_watermark,
                tombstone_limit_offset=tombstone_limit(partition),
                force=force,
            )
        if compaction is None:
            return False
        ended = self._compacting[partition] = asyncio.Event()
        try:
            try:
                await self._in_thread(compaction.run)
            except asyncio.CancelledError:
                compaction.cancel()  # shutdown does not wait for the whole log
                raise
            try:
                partition.log.end_compaction(compaction)
            finally:
                await self._in_thread(compaction.free_replaced)
        finally:
            del self._compacting[partition]
            ended.set()
        log.info("log_compacted", partition=str(partition.identity), size_bytes=partition.log.size_bytes)
        return True

    async def _in_thread(self, work: Callable[[], None]) -> None:
        # Never cancelled half-way: a shutdown waits for the running step.
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(
                lambda ended: ended.cancelled() or ended.exception()
            )  # retrieved, so not logged
            raise


def tombstone_limit(partition: Partition) -> int:
    """Return the offset before which every replica has every record.

    A replica that ends before a tombstone would keep the value that it deletes, if no other has the
    tombstone any more.
    """
    return 0 if partition.is_under_replicated else partition.high_watermark


# How often a disk that fails is tried again.
RETRY_SECONDS = 1.0
# A write that failed counts this long if none has succeeded: another to the same file may fail again.
REFUSED_SECONDS = 10.0
# How long a file that cannot be read is tried before it is given up.
UNREADABLE_SECONDS = 30.0


class DiskWatch:
    """The failures of one broker's disk. `run` keeps `failure` up to date."""

    def __init__(
        self,
        partitions: Callable[[], Iterable[Partition]],
        executor: Executor,
        can_write: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        """`can_write` tries a write, and may block; `changed` tells the controller how the replicas are."""
        self._partitions = partitions
        self._executor = executor
        self._can_write = can_write
        self._changed = changed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        # Since when partitions cannot be read.
        self._unreadable: dict[Partition, float] = {}
        # When the last write was tried that found room; writes that were refused before may succeed now.
        self.room_s = -math.inf
        # Why this broker can neither lead nor keep up; None if it can.
        self.failure: StorageFailed | None = None

    def look(self) -> None:
        """Look at the partitions soon: one has failed, or is sound again. In any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Watch until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._wake.set()
        while True:
            try:
                async with asyncio.timeout(None if self.failure is None else RETRY_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            is_news = self._wake.is_set()
            self._wake.clear()
            former = self.failure
            await self._look()
            if former is None and self.failure is not None:
                log.error("disk_failing", reason=str(self.failure))
            elif former is not None and self.failure is None:
                log.info("disk_works")
            if is_news or (former is None) != (self.failure is None):
                self._changed()

    async def _look(self) -> None:
        """Find out what fails now; what may work again is tried."""
        failures = self._refusals()
        if failures and all(isinstance(each, DiskFull) for each in failures) and await self._has_room():
            failures = []
        unreadable = [each for each in self._partitions() if each.log.unreadable is not None]
        for partition in unreadable:
            await self._retry(partition)
        # Not those that were deleted or moved away meanwhile: nothing reads them again.
        present = set(self._partitions())
        self._unreadable = {
            each: since for each, since in self._unreadable.items() if each in present and each.log.unreadable
        }
        failures += [StorageFailed(each.log.unreadable or "") for each in self._unreadable]
        self.failure = failures[0] if failures else None

    def _refusals(self) -> list[StorageFailed]:
        """Return the errors of writes that failed a short time ago, or for lack of room."""
        found = []
        for partition in self._partitions():
            refusal = partition.refusal
            if not isinstance(refusal, StorageFailed) or isinstance(refusal, DataInDoubt):
                continue
            if isinstance(refusal, DiskFull) or monotonic() - partition.refused_s < REFUSED_SECONDS:
                found.append(refusal)
        return found

    async def _has_room(self) -> bool:
        tried_s = monotonic()
        has_room = await asyncio.get_running_loop().run_in_executor(self._executor, self._can_write)
        if has_room:
            self.room_s = tried_s
        return has_room

    async def _retry(self, partition: Partition) -> None:
        """Read again what could not be read."""
        name, reason = str(partition.identity), partition.log.unreadable
        if partition not in self._unreadable:
            self._unreadable[partition] = monotonic()
            log.error("read_failed", partition=name, reason=reason)
            return  # at once it would most likely fail again
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, partition.log.retry_reads)
        is_over = monotonic() - self._unreadable[partition] >= UNREADABLE_SECONDS
        if partition.log.unreadable is not None and is_over and partition.following is not None:
            log.error("unreadable_replica_given_up", partition=name, reason=reason)
            try:
                await loop.run_in_executor(self._executor, partition.log.give_up_reading)
            except AlpacaError as error:
                log.error("loss_not_recorded", partition=name, reason=str(error))
            self._changed()
