"""Snapshots of a state machine, so that loading it reads only the tail of its log.

A snapshot is a shortcut, never the only copy: a damaged one is skipped for an older one, and without any
the whole log is replayed.

Replay skips nothing: a machine that misses a record is wrong about everything that follows from it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from alpacamq.log.partition_log import PartitionLog
from alpacamq.log.sealed_file import Unreadable, view_sealed, write_sealed
from alpacamq.model.batch import HEADER_BYTES, BatchHeader, check_batch, read_header
from alpacamq.model.errors import CorruptBatch, DamagedLog, StorageFailed
from alpacamq.model.ports import Disk
from alpacamq.model.records import Record, read_changes, read_records
from alpacamq.model.state_machine import Change
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

KEPT = 3
# Maximum of changes per block: decoding one holds the interpreter for less than a millisecond.
BLOCK_CHANGES = 500
_MAGIC = b"ALSH"
_VERSION = 2
# All changes in one block.
_FORMER_VERSION = 1
_LIMIT_BYTES = 2 << 30
_LENGTH_BYTES = 4
STATE_SUFFIX = ".state"
UNKNOWN_EPOCH = -1
_NAME = re.compile(rf"(\d{{20}})(?:-(\d+))?{re.escape(STATE_SUFFIX)}")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Change]).decode


def encode_block(changes: Sequence[Change]) -> bytes:
    """Encode changes as a block of a snapshot."""
    body = _encode(changes)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def _blocks(body: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(body):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(body[at:begin], "big")
        yield body[begin:at]


class SnapshotName(NamedTuple):
    """The offset that a snapshot reaches to, and the leader epoch of the record before it."""

    offset: int
    # None in names of the first version, which had no epoch.
    epoch: int | None

    @classmethod
    def parse(cls, name: str) -> "SnapshotName | None":
        """Return the name of a snapshot file; None for other files."""
        if (found := _NAME.fullmatch(name)) is None:
            return None
        return cls(int(found[1]), None if found[2] is None else int(found[2]))

    def is_of_log(self, epoch_at: Callable[[int], int]) -> bool:
        """Return whether the log has the snapshot's last record: the same offset in the same epoch.

        A log that begins at the snapshot does not know the epoch before it (-1), and has no other record.
        """
        return self.epoch is None or epoch_at(self.offset - 1) in (self.epoch, UNKNOWN_EPOCH)

    def __str__(self) -> str:
        epoch = "" if self.epoch is None else f"-{self.epoch}"
        return f"{self.offset:020d}{epoch}{STATE_SUFFIX}"


class StoredSnapshot(NamedTuple):
    """A snapshot on disk: the offset that it reaches to, the epoch before it if known, and its changes."""

    offset: int
    epoch: int | None
    changes: Iterator[Change]


class StateSnapshots:
    """The snapshots of one state machine, in their own directory."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory

    def newest(self, end_offset: int, epoch_at: Callable[[int], int]) -> StoredSnapshot | None:
        """Return the newest snapshot of this log.

        A snapshot names the leader epoch of its last record. If the log has another epoch there, or ends
        earlier, the log was truncated since: the snapshot contains records that it lost, and is removed.
        """
        for name in reversed(self._names()):
            path = self._directory / str(name)
            if name.offset > end_offset or not name.is_of_log(epoch_at):
                log.warning("snapshot_removed", path=str(path), end_offset=end_offset)
                self._disk.remove(path)
                # If the file reappeared, the log might have grown past it with other records.
                self._disk.sync_directory(self._directory)
                continue
            try:
                return StoredSnapshot(name.offset, name.epoch, read_state(self._disk, path))
            except (Unreadable, msgspec.DecodeError) as error:
                log.warning("snapshot_skipped", path=str(path), reason=str(error))
        return None

    def read(self, offset: int, epoch: int) -> list[Change]:
        """Return the changes of the snapshot at `offset`. Raises StorageFailed."""
        path = self._directory / str(SnapshotName(offset, epoch))
        try:
            return list(read_state(self._disk, path))
        except (Unreadable, msgspec.DecodeError, OSError) as error:
            raise StorageFailed(f"the snapshot {path} cannot be read: {error}") from error

    def write(self, offset: int, epoch: int, blocks: Sequence[bytes]) -> None:
        """Write a snapshot of everything before `offset`, whose last record has `epoch`; remove old ones."""
        if (size := sum(map(len, blocks))) > _LIMIT_BYTES:
            raise OSError(f"{size} bytes of state exceed the limit of a snapshot")
        try:
            self._disk.make_directory(self._directory)
            self._disk.sync_directory(self._directory.parent)
        except FileExistsError:
            pass
        write_sealed(
            self._disk, self._directory / str(SnapshotName(offset, epoch)), _MAGIC, _VERSION, *blocks
        )
        for old in self._names()[:-KEPT]:
            self._disk.remove(self._directory / str(old))

    def oldest_offset(self) -> int | None:
        """Return the offset of the oldest snapshot that is kept."""
        return min((name.offset for name in self._names()), default=None)

    def _names(self) -> list[SnapshotName]:
        try:
            names = self._disk.names(self._directory)
        except FileNotFoundError:
            return []
        parsed = [found for name in names if (found := SnapshotName.parse(name)) is not None]
        return sorted(parsed, key=lambda name: (name.offset, -1 if name.epoch is None else name.epoch))


def read_state(disk: Disk, path: Path) -> Iterator[Change]:
    """Return the changes in the snapshot at `path`; raises Unreadable."""
    try:
        body = view_sealed(disk, path, _MAGIC, _VERSION, _LIMIT_BYTES)
    except Unreadable as error:
        try:
            return iter(_decode(view_sealed(disk, path, _MAGIC, _FORMER_VERSION)))
        except Unreadable:
            raise error from None
    # One block at a time: freeing a million changes at once would block every other thread.
    return (change for block in _blocks(body) for change in _decode(block))


_CHUNK_BYTES = 1 << 20
T = TypeVar("T")


def replay(log: PartitionLog, from_offset: int = 0) -> Iterator[Record]:
    """Yield every record of `log` from an offset on, in order; DamagedLog if one is unreadable. Blocking."""
    return _each_batch(
        log,
        from_offset,
        lambda batch, offset: [each for each in read_records(batch) if each.offset >= offset],
    )


def replay_changes(log: PartitionLog, from_offset: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of every record from an offset on that has a key; as `replay`, but faster."""
    return _each_batch(log, from_offset, read_changes)


def _each_batch(
    log: PartitionLog, from_offset: int, read: Callable[[memoryview, int], list[T]]
) -> Iterator[T]:
    if log.recovered.losses and from_offset < log.start_offset:
        raise StorageFailed(log.recovered.losses[0])
    offset = max(from_offset, log.start_offset)
    while (part := log.read(offset, _CHUNK_BYTES, log.end_offset)) is not None:
        try:
            view = memoryview(part.read())
            at = 0
            while at < len(view):
                try:
                    header = _header(view[at:], offset)
                    found = [] if header.is_control else read(view[at : at + header.size], offset)
                except CorruptBatch as error:
                    log.verify(part)  # raises and marks the damage if the stored bytes are wrong
                    raise DamagedLog(part.path, part.position + at, str(error)) from error
                yield from found
                at += header.size
                offset = header.next_offset
        finally:
            part.release()


def _header(view: memoryview, offset: int) -> BatchHeader:
    """Return the header of the batch that `view` begins with, which must be whole and contain `offset`."""
    if len(view) < HEADER_BYTES:
        raise CorruptBatch(f"{len(view)} bytes are too few for a batch header")
    header = read_header(view)
    if not header.base_offset <= offset < header.next_offset:
        raise CorruptBatch(f"offset {header.base_offset} where {offset} should follow")
    check_batch(view[: header.size])
    return header
