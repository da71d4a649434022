"""Reads a log from its start as records, to rebuild a state machine.

Nothing is skipped: a machine that misses a record is wrong about everything that follows from it.
"""

from collections.abc import Iterator

from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.batch import HEADER_BYTES, BatchHeader, check_batch, read_header
from alpacamq.model.errors import CorruptBatch, DamagedLog, StorageFailed
from alpacamq.model.records import Record, read_records

_CHUNK_BYTES = 1 << 20


def replay(log: PartitionLog, from_offset: int = 0) -> Iterator[Record]:
    """Yield every record of `log` from an offset on, in order; DamagedLog if one is unreadable. Blocking."""
    if log.recovered.losses and from_offset < log.start_offset:
        raise StorageFailed(log.recovered.losses[0])
    offset = max(from_offset, log.start_offset)
    while (part := log.read(offset, _CHUNK_BYTES, log.end_offset)) is not None:
        try:
            view = memoryview(part.read())
            at = 0
            while at < len(view):
                try:
                    header, records = _batch(view[at:], offset)
                except CorruptBatch as error:
                    log.verify(part)  # raises and marks the damage if the stored bytes are wrong
                    raise DamagedLog(part.path, part.position + at, str(error)) from error
                yield from (record for record in records if record.offset >= offset)
                at += header.size
                offset = header.next_offset
        finally:
            part.release()


def _batch(view: memoryview, offset: int) -> tuple[BatchHeader, list[Record]]:
    """Return the header and records of the batch that `view` begins with, which must contain `offset`."""
    if len(view) < HEADER_BYTES:
        raise CorruptBatch(f"{len(view)} bytes are too few for a batch header")
    header = read_header(view)
    if not header.base_offset <= offset < header.next_offset:
        raise CorruptBatch(f"offset {header.base_offset} where {offset} should follow")
    batch = view[: header.size]
    check_batch(batch)
    return header, [] if header.is_control else list(read_records(batch))
