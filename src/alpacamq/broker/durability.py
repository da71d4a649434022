"""Getting appended data onto the medium, off the event loop.

One fsync per partition is under way at a time; whoever starts waiting meanwhile shares the
next one. That is the group commit: a hundred waiting producers cost one fsync, not a hundred.
"""

import asyncio
from concurrent.futures import Executor
from time import monotonic

from alpacamq.log.flush import Flush
from alpacamq.model.errors import AlpacaError
from alpacamq.telemetry.logs import get_logger
from alpacamq.telemetry.metrics import FlushFigures

from .partition import Partition

log = get_logger(__name__)


class GroupCommit:
    """Runs flushes, at most one per partition at a time."""

    def __init__(self, executor: Executor, figures: FlushFigures | None = None) -> None:
        self._executor = executor
        self._figures = figures
        self._running: dict[Partition, asyncio.Future[float]] = {}
        self._again: set[Partition] = set()
        self._timers: dict[Partition, asyncio.TimerHandle] = {}

    def now(self, partition: Partition) -> None:
        """Flush as soon as the flush under way, if any, has ended."""
        if partition in self._running:
            self._again.add(partition)
            return
        if (timer := self._timers.pop(partition, None)) is not None:
            timer.cancel()
        try:
            flush = partition.log.begin_flush()
        except AlpacaError as error:
            log.error("flush_not_begun", partition=str(partition.identity), reason=str(error))
            partition.flush_failed(error)
            return
        if flush is None:
            partition.flushed()
            return
        future = asyncio.get_running_loop().run_in_executor(self._executor, _run, flush)
        self._running[partition] = future
        future.add_done_callback(lambda ended: self._ended(partition, flush, ended))

    def within(self, partition: Partition, delay_ms: int) -> None:
        """Flush at most `delay_ms` from now."""
        loop = asyncio.get_running_loop()
        if (timer := self._timers.get(partition)) is not None:
            if timer.when() <= loop.time() + delay_ms / 1000:
                return
            timer.cancel()  # flush.ms has been lowered
        self._timers[partition] = loop.call_later(delay_ms / 1000, self._due, partition)

    async def quiesce(self, partition: Partition) -> None:
        """Return once no flush of this partition is under way or due."""
        if (timer := self._timers.pop(partition, None)) is not None:
            timer.cancel()
        while (running := self._running.get(partition)) is not None:
            await asyncio.wait([running])
            await asyncio.sleep(0)  # let its callback run

    def _due(self, partition: Partition) -> None:
        del self._timers[partition]
        self.now(partition)

    def _ended(self, partition: Partition, flush: Flush, ended: "asyncio.Future[float]") -> None:
        del self._running[partition]
        error = ended.exception()
        if self._figures is not None:
            if error is None:
                self._figures.seconds.observe(ended.result())
            else:
                self._figures.failed += 1
        if error is not None and not isinstance(error, OSError):
            error = OSError(f"flush failed: {error!r}")
        partition.log.end_flush(flush, error)
        if error is not None:
            log.error("flush_failed", partition=str(partition.identity), reason=str(error))
        again = partition in self._again
        self._again.discard(partition)
        partition.flushed()
        if again and error is None:
            self.now(partition)


def _run(flush: Flush) -> float:
    """In a thread: how long it took, without the time it waited for a thread."""
    began_at = monotonic()
    flush.run()
    return monotonic() - began_at
