"""A Delta table as a pipeline writes it, through delta-rs.

A commit records the batch, and the directory of its files, as versions of two applications of the pipeline's
checkpoint in the log. The checkpoint itself is a property of the table.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pa_parquet
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import types as spark_types

from alpacamq_spark.pipelines.errors import ForeignTable, InvalidPipeline, PipelineFailed
from alpacamq_spark.pipelines.storage import local_path

from .partitions import DIRECTORY, TEXT, PartitionField
from .table import (
    DATA,
    MERGES,
    OWNED,
    LakeTable,
    TableVersion,
    WriterState,
    check_partitions,
    is_old,
    translated,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG = "_delta_log"
_SIMPLE = (
    spark_types.BinaryType,
    spark_types.BooleanType,
    spark_types.ByteType,
    spark_types.DateType,
    spark_types.DecimalType,
    spark_types.DoubleType,
    spark_types.FloatType,
    spark_types.IntegerType,
    spark_types.LongType,
    spark_types.ShortType,
    spark_types.StringType,
    spark_types.TimestampNTZType,
    spark_types.TimestampType,
)
_FORBIDDEN = frozenset(" ,;{}()\n\t=")
_INTEGERS = (spark_types.ByteType, spark_types.ShortType, spark_types.IntegerType, spark_types.LongType)
# Features of tables whose files are as Spark writes them.
_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # delta-rs adds this one to any table that has features, when a property is set.
        "variantType",
    }
)
# Properties that need more than files, with the values that do not.
_OFF = {"delta.columnMapping.mode": "none", "delta.enableChangeDataFeed": "false"}
_CONSTRAINT, _APPEND_ONLY = "delta.constraints.", "delta.appendOnly"
_COLUMN_RULES = ("delta.generationExpression", "delta.invariants", "delta.identity.start")
_KEEP_LOG, _KEEP_FILES = "delta.logRetentionDuration", "delta.deletedFileRetentionDuration"
# A driver that was overtaken must still find the commits of others.
_LEAST_LOG = timedelta(hours=1)
_NULL = "__HIVE_DEFAULT_PARTITION__"
# Statistics of longer texts are left out, and of columns after these.
_TEXT_LENGTH = 32
_STATS_COLUMNS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaPlace:
    """A table by its path or URI, and the options of its storage, as delta-rs has them."""

    name: str
    options: Mapping[str, str]

    @property
    def view(self) -> str:
        return self.name.rstrip("/").rpartition("/")[2]

    def is_new(self) -> bool:
        with translated(self.name):
            return not DeltaTable.is_deltatable(self.name, dict(self.options))

    def types(self) -> dict[str, spark_types.DataType]:
        if self.is_new():
            return {}
        return {field.name: field.dataType for field in self.open("").schema().fields}

    def open(self, pipeline: str) -> "LakeDeltaTable":
        with translated(self.name):
            try:
                return LakeDeltaTable(self, pipeline)
            except TableNotFoundError:
                raise PipelineFailed(f"there is no Delta table {self.name}") from None

    def create_or_open(
        self,
        pipeline: str,
        schema: spark_types.StructType,
        wanted: Sequence[PartitionField] | None,
        default: Sequence[PartitionField],
    ) -> "LakeDeltaTable":
        if self.is_new():
            self._create(schema, default if wanted is None else wanted)
        table = self.open(pipeline)
        table.check_writable()
        check_partitions(table, wanted)
        return table

    def _create(self, schema: spark_types.StructType, partitions: Sequence[PartitionField]) -> None:
        for each in partitions:
            each.check(schema)
        if any(isinstance(schema[each.column].dataType, _TIMES) for each in partitions):
            raise InvalidPipeline(
                "sink.partition_by: Delta tables cannot be partitioned by a time; select its date as a column"
            )
        columns = delta_schema(schema)
        with translated(self.name, CommitFailedError):
            files, path = file_system(self.name, self.name, self.options)
            found = files.get_file_info(pa_fs.FileSelector(path, allow_not_found=True))
            if any(each.base_name != _LOG for each in found):
                raise InvalidPipeline(f"{self.name} is not empty, and not a Delta table")
            DeltaTable.create(
                self.name,
                columns,
                mode="ignore",
                partition_by=[each.column for each in partitions],
                storage_options=dict(self.options),
                commit_properties=CommitProperties(max_commit_retries=0),
            )


_TIMES = (spark_types.TimestampType, spark_types.TimestampNTZType)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFile:
    """A data file, with the names of `StoredFile`; `path` is relative to the table."""

    path: str
    file_path: str
    file_size_in_bytes: int
    record_count: int
    partition: Mapping[str, str | None]
    stats: str = "{}"
    spec_id: int = 0


class LakeDeltaTable(LakeTable[DeltaFile]):
    """One table in the state in which it was loaded."""

    CLEANED = "deleted_files"

    def __init__(self, place: DeltaPlace, pipeline: str, version: int | None = None) -> None:
        super().__init__(place.name, pipeline)
        self._place = place
        self._table = DeltaTable(place.name, version=version, storage_options=dict(place.options))

    @property
    def location(self) -> str:
        return self.name.rstrip("/")

    def schema(self) -> spark_types.StructType:
        return spark_types.StructType.fromJson(json.loads(self._table.schema().to_json()))

    def partitions(self) -> list[PartitionField]:
        return [PartitionField(column=name) for name in self._table.metadata().partition_columns]

    def check_writable(self) -> None:
        """Refuse a table that needs more of a writer than files. Raises ForeignTable."""
        protocol, properties = self._table.protocol(), self._table.metadata().configuration
        reasons = [
            f"has the property {name} = {value}"
            for name, value in properties.items()
            if name.startswith(_CONSTRAINT) or _OFF.get(name, value) != value
        ]
        reasons += [
            f"has the feature {each}"
            for each in {*(protocol.reader_features or ()), *(protocol.writer_features or ())} - _FEATURES
        ]
        for field in self.schema().fields:
            rules = [rule for rule in _COLUMN_RULES if rule in field.metadata]
            if rules or not field.nullable:
                reasons.append(f"has a rule for the column {field.name}: {(*rules, 'NOT NULL')[0]}")
            if isinstance(field.dataType, _TIMES) and field.name in self._table.metadata().partition_columns:
                reasons.append(f"is partitioned by the time {field.name}")
        if reasons:
            raise ForeignTable(f"table {self.name} {reasons[0]}, which pipelines cannot write")

    def evolve(self, schema: spark_types.StructType) -> list[str]:
        delta_schema(schema)
        before = self.schema()
        added = _added(before, schema, self.name, "")
        if added.fields:
            with translated(self.name, CommitFailedError):
                self._table.alter.add_columns(
                    [Field.from_json(json.dumps(field.jsonValue())) for field in _optional(added).fields],
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
        return [field.name for field in added.fields if field.name not in before.names]

    def state(self) -> WriterState | None:
        stored = self._stored_state(self._table.metadata().configuration)
        if stored is None:
            return None
        batch, attempt = (self._table.transaction_version(each) for each in self._applications(stored))
        if batch is None or attempt is None:
            return stored
        return msgspec.structs.replace(stored, batch=batch, attempt=f"{attempt:012x}")

    def _applications(self, state: WriterState) -> tuple[str, str]:
        batches = f"{OWNED}{self._pipeline}/{state.checkpoint}"
        return batches, f"{batches}/attempt"

    def _store_claim(self, state: WriterState) -> None:
        claimed = WriterState(checkpoint=state.checkpoint, query=state.query)
        self._set(self._claim_property(claimed))

    def _set(self, properties: dict[str, str]) -> None:
        with translated(self.name, CommitFailedError):
            self._table.alter.set_table_properties(
                properties,
                raise_if_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),
            )

    def storable(self, frame: "DataFrame") -> "DataFrame":
        """Turn empty texts that partition the table into nulls, which is how Delta stores both."""
        from pyspark.sql import functions as f

        kinds = {field.name: field.dataType for field in frame.schema.fields}
        for each in self.partitions():
            if isinstance(kinds.get(each.column), spark_types.StringType):
                column = f.col(f"`{each.column}`")
                frame = frame.withColumn(each.column, f.nullif(column, f.lit("")))
        return frame

    def _describe(self, path: str) -> DeltaFile:
        files, at = self._file_system(path)
        footer = pa_parquet.read_metadata(at, filesystem=files)
        schema = self.schema()
        return DeltaFile(
            path=path.removeprefix(f"{self.location}/"),
            file_path=path,
            file_size_in_bytes=files.get_file_info(at).size,
            record_count=footer.num_rows,
            partition=_partition_values(path, self.partitions(), schema),
            stats=json.dumps(_stats(footer, schema)),
        )

    def _commit(
        self,
        state: WriterState,
        noted: Mapping[str, str],
        add: Sequence[DeltaFile],
        remove: Sequence[DeltaFile],
        *,
        is_merge: bool = False,
    ) -> None:
        is_fixed = self._table.metadata().configuration.get(_APPEND_ONLY) == "true"
        if is_fixed and remove and not is_merge:
            raise ForeignTable(
                f"table {self.name} has the property {_APPEND_ONLY} = true, so an upsert cannot replace rows"
            )
        now_ms = time.time_ns() // 1_000_000
        added = [
            AddAction(
                path=file.path,
                size=file.file_size_in_bytes,
                partition_values=file.partition,
                modification_time=now_ms,
                data_change=not is_merge,
                stats=file.stats,
            )
            for file in add
        ]
        removed = [
            RemoveAction(
                path=file.path,
                data_change=not is_merge,
                deletion_timestamp=now_ms,
                size=file.file_size_in_bytes,
                partition_values=dict(file.partition),
            )
            for file in remove
        ]
        batches, attempts = self._applications(state)
        noted_all = {"alpacamq.pipeline": self._pipeline, **noted}
        with translated(self.name, CommitFailedError):
            self._table.create_write_transaction(
                [*added, *removed],
                mode="append",
                schema=self._table.schema(),
                partition_by=self._table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    custom_metadata=noted_all,
                    # It would be repeated without another look at the batch.
                    max_commit_retries=0,
                    app_transactions=[
                        Transaction(batches, state.batch, now_ms),
                        Transaction(attempts, int(state.attempt or "0", 16), now_ms),
                    ],
                ),
            )

    def _current_files(self) -> list[DeltaFile]:
        found = pa.table(self._table.get_add_actions())
        wanted = [
            name for name in ("path", "size_bytes", "num_records", "partition") if name in found.column_names
        ]
        return [
            DeltaFile(
                path=(path := unquote(row["path"])),
                file_path=path if "://" in path else f"{self.location}/{path}",
                file_size_in_bytes=row["size_bytes"],
                record_count=row["num_records"] or 0,
                partition={
                    name: None if value is None else _text(value)
                    for name, value in (row.get("partition") or {}).items()
                },
            )
            for row in found.select(wanted).to_pylist()
        ]

    def snapshot(self) -> str:
        # A table that has replaced this one may have the version, too.
        return f"{self._table.version()}@{self._table.metadata().id}"

    def at(self, snapshot: TableVersion) -> "LakeDeltaTable | None":
        version, _, identity = str(snapshot).partition("@")
        if identity != self._table.metadata().id or int(version) > self._table.version():
            return None
        with translated(self.name):
            try:
                found = LakeDeltaTable(self._place, self._pipeline, int(version))
            except TableNotFoundError:
                return None  # the log no longer has it
            return None if found._lacks_files(self) else found

    def _lacks_files(self, current: "LakeDeltaTable") -> bool:
        """Return whether files were deleted that are not in the current version."""
        kept = {file.file_path for file in current._current_files()}
        old = [file.file_path for file in self._current_files() if file.file_path not in kept]
        files, _ = self._file_system(self.location)
        found = files.get_file_info([self._file_system(path)[1] for path in old])
        return any(each.type == pa_fs.FileType.NotFound for each in found)

    def constants(self, file: DeltaFile) -> Mapping[str, str | None]:
        # Other engines leave the columns out that partition the table.
        return {} if file.path.startswith(f"{DATA}/") else file.partition

    def obstacle(self) -> str | None:
        """Return why Spark cannot read the files as they are: renamed columns, or deleted rows."""
        mode = self._table.metadata().configuration.get("delta.columnMapping.mode", "none")
        if mode != "none":
            return f"has files with other names of columns, by {mode}"
        if "deletionVectors" in (self._table.protocol().reader_features or ()) and any(
            batch.num_rows for batch in self._table.deletion_vectors()
        ):
            return "has rows deleted by another engine; rewrite its data files with that"
        return None

    def _read(self) -> Any:
        read = pa.RecordBatchReader.from_stream(self._table.scan()).read_all()
        return read.cast(pa.schema(self._table.schema().to_arrow()))

    def stats(self) -> tuple[int, int, int]:
        files = self._current_files()
        return (
            len(files),
            sum(each.file_size_in_bytes for each in files),
            sum(each.record_count for each in files),
        )

    def clean(self, keep: timedelta, now: datetime) -> int:
        """Delete files that no version younger than `keep` has. Versions expire with the log, by delta-rs.

        Returns how many files were deleted. Waits until one is a tenth older than that.
        """
        wanted = {
            _KEEP_LOG: _interval(max(keep, _LEAST_LOG)),
            _KEEP_FILES: _interval(keep),
        }
        properties = self._table.metadata().configuration
        if any(properties.get(name) != value for name, value in wanted.items()):
            self._set(wanted)
        with translated(self.name, CommitFailedError):
            deleted = 0
            if self._vacuum(keep * 1.1, is_dry=True):
                deleted = len(self._vacuum(keep, is_dry=False))
            self._delete_orphans(now)
            return deleted

    def _vacuum(self, keep: timedelta, *, is_dry: bool) -> list[str]:
        """Delete files that were removed from the table; files that never were in it stay."""
        hours = ceil(keep / timedelta(hours=1))
        found = self._table.vacuum(retention_hours=hours, dry_run=is_dry, enforce_retention_duration=False)
        return list(found)

    def _delete_orphans(self, now: datetime) -> None:
        """Delete merged files of some days ago that were never committed."""
        state = self.state()
        if state is None:
            return
        merged = self._listed(f"{self._own_directory(state)}/{MERGES}")
        old = {path for path, file in merged.items() if is_old(file, now)}
        if not old:
            return
        # Those that a version has had are listed without the others, once they are old.
        removed = self._table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
        needed = {file.file_path for file in self._current_files()}
        needed |= {f"{self.location}/{path}" for path in removed}
        files, _ = self._file_system(self.location)
        for path in old - needed:
            files.delete_file(self._file_system(path)[1])

    def _file_system(self, location: str) -> tuple[pa_fs.FileSystem, str]:
        return file_system(self.name, location, self._place.options)


def file_system(table: str, location: str, options: Mapping[str, str]) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system of a table, and the path of a location of it."""
    path = local_path(location)
    if path is not None:
        return pa_fs.LocalFileSystem(), str(path)
    handler = DeltaStorageHandler(table, dict(options))
    return pa_fs.PyFileSystem(handler), location.removeprefix(table.rstrip("/")).lstrip("/")


def delta_schema(schema: spark_types.StructType) -> Schema:
    """Convert Spark's columns; all are optional. Raises InvalidPipeline for one that Delta lacks."""
    _check_types(schema, "")
    return Schema.from_json(_optional(schema).json())


def _check_types(kind: spark_types.DataType, place: str) -> None:
    match kind:
        case spark_types.StructType():
            # Names that differ in case only are one column for Spark.
            names = [field.name.lower() for field in kind.fields]
            for field in kind.fields:
                inner = f"{place}.{field.name}" if place else field.name
                if names.count(field.name.lower()) > 1:
                    raise InvalidPipeline(f"the column {inner} exists more than once")
                if bad := _FORBIDDEN.intersection(field.name):
                    raise InvalidPipeline(
                        f"the column {inner!r} has {min(bad)!r} in its name, which Delta tables cannot "
                        "have; name it otherwise in the query"
                    )
                _check_types(field.dataType, inner)
        case spark_types.ArrayType():
            _check_types(kind.elementType, f"{place}[]")
        case spark_types.MapType():
            for each in (kind.keyType, kind.valueType):
                _check_types(each, f"{place}{{}}")
        case _ if type(kind) not in _SIMPLE:
            raise InvalidPipeline(
                f"the column {place} has the type {kind.simpleString()}, which Delta tables cannot have; "
                "cast it in the query"
            )


def _optional(kind: Any) -> Any:
    """Return a type without what Spark says of nulls and metadata."""
    match kind:
        case spark_types.StructType():
            return spark_types.StructType(
                [spark_types.StructField(field.name, _optional(field.dataType)) for field in kind.fields]
            )
        case spark_types.ArrayType():
            return spark_types.ArrayType(_optional(kind.elementType))
        case spark_types.MapType():
            return spark_types.MapType(_optional(kind.keyType), _optional(kind.valueType))
        case _:
            return kind


def _added(
    before: spark_types.StructType, wanted: spark_types.StructType, table: str, place: str
) -> spark_types.StructType:
    """Return the fields that are missing, also inside others. Raises ForeignTable for other types."""
    known = {field.name.lower(): field for field in before.fields}
    added = spark_types.StructType()
    for field in wanted.fields:
        old = known.get(field.name.lower())
        if old is None:
            added.add(field)
            continue
        more = _added_inside(old.dataType, field.dataType, table, f"{place}{field.name}")
        if more is not None:
            added.add(old.name, more)
    return added


def _added_inside(
    before: spark_types.DataType, wanted: spark_types.DataType, table: str, place: str
) -> spark_types.DataType | None:
    """Return a type with only the fields that are missing in another; None if none are."""
    match before, wanted:
        case spark_types.StructType(), spark_types.StructType():
            return _added(before, wanted, table, f"{place}.") or None
        case spark_types.ArrayType(), spark_types.ArrayType():
            more = _added_inside(before.elementType, wanted.elementType, table, f"{place}[]")
            return None if more is None else spark_types.ArrayType(more)
        case spark_types.MapType(), spark_types.MapType():
            key, value = (
                _added_inside(*each, table, f"{place}{{}}")
                for each in ((before.keyType, wanted.keyType), (before.valueType, wanted.valueType))
            )
            if key is None and value is None:
                return None
            return spark_types.MapType(key or before.keyType, value or before.valueType)
    if _fits(wanted, before):
        return None
    raise ForeignTable(
        f"table {table} has other types than the pipeline: {place} is {before.simpleString()} there and "
        f"{wanted.simpleString()} here; cast the column, or write to another table"
    )


def _fits(narrow: spark_types.DataType, wide: spark_types.DataType) -> bool:
    """Return whether values of a type can be stored as another without loss."""
    if isinstance(narrow, _INTEGERS) and isinstance(wide, _INTEGERS):
        return _INTEGERS.index(type(narrow)) <= _INTEGERS.index(type(wide))
    if isinstance(narrow, spark_types.DecimalType) and isinstance(wide, spark_types.DecimalType):
        whole = wide.precision - wide.scale >= narrow.precision - narrow.scale
        return bool(whole and wide.scale >= narrow.scale)
    is_double = isinstance(narrow, spark_types.FloatType) and isinstance(wide, spark_types.DoubleType)
    return type(narrow) is type(wide) or is_double


def _partition_values(
    path: str, partitions: Sequence[PartitionField], schema: spark_types.StructType
) -> dict[str, str | None]:
    """Return the values of a file's partition, by the directories that Spark has written it to."""
    texts = dict(part.split("=", 1) for part in path.split("/") if part.startswith(DIRECTORY) and "=" in part)
    values: dict[str, str | None] = {}
    for number, each in enumerate(partitions):
        text = texts[f"{DIRECTORY}{number}"]
        is_text = isinstance(schema[each.column].dataType, spark_types.StringType)
        value = unquote(text).removeprefix(TEXT) if is_text else unquote(text)
        values[each.column] = None if text == _NULL else value
    return values


def _text(value: object) -> str:
    """Return a partition's value as the log has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stats(footer: pa_parquet.FileMetaData, schema: spark_types.StructType) -> dict[str, Any]:
    """Return the statistics of columns by which readers skip files."""
    kinds = {field.name: field.dataType for field in schema.fields[:_STATS_COLUMNS] if "." not in field.name}
    places = [
        (number, kinds[name])
        for number in range(footer.num_columns)
        if (name := footer.schema.column(number).path) in kinds
    ]
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number, kind in places:
        name = footer.schema.column(number).path
        found = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
        if not found or any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        known = [each for each in found if each.num_values]
        if known and all(each.has_min_max for each in known):
            # Python has no years after 9999.
            with suppress(OverflowError, ValueError):
                ends = _ends(min(each.min for each in known), max(each.max for each in known), kind)
                if ends is not None:
                    least[name], most[name] = ends
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _ends(least: Any, most: Any, kind: spark_types.DataType) -> tuple[Any, Any] | None:
    """Return bounds as the log has them; None for types whose bounds readers would not need."""
    match kind:
        case _ if isinstance(kind, _INTEGERS):
            return least, most
        case spark_types.DateType() if isinstance(least, date):
            return least.isoformat(), most.isoformat()
        case spark_types.StringType() if (
            isinstance(least, str) and max(len(least), len(most)) <= _TEXT_LENGTH
        ):
            return least, most
        case spark_types.TimestampType() if isinstance(least, datetime) and least.tzinfo is not None:
            # The log has milliseconds.
            return _milliseconds(least), _milliseconds(most + timedelta(microseconds=999))
        case _:
            return None


def _milliseconds(time: datetime) -> str:
    text = time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return f"{text[:-3]}Z"


def _interval(keep: timedelta) -> str:
    return f"interval {int(keep.total_seconds())} seconds"
