"""An Iceberg table as a pipeline writes it, through PyIceberg."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

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
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)

from alpacamq_spark.pipelines.errors import ForeignTable, InvalidPipeline, PipelineFailed

from .partitions import PartitionField, Unit
from .schema import iceberg_schema, spark_schema
from .sorting import SortField
from .table import (
    MERGES,
    OWNED,
    LakeTable,
    TableVersion,
    WriterState,
    check_partitions,
    is_old,
    translated,
    words_of,
)
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
_LOADS = 5
_CONFLICTS = (CommitFailedException, CommitStateUnknownException)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """A table by its name, and the catalog that has it, as PyIceberg's properties."""

    table: str
    catalog: str
    properties: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.table

    @property
    def view(self) -> str:
        return self.table.rpartition(".")[2]

    def is_new(self) -> bool:
        return self.sqlite is not None and not self.sqlite.exists()

    def types(self) -> "dict[str, DataType]":
        return table_types(self)

    def open(self, pipeline: str) -> "IcebergTable":
        return open_table(self, pipeline)

    def create_or_open(
        self,
        pipeline: str,
        schema: "StructType",
        wanted: Sequence[PartitionField] | None,
        default: Sequence[PartitionField],
    ) -> "IcebergTable":
        catalog = open_catalog(self, create=True)
        with translated(self.name, *_CONFLICTS):
            if not catalog.table_exists(self.table):
                partitions = default if wanted is None else wanted
                for each in partitions:
                    each.check(schema)
                _create(catalog, self, iceberg_schema(schema), partitions)
            table = IcebergTable(catalog.load_table(self.table), self, pipeline)
        check_partitions(table, wanted)
        return table

    @property
    def sqlite(self) -> Path | None:
        """The file of a catalog in SQLite."""
        uri = self.properties.get("uri", "")
        return Path(uri.removeprefix(SQLITE)) if uri.startswith(SQLITE) else None


class IcebergTable(LakeTable[DataFile]):
    """One table in the state in which it was loaded."""

    CLEANED = "expired_snapshots"

    def __init__(self, table: Table, place: TablePlace, pipeline: str) -> None:
        super().__init__(place.table, pipeline)
        # PyIceberg would repeat a refused commit without another look at the batch.
        properties = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        self._table = table
        # The current one by default.
        self._snapshot: int | None = None

    @property
    def location(self) -> str:
        return str(self._table.location()).rstrip("/")

    def schema(self) -> "StructType":
        return spark_schema(self._table.schema())

    def partitions(self) -> list[PartitionField]:
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
        before = {field.name for field in self._table.schema().fields}
        wanted = iceberg_schema(schema)
        with translated(self.name, *_CONFLICTS), self._table.transaction() as change:
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

    def declare_order(self, order: Sequence[SortField]) -> None:
        schema = self._table.schema()
        wanted = [(schema.find_field(each.column).field_id, each.is_descending) for each in order]
        now = [
            (field.source_id, field.direction == SortDirection.DESC)
            for field in self._table.sort_order().fields
        ]
        if not order or wanted == now:
            return
        with (
            translated(self.name, *_CONFLICTS),
            self._table.transaction() as change,
            change.update_sort_order() as update,
        ):
            for each in order:
                if each.is_descending:
                    update.desc(each.column, IdentityTransform(), NullOrder.NULLS_LAST)
                else:
                    update.asc(each.column, IdentityTransform(), NullOrder.NULLS_FIRST)

    def state(self) -> WriterState | None:
        return self._stored_state(self._table.properties)

    def _store_claim(self, state: WriterState) -> None:
        with translated(self.name, *_CONFLICTS), self._table.transaction() as change:
            change.set_properties(self._claim_property(state))

    def _describe(self, path: str) -> DataFile:
        return parquet_file_to_data_file(self._table.io, self._table.metadata, path)

    def _commit(
        self,
        state: WriterState,
        noted: Mapping[str, str],
        add: Sequence[DataFile],
        remove: Sequence[DataFile],
        *,
        is_merge: bool = False,  # noqa: ARG002 - snapshots do not tell
    ) -> None:
        with translated(self.name, *_CONFLICTS):
            change = self._table.transaction()
            properties = {"alpacamq.pipeline": self._pipeline, **noted}
            update = change.update_snapshot(snapshot_properties=properties)
            # A batch without rows makes a snapshot as well: it lets the catalog notice another writer.
            with update.overwrite() if remove else update.merge_append() as snapshot:
                for file in add:
                    snapshot.append_data_file(file)
                for file in remove:
                    snapshot.delete_data_file(file)
            change.set_properties(self._claim_property(state))
            change.commit_transaction()

    def snapshot(self) -> int | None:
        current = self._table.current_snapshot()
        return None if current is None else current.snapshot_id

    def at(self, snapshot: TableVersion) -> Self | None:
        if self._table.snapshot_by_id(int(snapshot)) is None:
            return None
        found = copy(self)
        found._snapshot = int(snapshot)
        return found

    def topic(self) -> str | None:
        prefix = f"{OWNED}{TOPIC_PIPELINE}"
        topics = [name[len(prefix) :] for name in self._table.properties if name.startswith(prefix)]
        return topics[0] if len(topics) == 1 else None

    def _current_files(self) -> list[DataFile]:
        return [task.file for task in self._table.scan(snapshot_id=self._snapshot).plan_files()]

    def obstacle(self) -> str | None:
        """Return why Spark cannot read the files as they are: deleted rows, or renamed columns."""
        mapping = self._table.name_mapping()
        renamed = [] if mapping is None else _renamed(mapping.root, self._table.schema().fields)
        if renamed:
            return f"has the renamed column {renamed[0]}, which its files do not have"
        if any(task.delete_files for task in self._table.scan(snapshot_id=self._snapshot).plan_files()):
            return "has rows deleted by another engine; rewrite its data files with that"
        return None

    def _read(self) -> Any:
        return self._table.scan(snapshot_id=self._snapshot).to_arrow()

    def stats(self) -> tuple[int, int, int]:
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
        with translated(self.name, *_CONFLICTS):
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
            if is_old(file, now) and path.endswith((".avro", ".metadata.json"))
        ]
        self._table.refresh()
        needed = set(self._referenced())
        for directory, paths in data.items():
            if directory != MERGES and needed.isdisjoint(paths):
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
        return is_old(file, now) if directory == MERGES else int(directory) <= state.batch

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
    with translated(place.table, *_CONFLICTS):
        try:
            return IcebergTable(catalog.load_table(place.table), place, pipeline)
        except NoSuchTableError:
            raise PipelineFailed(f"the catalog {place.catalog!r} has no table {place.table}") from None


def table_exists(place: TablePlace) -> bool:
    """Return whether a catalog has a table. Raises InvalidPipeline without a usable catalog."""
    catalog = open_catalog(place)
    with translated(place.table):
        return bool(catalog.table_exists(place.table))


def table_types(place: TablePlace) -> "dict[str, DataType]":
    """Return the columns of a table; none if it does not exist yet."""
    catalog = open_catalog(place, create=True)
    with translated(place.table, *_CONFLICTS):
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
    for attempt in range(_LOADS):
        try:
            return load_catalog(place.catalog, **properties)
        except Exception as error:
            # Every kind of catalog has its own errors. A new one in a database gets its tables when it is
            # loaded, which fails if another process does the same at that time.
            words = words_of(error)
            if attempt == _LOADS - 1 or "already exists" not in words:
                reason = f"[catalog]: the catalog {place.catalog!r} cannot be used: {words}"
                raise InvalidPipeline(reason) from error
    raise AssertionError


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
