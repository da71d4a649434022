"""Random access to the records of a stored batch.

Saves parsing the whole batch each time for callers that need a few records at a time.
"""

from array import array
from typing import TYPE_CHECKING

from .batch import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MIN_RECORD_BYTES,
    BatchHeader,
    Codec,
    read_header,
)
from .compression import decompress
from .errors import CorruptBatch
from .ports import Buffer
from .records import UNPACKED_LIMIT_BYTES, Record, read_record, read_varint

if TYPE_CHECKING:
    from collections.abc import Sequence


class IndexedBatch:
    """The records of one batch by index, decompressed once."""

    __slots__ = ("_body", "_starts", "header", "offsets")

    def __init__(
        self, batch: Buffer, limit: int = UNPACKED_LIMIT_BYTES, header: BatchHeader | None = None
    ) -> None:
        """Index a batch, whose header may be known. Raises CorruptBatch if its records do not match it."""
        header = self.header = read_header(batch) if header is None else header
        if header.attributes & COMPRESSION_MASK > Codec.ZSTD:
            raise CorruptBatch(f"no compression has number {header.attributes & COMPRESSION_MASK}")
        body = memoryview(batch)[HEADER_BYTES : header.size]
        self._body = decompress(header.codec, body, limit)
        if not holds_its_records(header, len(self._body)):
            raise CorruptBatch(f"a batch claims {header.record_count} records in {len(self._body)} bytes")
        self._starts = self._find_starts()
        # The records' offsets, ascending. Compaction leaves gaps.
        self.offsets: Sequence[int] = (
            range(header.base_offset, header.next_offset) if is_gapless(header) else self._read_offsets()
        )

    @property
    def size_bytes(self) -> int:
        """Approximate memory use."""
        return len(self._body) + 8 * len(self._starts) + 500

    def record(self, place: int) -> Record:
        """Return the record at an index below the number of offsets."""
        header = self.header
        append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
        try:
            record, _ = read_record(self._body, self._starts[place], header, append_time)
        except (IndexError, UnicodeDecodeError) as error:
            raise CorruptBatch(f"record {place} of the batch at {header.base_offset}: {error}") from error
        offset = self.offsets[place]
        return record if record.offset == offset else record._replace(offset=offset)

    def keys(self) -> list[bytes | None]:
        """Return the key of every record."""
        body = self._body
        keys: list[bytes | None] = []
        try:
            for start in self._starts:
                at = self._key_at(start)
                length, at = read_varint(body, at)
                keys.append(None if length < 0 else body[at : at + length])
        except IndexError as error:
            raise self._cut_off(error) from error
        return keys

    def header_values(self, name: bytes) -> list[bytes | None] | None:
        """Return the last value of a header in every record; None if no record can have it."""
        if name not in self._body:
            return None
        try:
            return [self._header_value(start, name) for start in self._starts]
        except IndexError as error:
            raise self._cut_off(error) from error

    def _header_value(self, start: int, name: bytes) -> bytes | None:
        body = self._body
        at = self._key_at(start)
        for _ in range(2):  # key and value
            length, at = read_varint(body, at)
            at += max(length, 0)
        count, at = read_varint(body, at)
        value = None
        for _ in range(count):
            length, at = read_varint(body, at)
            is_it = length == len(name) and body.startswith(name, at)
            length, at = read_varint(body, at + max(length, 0))
            if is_it:
                value = body[at : at + length] if length >= 0 else None
            at += max(length, 0)
        return value

    def _key_at(self, start: int) -> int:
        """Return the position of a record's key: after its length, attributes and two deltas."""
        body = self._body
        _, at = read_varint(body, start)
        _, at = read_varint(body, at + 1)
        _, at = read_varint(body, at)
        return at

    def _find_starts(self) -> "array[int]":
        body = self._body
        starts = array("Q")
        at = 0
        try:
            for _ in range(self.header.record_count):
                starts.append(at)
                length, at = read_varint(body, at)
                if length < 0:
                    raise CorruptBatch(f"a record claims {length} bytes")
                at += length
        except IndexError as error:
            raise self._cut_off(error) from error
        if at != len(body):
            raise CorruptBatch(
                f"the records of the batch at {self.header.base_offset} end at {at} of {len(body)} bytes"
            )
        return starts

    def _read_offsets(self) -> "array[int]":
        body, header = self._body, self.header
        offsets = array("q")
        previous = header.base_offset - 1
        try:
            for start in self._starts:
                _, at = read_varint(body, start)
                _, at = read_varint(body, at + 1)
                delta, _ = read_varint(body, at)
                offset = header.base_offset + delta
                if not previous < offset <= header.last_offset:
                    raise CorruptBatch(
                        f"offset {offset} follows {previous} in the batch at {header.base_offset}"
                    )
                offsets.append(offset)
                previous = offset
        except IndexError as error:
            raise self._cut_off(error) from error
        return offsets

    def _cut_off(self, error: IndexError) -> CorruptBatch:
        return CorruptBatch(f"a record of the batch at {self.header.base_offset} is cut off: {error}")


def is_gapless(header: BatchHeader) -> bool:
    """Return whether every offset of the batch has a record."""
    return header.record_count == header.last_offset_delta + 1


def holds_its_records(header: BatchHeader, body_bytes: int) -> bool:
    """Return whether `body_bytes` are enough for the record count in the header."""
    return 0 <= header.record_count <= body_bytes // MIN_RECORD_BYTES
