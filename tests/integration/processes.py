"""Programs of the tests as processes that can be killed, suspended and restarted."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

STOP_S = 30.0


class Program:
    """Runs `python -m module arguments`; its output goes to a file."""

    def __init__(self, module: str, *arguments: str, log: Path, launcher: Sequence[str] = ()) -> None:
        """`launcher` is a command that replaces itself by the one after it, like nsenter."""
        self.log = log
        self._command = [*launcher, sys.executable, "-m", module, *arguments]
        # A test run that dies without its clean-up must leave no programs running.
        if setpriv := shutil.which("setpriv"):
            self._command = [setpriv, "--pdeathsig", "KILL", *self._command]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        assert not self.is_running, "the program runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs and before the start."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None, "the program was never started"
        self._process.kill()
        self._process.wait(STOP_S)

    def suspend(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def reload(self) -> None:
        """SIGHUP."""
        self._signal(signal.SIGHUP)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """Terminate it and wait; fails on any exit code but 0."""
        self.terminate()
        self.wait()

    def wait(self) -> None:
        """Wait until it has ended by itself, with exit code 0."""
        assert self._process is not None
        code = self._process.wait(STOP_S)
        # The signal ends a process that had not yet installed its handler, and so had done nothing either.
        assert code in (0, -signal.SIGTERM), f"exit code {code}:\n{self.last_output()}"

    def end(self) -> None:
        """Kill the process if it is still running."""
        if self.is_running:
            self.kill()

    def last_output(self) -> str:
        """Return the end of its output."""
        return self.log.read_text()[-4000:] if self.log.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the program was never started"
        os.kill(self._process.pid, number)
