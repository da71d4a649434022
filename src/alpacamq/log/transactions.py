"""Open and aborted transactions of one partition.

Fed with every transactional batch and every marker in offset order. Derived from the log: a snapshot
only saves reading the log again.
"""

import sys
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import msgspec

from alpacamq.model.batch import BatchHeader
from alpacamq.model.control import Marker, read_marker
from alpacamq.model.errors import CorruptBatch, InvalidTransactionState
from alpacamq.model.ports import Disk

from .sealed_file import Unreadable

_ROW_BYTES = 4 * 8


class AbortedTransaction(NamedTuple):
    """A reader skips the producer's transactional batches from `first_offset` to its next marker."""

    producer_id: int
    first_offset: int


class AbortedIndex:
    """Columns per aborted transaction: producer, first offset, marker, last stable offset at its end."""

    __slots__ = ("_firsts", "_markers", "_producers", "_stables")

    def __init__(self) -> None:
        self._producers = array("q")
        self._firsts = array("q")
        self._markers = array("q")
        self._stables = array("q")

    def __len__(self) -> int:
        return len(self._markers)

    def add(self, producer_id: int, first_offset: int, marker_offset: int, stable_offset: int) -> None:
        assert not self._markers or marker_offset > self._markers[-1]
        self._producers.append(producer_id)
        self._firsts.append(first_offset)
        self._markers.append(marker_offset)
        self._stables.append(stable_offset)

    def between(self, fetch_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Return those with a batch or marker from `fetch_offset` on that began before `upper_offset`."""
        found = []
        for row in range(bisect_left(self._markers, fetch_offset), len(self._markers)):
            if self._firsts[row] < upper_offset:
                found.append(AbortedTransaction(self._producers[row], self._firsts[row]))
            if self._stables[row] >= upper_offset:
                break  # transactions that ended later began after this
        return found

    def drop_before(self, start_offset: int) -> None:
        """Drop transactions that ended before the log start."""
        count = bisect_left(self._markers, start_offset)
        if count:
            for column in self._columns:
                del column[:count]

    def ranges(self) -> "AbortedRanges":
        """Return the same ranges by producer, for a scan of the log."""
        return AbortedRanges(self._producers, self._firsts, self._markers)

    def encode(self) -> bytes:
        """Encode column by column, by copying memory."""
        return b"".join(_little_endian(column).tobytes() for column in self._columns)

    @classmethod
    def decode(cls, data: bytes) -> "AbortedIndex":
        """Decode an index. Raises Unreadable."""
        if len(data) % _ROW_BYTES:
            raise Unreadable(f"{len(data)} bytes are no whole number of aborted transactions")
        decoded = cls()
        size = len(data) // 4
        for place, column in enumerate(decoded._columns):
            numbers = array("q", data[place * size : (place + 1) * size])
            column.extend(_little_endian(numbers))
        markers = decoded._markers
        if any(later <= earlier for earlier, later in pairwise(markers)):
            raise Unreadable("its aborted transactions are not in order")
        return decoded

    @property
    def _columns(self) -> tuple["array[int]", ...]:
        return self._producers, self._firsts, self._markers, self._stables


class AbortedRanges:
    """Aborted offset ranges by producer."""

    __slots__ = ("_ranges",)

    def __init__(self, producers: "array[int]", firsts: "array[int]", markers: "array[int]") -> None:
        self._ranges: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first_offset, marker_offset in zip(producers, firsts, markers, strict=True):
            own_firsts, own_markers = self._ranges.setdefault(producer_id, ([], []))
            own_firsts.append(first_offset)
            own_markers.append(marker_offset)

    def covers(self, producer_id: int, offset: int) -> bool:
        """Return whether the producer's transactional batch at `offset` was aborted."""
        ranges = self._ranges.get(producer_id)
        if ranges is None:
            return False
        firsts, markers = ranges
        row = bisect_left(markers, offset)
        return row < len(markers) and firsts[row] <= offset


def _little_endian(column: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped


# Larger batches are not markers and need not be read.
_MARKER_LIMIT_BYTES = 1 << 10
# Ended transactions whose marker is not visible yet are tracked one by one up to this number.
_UNSEEN_LIMIT = 128


class _Ended(NamedTuple):
    first_offset: int
    marker_offset: int


class TransactionsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Open transactions by producer and first offset, and aborted ones, at an offset.

    `unseen` has first offset and marker of ended ones whose marker may be above the high watermark.
    Version 0.1 did not store it: one node alone opens a log with everything below the high watermark.
    """

    open: tuple[tuple[int, int], ...] = ()
    aborted: bytes = b""
    unseen: tuple[tuple[int, int], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.open and not self.aborted and not self.unseen

    def ranges(self) -> AbortedRanges:
        """Return the aborted ranges, for a compaction in a thread."""
        return AbortedIndex.decode(self.aborted).ranges()


class PartitionTransactions:
    """The transactions of one partition, oldest first."""

    __slots__ = ("_aborted", "_open", "_start_offset", "_unseen")

    def __init__(self, snapshot: TransactionsSnapshot | None = None) -> None:
        self._start_offset = 0
        self.reset(snapshot or TransactionsSnapshot())

    def open_offset(self, producer_id: int) -> int | None:
        """Return the first offset of the producer's open transaction, or None."""
        return self._open.get(producer_id)

    def open_transactions(self) -> list[tuple[int, int]]:
        """Return producer and first offset of each open transaction, oldest first."""
        return [*self._open.items()]

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction, or None."""
        return next(iter(self._open.values()), None)

    def appended(self, header: BatchHeader, base_offset: int, marker: Marker | None) -> None:
        """Record a transactional or control batch that was appended."""
        first_offset = self._take(header, base_offset, marker)
        if first_offset is None:
            return
        # A transaction that began later and ended earlier never determines the last stable offset.
        unseen = self._unseen
        while unseen and unseen[-1].first_offset >= first_offset:
            unseen.pop()
        unseen.append(_Ended(first_offset, base_offset))
        if len(unseen) > _UNSEEN_LIMIT:
            oldest = unseen.popleft()
            unseen[0] = _Ended(oldest.first_offset, unseen[0].marker_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the offset before which every transaction has ended and its marker is visible."""
        unseen = self._unseen
        while unseen and unseen[0].marker_offset < high_watermark:
            unseen.popleft()
        stable = high_watermark
        if unseen:
            stable = min(stable, unseen[0].first_offset)
        if self._open:
            stable = min(stable, next(iter(self._open.values())))
        # Offsets before the log start are stable.
        return min(max(stable, self._start_offset), high_watermark)

    def aborted_between(self, fetch_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that a reader of these offsets must skip."""
        return self._aborted.between(fetch_offset, upper_offset)

    def drop_before(self, start_offset: int) -> None:
        """Drop state before the new log start."""
        self._start_offset = start_offset
        self._aborted.drop_before(start_offset)

    def reset(self, snapshot: TransactionsSnapshot) -> None:
        """Replace the state by `snapshot`; the caller replays the batches after it."""
        self._open = OrderedDict(snapshot.open)
        self._aborted = AbortedIndex.decode(snapshot.aborted)
        self._unseen = deque(_Ended(*ended) for ended in snapshot.unseen)

    def snapshot(self) -> TransactionsSnapshot:
        """Copy the current state, for a file written later or a compaction in a thread."""
        return TransactionsSnapshot(
            open=tuple(self._open.items()),
            aborted=self._aborted.encode(),
            unseen=tuple((ended.first_offset, ended.marker_offset) for ended in self._unseen),
        )

    def _take(self, header: BatchHeader, base_offset: int, marker: Marker | None) -> int | None:
        """Record a batch; return the first offset of the transaction that it ends."""
        if not header.is_control:
            if header.is_transactional:
                self._open.setdefault(header.producer_id, base_offset)
            return None
        if marker is None:
            return None
        # A repeated marker ends nothing.
        first_offset = self._open.pop(header.producer_id, None)
        if first_offset is not None and not marker.committed:
            stable = next(iter(self._open.values()), base_offset + 1)
            self._aborted.add(header.producer_id, first_offset, base_offset, stable)
        return first_offset


def outside_transaction(producer_id: int) -> InvalidTransactionState:
    """Return the error of a batch that is not transactional while a transaction of its producer is open."""
    return InvalidTransactionState(
        f"producer {producer_id} has an open transaction: its batches must be transactional"
    )


def read_stored_marker(disk: Disk, descriptor: int, position: int, header: BatchHeader) -> Marker | None:
    """Read the batch at `position` as a marker; None if it is not one."""
    if header.is_control and header.size <= _MARKER_LIMIT_BYTES:
        with suppress(CorruptBatch):  # its checksum is right, so it was never a marker
            return read_marker(disk.read(descriptor, header.size, position))
    return None


def encode_transactions(snapshot: TransactionsSnapshot) -> bytes:
    return msgspec.msgpack.encode(snapshot)


def decode_transactions(body: bytes) -> TransactionsSnapshot:
    """Decode a snapshot. Raises Unreadable."""
    try:
        snapshot = msgspec.msgpack.decode(body, type=TransactionsSnapshot)
    except msgspec.DecodeError as error:
        raise Unreadable(str(error)) from error
    firsts = [first_offset for _, first_offset in snapshot.open]
    if firsts != sorted(firsts):
        raise Unreadable("its open transactions are not in order")
    for column in zip(*snapshot.unseen, strict=True):
        if any(later <= earlier for earlier, later in pairwise(column)):
            raise Unreadable("its ended transactions are not in order")
    AbortedIndex.decode(snapshot.aborted)
    return snapshot
