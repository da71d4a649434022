"""The command `alpacamq worker MODULE:APP`: runs an application, or supervises processes that do."""

import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from alpacamq.client.aio.cluster import Backoff
from alpacamq.client.connect import parse_addresses
from alpacamq.client.errors import ClientError

from .app import Worker

log = logging.getLogger("alpacamq.worker")

MAX_PROCESSES: Final = 256
_POLL_S: Final = 0.2
# A process that ran this long was healthy: the next one starts at once if it ends.
_HEALTHY_S: Final = 10.0
# How long the supervisor waits for its processes beyond their own grace.
_STOP_S: Final = 60.0


class NoApplication(ClientError):
    """MODULE:APP does not name a Worker."""


def load(name: str) -> Worker:
    """Return the application that MODULE:APP names. Raises NoApplication."""
    module_name, colon, attribute = name.partition(":")
    if not module_name:
        raise NoApplication(f"{name!r} names no module: write MODULE:APP, such as tasks:app")
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that the application itself imports
        raise NoApplication(f"there is no module {module_name!r} in {directory} or on the path") from None
    found: Any = module
    for part in (attribute if colon else "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        raise NoApplication(f"{name}: {attribute or 'app'} is not an alpacamq.Worker")
    return found


def run(name: str, *, processes: int, is_reloading: bool, metrics: str | None) -> int:
    """Run an application until it is stopped; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if not 1 <= processes <= MAX_PROCESSES:
        raise NoApplication(f"--processes must be from 1 to {MAX_PROCESSES}, and {processes} is not")
    try:
        addresses = [] if metrics is None else parse_addresses(metrics)
    except ValueError as error:
        raise NoApplication(f"--metrics: {error}") from None
    if processes == 1 and not is_reloading:
        load(name).run(metrics=metrics)
        return 0
    if not is_reloading:
        load(name)  # fails here once, not in every process
    commands = []
    for number in range(processes):
        command = [sys.executable, "-m", "alpacamq.node.main", "worker", name]
        if addresses:
            # Each process has its own port.
            host, port = addresses[0].host, addresses[0].port + number
            command += ["--metrics", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
        commands.append(command)
    return _Supervisor(commands, _sources if is_reloading else None).run()


def _sources() -> Iterator[Path]:
    """Yield the Python files below the current directory, without those of environments."""
    for directory, names, files in os.walk("."):
        names[:] = [each for each in names if not each.startswith(".") and each != "__pycache__"]
        if "pyvenv.cfg" in files:
            names.clear()
            continue
        yield from (Path(directory, each) for each in files if each.endswith(".py"))


class _Supervisor:
    """Starts processes, starts them again when they fail or sources change, and passes signals on."""

    def __init__(
        self, commands: Sequence[Sequence[str]], sources: Callable[[], Iterator[Path]] | None
    ) -> None:
        self._commands = commands
        self._sources = sources
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * len(commands)
        self._started = [0.0] * len(commands)
        self._start_at = [0.0] * len(commands)
        self._backoffs = [Backoff(base_s=0.5, cap_s=10.0) for _ in commands]
        self._is_stopping = False

    def run(self) -> int:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._stop)
        versions = self._versions()
        while not self._is_stopping:
            self._supervise()
            time.sleep(_POLL_S)
            if self._sources is not None and (now := self._versions()) != versions:
                versions = now
                log.info("sources have changed: restarting")
                self._end_all()
        self._end_all()
        return 0

    def _versions(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for path in self._sources() if self._sources is not None else ():
            try:
                found[path] = path.stat().st_mtime_ns
            except OSError:
                continue  # deleted meanwhile
        return found

    def _supervise(self) -> None:
        now = time.monotonic()
        for number, process in enumerate(self._processes):
            if process is None:
                if now >= self._start_at[number]:
                    self._processes[number] = subprocess.Popen(self._commands[number])  # noqa: S603
                    self._started[number] = now
            elif (code := process.poll()) is not None:
                is_healthy = now - self._started[number] > _HEALTHY_S
                if is_healthy:
                    self._backoffs[number].reset()
                self._processes[number] = None
                self._start_at[number] = now + (0 if is_healthy else self._backoffs[number].next_s())
                log.warning("process %d ended with code %d: starting another", process.pid, code)

    def _stop(self, *_: object) -> None:
        self._is_stopping = True

    def _end_all(self) -> None:
        """Stop all processes, by signal, and kill those that do not end."""
        running = [each for each in self._processes if each is not None and each.poll() is None]
        for each in running:
            each.terminate()
        deadline = time.monotonic() + _STOP_S
        for each in running:
            try:
                each.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("process %d does not end: killing it", each.pid)
                each.kill()
                each.wait()
        self._processes = [None] * len(self._commands)
        self._start_at = [0.0] * len(self._commands)
