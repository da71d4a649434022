"""For how long work holds the event loop at a time, in processor time: a busy machine does not count."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LoopHolds:
    """The longest that the loop's thread was busy between two turns of a task that is always ready."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.turns = 0

    async def watch(self) -> None:
        """Until cancelled."""
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_seconds = max(self.longest_seconds, now - before)
            self.turns += 1
            before = now


@asynccontextmanager
async def loop_holds() -> AsyncIterator[LoopHolds]:
    """Measures for the duration of the block, without the garbage of the tests before it."""
    holds = LoopHolds()
    gc.collect()
    gc.disable()
    watching = asyncio.create_task(holds.watch())
    await asyncio.sleep(0)
    try:
        yield holds
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        gc.enable()
