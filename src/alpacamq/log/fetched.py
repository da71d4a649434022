"""Checks batches that a follower fetched from its leader, before they are appended as they are.

A response is one buffer of whole batches; the last one may be incomplete, because a leader cuts by
size. Neither base offset nor leader epoch is covered by a batch's checksum, so both are checked
against the end of the log and its epochs.

Offsets are contiguous from batch to batch, in compacted logs as well: compaction replaces batches
that it drops by empty ones that span their offsets. Two replicas compact independently, so the end
of a follower may be inside of such a batch of its leader. Then the follower appends the part behind
its end.
"""

from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.batch import (
    CHECKED_FROM,
    CONTROL,
    FRAME_BYTES,
    HEADER_BYTES,
    MAGIC,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from alpacamq.model.errors import CorruptBatch
from alpacamq.model.ports import Buffer
from alpacamq.model.records import write_batch

from .producer_state import SEQUENCE_MASK


class LogEnd(NamedTuple):
    """The end of a follower's log: its offset, the epoch of the batch before it, whether there is one."""

    offset: int
    epoch: int
    is_empty: bool


class Fetched(NamedTuple):
    """Sound batches that continue the log: their headers, and their bytes in one buffer.

    `error` says what is wrong with the batch after them. The first one begins before the end of a log
    if that is empty and starts inside of the batch.
    """

    headers: list[BatchHeader]
    data: memoryview
    error: CorruptBatch | None = None


def is_plausible(header: BatchHeader) -> bool:
    """Return whether the header can be one of a batch."""
    return (
        header.magic == MAGIC
        and header.batch_length >= MIN_BATCH_LENGTH
        and header.last_offset_delta >= 0
        and header.base_offset >= 0
    )


def is_stored(header: BatchHeader, end_offset: int) -> bool:
    """Return whether the log has all offsets of the batch already."""
    return header.next_offset <= end_offset


def is_clippable(header: BatchHeader, end: LogEnd) -> bool:
    """Return whether a batch that begins before the end can be appended in part.

    It has no records, and is of the same leader epoch as the batch before the end.
    """
    return header.record_count == 0 and (end.is_empty or header.leader_epoch == end.epoch)


def is_epoch_in_order(header: BatchHeader, last_epoch: int, leader_epoch: int) -> bool:
    """Return whether the batch's epoch is between that of the batch before it and the leader's own."""
    return max(last_epoch, 0) <= header.leader_epoch <= leader_epoch


def check_fetched(data: Buffer, end: LogEnd, leader_epoch: int) -> Fetched:
    """Return the batches of `data` from `end` on, up to the first that is unsound or incomplete.

    Batches that the log has are skipped. `leader_epoch` is the epoch of the leader that sent them.
    """
    view = memoryview(data)
    headers: list[BatchHeader] = []
    clipped: Buffer = b""
    start = position = 0
    last_epoch = end.epoch
    expected: int | None = None
    error: CorruptBatch | None = None
    size = len(view)
    while size - position >= HEADER_BYTES:
        header = read_header(view, position)
        if not is_plausible(header):
            error = CorruptBatch(f"byte {position} of the fetched data is not the start of a batch")
            break
        after = position + FRAME_BYTES + header.batch_length
        if after > size:
            break
        if header.base_offset != expected:
            if expected is not None or header.base_offset > end.offset:
                error = _misplaced(header, end.offset if expected is None else expected)
                break
            if is_stored(header, end.offset):
                start = position = after
                continue
        if not is_epoch_in_order(header, last_epoch, leader_epoch):
            error = CorruptBatch(
                f"the batch at offset {header.base_offset} has leader epoch {header.leader_epoch}, "
                f"not one from {last_epoch} to {leader_epoch}"
            )
            break
        if crc32c(view[position + CHECKED_FROM : after]) != header.crc:
            error = CorruptBatch(f"the batch at offset {header.base_offset} does not match its checksum")
            break
        if expected is None and header.base_offset < end.offset:
            if is_clippable(header, end):
                clipped = clip(header, end.offset)
                header = read_header(clipped)
                start = after
            elif not end.is_empty:
                error = _misplaced(header, end.offset)
                break
        headers.append(header)
        last_epoch = header.leader_epoch
        expected = header.next_offset
        position = after
    whole = view[start:position]
    return Fetched(headers, memoryview(bytes(clipped) + whole) if clipped else whole, error)


def clip(header: BatchHeader, offset: int) -> bytearray:
    """Return the part from `offset` on of a batch without records. A producer's last sequence stays."""
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + offset - header.base_offset) & SEQUENCE_MASK
    return write_batch(
        (),
        base_offset=offset,
        last_offset=header.last_offset,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes & (TRANSACTIONAL | CONTROL),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=sequence,
    )


def _misplaced(header: BatchHeader, expected: int) -> CorruptBatch:
    return CorruptBatch(
        f"a batch of offsets {header.base_offset} to {header.last_offset} where {expected} should follow"
    )
