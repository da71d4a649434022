"""What a pipeline needs of a table, whatever its format: who owns it, which batches are in, and its files.

    data/alpacamq/3f2a9c1e/0000000012/8d41f0aa/    files of one attempt at a batch of a pipeline

Executors write an attempt's files, which do not count until one commit adds them. The same commit records
the batch in the table, so the table itself tells whether a batch is in. Commits are refused if the table
has changed since it was loaded: two drivers cannot commit the same batch.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar
from uuid import uuid4

import msgspec
import pyarrow.fs

from alpacamq.model.errors import AlpacaError
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.errors import ForeignTable, PipelineFailed

from .partitions import PartitionField
from .sorting import SortField

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

OWNED = "alpacamq.pipeline."
DATA = "data/alpacamq"
MERGES = "merges"
# Other writers may be about to commit younger files.
_GRACE = timedelta(days=3)
_FOOTER_READERS = 8


class WriterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a table says about one pipeline: its checkpoint and query, and the last batch that is in.

    `attempt` is the directory of the files of that batch.
    """

    checkpoint: str
    query: str | None = None
    batch: int = -1
    attempt: str = ""


# Names a state of a table, for a later look.
TableVersion: TypeAlias = int | str


class Conflict(Exception):
    """The table was changed by another writer, or the answer was lost; look again and try again."""


class StoredFile(Protocol):
    """A data file, with PyIceberg's names."""

    @property
    def file_path(self) -> str: ...
    @property
    def file_size_in_bytes(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def partition(self) -> object: ...
    @property
    def spec_id(self) -> int: ...


File = TypeVar("File", bound=StoredFile)


class LakeTable(ABC, Generic[File]):
    """One table in the state in which it was loaded."""

    # What the report calls the result of `clean`.
    CLEANED: ClassVar[str]

    def __init__(self, name: str, pipeline: str) -> None:
        self.name = name
        self._pipeline = pipeline

    @property
    @abstractmethod
    def location(self) -> str:
        """The directory of the table, without a slash at the end."""

    @abstractmethod
    def schema(self) -> "StructType":
        """Return the columns as Spark's."""

    @abstractmethod
    def partitions(self) -> list[PartitionField]:
        """Return how new rows are partitioned. Raises InvalidPipeline for what Spark's files cannot have."""

    @abstractmethod
    def evolve(self, schema: "StructType") -> list[str]:
        """Add new columns and widen types. Returns the new columns. Raises ForeignTable."""

    @abstractmethod
    def state(self) -> WriterState | None:
        """Return what the table says about the pipeline. Raises ForeignTable if it cannot be read."""

    @abstractmethod
    def _store_claim(self, state: WriterState) -> None:
        """Record the checkpoint and query of a pipeline. Raises Conflict."""

    @abstractmethod
    def _describe(self, path: str) -> File:
        """Describe a new Parquet file by its footer."""

    @abstractmethod
    def _commit(
        self,
        state: WriterState,
        noted: Mapping[str, str],
        add: Sequence[File],
        remove: Sequence[File],
        *,
        is_merge: bool = False,
    ) -> None:
        """Add and remove files and record the batch, at once. Raises Conflict.

        A merge changes no rows.
        """

    @abstractmethod
    def _current_files(self) -> list[File]: ...

    @abstractmethod
    def snapshot(self) -> TableVersion | None:
        """Return what `at` finds the current state by; None before the first one."""

    @abstractmethod
    def at(self, snapshot: TableVersion) -> Self | None:
        """Return the table with the files of an earlier state; None if it no longer has that."""

    def topic(self) -> str | None:
        """Return the topic with which the table is kept in step, if there is one."""
        return None

    def constants(self, file: File) -> Mapping[str, str | None]:  # noqa: ARG002 - of formats that have some
        """Return columns that a file does not have, because all its rows have the same value."""
        return {}

    @abstractmethod
    def obstacle(self) -> str | None:
        """Return why Spark cannot read the files as they are."""

    @abstractmethod
    def _read(self) -> Any:
        """Read the table without Spark, as Arrow's."""

    @abstractmethod
    def stats(self) -> tuple[int, int, int]:
        """Return the number of data files, of their bytes, and of rows."""

    @abstractmethod
    def clean(self, keep: timedelta, now: datetime) -> int:
        """Delete what only states older than `keep` need. Returns how much, in the unit of `CLEANED`."""

    @abstractmethod
    def _file_system(self, location: str) -> tuple[pyarrow.fs.FileSystem, str]:
        """Return a file system and the path of a location in it."""

    def _stored_state(self, properties: Mapping[str, str]) -> WriterState | None:
        stored = properties.get(f"{OWNED}{self._pipeline}")
        if stored is None:
            return None
        try:
            return msgspec.json.decode(stored, type=WriterState)
        except msgspec.MsgspecError as error:
            raise ForeignTable(
                f"the property {OWNED}{self._pipeline} of table {self.name} cannot be read: {error}"
            ) from None

    def _claim_property(self, state: WriterState) -> dict[str, str]:
        return {f"{OWNED}{self._pipeline}": msgspec.json.encode(state).decode()}

    def declare_order(self, order: Sequence[SortField]) -> None:
        """Record how the rows of files are sorted, where the format can. Raises Conflict."""

    def storable(self, frame: "DataFrame") -> "DataFrame":
        """Return the rows as the format keeps them."""
        return frame

    def claim(self, checkpoint: Checkpoint) -> WriterState:
        """Claim the table for a checkpoint, or continue it. Raises ForeignTable if they do not match."""
        identity, query, position = checkpoint.identity(), checkpoint.query(), checkpoint.position()
        done = -1 if position is None else position.batch
        before = self.state() or WriterState(checkpoint=identity)
        if before.checkpoint != identity:
            raise ForeignTable(
                f"table {self.name} was written by a pipeline {self._pipeline!r} with another checkpoint. "
                "Use that one, or use another table or name: this pipeline would begin again at the start of "
                "its topics, and duplicate them"
            )
        if before.batch < done:
            raise ForeignTable(
                f"the checkpoint {checkpoint.place} has written up to batch {done}, and table {self.name} "
                f"has {f'batches up to {before.batch}' if before.batch >= 0 else 'none of its batches'}: "
                "the sink or the catalog was changed, or the table was dropped or restored from an older "
                "copy. Restore it; or set another checkpoint, to begin with all records that the topics "
                "still have"
            )
        is_other = before.batch >= 0 and query is None if before.query is None else query != before.query
        # Beyond the completed batches there is at most the one that Spark will repeat.
        if is_other or before.batch > done + 1:
            raise ForeignTable(
                f"table {self.name} has batches that the position in {checkpoint.stream} does not contain: "
                "it was deleted or restored from an older copy. Restore the position; or set a new "
                "checkpoint and another table, to begin with all records that the topics still have"
            )
        state = msgspec.structs.replace(before, query=query)
        if state != self.state():
            self._store_claim(state)
        return state

    def attempt_directory(self, state: WriterState) -> str:
        return f"{self._batch_directory(state)}/{state.attempt}"

    def _batch_directory(self, state: WriterState) -> str:
        return f"{self._own_directory(state)}/{state.batch:010}"

    def _own_directory(self, state: WriterState) -> str:
        return f"{self.location}/{DATA}/{state.checkpoint[:8]}"

    def next_attempt(self, state: WriterState, batch: int) -> WriterState:
        """Return the state after a batch, with a new directory for its files."""
        return msgspec.structs.replace(state, batch=batch, attempt=uuid4().hex[:12])

    def parquet_files(self, directory: str) -> list[str]:
        """List the data files below a directory."""
        return sorted(path for path in self._listed(directory) if path.endswith(".parquet"))

    def commit(self, state: WriterState, remove: Sequence[File] = ()) -> None:
        """Add the files of a batch and remove others, and record the batch, at once.

        Raises Conflict if the table has changed since it was loaded; then nothing was committed.
        """
        added = self._described(self.attempt_directory(state))
        self._commit(state, {"alpacamq.batch": str(state.batch)}, added, remove)

    def _described(self, directory: str) -> list[File]:
        with translated(self.name), ThreadPoolExecutor(_FOOTER_READERS) as readers:
            return list(readers.map(self._describe, self.parquet_files(directory)))

    def data_files(self) -> list[File]:
        """Return the current data files. Raises ForeignTable if Spark cannot read them by column names."""
        if (reason := self.obstacle()) is not None:
            raise ForeignTable(f"table {self.name} {reason}")
        return self._current_files()

    def to_arrow(self, most_rows: int) -> Any:
        """Read the table without Spark. Raises PipelineFailed if it has more rows."""
        rows = sum(file.record_count for file in self._current_files())
        if rows > most_rows:
            raise PipelineFailed(
                f"table {self.name} {self.obstacle()}, and with {rows:,} rows is too large to be read "
                f"without Spark, up to {most_rows:,}; query it with an engine for its format"
            )
        return self._read()

    def small_files(self, fan_in: int, target_bytes: int, most_bytes: int) -> list[File]:
        """Return files below half the target of partitions that have many such files, up to a size in all."""
        groups: dict[tuple[int, str], list[File]] = {}
        for file in self.data_files():
            if file.file_size_in_bytes < target_bytes // 2:
                groups.setdefault((file.spec_id, repr(file.partition)), []).append(file)
        found: list[File] = []
        size = 0
        for group in groups.values():
            if len(group) < fan_in:
                continue
            for file in group:
                if size + file.file_size_in_bytes > most_bytes:
                    return found
                size += file.file_size_in_bytes
                found.append(file)
        return found

    def merge_directory(self, state: WriterState) -> str:
        """Return a new directory for merged files."""
        return f"{self._own_directory(state)}/{MERGES}/{uuid4().hex[:12]}"

    def commit_merge(self, state: WriterState, directory: str, remove: Sequence[File]) -> None:
        """Replace files by those of a directory with the same rows. Raises Conflict, PipelineFailed."""
        added = self._described(directory)
        before, after = (sum(file.record_count for file in files) for files in (remove, added))
        if before != after:
            raise PipelineFailed(
                f"merging {len(remove)} files of table {self.name} turned {before} rows into {after}; the "
                "table is as it was"
            )
        self._commit(state, {"alpacamq.merged-files": str(len(remove))}, added, remove, is_merge=True)

    def discard_merge(self, directory: str) -> None:
        """Delete merged files that nothing can commit now."""
        self._discard(directory)

    def discard_other_attempts(self, state: WriterState) -> None:
        """Delete the files of attempts at a batch that were not committed, as nothing can commit them now."""
        if state.batch < 0:
            return
        directory = self._batch_directory(state)
        for name in self._directories(directory):
            if name != state.attempt:
                self._discard(f"{directory}/{name}")

    def _discard(self, directory: str) -> None:
        """Delete a directory of ours."""
        files, path = self._file_system(directory)
        files.delete_dir(path)

    def _listed(self, location: str) -> dict[str, pyarrow.fs.FileInfo]:
        """Return the files below a directory by location; none if it does not exist."""
        files, path = self._file_system(location)
        found = files.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=True))
        return {
            f"{location}{each.path[len(path) :]}": each
            for each in found
            if each.type == pyarrow.fs.FileType.File
        }

    def _directories(self, location: str) -> list[str]:
        files, path = self._file_system(location)
        found = files.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
        return [each.base_name for each in found if each.type == pyarrow.fs.FileType.Directory]


class Place(Protocol):
    """Where a table is; opens it."""

    @property
    def name(self) -> str:
        """The table's name in messages."""

    @property
    def view(self) -> str:
        """The table's name in SQL."""

    def is_new(self) -> bool:
        """Return whether it is sure, without creating anything, that there is no such table."""

    def types(self) -> "dict[str, DataType]":
        """Return the columns of the table; none if it does not exist yet."""

    def open(self, pipeline: str) -> LakeTable[Any]:
        """Load the table. Raises InvalidPipeline without a catalog, PipelineFailed without the table."""

    def create_or_open(
        self,
        pipeline: str,
        schema: "StructType",
        wanted: Sequence[PartitionField] | None,
        default: Sequence[PartitionField],
    ) -> LakeTable[Any]:
        """Open the table, or create it with these columns. Raises InvalidPipeline, ForeignTable.

        A new table is partitioned as `wanted`, or else by `default`; an existing one must be as `wanted`.
        """


def check_partitions(table: LakeTable[Any], wanted: Sequence[PartitionField] | None) -> None:
    """Refuse a table that is partitioned in another way. Raises ForeignTable."""
    found = table.partitions()
    if wanted is not None and found != list(wanted):
        raise ForeignTable(
            f"table {table.name} is partitioned by {_listed_words(found)}, and sink.partition_by says "
            f"{_listed_words(wanted)}; change one of them"
        )


def _listed_words(partitions: Sequence[PartitionField]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"


def is_old(file: pyarrow.fs.FileInfo, now: datetime) -> bool:
    """Return whether no writer can be about to commit a file."""
    return file.mtime is not None and now - file.mtime > _GRACE


@contextmanager
def translated(table: str, *conflicts: type[Exception]) -> Iterator[None]:
    """Turn errors of catalogs and file systems into PipelineFailed, or Conflict."""
    try:
        yield
    except (AlpacaError, Conflict):
        raise
    except conflicts as error:
        raise Conflict(words_of(error)) from error
    except Exception as error:
        # A catalog's errors are those of its database or of its HTTP client.
        raise PipelineFailed(f"table {table}: {words_of(error)}") from error


def words_of(error: Exception) -> str:
    first = re.split(r"\n|\[SQL:", str(error), maxsplit=1)[0].strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
