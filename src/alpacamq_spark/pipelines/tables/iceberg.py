"""An Iceberg table as a pipeline writes it, through PyIceberg.

    data/alpacamq/3f2a9c1e/0000000012/8d41f0aa/    files of one attempt at a batch of a pipeline

Executors write an attempt's files, which do not count until one commit adds them. The same commit records
the batch in a property of the table, so the table itself tells whether a batch is in. Commits are refused
if the table has changed since it was loaded: two drivers cannot commit the same batch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow.fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ResolveError,
    ValidationError,
)
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)

from alpacamq.model.errors import AlpacaError
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.errors import ForeignTable, InvalidPipeline, PipelineFailed

from .partitions import PartitionField, Unit
from .schema import iceberg_schema, spark_schema
from .topic_settings import TOPIC_PIPELINE

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_TRANSFORMS: Mapping[Unit, Transform[Any, Any]] = {
    "identity": IdentityTransform(),
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
SQLITE = "sqlite:///"
# Properties of new tables. Without the first, files of Spark, whose columns have no ids, cannot be read.
_NAME_MAPPING = "schema.name-mapping.default"
_NEW: Mapping[str, str] = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_RETRIES = "commit.retry.num-retries"
_OWNED = "alpacamq.pipeline."
_DATA = "data/alpacamq"
_MERGES = "merges"
# Other writers may be about to commit younger files.
_GRACE = timedelta(days=3)
_FOOTER_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """A table by its name, and the catalog that has it, as PyIceberg's properties."""

    table: str
    catalog: str
    properties: Mapping[str, str]

    @property
    def sqlite(self) -> Path | None:
        """The file of a catalog in SQLite."""
        uri = self.properties.get("uri", "")
        return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


class WriterState(msgspec.Struct, frozen=True, kw_only=True):
    """What a table says about one pipeline: its checkpoint and query, and the last batch that is in.

    `attempt` is the directory of the files of that batch.
    """

    checkpoint: str
    query: str | None = None
    batch: int = -1
    attempt: str = ""


class Conflict(Exception):
    """The table was changed by another writer, or the answer was lost; look again and try again."""


class IcebergTable:
    """One table in the state in which it was loaded."""

    def __init__(self, table: Table, place: TablePlace, pipeline: str) -> None:
        # PyIceberg would repeat a refused commit without another look at the batch.
        properties = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        self._table = table
        self._place = place
        self._pipeline = pipeline

    @property
    def name(self) -> str:
        return self._place.table

    @property
    def location(self) -> str:
        return str(self._table.location()).rstrip("/")

    def schema(self) -> "StructType":
        """Return the columns as Spark's."""
        return spark_schema(self._table.schema())

    def partitions(self) -> list[PartitionField]:
        """Return how new rows are partitioned. Raises InvalidPipeline for what Spark's files cannot have."""
        units = {str(transform): unit for unit, transform in _TRANSFORMS.items()}
        found = []
        for field in self._table.spec().fields:
            unit = units.get(str(field.transform))
            column = self._table.schema().find_column_name(field.source_id)
            if unit is None or column is None or "." in column:
                raise InvalidPipeline(
                    f"table {self.name} is partitioned by {field.transform} of {column}; a pipeline can "
                    "write tables that are partitioned by columns, or by their year, month, day or hour"
                )
            found.append(PartitionField(column=column, unit=unit))
        return found

    def evolve(self, schema: "StructType") -> list[str]:
        """Add new columns and widen types. Returns the new columns. Raises ForeignTable."""
        before = {field.name for field in self._table.schema().fields}
        wanted = iceberg_schema(schema)
        with _translated(self.name), self._table.transaction() as change:
            try:
                with change.update_schema() as update:
                    update.union_by_name(wanted)
            except (ValidationError, ResolveError, ValueError) as error:
                raise ForeignTable(
                    f"table {self.name} has other types than the pipeline: {error}; cast the column, or "
                    "write to another table"
                ) from None
            if _NAME_MAPPING not in self._table.properties:
                mapping = change.table_metadata.schema().name_mapping.model_dump_json()
                change.set_properties({_NAME_MAPPING: mapping})
        return [field.name for field in self._table.schema().fields if field.name not in before]

    def state(self) -> WriterState | None:
        """Return what the table says about the pipeline. Raises ForeignTable if it cannot be read."""
        stored = self._table.properties.get(f"{_OWNED}{self._pipeline}")
        if stored is None:
            return None
        try:
            return msgspec.json.decode(stored, type=WriterState)
        except msgspec.MsgspecError as error:
            raise ForeignTable(
                f"the property {_OWNED}{self._pipeline} of table {self.name} cannot be read: {error}"
            ) from None

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
                "sink.table or the catalog was changed, or the table was dropped or restored from an older "
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
            with _translated(self.name), self._table.transaction() as change:
                change.set_properties({f"{_OWNED}{self._pipeline}": msgspec.json.encode(state).decode()})
        return state

    def attempt_directory(self, state: WriterState) -> str:
        return f"{self._batch_directory(state)}/{state.attempt}"

    def _batch_directory(self, state: WriterState) -> str:
        return f"{self._own_directory(state)}/{state.batch:010}"

    def _own_directory(self, state: WriterState) -> str:
        return f"{self.location}/{_DATA}/{state.checkpoint[:8]}"

    def next_attempt(self, state: WriterState, batch: int) -> WriterState:
        """Return the state after a batch, with a new directory for its files."""
        return msgspec.structs.replace(state, batch=batch, attempt=uuid4().hex[:12])

    def parquet_files(self, directory: str) -> list[str]:
        """List the data files below a directory."""
        return sorted(path for path in self._listed(directory) if path.endswith(".parquet"))

    def commit(self, state: WriterState, remove: Sequence[DataFile] = ()) -> None:
        """Add the files of a batch and remove others, and record the batch, at once.

        Raises Conflict if the table has changed since it was loaded; then nothing was committed.
        """
        added = self._data_files(self.parquet_files(self.attempt_directory(state)))
        self._commit(state, {"alpacamq.batch": str(state.batch)}, added, remove)

    def _data_files(self, paths: Sequence[str]) -> list[DataFile]:
        """Describe Parquet files by their footers."""
        metadata, io = self._table.metadata, self._table.io
        with _translated(self.name), ThreadPoolExecutor(_FOOTER_READERS) as readers:
            return list(readers.map(lambda path: parquet_file_to_data_file(io, metadata, path), paths))

    def _commit(
        self,
        state: WriterState,
        noted: Mapping[str, str],
        add: Sequence[DataFile],
        remove: Sequence[DataFile],
    ) -> None:
        with _translated(self.name):
            change = self._table.transaction()
            properties = {"alpacamq.pipeline": self._pipeline, **noted}
            update = change.update_snapshot(snapshot_properties=properties)
            # A batch without rows makes a snapshot as well: it lets the catalog notice another writer.
            with update.overwrite() if remove else update.merge_append() as snapshot:
                for file in add:
                    snapshot.append_data_file(file)
                for file in remove:
                    snapshot.delete_data_file(file)
            change.set_properties({f"{_OWNED}{self._pipeline}": msgspec.json.encode(state).decode()})
            change.commit_transaction()

    def small_files(self, fan_in: int, target_bytes: int, most_bytes: int) -> list[DataFile]:
        """Return files below half the target of partitions that have many such files, up to a size in all."""
        groups: dict[tuple[int, str], list[DataFile]] = {}
        for file in self.data_files():
            if file.file_size_in_bytes < target_bytes // 2:
                groups.setdefault((file.spec_id, repr(file.partition)), []).append(file)
        found: list[DataFile] = []
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
        return f"{self._own_directory(state)}/{_MERGES}/{uuid4().hex[:12]}"

    def commit_merge(self, state: WriterState, directory: str, remove: Sequence[DataFile]) -> None:
        """Replace files by those of a directory with the same rows. Raises Conflict, PipelineFailed."""
        added = self._data_files(self.parquet_files(directory))
        before, after = (sum(file.record_count for file in files) for files in (remove, added))
        if before != after:
            raise PipelineFailed(
                f"merging {len(remove)} files of table {self.name} turned {before} rows into {after}; the "
                "table is as it was"
            )
        self._commit(state, {"alpacamq.merged-files": str(len(remove))}, added, remove)

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

    def snapshot(self) -> int | None:
        """Return the id of the current snapshot; None before the first one."""
        current = self._table.current_snapshot()
        return None if current is None else current.snapshot_id

    def has_snapshot(self, snapshot: int) -> bool:
        return self._table.snapshot_by_id(snapshot) is not None

    def topic(self) -> str | None:
        """Return the topic with which the table is kept in step, if there is one."""
        prefix = f"{_OWNED}{TOPIC_PIPELINE}"
        topics = [name[len(prefix) :] for name in self._table.properties if name.startswith(prefix)]
        return topics[0] if len(topics) == 1 else None

    def data_files(self, snapshot: int | None = None) -> list[DataFile]:
        """Return the data files, the current ones by default.

        Raises ForeignTable if Spark cannot read them by column names.
        """
        if (reason := self.obstacle(snapshot)) is not None:
            raise ForeignTable(f"table {self.name} {reason}")
        return [task.file for task in self._table.scan(snapshot_id=snapshot).plan_files()]

    def obstacle(self, snapshot: int | None = None) -> str | None:
        """Return why Spark cannot read the files as they are: deleted rows, or renamed columns."""
        mapping = self._table.name_mapping()
        renamed = [] if mapping is None else _renamed(mapping.root, self._table.schema().fields)
        if renamed:
            return f"has the renamed column {renamed[0]}, which its files do not have"
        if any(task.delete_files for task in self._table.scan(snapshot_id=snapshot).plan_files()):
            return "has rows deleted by another engine; rewrite its data files with that"
        return None

    def to_arrow(self, most_rows: int) -> Any:
        """Read the table with PyIceberg. Raises PipelineFailed if it has more rows."""
        scan = self._table.scan()
        rows = sum(task.file.record_count for task in scan.plan_files())
        if rows > most_rows:
            raise PipelineFailed(
                f"table {self.name} {self.obstacle()}, and with {rows:,} rows is too large to be read "
                f"without Spark, up to {most_rows:,}; query it with an engine for Iceberg"
            )
        return scan.to_arrow()

    def stats(self) -> tuple[int, int, int]:
        """Return the number of data files, of their bytes, and of rows, by the snapshot's summary."""
        snapshot = self._table.current_snapshot()
        summary = snapshot.summary if snapshot is not None else None
        if summary is None:
            return 0, 0, 0
        keys = ("total-data-files", "total-files-size", "total-records")
        files, size, rows = (int(summary[key] or 0) for key in keys)
        return files, size, rows

    def clean(self, keep: timedelta, now: datetime) -> int:
        """Expire snapshots older than `keep`, and delete files that no snapshot needs.

        Returns how many snapshots were expired. Does nothing until the oldest is a tenth older than that,
        because it reads the metadata of all files.
        """
        metadata = self._table.metadata
        heads = {ref.snapshot_id for ref in metadata.refs.values()}

        def older(than: timedelta) -> list[Snapshot]:
            before_ms = (now - than).timestamp() * 1000
            return [
                each
                for each in metadata.snapshots
                if each.timestamp_ms < before_ms and each.snapshot_id not in heads
            ]

        if not older(keep * 1.1):
            return 0
        expired = older(keep)
        with _translated(self.name):
            change = self._table.maintenance.expire_snapshots()
            change.by_ids([each.snapshot_id for each in expired]).commit()
            self._delete_orphans(now)
        return len(expired)

    def _delete_orphans(self, now: datetime) -> None:
        """Delete files that nothing refers to: of ours up to the last batch, and old metadata."""
        state = self.state()
        if state is None:
            return
        ours = self._own_directory(state)
        # Listed first: what is added from here on is not in the list.
        data: dict[str, list[str]] = {}
        for path, file in self._listed(ours).items():
            directory = path.removeprefix(f"{ours}/").partition("/")[0]
            if self._is_settled(directory, file, state, now):
                data.setdefault(directory, []).append(path)
        meta = [
            path
            for path, file in self._listed(f"{self.location}/metadata").items()
            if _is_old(file, now) and path.endswith((".avro", ".metadata.json"))
        ]
        self._table.refresh()
        needed = set(self._referenced())
        for directory, paths in data.items():
            if directory != _MERGES and needed.isdisjoint(paths):
                self._discard(f"{ours}/{directory}")
            else:
                self._delete(path for path in paths if path not in needed)
        self._delete(path for path in meta if path not in needed)

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._table.io.delete(path)

    @staticmethod
    def _is_settled(directory: str, file: pyarrow.fs.FileInfo, state: WriterState, now: datetime) -> bool:
        """Return whether a file of ours can no longer be committed."""
        return _is_old(file, now) if directory == _MERGES else int(directory) <= state.batch

    def _referenced(self) -> Iterator[str]:
        """Yield every file that the table needs."""
        metadata, io = self._table.metadata, self._table.io
        yield self._table.metadata_location
        yield from (each.metadata_file for each in metadata.metadata_log)
        seen = set()
        for snapshot in metadata.snapshots:
            yield snapshot.manifest_list
            for manifest in snapshot.manifests(io):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                    yield entry.data_file.file_path

    def _file_system(self, location: str) -> tuple[pyarrow.fs.FileSystem, str]:
        io = self._table.io
        scheme, netloc, path = PyArrowFileIO.parse_location(location, io.properties)
        return io.fs_by_scheme(scheme, netloc), path

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


def _is_old(file: pyarrow.fs.FileInfo, now: datetime) -> bool:
    return file.mtime is not None and now - file.mtime > _GRACE


def _renamed(mapped: Sequence[Any], fields: Sequence[Any]) -> list[str]:
    """Return fields that have another name in some files."""
    current = {field.field_id: field for field in fields}
    found = []
    for each in mapped:
        field = current.get(each.field_id)
        if field is None:
            continue  # a column that was dropped
        if each.names != [field.name]:
            found.append(field.name)
        inner = getattr(field.field_type, "fields", ())
        found += _renamed(each.fields, inner)
    return found


def open_table(place: TablePlace, pipeline: str) -> IcebergTable:
    """Load a table. Raises InvalidPipeline without a usable catalog, PipelineFailed without the table."""
    catalog = open_catalog(place)
    with _translated(place.table):
        try:
            return IcebergTable(catalog.load_table(place.table), place, pipeline)
        except NoSuchTableError:
            raise PipelineFailed(f"the catalog {place.catalog!r} has no table {place.table}") from None


def table_exists(place: TablePlace) -> bool:
    """Return whether a catalog has a table. Raises InvalidPipeline without a usable catalog."""
    catalog = open_catalog(place)
    with _translated(place.table):
        return bool(catalog.table_exists(place.table))


def table_types(place: TablePlace) -> "dict[str, DataType]":
    """Return the columns of a table; none if it does not exist yet."""
    catalog = open_catalog(place, create=True)
    with _translated(place.table):
        if not catalog.table_exists(place.table):
            return {}
        schema = spark_schema(catalog.load_table(place.table).schema())
    return {field.name: field.dataType for field in schema.fields}


def open_catalog(place: TablePlace, *, create: bool = False) -> Catalog:
    """Load the catalog; with `create`, a SQLite file may be new. Raises InvalidPipeline."""
    file = place.sqlite
    if file is not None and create:
        file.parent.mkdir(parents=True, exist_ok=True)
    elif file is not None and not file.exists():
        raise InvalidPipeline(f"there is no catalog {file} yet; the first run of the pipeline creates it")
    properties = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", **place.properties}
    try:
        return load_catalog(place.catalog, **properties)
    except Exception as error:
        # Every kind of catalog has its own errors.
        words = _words(error)
        raise InvalidPipeline(f"[catalog]: the catalog {place.catalog!r} cannot be used: {words}") from error


def create_or_open(
    place: TablePlace,
    pipeline: str,
    schema: "StructType",
    wanted: Sequence[PartitionField] | None,
    default: Sequence[PartitionField],
) -> IcebergTable:
    """Open a table, or create it with these columns. Raises InvalidPipeline, ForeignTable.

    A new table is partitioned as `wanted`, or else by `default`; an existing one must be as `wanted`.
    """
    catalog = open_catalog(place, create=True)
    with _translated(place.table):
        if not catalog.table_exists(place.table):
            partitions = default if wanted is None else wanted
            for each in partitions:
                each.check(schema)
            _create(catalog, place, iceberg_schema(schema), partitions)
        table = IcebergTable(catalog.load_table(place.table), place, pipeline)
    found = table.partitions()
    if wanted is not None and found != list(wanted):
        raise ForeignTable(
            f"table {place.table} is partitioned by {_listed_words(found)}, and sink.partition_by says "
            f"{_listed_words(wanted)}; change one of them"
        )
    return table


def _create(
    catalog: Catalog, place: TablePlace, schema: Schema, partitions: Sequence[PartitionField]
) -> None:
    catalog.create_namespace_if_not_exists(place.table.rpartition(".")[0])
    change = catalog.create_table_transaction(place.table, schema, properties=dict(_NEW))
    with change:
        with change.update_spec() as spec:
            for each in partitions:
                spec.add_field(each.column, _TRANSFORMS[each.unit], each.name)
        mapping = change.table_metadata.schema().name_mapping.model_dump_json()
        change.set_properties({_NAME_MAPPING: mapping})


def _listed_words(partitions: Sequence[PartitionField]) -> str:
    return ", ".join(map(str, partitions)) or "nothing"


@contextmanager
def _translated(table: str) -> Iterator[None]:
    """Turn errors of catalogs and file systems into PipelineFailed, or Conflict."""
    try:
        yield
    except (AlpacaError, Conflict):
        raise
    except (CommitFailedException, CommitStateUnknownException) as error:
        raise Conflict(_words(error)) from error
    except Exception as error:
        # A catalog's errors are those of its database or of its HTTP client.
        raise PipelineFailed(f"table {table}: {_words(error)}") from error


def _words(error: Exception) -> str:
    first = re.split(r"\n|\[SQL:", str(error), maxsplit=1)[0].strip()
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
