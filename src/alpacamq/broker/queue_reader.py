"""Reading the records that the queue engine leased or wants moved."""

from collections.abc import Callable, Iterable

from alpacamq.model.errors import DamagedLog, OffsetOutOfRange
from alpacamq.model.records import Record

from .partition import Partition
from .stored_blocks import Block, StoredBlocks
from .topics import Topics

Place = tuple[int, int]

# How far a search goes before it ends with what it has.
_MAX_BLOCKS = 64


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

    async def unfinished(
        self, topic: str, index: int, offset: int, is_done: Callable[[int], bool], limit: int
    ) -> list[Record]:
        """The first records from `offset` on that are not done, within a stretch of the partition."""
        records: list[Record] = []
        partition = self._topics.partition(topic, index)
        for _ in range(_MAX_BLOCKS):
            offset = max(offset, partition.log.start_offset)
            if offset >= partition.last_stable_offset:
                break
            try:
                block = await self._loaded(partition, offset)
            except DamagedLog as error:
                if error.offsets is None:
                    break
                offset = error.offsets[1]
                continue
            except OffsetOutOfRange:
                break
            if block is None:
                break
            for run in block.outline(offset, with_keys=False).runs:
                for each in range(run.first, run.last + 1):
                    if len(records) == limit:
                        return records
                    if not is_done(each) and (record := block.record(each)) is not None:
                        records.append(record)
            offset = block.next_offset
        return records

    async def _block(self, partition: Partition, offset: int) -> Block | None:
        try:
            return await self._loaded(partition, offset)
        except (OffsetOutOfRange, DamagedLog):
            return None

    async def _loaded(self, partition: Partition, offset: int) -> Block | None:
        stable_offset = partition.last_stable_offset
        return (
            self._blocks.cached(partition, offset)
            or self._blocks.load_now(partition, offset, stable_offset)
            or await self._blocks.load(partition, offset, stable_offset)
        )
