"""`alpacamq verify`: every stored batch of a stopped broker against its checksum and its neighbours."""

from pathlib import Path
from typing import NamedTuple

from alpacamq.log.checkpoint import Checkpoint, read_checkpoint
from alpacamq.log.data_directory import IDENTITY, PARTITIONS, take_lock
from alpacamq.log.directory import list_contents
from alpacamq.log.disk import SystemDisk
from alpacamq.log.epochs import EpochHistory, read_epochs
from alpacamq.log.scan import Violation, scan_batches
from alpacamq.log.sealed_file import Unreadable
from alpacamq.log.segment import segment_path
from alpacamq.model.errors import InvalidConfig
from alpacamq.model.ports import Disk

MIB = 1 << 20


class Finding(NamedTuple):
    """What there is to say of one partition."""

    segments: int
    size_bytes: int
    start_offset: int
    end_offset: int
    damage: str | None
    unfinished: str | None


def verify(data_directory: Path) -> int:
    """Print a line for each partition as it is done; 1 if any is damaged, else 0."""
    if not (data_directory / IDENTITY).is_file():
        raise InvalidConfig(f"{data_directory} is not a data directory of AlpacaMQ; name one with --data-dir")
    disk = SystemDisk()
    lock = take_lock(disk, data_directory)
    damaged = count = size_bytes = 0
    try:
        for name in sorted(disk.names(data_directory / PARTITIONS)):
            finding = verify_partition(disk, data_directory / PARTITIONS / name)
            count += 1
            size_bytes += finding.size_bytes
            damaged += finding.damage is not None
            state = finding.damage or finding.unfinished or "ok"
            print(
                f"{name}: {finding.segments} segments, {finding.size_bytes / MIB:.1f} MiB, "
                f"offsets {finding.start_offset} to {finding.end_offset}: {state}",
                flush=True,
            )
    finally:
        disk.close(lock)
    print(f"{count} partitions, {size_bytes / MIB:.1f} MiB: {damaged or 'none'} damaged")
    return 1 if damaged else 0


def verify_partition(disk: Disk, directory: Path) -> Finding:
    """Read every byte of a partition. What lies after the recovery point may be cut off by a crash."""
    contents = list_contents(disk, directory)
    try:
        epochs, learn_epochs = read_epochs(disk, directory), False
    except Unreadable:
        epochs, learn_epochs = EpochHistory(), True
    try:
        checkpoint = read_checkpoint(disk, directory)
    except Unreadable:
        checkpoint = Checkpoint()
    bases = contents.segments
    offset = start_offset = bases[0] if bases else 0
    size_bytes = 0
    for base_offset in bases:
        path = segment_path(directory, base_offset)
        descriptor = disk.open(path)
        try:
            size = disk.size(descriptor)
            size_bytes += size
            if base_offset != offset:
                raise Violation(0, base_offset, f"offset {offset} should come first: a segment is missing")
            for _, header in scan_batches(
                disk, descriptor, 0, size, base_offset, epochs, learn_epochs=learn_epochs
            ):
                offset = header.next_offset
        except Violation as violation:
            found = f"{path} at byte {violation.position}: {violation.reason}"
            point = checkpoint.recovery_point
            if (base_offset, violation.position) < (point.segment, point.position):
                return Finding(len(bases), size_bytes, start_offset, offset, f"DAMAGED: {found}", None)
            unfinished = f"unfinished tail, cut off at the next start: {found}"
            return Finding(len(bases), size_bytes, start_offset, offset, None, unfinished)
        finally:
            disk.close(descriptor)
    return Finding(len(bases), size_bytes, max(start_offset, checkpoint.start_offset), offset, None, None)
