"""Disk errors of one process: a small library, preloaded, that fails its calls with EIO while told to."""

import mmap
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
# As in the library: how many calls fail, how many have failed, and a part of the paths of files.
_CONTROL = struct.Struct("3i3i240s")
ALL = -1


def missing_for_errors() -> str | None:
    """Why calls cannot be made to fail here; None if they can."""
    return None if shutil.which("gcc") is not None else "needs gcc"


def build_library(directory: Path) -> Path:
    """Compile the library into a directory."""
    library = directory / "disk_errors.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


class DiskErrors:
    """The errors of one node's data directory."""

    def __init__(self, library: Path, control: Path, data: Path) -> None:
        self._library = library
        self._path = control
        self._data = data
        control.write_bytes(bytes(_CONTROL.size))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _CONTROL.size)

    @property
    def launcher(self) -> Sequence[str]:
        """The command that runs another with these errors."""
        return (
            "env",
            f"LD_PRELOAD={self._library}",
            f"EIO_UNDER={self._data}",
            f"EIO_CONTROL={self._path}",
        )

    def begin(self, *, reads: int = 0, writes: int = 0, syncs: int = 0, match: str = "") -> None:
        """Let that many calls fail, or ALL, on files with `match` in their path."""
        self._control[:] = _CONTROL.pack(0, 0, 0, 0, 0, 0, match.encode())
        self._control[:] = _CONTROL.pack(reads, writes, syncs, 0, 0, 0, match.encode())

    def end(self) -> tuple[int, int, int]:
        """Let no call fail any more; return how many reads, writes and syncs have failed."""
        *_, reads, writes, syncs, _match = _CONTROL.unpack(self._control)
        self._control[:] = bytes(_CONTROL.size)
        return reads, writes, syncs
