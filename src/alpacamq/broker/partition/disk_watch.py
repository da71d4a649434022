"""Watches for failures of the disk: whether other brokers should lead, and when it works again.

A write that failed is retried by producers and fetches, a read here. What cannot be read for long is given up
where another broker leads, and fetched from there. A log whose flush has failed is reported as damaged and is
not the business of this module.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from time import monotonic

from alpacamq.model.errors import AlpacaError, DataInDoubt, DiskFull, StorageFailed
from alpacamq.telemetry.logs import get_logger

from .leader import Partition

log = get_logger(__name__)

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
        self._unreadable = {each: since for each, since in self._unreadable.items() if each.log.unreadable}
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
