"""The ports through which everything outside reaches us: `Clock` and `Disk`.

The broker uses real ones; simulations and fault tests bring their own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from .ids import TimestampMs

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Wall time for what users see, a steady one for how long things take."""

    def now_ms(self) -> TimestampMs:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


class Disk(Protocol):
    """Files and directories. Every method is synchronous and raises OSError as the system does."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """A descriptor for reading and writing; with `create`, makes the file where there is none."""
        ...

    def close(self, descriptor: int) -> None: ...

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers` one after another from `position`, or raise."""
        ...

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def size(self, descriptor: int) -> int: ...

    def modified_ms(self, descriptor: int) -> TimestampMs:
        """When the file's content last changed."""
        ...

    def truncate(self, descriptor: int, size: int) -> None: ...

    def sync(self, descriptor: int) -> None:
        """Return once the file's data and size are on the medium."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return once names created, renamed or removed in `path` are on the medium."""
        ...

    def sync_filesystem(self, path: Path) -> bool:
        """Return true once all that was written to the file system of `path` is on the medium.

        False where the system cannot promise that; files and directories are to be synced one by one then.
        """
        ...

    def names(self, path: Path) -> list[str]:
        """What the directory holds, in no particular order."""
        ...

    def make_directory(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        ...
