"""How old the oldest message is that a queue has not done with.

The age is that of the message's batch, whose header is read; which messages those were is remembered, so that
a queue that stands still is not read again and again.
"""

import asyncio
import os
from collections.abc import Iterable

from alpacamq.api.rest.exposition import Labels
from alpacamq.broker.broker import Broker
from alpacamq.model.batch import HEADER_BYTES, read_header
from alpacamq.model.errors import AlpacaError
from alpacamq.queues.messages import DescribeReply

# Headers read each time; a queue that is left out this time has its turn the next.
MAX_READS = 500

# Topic, partition and offset.
_Place = tuple[str, int, int]


class OldestMessages:
    """When the first message of each queue's partitions was written."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._written_ms: dict[_Place, int] = {}

    async def ages(self, queues: Iterable[DescribeReply]) -> dict[Labels, float]:
        """Seconds by queue; 0 where there is nothing to be done."""
        places = {queue.queue: _places(queue) for queue in queues}
        wanted = {place for each in places.values() for place in each}
        known = {place: at for place, at in self._written_ms.items() if place in wanted}
        for place in list(wanted - known.keys())[:MAX_READS]:
            if (written_ms := await self._read(*place)) is not None:
                known[place] = written_ms
        self._written_ms = known
        now_ms = self._broker.clock.now_ms()
        ages: dict[Labels, float] = {}
        for queue, of_queue in places.items():
            first_ms = min((known[place] for place in of_queue if place in known), default=now_ms)
            ages[queue] = max(now_ms - first_ms, 0) / 1000
        return ages

    async def _read(self, topic: str, index: int, offset: int) -> int | None:
        partition = self._broker.topics.find(topic.encode(), index)
        if partition is None:
            return None
        try:
            found = partition.read(offset, 1, partition.high_watermark, at_least_one=True)
            if found is None:
                return None
            loop = asyncio.get_running_loop()
            try:
                data = await loop.run_in_executor(
                    self._broker.work_threads, os.pread, found.handle.descriptor, HEADER_BYTES, found.position
                )
            finally:
                found.release()
            return read_header(data).base_timestamp
        except (AlpacaError, OSError):  # damaged, or deleted meanwhile
            return None


def _places(queue: DescribeReply) -> list[_Place]:
    return [
        (queue.queue.topic, each.partition, each.oldest_offset)
        for each in queue.partitions
        if each.oldest_offset is not None
    ]
