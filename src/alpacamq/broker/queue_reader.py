"""Reading the records that the queue engine leased or wants moved."""

from collections.abc import Iterable

from alpacamq.model.errors import DamagedLog, OffsetOutOfRange
from alpacamq.model.records import Record

from .partition import Partition
from .stored_blocks import Block, StoredBlocks
from .topics import Topics

Place = tuple[int, int]


class QueueReader:
    """Finds single records of topics, neighbours with one read."""

    def __init__(self, topics: Topics, blocks: StoredBlocks) -> None:
        self._topics = topics
        self._blocks = blocks

    async def read(self, topic: str, places: Iterable[Place]) -> dict[Place, Record]:
        """The records at these (partition, offset), without those that are gone or damaged."""
        records: dict[Place, Record] = {}
        block: Block | None = None
        block_of = -1
        for place in sorted(places):
            index, offset = place
            if block is None or block_of != index or not block.first_offset <= offset < block.next_offset:
                partition = self._topics.find(topic.encode(), index)
                block = None if partition is None else await self._block(partition, offset)
                block_of = index
            if block is not None and (record := block.record(offset)) is not None:
                records[place] = record
        return records

    async def _block(self, partition: Partition, offset: int) -> Block | None:
        stable_offset = partition.last_stable_offset
        try:
            return (
                self._blocks.cached(partition, offset)
                or self._blocks.load_now(partition, offset, stable_offset)
                or await self._blocks.load(partition, offset, stable_offset)
            )
        except (OffsetOutOfRange, DamagedLog):
            return None
