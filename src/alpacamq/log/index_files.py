"""The formats of index files, and a cache of loaded indexes shared by all segments.

`.index` and `.timeindex` have Kafka's format, big-endian, without header or padding. An offset entry
is the last offset of a batch relative to the segment's base offset, and the batch's position, 4 bytes
each. A time entry is the largest timestamp so far, 8 bytes, and the last offset of its batch, relative
as well, 4 bytes. Neither can be verified by itself. `.indexcrc` beside them is ours: a record for each
time entries were added, with the log position that all entries so far cover, their number and their
CRC-32C. Entries are believed up to the last record that matches; the rest is rebuilt from the log.
"""

import sys
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

OFFSET_SUFFIX = ".index"
TIME_SUFFIX = ".timeindex"
SUMS_SUFFIX = ".indexcrc"

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_WORDS_PER_TIME_ENTRY = 3
_SUM = Struct(">IIIII")
SUM_BYTES = _SUM.size + 4
# The high and the low half of an 8-byte number in memory.
_HIGH, _LOW = (0, 1) if sys.byteorder == "big" else (1, 0)


class IndexSum(NamedTuple):
    """Both index files up to some entry: the log position covered, and count and CRC-32C of each."""

    covered_to: int
    offset_count: int
    offset_crc: int
    time_count: int
    time_crc: int

    @property
    def offset_bytes(self) -> int:
        return self.offset_count * OFFSET_ENTRY_BYTES

    @property
    def time_bytes(self) -> int:
        return self.time_count * TIME_ENTRY_BYTES

    def extended(self, offsets: bytes, times: bytes, covered_to: int) -> "IndexSum":
        """Return the sum after appending packed entries that cover the log to `covered_to`."""
        return IndexSum(
            covered_to,
            self.offset_count + len(offsets) // OFFSET_ENTRY_BYTES,
            crc32c(offsets, self.offset_crc),
            self.time_count + len(times) // TIME_ENTRY_BYTES,
            crc32c(times, self.time_crc),
        )

    def pack(self) -> bytes:
        packed = _SUM.pack(*self)
        return packed + crc32c(packed).to_bytes(4, "big")


EMPTY_SUM = IndexSum(0, 0, 0, 0, 0)


def unpack_sums(data: bytes) -> list[IndexSum]:
    """Return the sound records of an `.indexcrc` file, up to the first one that is not."""
    sums: list[IndexSum] = []
    last = EMPTY_SUM
    for at in range(0, len(data) - SUM_BYTES + 1, SUM_BYTES):
        packed = data[at : at + _SUM.size]
        found = IndexSum(*_SUM.unpack(packed))
        if crc32c(packed) != int.from_bytes(data[at + _SUM.size : at + SUM_BYTES], "big") or (
            found.covered_to < last.covered_to
            or found.offset_count < last.offset_count
            or found.time_count < last.time_count
        ):
            break
        sums.append(found)
        last = found
    return sums


def matching_sums(sums: list[IndexSum], offsets: bytes, times: bytes) -> list[IndexSum]:
    """Return the sums, from the first on, that match the entries."""
    # Nearly always all match, and then the last one says so.
    if sums and all(_matches(sums[-1], offsets, times)):
        return sums
    matching: list[IndexSum] = []
    for each in sums:
        if not all(_matches(each, offsets, times, matching[-1] if matching else EMPTY_SUM)):
            break
        matching.append(each)
    return matching


def mismatches(sums: list[IndexSum], offsets: bytes, times: bytes) -> tuple[str, ...]:
    """Return the suffixes of the files that do not match the sums."""
    if not sums:
        return ()
    found = _matches(sums[-1], offsets, times)
    return tuple(suffix for suffix, ok in zip((OFFSET_SUFFIX, TIME_SUFFIX), found, strict=True) if not ok)


def _matches(sum_: IndexSum, offsets: bytes, times: bytes, after: IndexSum = EMPTY_SUM) -> tuple[bool, bool]:
    """Return which of the two files has the entries of `sum_`; those of `after` match already."""
    return (
        _crc_of(offsets, after.offset_bytes, sum_.offset_bytes, after.offset_crc) == sum_.offset_crc,
        _crc_of(times, after.time_bytes, sum_.time_bytes, after.time_crc) == sum_.time_crc,
    )


def _crc_of(data: bytes, start: int, end: int, crc: int) -> int:
    if end > len(data):
        return -1
    found: int = crc32c(memoryview(data)[start:end], crc)
    return found


def pack_offsets(entries: "array[int]") -> bytes:
    """Encode entries of `relative offset << 32 | position`."""
    return _big_endian(entries).tobytes()


def unpack_offsets(data: bytes) -> "array[int]":
    numbers = array("Q")
    numbers.frombytes(data)
    return _big_endian(numbers)


def pack_times(timestamps: "array[int]", relative_offsets: "array[int]") -> bytes:
    """Encode timestamps and the relative offsets of their batches as time entries."""
    halves = array("I", timestamps.tobytes())
    words = array("I", bytes(TIME_ENTRY_BYTES * len(timestamps)))
    words[0::_WORDS_PER_TIME_ENTRY] = halves[_HIGH::2]
    words[1::_WORDS_PER_TIME_ENTRY] = halves[_LOW::2]
    words[2::_WORDS_PER_TIME_ENTRY] = relative_offsets
    return _big_endian(words).tobytes()


def unpack_times(data: bytes) -> tuple["array[int]", "array[int]"]:
    """Decode time entries to timestamps and relative offsets."""
    words = array("I")
    words.frombytes(data)
    words = _big_endian(words)
    halves = array("I", bytes(8 * (len(words) // _WORDS_PER_TIME_ENTRY)))
    halves[_HIGH::2] = words[0::_WORDS_PER_TIME_ENTRY]
    halves[_LOW::2] = words[1::_WORDS_PER_TIME_ENTRY]
    timestamps = array("q")
    timestamps.frombytes(halves.tobytes())
    return timestamps, words[2::_WORDS_PER_TIME_ENTRY]


def _big_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        return numbers
    swapped = array(numbers.typecode, numbers)
    swapped.byteswap()
    return swapped


@dataclass(slots=True)
class LoadedIndex:
    """The entries of one segment up to log position `covered_to`.

    Offset entries are `relative offset << 32 | position`, so that both ascend with the number. All
    offsets are the last of their batch.
    """

    covered_to: int
    offsets: "array[int]"
    timestamps: "array[int]"
    timestamp_offsets: "array[int]"

    @property
    def size_bytes(self) -> int:
        return 8 * (len(self.offsets) + len(self.timestamps)) + 4 * len(self.timestamp_offsets) + 512


class IndexCache:
    """A cache of at most `limit_bytes` of loaded indexes; evicts the least recently used.

    Keyed by owner, not by path: after compaction another index has the same path.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._indexes: OrderedDict[object, tuple[LoadedIndex, int]] = OrderedDict()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def get(self, owner: object) -> LoadedIndex | None:
        with self._lock:
            entry = self._indexes.get(owner)
            if entry is None:
                return None
            self._indexes.move_to_end(owner)
            return entry[0]

    def put(self, owner: object, index: LoadedIndex) -> None:
        """Add `index`, or update its size in the cache."""
        size = index.size_bytes
        with self._lock:
            self._drop(owner)
            self._indexes[owner] = index, size
            self._bytes += size
            while self._bytes > self._limit_bytes and len(self._indexes) > 1:
                self._drop(next(iter(self._indexes)))

    def discard(self, owner: object) -> None:
        with self._lock:
            self._drop(owner)

    def _drop(self, owner: object) -> None:
        entry = self._indexes.pop(owner, None)
        if entry is not None:
            self._bytes -= entry[1]
