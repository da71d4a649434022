"""The format of index files, and a cache of loaded indexes shared by all segments.

A file is a sequence of chunks, each with a header (magic, entry count, log position covered,
CRC-32C) and its entries. Reading stops at the first torn or damaged chunk; the rest is rebuilt from
the log. An offset entry is offset - base and position, 4 bytes each; a time entry is the largest
timestamp so far and the offset of its batch, 8 bytes each.
"""

import sys
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

OFFSET_MAGIC = b"ALOX"
TIME_MAGIC = b"ALTX"
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 16

_CHUNK = Struct(">4sIII")  # magic, entries, log position covered, CRC-32C of the rest
_CHECKED = Struct(">4sII")


class ChunkEnd(NamedTuple):
    """The end of a chunk: in the log it describes, in its file, and in the entries."""

    covered_to: int
    file_bytes: int
    entry_bytes: int


def pack_chunk(magic: bytes, entry_bytes: int, entries: "array[int]", covered_to: int) -> bytes:
    """Encode `entries` as a chunk to append to an index file."""
    packed = _big_endian(entries).tobytes()
    head = _CHECKED.pack(magic, len(packed) // entry_bytes, covered_to)
    return head + crc32c(packed, crc32c(head)).to_bytes(4, "big") + packed


def unpack_chunks(magic: bytes, entry_bytes: int, data: bytes) -> tuple[bytes, list[ChunkEnd]]:
    """Return the entries of all sound chunks, as bytes, and the end of each chunk."""
    view = memoryview(data)
    parts: list[memoryview] = []
    ends: list[ChunkEnd] = []
    at = entries = covered = 0
    while at + _CHUNK.size <= len(view):
        found, count, covered_to, crc = _CHUNK.unpack_from(view, at)
        body = at + _CHUNK.size
        if found != magic or covered_to < covered or count * entry_bytes > len(view) - body:
            break
        packed = view[body : body + count * entry_bytes]
        if crc32c(packed, crc32c(view[at : at + _CHECKED.size])) != crc:
            break
        parts.append(packed)
        at, covered = body + len(packed), covered_to
        entries += len(packed)
        ends.append(ChunkEnd(covered, at, entries))
    return b"".join(parts), ends


def unpack_entries(typecode: str, data: bytes) -> "array[int]":
    """Decode big-endian 8-byte numbers."""
    numbers = array(typecode)
    numbers.frombytes(data)
    return _big_endian(numbers)


def _big_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        return numbers
    swapped = array(numbers.typecode, numbers)
    swapped.byteswap()
    return swapped


@dataclass(slots=True)
class LoadedIndex:
    """The entries of one segment up to log position `covered_to`.

    Offset entries are `relative offset << 32 | position`, so that both ascend with the number.
    """

    covered_to: int
    offsets: "array[int]"
    timestamps: "array[int]"
    timestamp_offsets: "array[int]"

    @property
    def size_bytes(self) -> int:
        return 8 * (len(self.offsets) + len(self.timestamps) + len(self.timestamp_offsets)) + 512


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
