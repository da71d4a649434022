"""A real broker for tests: a process with free ports and a temporary directory.

with alpacamq.testing.broker() as url:
    with alpacamq.connect(url) as mq: ...
"""

import asyncio
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from alpacamq.model.errors import AlpacaError

START_S = 30.0
STOP_S = 10.0
_ANY_PORT = "127.0.0.1:0"
_APIS = ("kafka", "http", "sqs", "registry", "grpc")
_READY = b"Ctrl-C stops it"
_ADDRESS = re.compile(r"^\s*(\w+)\s+(\S+:\d+)", re.MULTILINE)
_MAX_OUTPUT_BYTES = 1 << 20


class NotStarted(AlpacaError):
    """The broker ended or did not become ready; the message has what it printed."""


class TestBroker(str):
    """The URL of a broker, `alpaca://…`, and the addresses of its other APIs."""

    __slots__ = ("addresses", "data_dir", "pid")
    __test__ = False  # not a test of pytest's

    # HOST:PORT by API: kafka, http, sqs, registry, grpc.
    addresses: Mapping[str, str]
    data_dir: Path
    pid: int


@contextmanager
def broker(*, config: str = "", data_dir: str | Path | None = None) -> Iterator[TestBroker]:
    """Start a broker and yield its URL; stop it at the end of the block.

    `config` is the text of a configuration file. With `data_dir` the data stays there; otherwise it is
    deleted. Raises NotStarted.
    """
    with tempfile.TemporaryDirectory(prefix="alpacamq-") as temporary:
        directory = Path(temporary)
        data = directory / "data" if data_dir is None else Path(data_dir)
        process = _spawn(directory, data, config)
        try:
            yield _ready(process, directory, data)
        finally:
            # Data that is deleted anyway needs no clean end.
            _stop(process, signal.SIGKILL if data_dir is None else signal.SIGTERM)


@asynccontextmanager
async def async_broker(*, config: str = "", data_dir: str | Path | None = None) -> AsyncIterator[TestBroker]:
    """Start a broker as `broker` does, without blocking the event loop."""
    manager = broker(config=config, data_dir=data_dir)
    url = await asyncio.to_thread(manager.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


def _spawn(directory: Path, data: Path, config: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "alpacamq.node.main", "serve", "--data-dir", str(data)]
    for api in _APIS:
        command += [f"--{api}", _ANY_PORT]
    if config:
        file = directory / "alpacamq.toml"
        file.write_text(config)
        command += ["--config", str(file)]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ALPACAMQ_")}
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**inherited, "PYTHONUNBUFFERED": "1"},
        )


def _ready(process: "subprocess.Popen[bytes]", directory: Path, data: Path) -> TestBroker:
    """Read what a broker prints until it is ready."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_S
    printed = b""
    while _READY not in printed:
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(process.stdout.fileno(), 1 << 16) if readable else b""
        printed += part
        if not part or len(printed) > _MAX_OUTPUT_BYTES:
            log = (directory / "log").read_text(errors="replace")
            raise NotStarted(f"the broker did not start:\n{printed.decode(errors='replace')}{log}")
    addresses = {api: address for api, address in _ADDRESS.findall(printed.decode()) if api in _APIS}
    found = TestBroker(f"alpaca://{addresses['grpc']}")
    found.addresses = addresses
    found.data_dir = data
    found.pid = process.pid
    return found


def _stop(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
