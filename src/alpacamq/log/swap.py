"""Replaces segments by their compacted version, safe against a crash at any point.

A cleaned file is durable before it is renamed to `.swap`, and each `.swap` before the next: so a
`.swap` file found at start is complete, and they are complete from the lowest offset on. The final
rename is atomic; segments it leaves behind are covered entirely, and recovery drops them.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from alpacamq.model.ports import Disk

from .compaction import CleanedSegment
from .directory import SWAP, Contents, remove_segment
from .epochs import EpochHistory
from .index import IndexTail
from .scan import Violation, scan_batches
from .segment import segment_path


def swap_path(directory: Path, base_offset: int) -> Path:
    path = segment_path(directory, base_offset)
    return path.with_name(path.name + SWAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A verified cleaned segment under its `.swap` name, with its index."""

    cleaned: CleanedSegment
    tail: IndexTail


def prepare_swaps(
    disk: Disk, directory: Path, cleaned: Sequence[CleanedSegment], epochs: EpochHistory
) -> list[Swap]:
    """Verify cleaned files and rename them to `.swap`, lowest offset first. All or none."""
    swaps: list[Swap] = []
    named: list[int] = []
    try:
        for segment in cleaned:
            tail, end = _walk(disk, segment.path, segment.base_offset, epochs)
            assert end == segment.end_offset, f"{segment.path} ends at {end}, not {segment.end_offset}"
            swaps.append(Swap(cleaned=segment, tail=tail))
        for segment in cleaned:
            disk.rename(segment.path, swap_path(directory, segment.base_offset))
            named.append(segment.base_offset)
            disk.sync_directory(directory)
    except BaseException:
        for segment in cleaned[len(named) :]:
            with suppress(OSError):  # the next start removes it
                disk.remove(segment.path)
        discard_swaps(disk, directory, named)
        raise
    return swaps


def put_in_place(disk: Disk, directory: Path, base_offset: int, replaced: Iterable[int]) -> None:
    """Rename a `.swap` file to the first segment that it replaces, and remove the others."""
    remove_segment(disk, directory, base_offset, keep_log=True)
    disk.rename(swap_path(directory, base_offset), segment_path(directory, base_offset))
    for other in replaced:
        if other != base_offset:
            remove_segment(disk, directory, other)


def discard_swaps(disk: Disk, directory: Path, bases: Iterable[int]) -> None:
    """Remove `.swap` files, the highest first: a value must not reappear whose tombstone is gone."""
    for base_offset in sorted(bases, reverse=True):
        disk.remove(swap_path(directory, base_offset))
        disk.sync_directory(directory)


def complete_swaps(
    disk: Disk, directory: Path, contents: Contents, epochs: EpochHistory | None, notes: list[str]
) -> None:
    """Finish swaps that a crash interrupted, and update `contents`."""
    for base_offset in contents.swaps:
        path = swap_path(directory, base_offset)
        try:
            _, end = _walk(disk, path, base_offset, epochs)
        except Violation as violation:
            if base_offset in contents.segments:
                disk.remove(path)
                notes.append(f"{path} is dropped, its source segments still exist: {violation.reason}")
                continue
            end = base_offset
        replaced = {base for base in contents.segments if base_offset <= base < end}
        put_in_place(disk, directory, base_offset, replaced)
        notes.append(f"{path} is in place now: a compaction was interrupted")
        contents.segments = sorted((set(contents.segments) - replaced) | {base_offset})
    if contents.swaps:
        disk.sync_directory(directory)


def _walk(disk: Disk, path: Path, base_offset: int, epochs: EpochHistory | None) -> tuple[IndexTail, int]:
    """Verify a whole file. Returns its index and the offset after its last batch."""
    tail = IndexTail(base_offset)
    end = base_offset
    descriptor = disk.open(path)
    try:
        for position, header in scan_batches(
            disk,
            descriptor,
            0,
            disk.size(descriptor),
            base_offset,
            epochs or EpochHistory(),
            learn_epochs=epochs is None,
        ):
            tail.note(header.base_offset, position, header.max_timestamp)
            end = header.next_offset
    finally:
        disk.close(descriptor)
    return tail, end
