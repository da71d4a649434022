"""The measured servers: ours, and the interface of all.

A server is a process on loopback with a data directory. It is stopped by its own pid, and never
outlives the `running` block in which it was started.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from . import wire
from .jars import Unavailable
from .machine import REPOSITORY
from .report import OURS

START_S = 120.0
STOP_S = 60.0
_LISTENER = re.compile(rb"^  (\w+)\s+(\S+:\d+)$")
_READY = b"Try:"
# The broker that is measured is in its `src`; `python -m benchmarks --wheel` sets another directory.
measured_source = REPOSITORY


class Server:
    """A running server."""

    def __init__(
        self,
        name: str,
        address: str,
        process: "subprocess.Popen[bytes]",
        started_in_s: float,
        addresses: Mapping[str, str] | None = None,
        helper: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        self.name = name
        self.address = address
        # Addresses by protocol name.
        self.addresses = addresses or {}
        # Seconds from the start of the process to its first answer.
        self.started_in_s = started_in_s
        self._process = process
        # A process that the server needs, and that ends with it.
        self._helper = helper

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Stop it, and wait for its end."""
        self._process.terminate()
        self._process.wait(STOP_S)

    def kill(self) -> None:
        """Kill it with kill -9; does nothing if it has ended already."""
        self._process.kill()
        self._process.wait(STOP_S)
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait(STOP_S)


class Contender(Protocol):
    """A kind of server that can be measured."""

    @property
    def name(self) -> str: ...

    def start(self, directory: Path) -> Server:
        """Start a server on `directory`, which may contain data of an earlier one."""
        ...


@contextmanager
def running(contender: Contender, directory: Path) -> Iterator[Server]:
    """Run a server for the duration of the block; remove it and its data afterwards."""
    try:
        server = contender.start(directory)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def started(
    name: str,
    process: "subprocess.Popen[bytes]",
    port: int,
    log: Path,
    began_at: float,
    helper: "subprocess.Popen[bytes] | None" = None,
) -> Server:
    """Wait until a peer listens on its port on loopback. Raises Unavailable."""
    while time.monotonic() - began_at < START_S and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            address = f"127.0.0.1:{port}"
            return Server(name, address, process, time.monotonic() - began_at, helper=helper)
    Server(name, "", process, 0, helper=helper).kill()
    raise Unavailable(f"it did not start: {log.read_text()[-500:].strip()}")


class AlpacaMQ:
    """The broker of this repository, with its default configuration except for `settings`."""

    def __init__(
        self,
        name: str = OURS,
        settings: Mapping[str, str] | None = None,
        source: Path | None = None,
        packages: Path | None = None,
    ) -> None:
        """`packages` is a directory of packages that it needs besides those of this environment."""
        self.name = name
        self._source = (source or measured_source) / "src"
        # By names of environment variables.
        path = [self._source] if packages is None else [self._source, packages]
        self._settings = {**(settings or {}), "PYTHONPATH": os.pathsep.join(map(str, path))}

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "alpacamq.node.main"]
        # Earlier versions have no schema registry, or no gRPC API.
        newer = [api for api in ("registry", "grpc") if (self._source / "alpacamq" / "api" / api).is_dir()]
        apis = ("kafka", "http", "sqs", *newer)
        options = [f"--{api}=127.0.0.1:0" for api in apis]
        with (directory / "server.log").open("ab") as log:
            began_at = time.monotonic()
            process = subprocess.Popen(
                [*command, "serve", "--data-dir", directory / "data", *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._settings},
            )
        assert process.stdout is not None
        addresses: dict[str, str] = {}
        for line in process.stdout:
            if api := _LISTENER.search(line):
                addresses[api[1].decode()] = api[2].decode()
            elif addresses and line.startswith(_READY):
                wire.wait_until_answering(addresses["kafka"], START_S)
                return Server(self.name, addresses["kafka"], process, time.monotonic() - began_at, addresses)
        process.wait(STOP_S)
        raise RuntimeError(f"the broker did not start:\n{(directory / 'server.log').read_text()[-2000:]}")
