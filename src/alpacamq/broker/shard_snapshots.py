"""Snapshots of a shard's state, so that loading it reads only the tail of its log.

A snapshot is a short cut, never the only copy: a damaged one is passed over for an older one, and
without any the whole log is replayed.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from alpacamq.log.sealed_file import TEMPORARY, Unreadable, read_sealed, write_sealed
from alpacamq.model.outcome import Change
from alpacamq.model.ports import Disk
from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

KEPT = 3
_MAGIC = b"ALSH"
_VERSION = 1
_SUFFIX = ".state"


class ShardSnapshots:
    """The snapshots of one shard, in a directory of their own."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory

    def newest(self, end_offset: int) -> tuple[int, list[Change]] | None:
        """The offset the newest sound snapshot reaches to, and what it holds.

        One that reaches beyond the log's end remembers what a crash has taken, and is removed.
        """
        for offset in reversed(self._offsets()):
            path = self._path(offset)
            if offset > end_offset:
                log.warning("snapshot_removed", path=str(path), end_offset=end_offset)
                self._disk.remove(path)
                # Should it come back, the log may have grown past it with other records.
                self._disk.sync_directory(self._directory)
                continue
            try:
                body = read_sealed(self._disk, path, _MAGIC, _VERSION)
                return offset, msgspec.msgpack.decode(body, type=list[Change])
            except (Unreadable, msgspec.DecodeError) as error:
                log.warning("snapshot_passed_over", path=str(path), reason=str(error))
        return None

    def write(self, offset: int, changes: Sequence[Change]) -> None:
        """Keep a snapshot of everything before `offset`, and the few before it."""
        try:
            self._disk.make_directory(self._directory)
            self._disk.sync_directory(self._directory.parent)
        except FileExistsError:
            pass
        write_sealed(self._disk, self._path(offset), _MAGIC, _VERSION, msgspec.msgpack.encode(changes))
        for old in self._offsets()[:-KEPT]:
            self._disk.remove(self._path(old))

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020d}{_SUFFIX}"

    def _offsets(self) -> list[int]:
        try:
            names = self._disk.names(self._directory)
        except FileNotFoundError:
            return []
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted(int(stem) for stem in stems if stem.isdigit() and TEMPORARY not in stem)
