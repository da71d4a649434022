"""Reading a log from its start as records, the way a state machine rebuilds itself."""

import os
from collections.abc import Iterator

from alpacamq.log.partition_log import PartitionLog
from alpacamq.model.batch import FRAME_BYTES, check_batch, read_header
from alpacamq.model.errors import StorageFailed
from alpacamq.model.records import Record, read_records

_CHUNK_BYTES = 1 << 20


def replay(log: PartitionLog, from_offset: int = 0) -> Iterator[Record]:
    """Every record of `log` from an offset on, in order. Blocking."""
    offset = max(from_offset, log.start_offset)
    while (part := log.read(offset, _CHUNK_BYTES, log.end_offset)) is not None:
        try:
            data = os.pread(part.handle.descriptor, part.length, part.position)
        finally:
            part.release()
        if len(data) != part.length:
            raise StorageFailed(f"{part.path} ends {part.length - len(data)} bytes early")
        view = memoryview(data)
        at = 0
        while at < len(view):
            header = read_header(view, at)
            batch = view[at : at + FRAME_BYTES + header.batch_length]
            check_batch(batch)
            if not header.is_control:
                yield from (record for record in read_records(batch) if record.offset >= offset)
            at += len(batch)
            offset = header.next_offset
