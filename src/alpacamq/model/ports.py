"""The ports to the outside world: `Clock` and `Disk`.

The broker uses real ones; simulations and fault tests use their own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from .ids import TimestampMs

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Wall clock time for timestamps, monotonic time for durations."""

    def now_ms(self) -> TimestampMs:
        """Return milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...


class Disk(Protocol):
    """Files and directories. Every method is synchronous and raises OSError as the system does."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing; with `create`, create it if it does not exist."""
        ...

    def close(self, descriptor: int) -> None: ...

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers` in sequence from `position`, or raise."""
        ...

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def size(self, descriptor: int) -> int: ...

    def modified_ms(self, descriptor: int) -> TimestampMs:
        """Return the modification time of the file's content."""
        ...

    def truncate(self, descriptor: int, size: int) -> None: ...

    def sync(self, descriptor: int) -> None:
        """Make the file's data and size durable."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make created, renamed and removed names in `path` durable."""
        ...

    def sync_filesystem(self, path: Path) -> bool:
        """Make everything written to the file system of `path` durable, and return true.

        Return false if the system cannot guarantee that; then sync files and directories one by one.
        """
        ...

    def names(self, path: Path) -> list[str]:
        """List the names in the directory, in no particular order."""
        ...

    def make_directory(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        ...
