"""Runs a pipeline as a service: a supervisor that starts its runs, and starts them again when they fail.

The supervisor is a process of its own, and every run is a child of it. Its state and its log are in the
directory `service` of the checkpoint, or of `.checkpoints/NAME` if the checkpoint is on another machine.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec

from .checkpoint import ProcessLock, local_checkpoint
from .errors import PipelineBusy, PipelineFailed
from .run import Plain, Section
from .storage import LocalStorage, local_path
from .timestamps import format_timestamp

SERVICE = "service"
LOG = "pipeline.log"
_STATE = "state.json"
_LOCK = "lock"
# Written to standard output by a supervisor in the background once it supervises.
READY = b"ready\n"
_LOG_BYTES = 10 << 20
_OLDER_LOGS = 2
_CHUNK_BYTES = 1 << 16
_MAX_ERROR_LENGTH = 2000
# The exit code of a command line that is invalid: another try would end the same.
_USAGE = 2
MAX_BACKOFF_S = 60.0
# A run that lasted longer does not count as a failed start.
_WELL_AFTER_S = 60.0
_POLL_S = 0.05


class Phase(StrEnum):
    """What a supervisor does, or how it ended."""

    RUNNING = "running"
    BACKOFF = "backoff"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"
    # Ended without saying so.
    KILLED = "killed"


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a supervisor. `options` of the command line are those to restart it with."""

    process: int
    started_ms: int
    phase: Phase = Phase.RUNNING
    run_process: int | None = None
    # Runs that were started again after a failure.
    restarts: int = 0
    next_start_ms: int | None = None
    error: str = ""
    failed_ms: int | None = None
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


class Service:
    """The service of one pipeline on this machine, whether it runs or not.

    `directory` is that of the pipeline's file.
    """

    def __init__(self, name: str, checkpoint: str, directory: Path) -> None:
        self.name = name
        place = local_path(checkpoint)
        self.directory = (place or directory / ".checkpoints" / name) / SERVICE
        self._checkpoint = local_checkpoint(checkpoint)
        self._storage = LocalStorage(self.directory)
        self._lock = ProcessLock(self.directory / _LOCK)

    @property
    def log(self) -> Path:
        return self.directory / LOG

    def state(self) -> ServiceState | None:
        """Return the state of the supervisor that runs, or of the last one."""
        stored = self._storage.read(_STATE)
        if stored is None:
            return None
        try:
            state = msgspec.json.decode(stored, type=ServiceState)
        except msgspec.MsgspecError:
            return None
        is_over = state.phase in (Phase.STOPPED, Phase.DONE, Phase.FAILED)
        if not is_over and self._lock.holder() is None:
            return msgspec.structs.replace(state, phase=Phase.KILLED, next_start_ms=None, run_process=None)
        return state

    def supervisor(self) -> int | None:
        """Return the process of the supervisor, if there is one."""
        return self._lock.holder()

    def runner(self) -> int | None:
        """Return the process that runs the pipeline, supervised or not."""
        return None if self._checkpoint is None else self._checkpoint.holder()

    def check_idle(self) -> None:
        """Check that neither a supervisor nor a run is active. Raises PipelineBusy."""
        supervisor, runner = self.supervisor(), self.runner()
        if supervisor is not None:
            raise PipelineBusy(f"the pipeline {self.name} is already started (process {supervisor})")
        if runner is not None:
            raise PipelineBusy(f"the pipeline {self.name} is already running (process {runner})")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the supervisor. Raises PipelineBusy."""
        with self._lock.held(f"the pipeline {self.name} is already started{{}}"):
            yield

    def note(self, state: ServiceState) -> None:
        self._storage.write(_STATE, msgspec.json.encode(state))

    def stop(self, timeout_s: float, *, at_once: bool = False) -> bool:
        """Stop the supervisor or the run, after its batch unless `at_once`; False if there was none.

        Raises PipelineFailed if it has not ended in time.
        """
        first = self.supervisor() or self.runner()
        if first is None:
            return False
        _signal(first, signal.SIGTERM)
        if at_once:
            _signal(first, signal.SIGINT)
        deadline = time.monotonic() + timeout_s
        while (left := self.supervisor() or self.runner()) is not None:
            if time.monotonic() < deadline:
                time.sleep(_POLL_S)
            elif at_once:
                # What a killed run has not finished is repeated by the next one.
                _signal(left, signal.SIGKILL)
                deadline = time.monotonic() + timeout_s
            else:
                raise PipelineFailed(
                    f"the pipeline {self.name} (process {left}) is still finishing its batch after "
                    f"{timeout_s:.0f} s; wait longer with --timeout, or end it with --now: its next run "
                    "repeats the batch"
                )
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """What the status of a pipeline says about its service."""

    data: Mapping[str, Plain]
    section: Section
    notes: Sequence[str]


def service_status(service: Service) -> ServiceStatus | None:
    """Describe the supervisor of a pipeline, or the last one; None if there never was one."""
    state = service.state()
    if state is None:
        return None

    def shown(timestamp_ms: int | None) -> str | None:
        return None if timestamp_ms is None else format_timestamp(timestamp_ms)

    data: dict[str, Plain] = {
        "state": state.phase,
        "process": state.process if service.supervisor() is not None else None,
        "started_at": shown(state.started_ms),
        "restarts": state.restarts,
        "next_start_at": shown(state.next_start_ms),
        "failed_at": shown(state.failed_ms),
        "error": state.error or None,
        "log": str(service.log),
    }
    columns = ["state", "process", "started_at", "restarts", "failed_at"]
    row = [data[name] for name in columns]
    section = Section(["service", "process", "since", "restarts", "last failure"], [row])
    notes = []
    if state.phase is Phase.BACKOFF:
        notes.append(f"the next run begins at {data['next_start_at']}; the last one failed: {state.error}")
    elif state.phase is Phase.KILLED:
        notes.append("the supervisor was killed; start the pipeline again")
    notes.append(f"log: {service.log}")
    return ServiceStatus(data=data, section=section, notes=notes)


def _signal(process: int, number: int) -> None:
    if process:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def start_in_background(service: Service, command: Sequence[str]) -> int:
    """Start a supervisor that outlives this process, by its command line; return its process.

    Raises PipelineFailed with the end of its log if it ends before it supervises.
    """
    service.directory.mkdir(parents=True, exist_ok=True)
    with service.log.open("ab") as log:
        supervisor = subprocess.Popen(  # noqa: S603 - this program itself
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert supervisor.stdout is not None
    with supervisor.stdout as out:
        if out.readline() == READY:
            return supervisor.pid
    supervisor.wait()
    raise PipelineFailed(f"the pipeline {service.name} did not start: {_last_line(service.log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"see {log}"


class LogFile:
    """Appends lines with their times to a file; the file and two older ones are bounded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, line: bytes) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()).encode()
        self._file.write(now + line + b"\n")
        if self._file.tell() > _LOG_BYTES:
            self._file.close()
            for number in range(_OLDER_LOGS, 0, -1):
                older = self._path if number == 1 else self._path.with_suffix(f".log.{number - 1}")
                with suppress(FileNotFoundError):
                    older.replace(self._path.with_suffix(f".log.{number}"))
            self._file = self._path.open("ab", buffering=0)


class StandardError:
    """Passes lines to standard error, where a service manager adds the time."""

    def write(self, line: bytes) -> None:
        with suppress(OSError):
            os.write(2, line + b"\n")


@dataclass(slots=True)
class _Ended:
    """The end of a run."""

    code: int
    last_line: str
    lasted_s: float


class Supervisor:
    """Starts the runs of a pipeline, and starts them again with a growing pause while they fail."""

    def __init__(
        self,
        service: Service,
        command: Sequence[str],
        log: LogFile | StandardError,
        state: ServiceState,
        *,
        backoff_s: float,
    ) -> None:
        self._service = service
        self._command = command
        self._log = log
        self._state = state
        self._first_backoff_s = backoff_s
        self._run: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._woken, self._wake = os.pipe()

    def supervise(self) -> int:
        """Supervise until the pipeline is done or a stop is requested; return the exit code."""
        os.set_blocking(self._wake, False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        failures = 0
        while True:
            ended = self._run_once()
            if self._is_stopping:
                return self._end(Phase.STOPPED, 0)
            if ended.code == 0:
                return self._end(Phase.DONE, 0)
            self._note(error=_reason(ended), failed_ms=_now_ms())
            if ended.code == _USAGE:
                return self._end(Phase.FAILED, _USAGE)
            failures = 1 if ended.lasted_s > _WELL_AFTER_S else failures + 1
            pause_s = min(self._first_backoff_s * 2 ** min(failures - 1, 30), MAX_BACKOFF_S)
            self._say(f"the run failed ({_reason(ended)}); the next one begins in {pause_s:.0f} s")
            self._note(phase=Phase.BACKOFF, next_start_ms=_now_ms() + int(pause_s * 1000))
            if not self._is_stopping:
                select.select([self._woken], [], [], pause_s)
            if self._is_stopping:
                return self._end(Phase.STOPPED, 0)
            self._note(restarts=self._state.restarts + 1)

    def _run_once(self) -> _Ended:
        began = time.monotonic()
        run = self._run = subprocess.Popen(  # noqa: S603 - this program itself
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the terminal is for the supervisor, which passes it on.
            start_new_session=True,
        )
        if self._is_stopping:  # the signal came before there was a process to pass it to
            run.terminate()
        self._note(phase=Phase.RUNNING, run_process=run.pid, next_start_ms=None)
        last_line = self._copy_output(run)
        code = run.wait()
        self._run = None
        self._note(run_process=None)
        return _Ended(code, last_line, time.monotonic() - began)

    def _copy_output(self, run: "subprocess.Popen[bytes]") -> str:
        """Copy the output of a run to the log, line by line; return the last line."""
        assert run.stdout is not None
        rest, last = b"", b""
        with run.stdout as output:
            while data := self._read(output):
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _CHUNK_BYTES:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._log.write(line)
                    last = line if line.strip() else last
        if rest:
            self._log.write(rest)
        return (rest if rest.strip() else last).decode(errors="replace").strip()[:_MAX_ERROR_LENGTH]

    def _read(self, output: IO[bytes]) -> bytes:
        """Read what a run writes next; empty at its end. Notes a stop meanwhile."""
        while True:
            ready, _, _ = select.select([output.fileno(), self._woken], [], [])
            if output.fileno() in ready:
                return os.read(output.fileno(), _CHUNK_BYTES)
            os.read(self._woken, _CHUNK_BYTES)
            self._note()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake, b"x")
        if self._run is not None:
            # A second signal ends the run at once. Another one than the first, with which it would count
            # as one if they are close together.
            self._run.send_signal(signal.SIGINT if self._is_stopping else signal.SIGTERM)
        self._is_stopping = True

    def _say(self, text: str) -> None:
        self._log.write(text.encode())

    def _note(self, **news: object) -> None:
        phase = {"phase": Phase.STOPPING} if self._is_stopping else {}
        self._state = msgspec.structs.replace(self._state, **{**news, **phase})
        self._service.note(self._state)

    def _end(self, phase: Phase, code: int) -> int:
        self._state = msgspec.structs.replace(self._state, phase=phase, next_start_ms=None)
        self._service.note(self._state)
        self._say(f"the pipeline {self._service.name} is {phase}")
        return code


def supervise(
    service: Service,
    command: Sequence[str],
    *,
    options: Sequence[str],
    arguments: Sequence[str],
    backoff_s: float,
    in_background: bool,
) -> int:
    """Supervise in this process; return the exit code. `command` is a run of the pipeline.

    `options` and `arguments` are stored for a restart.
    """
    log = LogFile(service.log) if in_background else StandardError()
    with service.held():
        state = ServiceState(
            process=os.getpid(),
            started_ms=_now_ms(),
            options=tuple(options),
            arguments=tuple(arguments),
        )
        service.note(state)
        if in_background:
            os.write(1, READY)
            # The command that reads the first line has ended.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Supervisor(service, command, log, state, backoff_s=backoff_s).supervise()


def this_program(*arguments: str) -> list[str]:
    """Return a command line of alpacactl with this Python, whatever the current directory contains."""
    return [sys.executable, "-P", "-m", "alpacamq.cli.main", *arguments]


def _reason(ended: _Ended) -> str:
    if ended.code < 0:
        killed = f"killed by {signal.Signals(-ended.code).name}"
        return f"{killed}: {ended.last_line}" if ended.last_line else killed
    return ended.last_line.removeprefix("alpacactl: ") or f"exit code {ended.code}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
