"""Finding every damaged stretch of a segment, and where sound batches go on behind each.

A sound batch behind damage is found by its header (offset, length, leader epoch) and believed only
if its checksum is right and the batch that it says comes next begins where it ends: a record may hold
a whole batch as its value. Where none is found, the stretch ends where the segment is known to end.
"""

import re
from collections.abc import Iterator
from struct import Struct

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
from .scan import WINDOW_BYTES, Boundary, Gap, Violation, scan_batches

# The offset of an end that is known by its position only.
UNKNOWN_OFFSET = 1 << 62

_EPOCH_AND_MAGIC = Struct(">ib")
_MAGIC_AT = EPOCH_AT + 4
# Records may hold what looks like headers. So many times the stretch is summed up before giving up on it.
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
    """The damaged stretches between two boundaries, with every byte in between verified."""
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
    """The segment ends although more offsets belong to it."""
    return Violation(
        reached.position,
        reached.offset,
        f"the segment ends here, although offsets up to {end_offset - 1} belong to it",
    )


def gap_at(
    disk: Disk, descriptor: int, violation: Violation, end: Boundary, epochs: EpochHistory | None
) -> Gap:
    """The stretch that a violation begins; it ends at the next sound batch, at the latest at `end`.

    Without `epochs` a batch may be of any leader epoch.
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
    """Headers that may be those of batches behind `start`, the likeliest first.

    That is the batch at `start` itself where others before it are gone, then the one where it says it ends.
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
        # Windows overlap by a header, so that none is cut in two.
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
    """What ends with the byte that says the format of a batch, in any batch between two boundaries."""
    if epochs is None:
        return re.compile(re.escape(bytes([MAGIC])))
    offset, found = start.offset, []
    while offset < end.offset:
        epoch, offset = epochs.span_at(offset)
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
        and (epochs is None or header.leader_epoch == epochs.span_at(header.base_offset)[0])
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
