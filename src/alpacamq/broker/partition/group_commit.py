"""Flushes appended data to disk, off the event loop.

At most one flush per partition runs at a time; producers that start waiting meanwhile share the
next one. That is the group commit: a hundred waiting producers cost one fsync, not a hundred.

Flushes of different partitions run in parallel, one per thread. If more are queued than there are
threads, one thread takes many and they share their syncs. Flushes with waiters run first.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from time import monotonic

from alpacamq.log.flush import SYNCFS_THRESHOLD, Flush, run_flushes
from alpacamq.log.health import is_out_of_descriptors
from alpacamq.model.errors import AlpacaError, StorageFailed
from alpacamq.model.ports import Disk
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import FlushStats

from .leader import Partition

log = get_logger(__name__)

# Retry interval of a flush that could not open a file. After PATIENCE_SECONDS the waiting producers
# get an error; the records are still flushed once there are descriptors.
RETRY_MS = 100
PATIENCE_SECONDS = 5.0
# How often that is logged, for all partitions together.
REPORT_SECONDS = 10.0

# Flushes that share their syncs. The event loop begins and ends each, and must not be blocked for long.
GROUP = 64

Begun = Sequence[tuple[Partition, Flush]]
Results = tuple[float, Sequence[OSError | None]]


class GroupCommit:
    """Runs flushes, at most one per partition at a time, in `slots` threads of `executor`."""

    def __init__(
        self,
        executor: Executor,
        stats: FlushStats | None = None,
        *,
        disk: Disk,
        root: Path,
        slots: int,
    ) -> None:
        self._executor = executor
        self._stats = stats
        self._disk = disk
        self._root = root
        self._free_slots = slots
        self._running: dict[Partition, asyncio.Future[Results]] = {}
        self._again: set[Partition] = set()
        self._timers: dict[Partition, asyncio.TimerHandle] = {}
        # In order; a partition is in one of them at most, and in none while its flush runs.
        self._urgent: dict[Partition, None] = {}
        self._due: dict[Partition, None] = {}
        self._runs_due = False
        # Flushes that wait for descriptors, and since when.
        self._postponed: dict[Partition, float] = {}
        self._report_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None  # before the first append

    def now(self, partition: Partition) -> None:
        """Flush now, or as soon as the running flush has ended."""
        if partition in self._running:
            self._again.add(partition)
            return
        self._stop_timer(partition)
        self._due.pop(partition, None)
        self._urgent[partition] = None
        self._start()

    def within(self, partition: Partition, delay_ms: int) -> None:
        """Flush about `delay_ms` from now at the latest."""
        if partition in self._due:
            return
        if (loop := self._loop) is None:
            loop = self._loop = asyncio.get_running_loop()
        if (timer := self._timers.get(partition)) is not None:
            if timer.when() <= loop.time() + delay_ms / 1000:
                return
            timer.cancel()  # flush.ms has been lowered
        self._timers[partition] = loop.call_later(delay_ms / 1000, self._timer_fired, partition)

    async def quiesce(self, partition: Partition) -> None:
        """Return once no flush of this partition is running or queued."""
        while True:
            # Each time: the flush that ended may have been postponed or queued again.
            self._stop_timer(partition)
            self._again.discard(partition)
            self._urgent.pop(partition, None)
            self._due.pop(partition, None)
            if (running := self._running.get(partition)) is None:
                break
            await asyncio.wait([running])
            await asyncio.sleep(0)  # let its callback run
        self._postponed.pop(partition, None)

    def _stop_timer(self, partition: Partition) -> None:
        if (timer := self._timers.pop(partition, None)) is not None:
            timer.cancel()

    def _postpone(self, partition: Partition, error: BaseException) -> None:
        """Retry shortly: no data is in doubt, there was no file descriptor."""
        now = monotonic()
        if self._stats is not None:
            self._stats.postponed += 1
        if now >= self._report_at:
            self._report_at = now + REPORT_SECONDS
            log.error("flush_postponed", partition=str(partition.identity), reason=str(error))
        waiting_since = self._postponed.setdefault(partition, now)
        if now - waiting_since > PATIENCE_SECONDS and not partition.always_waits_for_flush:
            partition.flush_failed(StorageFailed(f"{partition.identity}: flushing waits for descriptors"))
        self.within(partition, RETRY_MS)

    def _timer_fired(self, partition: Partition) -> None:
        del self._timers[partition]
        if partition in self._running:
            self._again.add(partition)
        elif partition not in self._urgent:
            self._due[partition] = None
            self._start()

    def _start(self) -> None:
        """Start flushes in free threads. Those without waiters use one thread at most."""
        # These first, or producers that wait for every batch would starve them.
        while self._free_slots and self._due and not self._runs_due:
            self._run(_take(self._due), is_due=True)
        while self._free_slots and self._urgent:
            self._run(_take(self._urgent), is_due=False)

    def _run(self, partitions: Sequence[Partition], *, is_due: bool) -> None:
        begun: list[tuple[Partition, Flush]] = []
        for partition in partitions:
            try:
                flush = partition.log.begin_flush()
            except AlpacaError as error:
                if is_out_of_descriptors(error):
                    self._postpone(partition, error)
                    continue
                log.error("flush_not_begun", partition=str(partition.identity), reason=str(error))
                partition.flush_failed(error)
                continue
            if flush is None:
                self._postponed.pop(partition, None)
                partition.flushed()
            else:
                begun.append((partition, flush))
        if not begun:
            return
        self._free_slots -= 1
        self._runs_due = self._runs_due or is_due
        flushes = [flush for _, flush in begun]
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._flush, flushes)
        for partition, _ in begun:
            self._running[partition] = future
        future.add_done_callback(lambda ended: self._ended(begun, ended, is_due=is_due))

    def _flush(self, flushes: Sequence[Flush]) -> Results:
        """Run flushes in a thread; return their duration, without time in the queue, and their errors."""
        began_at = monotonic()
        errors = run_flushes(self._disk, self._root, flushes)
        return monotonic() - began_at, errors

    def _ended(self, begun: Begun, ended: "asyncio.Future[Results]", *, is_due: bool) -> None:
        self._free_slots += 1
        if is_due:
            self._runs_due = False
        errors: Sequence[OSError | None]
        if (crash := ended.exception()) is None:
            seconds, errors = ended.result()
        else:
            seconds, errors = 0.0, [OSError(f"flush failed: {crash!r}")] * len(begun)
        for (partition, flush), error in zip(begun, errors, strict=True):
            self._end(partition, flush, error, seconds)
        self._start()

    def _end(self, partition: Partition, flush: Flush, error: OSError | None, seconds: float) -> None:
        del self._running[partition]
        if self._stats is not None:
            if error is None:
                self._stats.seconds.observe(seconds)
            elif not is_out_of_descriptors(error):
                self._stats.failed += 1
        partition.log.end_flush(flush, error)
        if error is not None and is_out_of_descriptors(error):
            self._again.discard(partition)
            self._postpone(partition, error)
            return
        self._postponed.pop(partition, None)
        if error is not None:
            log.error("flush_failed", partition=str(partition.identity), reason=str(error))
        again = partition in self._again
        self._again.discard(partition)
        partition.flushed()
        if again and error is None:
            self.now(partition)


def _take(waiting: dict[Partition, None]) -> list[Partition]:
    """Take the first partition, or as many as can share their syncs if many wait."""
    count = min(len(waiting), GROUP) if len(waiting) >= SYNCFS_THRESHOLD else 1
    taken = [partition for partition, _ in zip(waiting, range(count), strict=False)]
    for partition in taken:
        del waiting[partition]
    return taken
