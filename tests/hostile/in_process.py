"""A broker with its Kafka API in this process, and the longest time that its event loop was blocked."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from alpacamq.api.kafka.call import Backend
from alpacamq.api.kafka.listener import Listener
from alpacamq.api.kafka.requests import KafkaRequests
from alpacamq.node.config import KafkaConfig
from alpacamq.node.serve import keep_collections_short
from tests.broker.open_brokers import running


class LoopTurns:
    """Measures the processor time of each turn of the event loop, which other processes do not add to."""

    def __init__(self) -> None:
        self._turns_s: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self._turns_s.append(now - before)
            before = now

    def take_longest_ms(self) -> float:
        """Return the longest turn since the last call."""
        return max(self._take()) * 1000

    def take_share_of_longer(self, than_ms: float) -> float:
        """Return which share of the time since the last call was spent in turns longer than `than_ms`.

        A machine that takes the processor away during one turn changes this little; a request that is served
        in one turn makes it nearly 1.
        """
        turns_s = self._take()
        return sum(turn_s for turn_s in turns_s if turn_s * 1000 > than_ms) / sum(turns_s)

    def _take(self) -> list[float]:
        turns_s, self._turns_s = self._turns_s, []
        return turns_s


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[tuple[tuple[str, int], LoopTurns]]:
    """The address of a broker's Kafka API, and the turns of its event loop."""
    async with running(path) as broker:
        listener = Listener("127.0.0.1", 0, KafkaConfig())
        host, port = listener.bind()
        turns = LoopTurns()
        requests = KafkaRequests(Backend(broker=broker, host=host, port=port))
        tasks = [asyncio.create_task(listener.run(requests)), asyncio.create_task(turns.run())]
        await listener.listening.wait()
        thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
        gc.freeze()  # excludes objects of other tests
        keep_collections_short()
        try:
            yield (host, port), turns
        finally:
            gc.unfreeze()
            gc.set_threshold(*thresholds)
            gc.callbacks[:] = callbacks
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
