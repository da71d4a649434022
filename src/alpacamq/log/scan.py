"""Scans the batches of a segment file, headers only or with checksums.

Lengths are checked against the rest of the file before use, and at most one window is held in
memory, whatever length a batch claims.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.batch import (
    CHECKED_FROM,
    EPOCH_AT,
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
    """The start of a batch: its offset and its byte position in the segment."""

    offset: int
    position: int


class Gap(NamedTuple):
    """A damaged range of a segment, from the batch at `start` to the next sound one at `end`."""

    start: Boundary
    end: Boundary
    reason: str


class Violation(Exception):
    """Bytes that are not the expected batch: position, offset and reason."""

    def __init__(self, position: int, offset: int, reason: str) -> None:
        super().__init__(f"byte {position}, offset {offset}: {reason}")
        self.position = position
        self.offset = offset
        self.reason = reason


def scan_headers(
    disk: Disk,
    descriptor: int,
    start: int,
    end: int,
    offset: int,
    gaps: Sequence[Gap] = (),
    *,
    is_last: bool = False,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield positions and headers of the batches from `start`, which has `offset`, to `end`.

    Reads little at first, then doubles the window while batches are small enough to need it. Skips
    known `gaps`. With `is_last`, `offset` is the last of the first batch.
    """
    data, data_start = b"", start
    read_bytes = LOOKUP_BYTES
    position = start
    if is_last:
        data = disk.read(descriptor, min(read_bytes, end - start), start)
        header = read_header(data) if len(data) >= HEADER_BYTES else None
        if header is None or header.last_offset != offset:
            raise Violation(start, offset, "no batch that the index names")
        offset = header.base_offset
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
    """Yield positions and headers like `scan_headers`, with every byte verified.

    With `learn_epochs` epochs are taken from the batches instead of checked against the history.
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
            epoch, epoch_until = epochs.epoch_at(offset)
        if header.leader_epoch != epoch:
            if not (learn_epochs and header.leader_epoch > epochs.latest):
                raise Violation(position, offset, f"leader epoch {header.leader_epoch} instead of {epoch}")
            epochs.assign(header.leader_epoch, offset)
            epoch, epoch_until = epochs.epoch_at(offset)
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
    """Read the header at `at`; Violation unless a batch with `offset` may begin there and end by `end`."""
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
    """Return the boundary, or the end of the gap that it is in: an index entry may point into one."""
    for gap in gaps:
        if gap.start.position < boundary.position < gap.end.position:
            return gap.end
    return boundary


# The offset of an end of which only the position is known.
UNKNOWN_OFFSET = 1 << 62

_EPOCH_AND_MAGIC = Struct(">ib")
_MAGIC_AT = EPOCH_AT + 4
# Records may contain bytes that look like headers. Checksum at most this many times the range.
_MAX_CHECKED = 16


def find_gaps(
    disk: Disk,
    descriptor: int,
    start: Boundary,
    end: Boundary,
    epochs: EpochHistory,
    *,
    learn_epochs: bool = False,
) -> Iterator[Gap]:
    """Yield the damaged ranges between two boundaries, verifying every byte."""
    reached = start
    while True:
        try:
            for position, header in scan_batches(
                disk,
                descriptor,
                reached.position,
                end.position,
                reached.offset,
                epochs,
                learn_epochs=learn_epochs,
            ):
                reached = Boundary(header.next_offset, position + header.size)
            if reached.offset == end.offset:
                return
            violation = ends_early(reached, end.offset)
        except Violation as found:
            violation = found
        gap = gap_at(disk, descriptor, violation, end, None if learn_epochs else epochs)
        yield gap
        if gap.end == end:
            return
        reached = gap.end


def ends_early(reached: Boundary, end_offset: int) -> Violation:
    """Return the violation of a segment that ends before its last offset."""
    return Violation(
        reached.position,
        reached.offset,
        f"the segment ends here, although offsets up to {end_offset - 1} belong to it",
    )


def gap_at(
    disk: Disk, descriptor: int, violation: Violation, end: Boundary, epochs: EpochHistory | None
) -> Gap:
    """Return the gap that begins at a violation and ends at the next sound batch, at the latest at `end`.

    Without `epochs`, batches of any leader epoch are accepted.
    """
    start = Boundary(violation.offset, violation.position)
    room = _MAX_CHECKED * (end.position - start.position)
    for position, header in _candidates(disk, descriptor, start, end, epochs):
        room -= header.size
        if room < 0:
            break
        if not _is_followed(disk, descriptor, position, header, end, epochs):
            continue
        if _checksum(disk, descriptor, position, header.size) == header.crc:
            return Gap(start, Boundary(header.base_offset, position), violation.reason)
    return Gap(start, end, violation.reason)


def _candidates(
    disk: Disk, descriptor: int, start: Boundary, end: Boundary, epochs: EpochHistory | None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield headers that may belong to batches after `start`, the most likely first.

    First the batch at `start` itself, in case earlier ones are missing, then the one at its end.
    """
    at = start.position
    for _ in range(2):
        if not start.position <= at <= end.position - HEADER_BYTES:
            break
        header = read_header(disk.read(descriptor, HEADER_BYTES, at))
        if header.magic == MAGIC and _may_follow(header, at, start, end, epochs):
            yield at, header
        at += header.size
    pattern = _pattern(start, end, epochs)
    position = start.position
    while position <= end.position - HEADER_BYTES:
        # Windows overlap by a header, so that no header is split.
        data = disk.read(descriptor, min(WINDOW_BYTES, end.position - position), position)
        for hit in pattern.finditer(data):
            at = hit.end() - 1 - _MAGIC_AT
            if at < 0 or at + HEADER_BYTES > len(data):
                continue
            header = read_header(data, at)
            if _may_follow(header, position + at, start, end, epochs):
                yield position + at, header
        if len(data) < WINDOW_BYTES:
            return
        position += WINDOW_BYTES - HEADER_BYTES + 1


def _pattern(start: Boundary, end: Boundary, epochs: EpochHistory | None) -> "re.Pattern[bytes]":
    """Return a pattern that ends with the magic byte of any batch between two boundaries."""
    if epochs is None:
        return re.compile(re.escape(bytes([MAGIC])))
    offset, found = start.offset, []
    while offset < end.offset:
        epoch, offset = epochs.epoch_at(offset)
        found.append(re.escape(_EPOCH_AND_MAGIC.pack(epoch, MAGIC)))
    return re.compile(b"|".join(found) or b"(?!)")


def _may_follow(
    header: BatchHeader, position: int, start: Boundary, end: Boundary, epochs: EpochHistory | None
) -> bool:
    return (
        start.offset < header.base_offset
        and header.last_offset_delta >= 0
        and header.next_offset <= end.offset
        and header.batch_length >= MIN_BATCH_LENGTH
        and header.size <= end.position - position
        and (epochs is None or header.leader_epoch == epochs.epoch_at(header.base_offset)[0])
    )


def _is_followed(
    disk: Disk,
    descriptor: int,
    position: int,
    header: BatchHeader,
    end: Boundary,
    epochs: EpochHistory | None,
) -> bool:
    after = Boundary(header.next_offset, position + header.size)
    if after.position == end.position:
        return end.offset in (after.offset, UNKNOWN_OFFSET)
    head = disk.read(descriptor, HEADER_BYTES, after.position)
    if len(head) < HEADER_BYTES:
        return False
    follower = read_header(head)
    before = Boundary(header.base_offset, position)
    return (
        follower.magic == MAGIC
        and follower.base_offset == after.offset
        and _may_follow(follower, after.position, before, end, epochs)
    )


def _checksum(disk: Disk, descriptor: int, position: int, size: int) -> int:
    at, after = position + CHECKED_FROM, position + size
    crc = 0
    while at < after:
        data = disk.read(descriptor, min(WINDOW_BYTES, after - at), at)
        if not data:
            return -1
        crc = crc32c(data, crc)
        at += len(data)
    return crc
