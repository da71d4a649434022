"""Finding a topic's messages among all that wait: page by page for people, and which is due first.

There is no index by topic: what is looked for is rare, and messages are many. A search looks through
a copy of what is in memory, in a thread, and reads the blocks that may hold more.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from heapq import nsmallest
from typing import NamedTuple

from alpacamq.timers.blocks import Block
from alpacamq.timers.messages import Listing
from alpacamq.timers.wheel import Slot, due_of, target_of

from .log_reader import DelayRecords


class Found(NamedTuple):
    """A message that waits."""

    id: int
    partition: int
    due_ms: int


class DelaySearch:
    """Searches one listing at a time, since each is a copy of much."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._turn = asyncio.Lock()

    async def page(self, listing: Listing, records: DelayRecords, after_id: int, limit: int) -> list[Found]:
        """The messages with the lowest ids after one, at most so many."""
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
        """When the first message is due."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            due_ms = await loop.run_in_executor(self._executor, _earliest_ms, listing.slots, listing.targets)
            for block in sorted(listing.blocks, key=lambda block: block.earliest_ms):
                if due_ms is not None and due_ms <= block.earliest_ms:
                    break
                in_block_ms = _earliest_ms([await _content(block, records)], listing.targets)
                due_ms = min((at_ms for at_ms in (due_ms, in_block_ms) if at_ms is not None), default=None)
        return due_ms


async def _content(block: Block, records: DelayRecords) -> Slot:
    return block.content(await records.block(block.offset))


def _lowest(slots: Iterable[Slot], targets: Mapping[int, int], after_id: int, limit: int) -> list[Found]:
    candidates: list[Found] = []
    for slot in slots:
        count = 0
        for id_, word in slot:
            if id_ > after_id and (partition := targets.get(target_of(word))) is not None:
                candidates.append(Found(id_, partition, due_of(word)))
                count += 1
                if count == limit:
                    break  # ids ascend: the others here are higher
    return nsmallest(limit, candidates)


def _earliest_ms(slots: Sequence[Slot], targets: Mapping[int, int]) -> int | None:
    dues_ms = (due_of(word) for slot in slots for _, word in slot if target_of(word) in targets)
    return min(dues_ms, default=None)
