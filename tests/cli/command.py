"""Runs `alpacactl` as a subprocess, with its broker in the environment, or within this process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any

from alpacamq.cli.main import main
from tests.brokers import Broker

PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind."""

    code: int
    raw: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.raw.decode()


class Command:
    """Runs `alpacactl` against one broker."""

    def __init__(self, address: str, http_address: str = "", *, patience_s: float = PATIENCE_S) -> None:
        self._address = address
        self._http_address = http_address or address
        self._patience_s = patience_s

    def __call__(self, *arguments: str, stdin: bytes = b"", columns: int | None = None) -> Ran:
        """Run to the end, whatever the exit code."""
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        environment["ALPACACTL_BROKER"] = self._address
        environment["ALPACACTL_HTTP"] = self._http_address
        if columns is not None:
            environment["COLUMNS"] = str(columns)
        ran = subprocess.run(
            [sys.executable, "-m", "alpacamq.cli.main", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=self._patience_s,
            env=environment,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr.decode())

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        """What it printed; fails unless it went well."""
        ran = self(*arguments, stdin=stdin)
        assert ran.code == 0, ran.errors
        return ran.text

    def fails(self, code: int, *arguments: str) -> str:
        """What it complains of; fails unless it ends with this exit code and prints nothing."""
        ran = self(*arguments)
        assert (ran.code, ran.raw) == (code, b""), ran.errors
        return ran.errors

    def lines(self, *arguments: str, stdin: bytes = b"") -> list[Any]:
        """What it printed as lines of JSON, read back."""
        return [json.loads(line) for line in self.ok(*arguments, "-o", "json", stdin=stdin).splitlines()]

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """What it printed as JSON, read back."""
        return json.loads(self.ok(*arguments, "-o", "json", stdin=stdin))


class InProcess(Command):
    """The same in this process: quicker, where how a process starts and ends is not the question."""

    def __call__(self, *arguments: str, stdin: bytes = b"", columns: int | None = None) -> Ran:
        where = ["--broker", self._address, "--http", self._http_address]
        with (
            tempfile.TemporaryFile() as given,
            _input_from(given, stdin),
            TextIOWrapper(BytesIO()) as out,
            redirect_stdout(out),
            redirect_stderr(StringIO()) as errors,
        ):
            try:
                code: Any = main([*where, *arguments])
            except SystemExit as ended:
                code = ended.code
            out.flush()
            assert isinstance(out.buffer, BytesIO)
            return Ran(code, out.buffer.getvalue(), errors.getvalue())


@contextmanager
def _input_from(file: IO[bytes], content: bytes) -> Iterator[None]:
    """Have file descriptor 0, which some verbs read from, hold this content."""
    file.write(content)
    file.seek(0)
    before, before_file = os.dup(0), sys.stdin
    os.dup2(file.fileno(), 0)
    try:
        with os.fdopen(os.dup(0)) as sys.stdin:
            yield
    finally:
        sys.stdin = before_file
        os.dup2(before, 0)
        os.close(before)


class As(InProcess):
    """Runs commands as a user."""

    def __init__(self, broker: Broker, directory: Path, user: str, password: str) -> None:
        super().__init__(broker.address, broker.http_address)
        file = directory / f"password-{user}-{password}"
        file.write_text(password + "\n")
        self._login = ("--user", user, "--password-file", str(file))

    def __call__(self, *arguments: str, stdin: bytes = b"", columns: int | None = None) -> Ran:
        return super().__call__(*self._login, *arguments, stdin=stdin, columns=columns)
