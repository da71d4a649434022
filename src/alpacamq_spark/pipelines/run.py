"""One run of a pipeline: its inputs, its progress and its result."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from alpacamq.client.connect import Tls

from .checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Plain: TypeAlias = bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"] | None


@dataclass(frozen=True, slots=True)
class Section:
    """A table with column names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A result; `notes` are sentences for the terminal."""

    data: Mapping[str, Plain]
    sections: Sequence[Section] = ()
    notes: Sequence[str] = field(default_factory=tuple)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A request to stop a run, and the signal that caused it."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.signal: int | None = None

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    def request(self) -> None:
        """Request the run to stop after the current batch."""
        self._requested.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait; return true as soon as a stop is requested."""
        return self._requested.wait(timeout_s)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle signals as stop requests, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: FrameType | None) -> None:
            self.signal = number
            if self.is_requested:
                raise KeyboardInterrupt
            self.request()

        before = {number: signal.signal(number, handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """Progress after a batch; no lag if the source has no end to lag behind.

    `malformed` are the values that could not be decoded, in all.
    """

    batch: int
    rows: int
    rows_per_second: float
    duration_ms: int
    lag: int | None
    total_rows: int
    malformed: int = 0


def _silent(_: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressListener:
    """Receives the progress of a run: messages and completed batches.

    `running` is called a few times a second, with how long a batch has been running; 0 if none is.
    """

    say: Callable[[str], None] = _silent
    batch: Callable[[BatchDone], None] = _silent
    running: Callable[[float], None] = _silent


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccess:
    """How a pipeline uses its broker: as a user, with a password in a file, and with TLS.

    Files are read wherever they are needed.
    """

    user: str | None = None
    password_file: str | None = None
    tls: Tls | None = None

    def options(self) -> Mapping[str, str]:
        """Return the connector's options for it."""
        tls = self.tls
        options = {
            "user": self.user,
            "passwordFile": self.password_file,
            "tls": None if tls is None else "true",
            "caFile": None if tls is None else tls.ca,
            "certFile": None if tls is None else tls.certificate,
            "keyFile": None if tls is None else tls.key,
        }
        return {name: text for name, text in options.items() if text is not None}


ANYONE = BrokerAccess()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """Session, broker and checkpoint for one run of a named pipeline."""

    name: str
    kind: str
    broker: str
    spark: "SparkSession"
    checkpoint: Checkpoint
    # Turns a path in the file, relative to it, into one that Spark understands.
    place: Callable[[str], str]
    access: BrokerAccess = ANYONE
    # The address of the schema registry.
    registry: str = ""
    listener: ProgressListener = field(default_factory=ProgressListener)
    interruption: Interruption = field(default_factory=Interruption)

    @property
    def group(self) -> str:
        """The consumer group that shows the progress to operators."""
        return f"pipeline-{self.name}"

    def servers(self) -> Mapping[str, str]:
        """Return the connector's options for the broker, the user and TLS."""
        return {"kafka.bootstrap.servers": self.broker, **self.access.options()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run: done, or stopped on request."""

    rows: int
    report: Report
    is_stopped: bool = False
