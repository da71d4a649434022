"""`alpacactl` as a subprocess, told of its broker by the environment."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

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
    """Runs `alpacactl` against one address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, *arguments: str, stdin: bytes = b"", columns: int | None = None) -> Ran:
        """Run to the end, whatever the exit code."""
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        environment["ALPACACTL_BROKER"] = self._address
        if columns is not None:
            environment["COLUMNS"] = str(columns)
        ran = subprocess.run(
            [sys.executable, "-m", "alpacamq.cli.main", *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
            env=environment,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr.decode())

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        """What it printed; fails unless it went well."""
        ran = self(*arguments, stdin=stdin)
        assert ran.code == 0, ran.errors
        return ran.text

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """What it printed as JSON, read back."""
        return json.loads(self.ok(*arguments, "-o", "json", stdin=stdin))
