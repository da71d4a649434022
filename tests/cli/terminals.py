"""A process on a pseudo-terminal: its output, and keys to press."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 60.0
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])|\x07")


class Terminal:
    """Runs one program until the end of the block, which ends it if it has not ended itself."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, columns: int = 100, lines: int = 30
    ) -> None:
        self._ours, self._theirs = os.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self._theirs)
        self.process = subprocess.Popen(
            command,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=self._become_the_terminal,
        )
        self.raw = b""

    def _become_the_terminal(self) -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def modes(self) -> list[Any]:
        """How the terminal is set up now."""
        return termios.tcgetattr(self._theirs)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def text(self) -> str:
        """All that was written so far, without what only moves or colours."""
        return _ESCAPES.sub("", self.raw.decode(errors="replace"))

    @property
    def frame(self) -> str:
        """What was written since the screen was last begun anew."""
        return _ESCAPES.sub("", self.raw.decode(errors="replace").rpartition("\x1b[H")[2])

    def wait_for(self, pattern: str, *, since: int = 0) -> str:
        """Wait until something written behind `since` matches; what was written is returned."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, _ESCAPES.sub("", self.raw[since:].decode(errors="replace"))):
            if time.monotonic() > deadline or not self._read(deadline):
                raise AssertionError(f"{pattern!r} never came:\n{self.text}")
        return self.text

    def ended(self) -> int:
        """Wait for the end, reading along; the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self._read(time.monotonic() + 0.1)
        code = self.process.wait(1)
        while self._read(time.monotonic() + 0.1):
            pass
        return code

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return False
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:
            return False
        self.raw += data
        return bool(data)
