"""Waiting until something more can be read in some partitions."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from alpacamq.broker.partition import Partition


class Arrivals:
    """Hears when any of some partitions has more to read."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return when something has arrived since the last wait, or when the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return
        self._arrived.clear()

    def wake(self, _added_bytes: int) -> None:
        self._arrived.set()


@contextmanager
def arrivals(partitions: Iterable[Partition]) -> Iterator[Arrivals]:
    """Listen to these partitions within the block."""
    watched = list(partitions)
    heard = Arrivals()
    for partition in watched:
        partition.watch(heard, heard.wake)
    try:
        yield heard
    finally:
        for partition in watched:
            partition.unwatch(heard)
