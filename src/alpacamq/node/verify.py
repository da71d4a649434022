"""`alpacamq verify`: checks every batch of a stopped broker against its checksum and neighbours."""

from pathlib import Path

from alpacamq.log.data_directory import IDENTITY, PARTITIONS, take_lock
from alpacamq.log.disk import SystemDisk
from alpacamq.log.inspection import PartitionState, inspect_partition
from alpacamq.model.errors import InvalidConfig

MIB = 1 << 20


def verify(data_directory: Path) -> int:
    """Print a line for each checked partition; return 1 if any is damaged, else 0."""
    if not (data_directory / IDENTITY).is_file():
        raise InvalidConfig(f"{data_directory} is not an AlpacaMQ data directory; set it with --data-dir")
    disk = SystemDisk()
    lock = take_lock(disk, data_directory)
    damaged = count = size_bytes = 0
    try:
        for name in sorted(disk.names(data_directory / PARTITIONS)):
            state = inspect_partition(disk, data_directory / PARTITIONS / name)
            count += 1
            size_bytes += state.size_bytes
            damaged += bool(state.gaps) or state.lost is not None
            print(
                f"{name}: {len(state.segments)} segments, {state.size_bytes / MIB:.1f} MiB, "
                f"offsets {state.start_offset} to {state.end_offset}: {_described(state)}",
                flush=True,
            )
    finally:
        disk.close(lock)
    print(f"{count} partitions, {size_bytes / MIB:.1f} MiB: {damaged or 'none'} damaged")
    if damaged:
        print(f"to repair: alpacamq repair --data-dir {data_directory}")
    return 1 if damaged else 0


def _described(state: PartitionState) -> str:
    found = [
        f"DAMAGED: {segment.path} at byte {gap.start.position}: {gap.reason}; "
        f"offsets {gap.start.offset} to {gap.end.offset - 1} cannot be read"
        for segment, gap in state.gaps
    ]
    if state.lost is not None:
        found.append(f"DAMAGED: offsets {state.lost[0]} to {state.lost[1] - 1} were lost with their segments")
    if (unfinished := state.unfinished) is not None:
        segment, violation = unfinished
        found.append(
            "torn tail, truncated at the next start: "
            f"{segment.path} at byte {violation.position}: {violation.reason}"
        )
    return "; ".join(found) or "ok"
