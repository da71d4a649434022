"""A pipeline: a file, what it says, and what can be done with it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import msgspec

from alpacamq.model.errors import AlpacaError

from .checkpoint import Checkpoint, LastRun
from .definition import Analytics, Archive, DeadLetters, Kind, Replay, Transform
from .files import name_of, read_definition
from .interruption import Interruption
from .report import Report
from .run import Outcome, Run, Teller
from .storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_BROKER = "127.0.0.1:9092"
_CHECKPOINTS = ".checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline by its file. `directory` is where the file is, and where its relative places begin."""

    name: str
    definition: Kind
    directory: Path
    broker: str

    def place(self, written: str) -> str:
        """A place as the file has it, made absolute."""
        path = local_path(written)
        return written if path is None else str((self.directory / path.expanduser()).resolve())

    @property
    def checkpoint_place(self) -> str:
        return self.place(self.definition.checkpoint or f"{_CHECKPOINTS}/{self.name}")

    def at(self, broker: str) -> "Pipeline":
        """The same on another broker."""
        return replace(self, broker=broker)

    def executing(self) -> "Pipeline":
        """The same, but what it would only show it does. For redrives."""
        if not isinstance(self.definition, DeadLetters) or self.definition.redrive is None:
            return self
        redrive = msgspec.structs.replace(self.definition.redrive, execute=True)
        return replace(self, definition=msgspec.structs.replace(self.definition, redrive=redrive))

    def run(
        self,
        *,
        spark: "SparkSession | None" = None,
        teller: Teller | None = None,
        interruption: Interruption | None = None,
    ) -> Outcome:
        """Run it to its end, or until it is asked to stop. Without `spark`, on a session of its own."""
        from .failures import explained
        from .sessions import session_for

        teller, interruption = teller or Teller(), interruption or Interruption()
        self.check_broker()
        if spark is not None:
            return self._run_on(spark, teller, interruption)
        path = local_path(self.checkpoint_place)
        log = None if path is None or self.definition.spark.remote else path / "spark.log"
        with explained(), session_for(self.name, self.definition.spark, log) as session:
            return self._run_on(session, teller, interruption)

    def check_broker(self) -> None:
        """Fail early, and in plain words, if the broker or a topic is not there."""
        from .sources import Named, check_topics

        definition = self.definition
        match definition:
            case Archive():
                check_topics(self.broker, definition.source)
            case Replay() | Analytics():
                if definition.source.archive is None:
                    check_topics(self.broker, definition.source)
            case Transform():
                for name, source in definition.sources.items():
                    check_topics(self.broker, Named((source.topic or name,)))
            case DeadLetters():
                from .dead_letters import dead_letter_topics

                dead_letter_topics(self.broker, definition.source)
            case _:
                assert_never(definition)

    def _run_on(self, spark: "SparkSession", teller: Teller, interruption: Interruption) -> Outcome:
        # Here and not above: it needs the client, which few of those who load a pipeline do.
        from .reporting import ProgressReports

        reports = ProgressReports(self.broker, self.name, self.definition.kind)
        run = Run(
            name=self.name,
            kind=self.definition.kind,
            broker=self.broker,
            spark=spark,
            checkpoint=Checkpoint(self.checkpoint_place, spark),
            place=self.place,
            teller=reports.telling(teller),
            interruption=interruption,
        )
        # What only counts has nothing to finish, and ends at once as Spark would have it.
        gently = nullcontext() if isinstance(self.definition, Analytics) else interruption.on_signals()
        with run.checkpoint.held(), _noted(run.checkpoint) as note, reports, gently:
            outcome = self._dispatch(run)
            note(outcome)
            reports.done(outcome)
            return outcome

    def _dispatch(self, run: Run) -> Outcome:
        definition = self.definition
        match definition:
            case Archive():
                from .archive import run_archive

                return run_archive(definition, run, self.directory)
            case Replay():
                from .replay import run_replay

                return run_replay(definition, run)
            case Transform():
                from .transform import run_transform

                return run_transform(definition, run, self.directory)
            case DeadLetters():
                from .dead_letters import run_dead_letters

                return run_dead_letters(definition, run, self.directory)
            case Analytics():
                from .analytics import run_analytics

                return run_analytics(definition, run)
            case _:
                assert_never(definition)

    def status(self) -> Report:
        """Where it is, by its checkpoint and its consumer group; needs no Spark."""
        from .status import status_of

        return status_of(self)


def load(path: str | Path, *, broker: str | None = None) -> Pipeline:
    """The pipeline of a file; `broker` goes before the one that the file names."""
    file = Path(path)
    definition = read_definition(file)
    return Pipeline(
        name=name_of(file, definition),
        definition=definition,
        directory=file.resolve().parent,
        broker=broker or definition.broker or DEFAULT_BROKER,
    )


@contextmanager
def _noted(checkpoint: Checkpoint) -> Iterator[Callable[[Outcome], None]]:
    """Keep in the checkpoint that a run has begun, and how it ended."""
    started = LastRun(started_ms=_now_ms())
    checkpoint.note_run(started)
    ended = started

    def note(outcome: Outcome) -> None:
        nonlocal ended
        ended = msgspec.structs.replace(
            started, outcome="stopped" if outcome.is_stopped else "done", rows=outcome.rows
        )

    try:
        yield note
    except KeyboardInterrupt:
        ended = msgspec.structs.replace(started, outcome="stopped")
        raise
    except BaseException as error:
        words = str(error) if isinstance(error, AlpacaError) else f"{type(error).__name__}: {error}"
        ended = msgspec.structs.replace(started, outcome="failed", error=words[:2000])
        raise
    finally:
        checkpoint.note_run(msgspec.structs.replace(ended, ended_ms=_now_ms()))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
