"""A disk in memory that can lose power: it keeps what was synced, and arbitrary parts of the rest.

Unsynced data may exist in part, be missing, or be replaced by zeros. Unsynced names exist up to some
point, in the order in which they were created.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from alpacamq.model.ids import TimestampMs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

    from alpacamq.model.ports import Buffer


@dataclass(eq=False)
class _File:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    """Since the last sync: position and bytes; a truncation has position -1 - size."""


@dataclass(eq=False)
class _Directory:
    names: dict[str, _File | _Directory] = field(default_factory=dict)
    synced: dict[str, _File | _Directory] = field(default_factory=dict)
    changes: list[Callable[[dict[str, _File | _Directory]], None]] = field(default_factory=list)

    def change(self, change: Callable[[dict[str, _File | _Directory]], None]) -> None:
        change(self.names)
        self.changes.append(change)


class PowerLost(BaseException):
    """The machine has lost power; no code handles this exception."""


class CrashingDisk:
    """The `Disk` port over a tree of files in memory. Power is lost after `fuse` more changes."""

    def __init__(self) -> None:
        self._root = _Directory()
        self._open: dict[int, _File] = {}
        self._next = 3
        self.fuse: int | None = None
        self.syncs_as_a_whole = True

    def crash(self, random: Random) -> None:
        """Restart after a power loss, with what was synced and arbitrary parts of the rest."""
        self.fuse = None
        self._open.clear()
        self._lose(self._root, random)

    def open(self, path: Path, *, create: bool = False) -> int:
        parent = self._directory(path.parent)
        found = parent.names.get(path.name)
        if found is None:
            if not create:
                raise _error(errno.ENOENT, path)
            self._burn()
            found = fresh = _File()
            parent.change(lambda names: names.__setitem__(path.name, fresh))
        if isinstance(found, _Directory):
            raise _error(errno.EISDIR, path)
        self._next += 1
        self._open[self._next] = found
        return self._next

    def close(self, descriptor: int) -> None:
        del self._open[descriptor]

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        self._burn()
        file = self._open[descriptor]
        data = b"".join(buffers)
        _apply(file.data, position, data)
        file.writes.append((position, data))

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        return bytes(self._open[descriptor].data[position : position + size])

    def size(self, descriptor: int) -> int:
        return len(self._open[descriptor].data)

    def modified_ms(self, descriptor: int) -> TimestampMs:
        return TimestampMs(0)

    def truncate(self, descriptor: int, size: int) -> None:
        self._burn()
        file = self._open[descriptor]
        _apply(file.data, -1 - size, b"")
        file.writes.append((-1 - size, b""))

    def sync(self, descriptor: int) -> None:
        self._burn()
        file = self._open[descriptor]
        file.synced = bytes(file.data)
        file.writes.clear()

    def sync_directory(self, path: Path) -> None:
        self._burn()
        directory = self._directory(path)
        directory.synced = dict(directory.names)
        directory.changes.clear()

    def sync_filesystem(self, path: Path) -> bool:
        if self.syncs_as_a_whole:
            self._burn()
            self._keep(self._root)
        return self.syncs_as_a_whole

    def names(self, path: Path) -> list[str]:
        return list(self._directory(path).names)

    def make_directory(self, path: Path) -> None:
        self._burn()
        parent = self._directory(path.parent)
        if path.name in parent.names:
            raise _error(errno.EEXIST, path)
        fresh = _Directory()
        parent.change(lambda names: names.__setitem__(path.name, fresh))

    def rename(self, source: Path, target: Path) -> None:
        self._burn()
        parent = self._directory(source.parent)
        assert parent is self._directory(target.parent), "only within a directory"
        if source.name not in parent.names:
            raise _error(errno.ENOENT, source)

        def change(names: dict[str, _File | _Directory]) -> None:
            names[target.name] = names.pop(source.name)

        parent.change(change)

    def remove(self, path: Path) -> None:
        self._burn()
        parent = self._directory(path.parent)
        if path.name not in parent.names:
            raise _error(errno.ENOENT, path)
        if isinstance(parent.names[path.name], _Directory):
            raise _error(errno.EISDIR, path)
        parent.change(lambda names: names.__delitem__(path.name))

    def remove_directory(self, path: Path) -> None:
        self._burn()
        parent = self._directory(path.parent)
        parent.change(lambda names: names.__delitem__(path.name))

    def _burn(self) -> None:
        if self.fuse is not None:
            if self.fuse == 0:
                raise PowerLost
            self.fuse -= 1

    def _directory(self, path: Path) -> _Directory:
        found: _File | _Directory | None = self._root
        for part in path.parts[1:]:
            found = found.names.get(part) if isinstance(found, _Directory) else None
        if not isinstance(found, _Directory):
            raise _error(errno.ENOENT, path)
        return found

    def _keep(self, directory: _Directory) -> None:
        directory.synced = dict(directory.names)
        directory.changes.clear()
        for entry in directory.names.values():
            if isinstance(entry, _Directory):
                self._keep(entry)
            else:
                entry.synced = bytes(entry.data)
                entry.writes.clear()

    def _lose(self, directory: _Directory, random: Random) -> None:
        kept = directory.changes[: random.randint(0, len(directory.changes))]
        names = dict(directory.synced)
        for change in kept:
            change(names)
        directory.names = names
        directory.synced = dict(names)
        directory.changes.clear()
        for entry in names.values():
            if isinstance(entry, _Directory):
                self._lose(entry, random)
            else:
                entry.data = bytearray(_what_is_left(entry, random))
                entry.synced = bytes(entry.data)
                entry.writes.clear()


def _what_is_left(file: _File, random: Random) -> bytes:
    data = bytearray(file.synced)
    for position, written in file.writes[: random.randint(0, len(file.writes))]:
        match random.choice(["all", "all", "all", "part", "zeros", "none"]):
            case "all":
                _apply(data, position, written)
            case "part" if position >= 0:
                _apply(data, position, written[: random.randint(0, len(written))])
            case "zeros" if position >= 0:
                _apply(data, position, bytes(len(written)))
            case _:
                pass
    return bytes(data)


def _apply(data: bytearray, position: int, written: bytes) -> None:
    if position < 0:
        size = -1 - position
        del data[size:]
        data.extend(bytes(size - len(data)))
        return
    if len(data) < position:
        data.extend(bytes(position - len(data)))
    data[position : position + len(written)] = written


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
