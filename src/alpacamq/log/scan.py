"""Walking the batches of a segment file, header by header or byte by byte.

Nothing read is believed before it is checked: a length is compared with what is left of the
file, and no more than a window is held in memory however long a batch claims to be.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.batch import (
    CHECKED_FROM,
    HEADER_BYTES,
    MAGIC,
    MIN_BATCH_LENGTH,
    BatchHeader,
    read_header,
)
from alpacamq.model.ports import Disk

from .epochs import EpochHistory

LOOKUP_BYTES = 8 << 10
WINDOW_BYTES = 1 << 20


class Boundary(NamedTuple):
    """A place where a batch begins: its offset and its byte in the segment."""

    offset: int
    position: int


class Gap(NamedTuple):
    """A damaged stretch of a segment, from the batch at `start` to the next sound one, at `end`."""

    start: Boundary
    end: Boundary
    reason: str


class Violation(Exception):
    """Bytes that are not the batch that belongs there: at which position and offset, and why not."""

    def __init__(self, position: int, offset: int, reason: str) -> None:
        super().__init__(f"byte {position}, offset {offset}: {reason}")
        self.position = position
        self.offset = offset
        self.reason = reason


def scan_headers(
    disk: Disk, descriptor: int, start: int, end: int, offset: int, gaps: Sequence[Gap] = ()
) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the batches from `start`, where the one at `offset` begins, to `end`.

    Reads little at first, then more and more as long as batches are small enough to need it. Known
    `gaps` are passed over.
    """
    data, data_start = b"", start
    read_bytes = LOOKUP_BYTES
    position = start
    while position < end:
        if gaps and (gap := _gap_at(gaps, Boundary(offset, position))) is not None:
            offset, position = gap.end
            continue
        at = position - data_start
        if at + HEADER_BYTES > len(data):
            if data:
                read_bytes = min(2 * read_bytes, WINDOW_BYTES) if at <= len(data) else LOOKUP_BYTES
            data, data_start, at = (
                disk.read(descriptor, min(read_bytes, end - position), position),
                position,
                0,
            )
        header = _plausible_header(data, at, position, end, offset)
        yield position, header
        position += header.size
        offset = header.next_offset


def scan_batches(
    disk: Disk,
    descriptor: int,
    start: int,
    end: int,
    offset: int,
    epochs: EpochHistory,
    *,
    learn_epochs: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, BatchHeader]]:
    """The same with every byte verified.

    With `learn_epochs` the history is taken from the batches, where otherwise they must match it.
    """
    data, data_start = memoryview(b""), start
    position = start
    epoch, epoch_until = 0, -1
    while position < end:
        at = position - data_start
        if at + HEADER_BYTES > len(data):
            data = memoryview(disk.read(descriptor, min(WINDOW_BYTES, end - position), position))
            data_start, at = position, 0
            if progress is not None:
                progress(len(data))
        header = _plausible_header(data, at, position, end, offset)
        if offset >= epoch_until:
            epoch, epoch_until = epochs.span_at(offset)
        if header.leader_epoch != epoch:
            if not (learn_epochs and header.leader_epoch > epochs.latest):
                raise Violation(position, offset, f"leader epoch {header.leader_epoch} instead of {epoch}")
            epochs.assign(header.leader_epoch, offset)
            epoch, epoch_until = epochs.span_at(offset)
        after = position + header.size
        crc = crc32c(data[at + CHECKED_FROM : at + header.size])
        while data_start + len(data) < after:
            data_start += len(data)
            data = memoryview(disk.read(descriptor, min(WINDOW_BYTES, end - data_start), data_start))
            if not data:
                raise Violation(position, offset, f"the file ends at byte {data_start}, inside the batch")
            if progress is not None:
                progress(len(data))
            crc = crc32c(data[: after - data_start], crc)
        if crc != header.crc:
            raise Violation(position, offset, f"checksum {crc:#010x} where the batch says {header.crc:#010x}")
        yield position, header
        position = after
        offset = header.next_offset


def _plausible_header(data: bytes | memoryview, at: int, position: int, end: int, offset: int) -> BatchHeader:
    """The header at `at` if a batch of `offset` may begin so and end by `end`."""
    if at + HEADER_BYTES > len(data):
        raise Violation(position, offset, f"{len(data) - at} bytes are too few for a batch header")
    header = read_header(data, at)
    if header.magic != MAGIC:
        raise Violation(position, offset, f"batch format {header.magic} instead of {MAGIC}")
    if header.base_offset != offset:
        raise Violation(position, offset, f"offset {header.base_offset} where {offset} should follow")
    if header.batch_length < MIN_BATCH_LENGTH:
        raise Violation(position, offset, f"a batch cannot have length {header.batch_length}")
    if header.size > end - position:
        raise Violation(
            position, offset, f"a batch of {header.size} bytes where only {end - position} are left"
        )
    if header.last_offset_delta < 0:
        raise Violation(position, offset, f"last offset delta {header.last_offset_delta} is negative")
    return header


def _gap_at(gaps: Sequence[Gap], boundary: Boundary) -> Gap | None:
    return next((gap for gap in gaps if gap.start == boundary), None)


def past_gaps(boundary: Boundary, gaps: Sequence[Gap]) -> Boundary:
    """The boundary itself, or the end of the gap that it lies in: an index may lead into one."""
    for gap in gaps:
        if gap.start.position < boundary.position < gap.end.position:
            return gap.end
    return boundary
