"""File names in a partition's directory: segments, indexes, snapshots, leftovers, foreign files."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from alpacamq.model.ports import Disk
from alpacamq.model.topics import INT64_MAX

from . import checkpoint, epochs
from .index_files import OFFSET_SUFFIX, SUMS_SUFFIX, TIME_SUFFIX
from .producer_state import SUFFIX as SNAPSHOT_SUFFIX
from .sealed_file import TEMPORARY
from .segment import LOG_SUFFIX

# Output of compaction: unfinished, and complete but not yet renamed into place.
CLEANED = ".cleaned"
SWAP = ".swap"

_OURS = re.compile(r"(\d{20})(\.[a-z]+)(\.[a-z]+)?")
_OWN_FILES = {checkpoint.FILE_NAME, epochs.FILE_NAME}


@dataclass(slots=True)
class Contents:
    """Base offsets of the files found, each kind in ascending order."""

    segments: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)
    swaps: list[int] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    has_checkpoint: bool = False
    has_epochs: bool = False


def list_contents(disk: Disk, directory: Path) -> Contents:
    """List the directory and classify its files."""
    contents = Contents()
    for name in sorted(disk.names(directory)):
        _classify(contents, name)
    return contents


def _classify(contents: Contents, name: str) -> None:
    if name in _OWN_FILES:
        contents.has_checkpoint |= name == checkpoint.FILE_NAME
        contents.has_epochs |= name == epochs.FILE_NAME
        return
    if name.endswith(TEMPORARY) and _is_ours(name.removesuffix(TEMPORARY)):
        contents.leftovers.append(name)
        return
    match = _OURS.fullmatch(name)
    if match is None or (base_offset := int(match[1])) > INT64_MAX:
        contents.foreign.append(name)
        return
    match match[2], match[3]:
        case (".log", None):
            contents.segments.append(base_offset)
        case (".index" | ".timeindex" | ".indexcrc", None):
            if contents.indexes[-1:] != [base_offset]:
                contents.indexes.append(base_offset)
        case (".producers", None):
            contents.snapshots.append(base_offset)
        case (".log", ".swap"):
            contents.swaps.append(base_offset)
        case (".log", ".cleaned"):
            contents.leftovers.append(name)
        case _:
            contents.foreign.append(name)


def _is_ours(name: str) -> bool:
    if name in _OWN_FILES:
        return True
    match = _OURS.fullmatch(name)
    return match is not None and match[3] is None and match[2] == SNAPSHOT_SUFFIX


def remove_segment(disk: Disk, directory: Path, base_offset: int, *, keep_log: bool = False) -> None:
    """Remove a segment's files, the log last: after a crash the rest is still a segment."""
    suffixes = (SUMS_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX)
    for suffix in suffixes if keep_log else (*suffixes, LOG_SUFFIX):
        try:
            disk.remove(directory / f"{base_offset:020d}{suffix}")
        except FileNotFoundError:
            continue


def remove_contents(disk: Disk, directory: Path) -> None:
    """Remove segments, snapshots and leftovers; foreign files, checkpoint and epochs stay."""
    contents = list_contents(disk, directory)
    for base_offset in {*contents.segments, *contents.indexes}:
        remove_segment(disk, directory, base_offset)
    for base_offset in contents.swaps:
        disk.remove(directory / f"{base_offset:020d}{LOG_SUFFIX}{SWAP}")
    for base_offset in contents.snapshots:
        disk.remove(directory / f"{base_offset:020d}{SNAPSHOT_SUFFIX}")
    for name in contents.leftovers:
        disk.remove(directory / name)
