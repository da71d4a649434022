"""System calls of one process: a preloaded library lets them fail, or take longer, and steps the clock."""

import mmap
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
# As in the library: the lead of the clock; how many calls fail and have failed; by how much they are delayed,
# and how many were; a part of the paths of files.
_CONTROL = struct.Struct("q3i3i3i3i240s")
ALL = -1


def missing_for_calls() -> str | None:
    """Why calls cannot be changed here; None if they can."""
    return None if shutil.which("gcc") is not None else "needs gcc"


def build_library(directory: Path) -> Path:
    """Compile the library into a directory."""
    library = directory / "system_calls.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


class SystemCalls:
    """The system calls of one node on its data directory, and its clock."""

    def __init__(self, control: Path) -> None:
        self.path = control
        control.write_bytes(bytes(_CONTROL.size))
        # Another user in a container maps it, too.
        control.chmod(0o666)
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), _CONTROL.size)

    @staticmethod
    def environment(library: Path | str, control: Path | str, data: Path | str) -> dict[str, str]:
        """Return the environment of a process that the library changes calls for."""
        return {"LD_PRELOAD": str(library), "CALLS_UNDER": str(data), "CALLS_CONTROL": str(control)}

    def fail(self, *, reads: int = 0, writes: int = 0, syncs: int = 0, match: str = "") -> None:
        """Let that many calls fail, or ALL, on files with `match` in their path."""
        self._control[:] = self._packed(match=match)
        self._control[:] = self._packed(fails=(reads, writes, syncs), match=match)

    def delay(self, *, reads_ms: int = 0, writes_ms: int = 0, syncs_ms: int = 0) -> None:
        """Let each call take that much longer."""
        self._control[:] = self._packed(delays_ms=(reads_ms, writes_ms, syncs_ms))

    def set_clock(self, ahead_s: int) -> None:
        """Step the clock: from now on it is that far ahead of the machine's."""
        self._control[:] = self._packed(clock_s=ahead_s)

    def end(self) -> int:
        """Change nothing any more; return how many calls have failed or were delayed."""
        counts: tuple[int, ...] = _CONTROL.unpack(self._control)
        self._control[:] = bytes(_CONTROL.size)
        return sum(counts[4:7]) + sum(counts[10:13])

    @staticmethod
    def _packed(
        *,
        clock_s: int = 0,
        fails: Sequence[int] = (0, 0, 0),
        delays_ms: Sequence[int] = (0, 0, 0),
        match: str = "",
    ) -> bytes:
        return _CONTROL.pack(clock_s, *fails, 0, 0, 0, *delays_ms, 0, 0, 0, match.encode())
