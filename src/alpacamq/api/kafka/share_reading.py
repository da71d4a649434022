"""The stored batches that hold acquired records, cut out of the log's files as they are.

Clients take what they were given out of whole batches, so those are sent, with as little as possible
of what lies between.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from alpacamq.broker.partition import Partition
from alpacamq.broker.readable import Readable
from alpacamq.protocol.share_fetch_codec import AcquiredRange
from alpacamq.queues.messages import Acquired

# Records this close together, by the partition's average, are sent as one piece.
NEAR_BYTES = 16 << 10


@dataclass(slots=True)
class Covering:
    """The batches that hold the first `count` of some offsets."""

    slices: list[Readable] = field(default_factory=list)
    count: int = 0

    @property
    def length(self) -> int:
        return sum(part.length for part in self.slices)

    def release(self) -> None:
        for part in self.slices:
            part.release()
        self.slices.clear()


def average_bytes(partition: Partition) -> int:
    """About what a record takes on disk; at least 1."""
    log = partition.log
    return max(log.size_bytes // max(log.end_offset - log.start_offset, 1), 1)


def cover(
    partition: Partition, offsets: Sequence[int], max_bytes: int, max_slices: int, *, at_least_one: bool
) -> Covering:
    """Batches for as many of the ascending offsets as fit; none of them may be before the log's start."""
    covering = Covering()
    near = NEAR_BYTES // average_bytes(partition) + 1
    room = max_bytes
    try:
        while covering.count < len(offsets) and len(covering.slices) < max_slices:
            first = offsets[covering.count]
            end = _batch_end(partition, _last_near(offsets, covering.count, near))
            part = partition.read(first, room, end, at_least_one=at_least_one and not covering.slices)
            if part is None:
                break
            covering.slices.append(part)
            room = max(room - part.length, 0)
            while covering.count < len(offsets) and offsets[covering.count] < part.next_offset:
                covering.count += 1
    except BaseException:
        covering.release()
        raise
    return covering


async def verify(covering: Covering, partition: Partition, executor: Executor) -> None:
    """Check bytes that come from an earlier life of the broker; DamagedLog if they are not as written."""
    loop = asyncio.get_running_loop()
    for part in covering.slices:
        if not part.verified:
            await loop.run_in_executor(executor, partition.log.verify, part)


def ranges(acquired: Sequence[Acquired], most: int) -> list[AcquiredRange]:
    """Acquired records in ascending order as ranges of at most `most` offsets."""
    found: list[AcquiredRange] = []
    for entry in acquired:
        if found:
            first, last, delivery_count = found[-1]
            if (
                entry.offset == last + 1
                and entry.delivery_count == delivery_count
                and last - first + 1 < most
            ):
                found[-1] = AcquiredRange(first, entry.offset, delivery_count)
                continue
        found.append(AcquiredRange(entry.offset, entry.offset, entry.delivery_count))
    return found


def _last_near(offsets: Sequence[int], at: int, near: int) -> int:
    """The last of the offsets that follow each other closely from the one at `at` on."""
    while at + 1 < len(offsets) and offsets[at + 1] - offsets[at] <= near:
        at += 1
    return offsets[at]


def _batch_end(partition: Partition, offset: int) -> int:
    """The offset after the batch that holds `offset`."""
    batch = partition.read(offset, 1, partition.high_watermark, at_least_one=True)
    if batch is None:
        return offset + 1  # nothing of it is there to be read, which the next read will say
    batch.release()
    return batch.next_offset
