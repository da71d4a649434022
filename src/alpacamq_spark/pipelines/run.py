"""One run of a pipeline: what every kind is given, and what it tells while it works."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .checkpoint import Checkpoint
from .interruption import Interruption
from .report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
