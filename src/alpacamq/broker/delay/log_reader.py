"""Reading a delay log: single messages by their ids, and blocks of the far future."""

from concurrent.futures import Executor

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.block_cache import StoredBlocks
from alpacamq.model.errors import StorageFailed
from alpacamq.model.records import Record
from alpacamq.timers.records import decode_block, read_message_key
from alpacamq.timers.wheel import Slot

# Kept of each delay log: what is due together was often scheduled together.
CACHE_BYTES = 1 << 20


class DelayRecords:
    """The records of one delay log."""

    def __init__(self, partition: Partition, executor: Executor, unpacked_limit_bytes: int) -> None:
        self._partition = partition
        self._stored = StoredBlocks(
            executor, limit_bytes=CACHE_BYTES, unpacked_limit_bytes=unpacked_limit_bytes
        )

    async def message(self, id_: int) -> tuple[int, Record] | None:
        """The word and the record of a message; None if it is not there (any more)."""
        record = await self._record(id_)
        if record is None or record.key is None or record.value is None:
            return None
        key = read_message_key(record.key)
        return (key[1], record) if key is not None and key[0] == id_ else None

    async def block(self, offset: int) -> Slot:
        """The messages of a block."""
        record = await self._record(offset)
        if record is None or record.value is None:
            raise StorageFailed(f"{self._partition.identity} has no block at {offset}")
        return decode_block(record.value)[1]

    async def _record(self, offset: int) -> Record | None:
        partition = self._partition
        if not partition.log.start_offset <= offset < partition.high_watermark:
            return None
        stored = self._stored.cached(partition, offset)
        if stored is None:
            stored = await self._stored.load(partition, offset, partition.high_watermark)
        return None if stored is None else stored.record(offset)
