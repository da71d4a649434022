"""Producer ids that were never used before, reserved in blocks at the controller."""

import asyncio
from collections import deque

from alpacamq.cluster.commands import AllocateProducerIds
from alpacamq.model.errors import CoordinatorLoading
from alpacamq.model.ids import ProducerId

from .metadata.metadata import Metadata

BLOCK = 1000
LOW = 100


class ProducerIds:
    """Allocates producer ids from a stock of reserved ones."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._stock: deque[ProducerId] = deque()
        self._replenishing = asyncio.Lock()

    async def new(self) -> ProducerId:
        await self.replenish()
        return self.take()

    def take(self) -> ProducerId:
        """Take an id from the stock that `replenish` has filled. Raises CoordinatorLoading if it is empty."""
        if not self._stock:
            raise CoordinatorLoading("no producer ids are reserved yet")
        return self._stock.popleft()

    @property
    def is_low(self) -> bool:
        return len(self._stock) < LOW

    async def replenish(self, wanted: int = LOW) -> None:
        """Return once the stock holds at least `wanted` ids."""
        wanted = max(wanted, LOW)
        if len(self._stock) >= wanted:
            return
        async with self._replenishing:
            while len(self._stock) < wanted:
                block = await self._metadata.ask(AllocateProducerIds(count=BLOCK))
                self._stock.extend(ProducerId(block.first + number) for number in range(block.count))
