"""One run of a pipeline: what every kind is given, and what it tells while it works."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from .checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Plain: TypeAlias = bool | int | float | str | Sequence["Plain"] | Mapping[str, "Plain"] | None


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under column names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A result; `notes` are sentences for whoever sits at the terminal."""

    data: Mapping[str, Plain]
    sections: Sequence[Section] = ()
    notes: Sequence[str] = field(default_factory=tuple)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether a run was asked to end, and by what."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.signal: int | None = None

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """End when the batch that is being written is done."""
        self._asked.set()

    def wait(self, timeout_s: float) -> bool:
        """Pause; True as soon as the run is asked to end."""
        return self._asked.wait(timeout_s)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take signals for it, where this thread is one that gets any."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, _frame: FrameType | None) -> None:
            self.signal = number
            if self.is_asked:
                raise KeyboardInterrupt
            self.ask()

        before = {number: signal.signal(number, handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """What is told after each batch; no lag where there is nothing to be behind."""

    batch: int
    rows: int
    rows_per_second: float
    duration_ms: int
    lag: int | None
    total_rows: int


def _silent(_: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Teller:
    """Where a run says what it does: sentences, and batches as they are done."""

    say: Callable[[str], None] = _silent
    batch: Callable[[BatchDone], None] = _silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A session, a broker and a memory, for one pipeline by name."""

    name: str
    kind: str
    broker: str
    spark: "SparkSession"
    checkpoint: Checkpoint
    # Makes the places of a file, which begin where the file is, into ones that Spark understands.
    place: Callable[[str], str]
    teller: Teller = field(default_factory=Teller)
    interruption: Interruption = field(default_factory=Interruption)

    @property
    def group(self) -> str:
        """The consumer group under which operators see the progress."""
        return f"pipeline-{self.name}"

    def servers(self) -> Mapping[str, str]:
        return {"kafka.bootstrap.servers": self.broker}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended: done, or stopped because it was asked to."""

    rows: int
    report: Report
    is_stopped: bool = False
