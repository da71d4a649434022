"""Carrying out changes to files that belong together, safe against a crash at any point.

New content is complete on the medium before the first change is made, the journal says which changes
there are, and the next run finishes what a crash interrupted. What is replaced or taken away is
moved to `damaged/`, never deleted.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from alpacamq.model.ports import Disk

from .data_directory import DAMAGED, JOURNAL
from .repair import Change, Stretch
from .scan import WINDOW_BYTES
from .sealed_file import read_sealed, write_sealed

_MAGIC = b"ALRJ"
_VERSION = 1


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """One change, by names within the data directory; `new` is where its content waits."""

    path: str
    new: str | None
    aside: str


class RepairJournal:
    """Makes changes in a data directory, all of them or, after a crash, the rest of them."""

    def __init__(self, disk: Disk, data_directory: Path) -> None:
        self._disk = disk
        self._root = data_directory

    @property
    def is_unfinished(self) -> bool:
        return JOURNAL in self._disk.names(self._root)

    def finish(self) -> None:
        """Make the changes of an interrupted repair."""
        body = read_sealed(self._disk, self._root / JOURNAL, _MAGIC, _VERSION)
        self._apply(msgspec.json.decode(body, type=list[_Step]))

    def make(self, changes: Sequence[Change], folder: str) -> Path:
        """Make changes; returns the new folder in `damaged/` where the former files are."""
        aside = self._root / DAMAGED / folder
        steps: list[_Step] = []
        for change in changes:
            inside = change.path.relative_to(self._root)
            new = None
            if change.content is not None:
                new = aside / f"{len(steps)}.new"
            elif not self._exists(change.path):
                continue
            self._make_directories((aside / inside).parent)
            if new is not None and change.content is not None:
                self._write(new, change.content)
            steps.append(
                _Step(
                    path=str(inside),
                    new=None if new is None else str(new.relative_to(self._root)),
                    aside=str((aside / inside).relative_to(self._root)),
                )
            )
        if steps:
            self._disk.sync_directory(aside)
            write_sealed(self._disk, self._root / JOURNAL, _MAGIC, _VERSION, msgspec.json.encode(steps))
            self._apply(steps)
        return aside

    def _apply(self, steps: Sequence[_Step]) -> None:
        disk = self._disk
        touched: set[Path] = set()
        for step in steps:
            path, aside = self._root / step.path, self._root / step.aside
            new = None if step.new is None else self._root / step.new
            touched |= {path.parent, aside.parent}
            if new is not None and not self._exists(new):
                continue  # done before a crash
            if self._exists(path) and not self._exists(aside):
                disk.rename(path, aside)
            if new is not None:
                disk.rename(new, path)
                touched.add(new.parent)
        for directory in sorted(touched):
            disk.sync_directory(directory)
        disk.remove(self._root / JOURNAL)
        disk.sync_directory(self._root)

    def _write(self, path: Path, content: Sequence[Stretch]) -> None:
        disk = self._disk
        target = disk.open(path, create=True)
        try:
            disk.truncate(target, 0)
            written = 0
            for stretch in content:
                for data in self._pieces(stretch):
                    disk.write(target, [data], written)
                    written += len(data)
            disk.sync(target)
        finally:
            disk.close(target)

    def _pieces(self, stretch: Stretch) -> Iterator[bytes]:
        if isinstance(stretch.source, bytes):
            yield stretch.source
            return
        descriptor = self._disk.open(stretch.source)
        try:
            for position in range(stretch.start, stretch.end, WINDOW_BYTES):
                yield self._disk.read(descriptor, min(WINDOW_BYTES, stretch.end - position), position)
        finally:
            self._disk.close(descriptor)

    def _exists(self, path: Path) -> bool:
        try:
            return path.name in self._disk.names(path.parent)
        except FileNotFoundError:
            return False

    def _make_directories(self, path: Path) -> None:
        if path == self._root or self._exists(path):
            return
        self._make_directories(path.parent)
        self._disk.make_directory(path)
        self._disk.sync_directory(path.parent)
