"""Producer ids, each given once. They are promised by the block, so that few are written down."""

import asyncio
from collections import deque

from alpacamq.cluster.image import producer_ids_change
from alpacamq.model.ids import ProducerId

from .metadata_log import MetadataLog

BLOCK = 1000
LOW = 100


class ProducerIds:
    """A stock of ids that nobody has had."""

    def __init__(self, metadata: MetadataLog) -> None:
        self._metadata = metadata
        self._stock: deque[ProducerId] = deque()
        self._replenishing = asyncio.Lock()

    async def new(self) -> ProducerId:
        await self.replenish()
        return self.take()

    def take(self) -> ProducerId:
        """One from the stock, which `replenish` has filled."""
        return self._stock.popleft()

    @property
    def is_low(self) -> bool:
        return len(self._stock) < LOW

    async def replenish(self, wanted: int = LOW) -> None:
        """Return once there are enough for whatever comes next, which is known to need so many."""
        wanted = max(wanted, LOW)
        if len(self._stock) >= wanted:
            return
        async with self._replenishing:
            while len(self._stock) < wanted:
                first = self._metadata.image.next_producer_id
                await self._metadata.write([producer_ids_change(first + BLOCK)])
                self._stock.extend(ProducerId(number) for number in range(first, first + BLOCK))
