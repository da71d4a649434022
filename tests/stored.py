"""Reads a broker's files without the broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from alpacamq.model.batch import FRAME_BYTES, HEADER_BYTES, BatchHeader, read_header
from alpacamq.model.records import Record, read_records


class StoredBatch(NamedTuple):
    """One batch and its position."""

    file: Path
    position: int
    header: BatchHeader
    data: bytes

    def records(self) -> list[Record]:
        return list(read_records(self.data))


def segments(data_dir: Path, topic: str, partition: int = 0) -> list[Path]:
    """Return the partition's segment files, oldest first."""
    return sorted(data_dir.glob(f"partitions/{topic}-{partition}.*/*.log"))


def batches(data_dir: Path, topic: str, partition: int = 0) -> Iterator[StoredBatch]:
    """Yield every whole batch of a partition in order."""
    for file in segments(data_dir, topic, partition):
        yield from batches_in(file)


def batches_in(file: Path) -> Iterator[StoredBatch]:
    """Yield every whole batch of one segment."""
    return split(file.read_bytes(), file)


def split(data: bytes, file: Path) -> Iterator[StoredBatch]:
    """Yield every whole batch of `data`, the content of `file` or a response to a client."""
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = read_header(data, position)
        if header.batch_length < HEADER_BYTES - FRAME_BYTES or position + header.size > len(data):
            return
        yield StoredBatch(file, position, header, data[position : position + header.size])
        position += header.size
