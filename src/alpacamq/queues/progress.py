"""How far a group is in one partition: the start offset, and the chunks of what was delivered beyond it."""

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .chunks import CHUNK_BITS, CHUNK_SIZE, IN_CHUNK, Chunk, Hold, window

if TYPE_CHECKING:
    from .share_partition import SharePartition


class Progress:
    """Everything before `start_offset` is done; nothing from `touched_end` on has been delivered."""

    def __init__(self, partition: "SharePartition", start_offset: int) -> None:
        self.chunks: dict[int, Chunk] = {}
        self.start_offset = start_offset
        self.touched_end = start_offset
        self._partition = partition
        self._absent: deque[tuple[int, int]] = deque()  # whole chunks without a message, ascending

    def chunk(self, index: int) -> Chunk:
        """The chunk, made if there is none."""
        chunk = self.chunks.get(index)
        if chunk is None:
            chunk = self.chunks[index] = Chunk(self._partition, index)
        return chunk

    def holds(self) -> Iterator[Hold]:
        """Every hold, ascending by chunk."""
        for index in sorted(self.chunks):
            yield from self.chunks[index].distinct_holds()

    def find(self, offset: int) -> Hold | None:
        """The hold that a message is in that was delivered and is not done."""
        chunk = self.chunks.get(offset >> CHUNK_BITS)
        return None if chunk is None else chunk.holds.get(offset)

    def is_done(self, offset: int) -> bool:
        if offset < self.start_offset:
            return True
        chunk = self.chunks.get(offset >> CHUNK_BITS)
        return chunk is not None and bool(chunk.done >> (offset & IN_CHUNK) & 1)

    def first_undone(self) -> int:
        """Where the start offset can be: the first message that is not done, or what is not known yet."""
        start, absent = self.start_offset, self._absent
        while True:
            while absent and absent[0][1] <= start:
                absent.popleft()
            if absent and absent[0][0] <= start:
                start = absent[0][1]
                continue
            chunk = self.chunks.get(start >> CHUNK_BITS)
            if chunk is None:
                return start
            bits = (chunk.done | chunk.absent) >> (start & IN_CHUNK)
            if not bits & 1:
                return start
            start += _trailing_ones(bits)

    def move_start(self, start_offset: int) -> list[Chunk]:
        """Everything before is done. The chunks that are no longer needed."""
        first, last = self.start_offset >> CHUNK_BITS, start_offset >> CHUNK_BITS
        self.start_offset = start_offset
        self.touched_end = max(self.touched_end, start_offset)
        if last - first > len(self.chunks):
            past = [index for index in self.chunks if index < last]
        else:
            past = [index for index in range(first, last) if index in self.chunks]
        return [self.chunks.pop(index) for index in past]

    def mark_absent(self, first: int, end: int) -> None:
        """There are no messages at first..end-1, and never will be."""
        while first < end:
            index = first >> CHUNK_BITS
            whole = (end >> CHUNK_BITS) - index
            if not first & IN_CHUNK and whole:
                self._absent.append((first, first + whole * CHUNK_SIZE))
                first += whole * CHUNK_SIZE
            else:
                stop = min(end, (index + 1) << CHUNK_BITS)
                self.chunk(index).absent |= window(first, stop)
                first = stop

    def forget_absent(self) -> None:
        """The log will be read again."""
        self._absent.clear()
        for chunk in self.chunks.values():
            chunk.absent = 0

    def untouched(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The stretches of first..end-1 that were never delivered."""
        if first >= self.touched_end:
            yield first, end
            return
        begin = first = max(first, self.start_offset)
        if first >= end:
            return
        for index in range(first >> CHUNK_BITS, ((end - 1) >> CHUNK_BITS) + 1):
            chunk = self.chunks.get(index)
            if chunk is None:
                continue
            base = index << CHUNK_BITS
            taken = (chunk.done | chunk.held_mask()) & window(max(first, base), min(end, chunk.end_offset))
            while taken:
                low = (taken & -taken).bit_length() - 1
                if base + low > begin:
                    yield begin, base + low
                ones = _trailing_ones(taken >> low)
                begin = base + low + ones
                taken = taken >> (low + ones) << (low + ones)
        if begin < end:
            yield begin, end


def _trailing_ones(bits: int) -> int:
    return ((bits + 1) & ~bits).bit_length() - 1
