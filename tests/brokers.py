"""The real broker as a subprocess, which tests start, watch, stop and kill."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

import psutil

START_S = 60.0
STOP_S = 30.0
KAFKA = re.compile(r"kafka\s+(\S+:\d+)")
HTTP = re.compile(r"http\s+(\S+:\d+)")
SQS = re.compile(r"sqs\s+(\S+:\d+)")
REGISTRY = re.compile(r"registry\s+(\S+:\d+)")
GRPC = re.compile(r"grpc\s+(\S+:\d+)")
# For brokers that several tests share: retention does not delete old messages meanwhile.
KEPT = "[log]\nretention_check_ms = 3600000\n"
# The last line it prints once it accepts connections.
READY = re.compile(r"Ctrl-C stops it")
ANY_PORT = "127.0.0.1:0"


class Output:
    """The lines a process has written so far; can wait for a line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.lines: list[str] = []
        self._stream = stream
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        for line in self._stream:
            with self._changed:
                self.lines.append(line.decode(errors="replace").rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._stream.close()

    def find(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        """Return the first match among the lines so far."""
        return next(filter(None, (re.search(pattern, line) for line in list(self.lines))), None)

    def wait_for(self, pattern: str | re.Pattern[str], *, within_s: float) -> re.Match[str]:
        """Wait for a line that matches; fails at the deadline or when the stream ends."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while (match := self.find(pattern)) is None:
                left_s = deadline - time.monotonic()
                if self._ended or left_s <= 0:
                    raise AssertionError(f"no line matches {pattern!r}:\n{self.text()}")
                self._changed.wait(left_s)
            return match

    def has(self, pattern: str | re.Pattern[str], *, within_s: float) -> bool:
        """Return whether a line matches by the deadline."""
        try:
            self.wait_for(pattern, within_s=within_s)
        except AssertionError:
            return False
        return True

    def drain(self) -> None:
        """Wait until the writer has closed its end."""
        self._reader.join(STOP_S)

    def text(self) -> str:
        return "\n".join(self.lines)


class Broker:
    """One broker on one data directory; it keeps its addresses across restarts."""

    def __init__(
        self,
        data_dir: Path,
        *,
        config: str = "",
        kafka: str = ANY_PORT,
        http: str = ANY_PORT,
        sqs: str = ANY_PORT,
        registry: str = ANY_PORT,
        grpc: str = ANY_PORT,
        environment: Mapping[str, str] | None = None,
        open_files_limit: int | None = None,
    ) -> None:
        self.data_dir = data_dir
        # Limit of open files of the process.
        self.open_files_limit = open_files_limit
        self.kafka = kafka
        # HOST:PORT; if an API is disabled, the configured value.
        self.http_address = http
        self.sqs_address = sqs
        self.registry_address = registry
        self.grpc_address = grpc
        # While the broker is down, no client connects from its ports.
        self._held: dict[str, socket.socket] = {}
        self.config = config
        self.environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Output | None = None
        self._errors: Output | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker was never started"
        return self._process

    @property
    def output(self) -> Output:
        assert self._output is not None, "the broker was never started"
        return self._output

    @property
    def errors(self) -> Output:
        """The log of the broker."""
        assert self._errors is not None, "the broker was never started"
        return self._errors

    @property
    def address(self) -> str:
        return self.kafka

    @property
    def by_id(self) -> Mapping[int, str]:
        """The Kafka addresses of all brokers of the cluster."""
        return {1: self.kafka}

    def directory_of(self, topic: str) -> Path:
        """Return the data directory of the broker that leads a topic's first partition."""
        del topic
        return self.data_dir

    @property
    def directories(self) -> Sequence[Path]:
        """The data directories of all brokers of the cluster."""
        return [self.data_dir]

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.kafka.rpartition(":")
        return host, int(port)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        """Start the process without waiting for it to be ready."""
        assert not self.is_running, "the broker runs already"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "alpacamq.node.main", "serve"]
        command += ["--data-dir", str(self.data_dir), "--kafka", self.kafka]
        command += ["--http", self.http_address, "--sqs", self.sqs_address]
        command += ["--registry", self.registry_address, "--grpc", self.grpc_address]
        if self.config:
            file = self.data_dir.with_name(self.data_dir.name + ".toml")
            file.write_text(self.config)
            command += ["--config", str(file)]
        if self.open_files_limit is not None:
            command = ["sh", "-c", f'ulimit -n {self.open_files_limit} && exec "$@"', "sh", *command]
        # A test run that dies without its clean-up must leave no brokers running.
        if setpriv := shutil.which("setpriv"):
            command = [setpriv, "--pdeathsig", "KILL", *command]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ALPACAMQ_")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONUNBUFFERED": "1", **self.environment},
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._output = Output(self._process.stdout)
        self._errors = Output(self._process.stderr)

    def start(self) -> Self:
        """Start it and wait until it accepts connections."""
        self.spawn()
        self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        try:
            self.output.wait_for(READY, within_s=START_S)
            self.kafka = self._printed(KAFKA, self.kafka)
            self.http_address = self._printed(HTTP, self.http_address)
            self.sqs_address = self._printed(SQS, self.sqs_address)
            self.registry_address = self._printed(REGISTRY, self.registry_address)
            self.grpc_address = self._printed(GRPC, self.grpc_address)
        except AssertionError as missing:
            code = self.process.poll()
            self.kill()
            raise AssertionError(f"{missing}\nexit code {code}, stderr:\n{self.errors.text()}") from None

    def _printed(self, address: re.Pattern[str], otherwise: str) -> str:
        found = self.output.find(address)
        return found[1] if found else otherwise

    def signal(self, number: signal.Signals) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait for the process to end by itself; return its exit code."""
        code = self.process.wait(STOP_S)
        self._hold_ports()
        self.output.drain()
        self.errors.drain()
        return code

    def _hold_ports(self) -> None:
        """Bind the ports: the system gives them to nothing else, and the broker can bind them again."""
        apis = (self.http_address, self.sqs_address, self.registry_address, self.grpc_address)
        for each in (self.kafka, *apis):
            host, _, port = each.rpartition(":")
            if each in self._held or not port.isdigit() or port == "0":
                continue
            held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind((host, int(port)))
            except OSError:  # another family of addresses, or something else listens there by now
                held.close()
            else:
                self._held[each] = held

    def stop(self) -> None:
        """Shut down cleanly; fails on any exit code but 0."""
        code = self.signal(signal.SIGTERM)
        assert code == 0, f"exit code {code} after SIGTERM:\n{self.errors.text()}"

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.exit_code()

    def restart(self, *, kill: bool) -> None:
        """Kill it or shut it down cleanly, and start it again."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def end(self) -> None:
        """Kill the process if it is still running."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self.kill()
        for held in self._held.values():
            held.close()
        self._held.clear()

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def open_files(self) -> int:
        return int(psutil.Process(self.process.pid).num_fds())
