"""The aborted transactions of one partition, in the order of their markers.

Numbers in columns: there may be hundreds of thousands of them, all in memory.
"""

import sys
from array import array
from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from .sealed_file import Unreadable

_ROW_BYTES = 4 * 8


class AbortedTransaction(NamedTuple):
    """A reader skips the producer's transactional batches from `first_offset` to its next marker."""

    producer_id: int
    first_offset: int


class AbortedIndex:
    """Per aborted transaction: producer, first offset, marker, and what was stable once it had ended."""

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
        """Those with a batch or marker from `fetch_offset` on that began before `upper_offset`."""
        found = []
        for row in range(bisect_left(self._markers, fetch_offset), len(self._markers)):
            if self._firsts[row] < upper_offset:
                found.append(AbortedTransaction(self._producers[row], self._firsts[row]))
            if self._stables[row] >= upper_offset:
                break  # whatever ended later began after this
        return found

    def drop_before(self, start_offset: int) -> None:
        """Forget what ended before the log begins."""
        count = bisect_left(self._markers, start_offset)
        if count:
            for column in self._columns:
                del column[:count]

    def spans(self) -> "AbortedSpans":
        """The same by producer, for one who goes through the log."""
        return AbortedSpans(self._producers, self._firsts, self._markers)

    def encode(self) -> bytes:
        """Column after column; copies memory, no more."""
        return b"".join(_little_endian(column).tobytes() for column in self._columns)

    @classmethod
    def decode(cls, data: bytes) -> "AbortedIndex":
        """The index that `encode` wrote, or Unreadable."""
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


class AbortedSpans:
    """From which to which offset a producer's batches were aborted."""

    __slots__ = ("_spans",)

    def __init__(self, producers: "array[int]", firsts: "array[int]", markers: "array[int]") -> None:
        self._spans: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first_offset, marker_offset in zip(producers, firsts, markers, strict=True):
            own_firsts, own_markers = self._spans.setdefault(producer_id, ([], []))
            own_firsts.append(first_offset)
            own_markers.append(marker_offset)

    def covers(self, producer_id: int, offset: int) -> bool:
        """Whether the producer's transactional batch at `offset` was aborted."""
        spans = self._spans.get(producer_id)
        if spans is None:
            return False
        firsts, markers = spans
        row = bisect_left(markers, offset)
        return row < len(markers) and firsts[row] <= offset


def _little_endian(column: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped
