"""A pipeline's checkpoint: Spark's position, our own state, and a lock.

stream/         Spark's own checkpoint of the query
id              the identity of this checkpoint, to recognise data written with another
begin.json      the offsets at which the query began, by source; of dead letters, dead-letters-begin.json
last-run.json   result of the last run
lock            held by the process that runs the pipeline
service/        state and log of its supervisor
moved-to        in a checkpoint that was moved: its new place
spark.log       Spark's log; spark-console.log has its console output
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar
from uuid import uuid4

import msgspec

from alpacamq.model.ids import TopicPartition
from alpacamq_spark.read.positions import from_json

from .errors import BadPlan, InvalidPipeline, PipelineBusy
from .storage import Storage, local_path, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

STREAM = "stream"
SPARK_LOG = "spark.log"
_LOCK = "lock"
_LOCK_TRIES = 10
_LOCK_PAUSE_S = 0.02
_LAST_RUN = "last-run.json"
# In the former place of a checkpoint: where it is now.
MOVED = "moved-to"
_ID = "id"


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the last run, or that it has not ended."""

    started_ms: int
    ended_ms: int | None = None
    outcome: str = "running"
    rows: int = 0
    error: str | None = None


class _QueryMetadata(msgspec.Struct, frozen=True):
    """Metadata that Spark stores when a query begins."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """A query's position in its checkpoint: the last completed batch and its end offsets."""

    batch: int
    offsets: Mapping[TopicPartition, int]
    is_batch_open: bool


class ProcessLock:
    """A file that at most one process of this machine holds; it contains the id of that process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def held(self, refusal: str) -> Iterator[None]:
        """Hold the lock. Raises PipelineBusy with `refusal`, in which {} is the process that holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+") as lock:
            if not _locked(lock):
                lock.seek(0)
                who = lock.read(20).strip()
                raise PipelineBusy(refusal.format(f" (process {who})" if who else ""))
            lock.seek(0)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def holder(self) -> int | None:
        """Return the process that holds the lock, or None; 0 if it has not written its id yet."""
        try:
            with self._path.open("r") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    who = lock.read(20).strip()
                    return int(who) if who.isascii() and who.isdigit() else 0
        except FileNotFoundError:
            pass
        return None


class Checkpoint:
    """One pipeline's checkpoint; `spark` is needed only if it is on another machine.

    `beside` is the name of another query of the pipeline, which has a position and an identity of its own.
    """

    def __init__(self, place: str, spark: "SparkSession | None" = None, beside: str | None = None) -> None:
        self.place = place.rstrip("/") or place
        # The directory of Spark's own checkpoint.
        self._stream = beside or STREAM
        self._beside = beside
        self._path = local_path(place)
        self._lock = None if self._path is None else ProcessLock(self._path / _LOCK)
        self.storage: Storage = storage_at(place, spark)

    @property
    def stream(self) -> str:
        """The path of Spark's own checkpoint of the query."""
        return f"{self.place}/{self._stream}"

    @property
    def log(self) -> Path | None:
        """The path of Spark's log, if it is on this machine."""
        return None if self._path is None else self._path / SPARK_LOG

    def identity(self) -> str:
        """Return the identity of this checkpoint; create it on first use."""
        if (known := self.storage.read(_ID)) is not None:
            name = known.decode(errors="replace").strip()
        else:
            name = uuid4().hex
            self.storage.write(_ID, name.encode())
        return name if self._beside is None else sha256(f"{name} {self._beside}".encode()).hexdigest()[:32]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the checkpoint. Raises PipelineBusy. Works on one machine only."""
        if self._lock is None:
            yield
            return
        if (moved := self.storage.read(MOVED)) is not None:
            now = moved.decode(errors="replace").strip()
            raise BadPlan(
                f"the checkpoint {self.place} was moved to {now}: set checkpoint = {json.dumps(now)} in the "
                f"file of the pipeline; or delete {self.place}/{MOVED}, to begin a new one there"
            )
        with self._lock.held(f"the pipeline is already running{{}}, on the checkpoint {self.place}"):
            yield

    def is_held(self) -> bool:
        """Return whether a process is running the pipeline."""
        return self._lock is not None and self._lock.holder() is not None

    def holder(self) -> int | None:
        """Return the process that runs the pipeline on this machine, if any."""
        return None if self._lock is None else self._lock.holder()

    def last_run(self) -> LastRun | None:
        """Return the result of the last run, or None."""
        return self.recall(_LAST_RUN, LastRun)

    def note_run(self, run: LastRun) -> None:
        self.remember(_LAST_RUN, run)

    def recall(self, name: str, kind: type[T]) -> T | None:
        """Return the value stored under a name. Raises BadPlan if it cannot be read."""
        stored = self.storage.read(name)
        if stored is None:
            return None
        try:
            return msgspec.json.decode(stored, type=kind)
        except msgspec.MsgspecError as error:
            raise BadPlan(f"{self.place}/{name} cannot be read: {error}") from None

    def remember(self, name: str, value: object) -> None:
        """Store a value under a name atomically."""
        self.storage.write(name, msgspec.json.encode(value))

    def query(self) -> str | None:
        """Return Spark's id of the query, which exists after its first run; None before."""
        metadata = self.recall(f"{self._stream}/metadata", _QueryMetadata)
        return None if metadata is None else metadata.id

    def position(self) -> StreamPosition | None:
        """Return the position of Spark's query; None before its first batch is complete."""
        planned = _numbers(self.storage, f"{self._stream}/offsets")
        done = set(_numbers(self.storage, f"{self._stream}/commits"))
        finished = [number for number in planned if number in done]
        if not finished:
            return None
        batch = finished[-1]
        stored = self.storage.read(f"{self._stream}/offsets/{batch}") or b""
        return StreamPosition(batch=batch, offsets=_offsets(stored), is_batch_open=batch != planned[-1])


def local_checkpoint(place: str) -> Checkpoint | None:
    """Open a checkpoint without Spark; None if it is on another machine."""
    try:
        return Checkpoint(place)
    except InvalidPipeline:
        return None


def _locked(lock: TextIO) -> bool:
    """Try to lock a file; return false if another process holds it. A mere check releases it at once."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_S)
        else:
            return True
    return False


def _numbers(storage: Storage, directory: str) -> list[int]:
    return sorted(int(name) for name in storage.names(directory) if name.isascii() and name.isdigit())


def _offsets(stored: bytes) -> dict[TopicPartition, int]:
    """Parse an entry of Spark's offset log: a version, metadata, then one line for each source."""
    found: dict[TopicPartition, int] = {}
    for line in stored.decode(errors="replace").splitlines()[2:]:
        found |= offsets_in(line)
    return found


def offsets_in(line: str) -> dict[TopicPartition, int]:
    """Parse the offsets of one source; empty if it is a source of another kind."""
    try:
        return from_json(json.loads(line))
    except (ValueError, AttributeError, TypeError):
        return {}
