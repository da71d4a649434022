"""Reads a delay log: messages by id, spilled blocks, and a topic's messages among all pending."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from heapq import nsmallest
from typing import NamedTuple

from alpacamq.broker.partition.leader import Partition
from alpacamq.broker.read.block_cache import StoredBlocks
from alpacamq.model.errors import StorageFailed
from alpacamq.model.records import Record
from alpacamq.timers.blocks import SpilledBlock
from alpacamq.timers.messages import Listing
from alpacamq.timers.records import decode_block, read_message_key
from alpacamq.timers.wheel import Slot, due_of, target_of

# Per delay log: messages due together were often scheduled together.
CACHE_BYTES = 1 << 20


class DelayRecords:
    """The records of one delay log."""

    def __init__(self, partition: Partition, executor: Executor, unpacked_limit_bytes: int) -> None:
        self._partition = partition
        self._stored = StoredBlocks(
            executor, limit_bytes=CACHE_BYTES, unpacked_limit_bytes=unpacked_limit_bytes
        )

    async def message(self, id_: int) -> tuple[int, Record] | None:
        """Return the packed due time and target of a message, and its record; None if it does not exist."""
        record = await self._record(id_)
        if record is None or record.key is None or record.value is None:
            return None
        key = read_message_key(record.key)
        return (key[1], record) if key is not None and key[0] == id_ else None

    async def block(self, offset: int) -> Slot:
        """Return the messages of a block."""
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


class Found(NamedTuple):
    """A pending message."""

    id: int
    partition: int
    due_ms: int


class DelaySearch:
    """Searches the pending messages for those of a topic, one search at a time.

    There is no index by topic: searches are rare, and messages are many. A search goes through a copy of the
    slots in memory, in a thread, and reads the blocks that may hold more.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._turn = asyncio.Lock()

    async def page(self, listing: Listing, records: DelayRecords, after_id: int, limit: int) -> list[Found]:
        """Return up to `limit` messages with the lowest ids after `after_id`."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(
                self._executor, _lowest, listing.slots, listing.targets, after_id, limit
            )
            for block in sorted(listing.blocks, key=lambda block: block.first_id):
                if len(found) == limit and block.first_id > found[-1].id:
                    break
                content = await _content(block, records)
                found = sorted(found + _lowest([content], listing.targets, after_id, limit))[:limit]
        return found

    async def first_due_ms(self, listing: Listing, records: DelayRecords) -> int | None:
        """Return when the first message is due."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            due_ms = await loop.run_in_executor(self._executor, _earliest_ms, listing.slots, listing.targets)
            for block in sorted(listing.blocks, key=lambda block: block.earliest_ms):
                if due_ms is not None and due_ms <= block.earliest_ms:
                    break
                in_block_ms = _earliest_ms([await _content(block, records)], listing.targets)
                due_ms = min((at_ms for at_ms in (due_ms, in_block_ms) if at_ms is not None), default=None)
        return due_ms


async def _content(block: SpilledBlock, records: DelayRecords) -> Slot:
    return block.content(await records.block(block.offset))


def _lowest(slots: Iterable[Slot], targets: Mapping[int, int], after_id: int, limit: int) -> list[Found]:
    candidates: list[Found] = []
    for slot in slots:
        count = 0
        for id_, timer in slot:
            if id_ > after_id and (partition := targets.get(target_of(timer))) is not None:
                candidates.append(Found(id_, partition, due_of(timer)))
                count += 1
                if count == limit:
                    break  # ids ascend: the rest of this slot are higher
    return nsmallest(limit, candidates)


def _earliest_ms(slots: Sequence[Slot], targets: Mapping[int, int]) -> int | None:
    dues_ms = (due_of(timer) for slot in slots for _, timer in slot if target_of(timer) in targets)
    return min(dues_ms, default=None)
