"""Lists the messages in stored batches by lane; most batches need only their header.

Thread-safe. Skips control batches, aborted transactions and offsets removed by compaction.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from alpacamq.model.batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    BatchHeader,
    read_header,
)
from alpacamq.model.control import CommittedFilter
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.headers import LANE
from alpacamq.model.lanes import LANES_BY_NAME, Lane
from alpacamq.model.record_index import IndexedBatch, holds_its_records, is_gapless
from alpacamq.queues.messages import OffsetRange

# Called in any thread with a batch that is whole but cannot be unpacked.
Unreadable = Callable[[BatchHeader, CorruptBatch], None]

_LANE = LANE.encode()
_LANES = {name.encode(): lane for name, lane in LANES_BY_NAME.items()}


class Stored(NamedTuple):
    """A batch with visible records: its header and its position in the bytes it was read from."""

    header: BatchHeader
    start: int
    end: int
    may_have_lanes: bool

    @property
    def is_packed(self) -> bool:
        return self.header.attributes & COMPRESSION_MASK != 0

    @property
    def is_plain(self) -> bool:
        """Whether it has no gaps, and all its messages are in the normal lane."""
        return not self.may_have_lanes and is_gapless(self.header)


def stored_batches(data: bytes, aborted: Sequence[tuple[int, int]]) -> Iterator[Stored]:
    """Yield the batches in `data` with visible records.

    `aborted` lists producer id and first offset of aborted transactions.
    """
    committed = CommittedFilter(aborted)
    view = memoryview(data)
    hit = _find_lane(data, 0)
    at = 0
    while at < len(data):
        header = read_header(data, at)
        end = at + header.size
        if committed.shows(header, view[at:end]):
            is_packed = header.attributes & COMPRESSION_MASK != 0
            if is_packed or holds_its_records(header, header.size - HEADER_BYTES):
                if hit < at:
                    hit = _find_lane(data, at)
                yield Stored(header, at, end, is_packed or hit < end)
        at = end


class Runs:
    """Merges neighbouring messages of one lane into ranges, added in ascending order."""

    __slots__ = ("_keys", "_runs", "_with_keys")

    def __init__(self, *, with_keys: bool) -> None:
        self._with_keys = with_keys
        self._runs: list[OffsetRange] = []
        self._keys: list[list[bytes | None]] = []

    def add(self, first: int, last: int, lane: Lane, keys: list[bytes | None]) -> None:
        if self._runs:
            before = self._runs[-1]
            if before.last + 1 == first and before.lane is lane:
                self._runs[-1] = OffsetRange(before.first, last, lane)
                self._keys[-1] += keys
                return
        self._runs.append(OffsetRange(first, last, lane))
        self._keys.append(list(keys))

    def add_batch(self, batch: IndexedBatch) -> None:
        """Add every message of an unpacked batch."""
        offsets = batch.offsets
        values = batch.header_values(_LANE)
        keys = batch.keys() if self._with_keys else []
        if values is None and isinstance(offsets, range):
            if offsets:
                self.add(offsets[0], offsets[-1], Lane.NORMAL, keys)
            return
        for place, offset in enumerate(offsets):
            lane = Lane.NORMAL if values is None else lane_of(values[place])
            self.add(offset, offset, lane, keys[place : place + 1])

    def add_plain(self, header: BatchHeader) -> None:
        """Add every message of a batch without lanes or gaps."""
        self.add(header.base_offset, header.last_offset, Lane.NORMAL, [])

    def finished(self) -> list[OffsetRange]:
        if not self._with_keys:
            return self._runs
        return [run._replace(keys=tuple(keys)) for run, keys in zip(self._runs, self._keys, strict=True)]


def lane_of(value: bytes | None) -> Lane:
    """Return the lane that a header names; the normal lane for unknown names."""
    return Lane.NORMAL if value is None else _LANES.get(value.strip().lower(), Lane.NORMAL)


def outlined(
    data: bytes, aborted: Sequence[tuple[int, int]], limit_bytes: int, unreadable: "Unreadable"
) -> list[OffsetRange]:
    """Return the ranges of all batches in `data`."""
    runs = Runs(with_keys=False)
    for stored in stored_batches(data, aborted):
        if stored.is_plain:
            runs.add_plain(stored.header)
        else:
            try:
                runs.add_batch(IndexedBatch(memoryview(data)[stored.start : stored.end], limit_bytes))
            except CorruptBatch as error:
                unreadable(stored.header, error)
    return runs.finished()


def _find_lane(data: bytes, at: int) -> int:
    hit = data.find(_LANE, at)
    return len(data) if hit < 0 else hit
