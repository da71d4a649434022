"""Runs clients of the schema registry in JavaScript and Go: programs that print a JSON object.

`make clients` installs their libraries into the user's cache. Tests that need one are skipped without it.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.jars import CACHE

HERE = Path(__file__).parent
NODE_CACHE = CACHE / "schema-clients"
GO_PROGRAM = NODE_CACHE / "franz-go"
# Starting node and its libraries on a busy machine.
WITHIN_S = 120.0


def run_node(script: str, url: str, command: str, request: object) -> dict[str, Any]:
    """Return what a script prints; skip the test if it cannot be run here."""
    node = shutil.which("node")
    if node is None or not (NODE_CACHE / "node_modules").exists():
        pytest.skip("needs node and the libraries that `make clients` installs")
    environment = {**os.environ, "NODE_PATH": str(NODE_CACHE / "node_modules")}
    return _run([node, str(HERE / script), url, command, json.dumps(request)], environment)


def run_go(url: str, request: object) -> dict[str, Any]:
    """Return what the Go program prints; skip the test if it was not built."""
    if not GO_PROGRAM.exists():
        pytest.skip("needs the program that `make clients` builds with Go")
    return _run([str(GO_PROGRAM), url, json.dumps(request)], os.environ)


def _run(command: list[str], environment: Any) -> dict[str, Any]:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def install() -> None:
    """Install the libraries of JavaScript with npm and build the program in Go, where these are present."""
    NODE_CACHE.mkdir(parents=True, exist_ok=True)
    if npm := shutil.which("npm"):
        shutil.copy(HERE / "package.json", NODE_CACHE)
        subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent"], cwd=NODE_CACHE, check=True)
    if go := shutil.which("go"):
        subprocess.run([go, "build", "-o", str(GO_PROGRAM), "."], cwd=HERE, check=True)


if __name__ == "__main__":
    install()
