"""Runs a stream into an Iceberg table: finds the catalog, claims the table, writes batches, cleans up."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from alpacamq_spark.pipelines.definition import CatalogSettings, Compact, TableSink
from alpacamq_spark.pipelines.errors import InvalidPipeline, PipelineFailed
from alpacamq_spark.pipelines.run import BatchDone, PipelineRun, Plain, Section
from alpacamq_spark.pipelines.storage import local_path
from alpacamq_spark.pipelines.streaming import NOTHING_BESIDE, StreamEnd, run_stream
from alpacamq_spark.pipelines.timestamps import parse_duration

from .partitions import parse_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import StructType

    from .iceberg import IcebergTable, TablePlace
    from .writer import Upsert

KEEP = "5d"
_WAREHOUSE = "warehouse"
_CATALOG_FILE = "catalog.db"
_SQLITE = "sqlite:///"
_CLEAN_EVERY_S = 900.0
_TRIES = 5
# A table that Spark cannot read as it is, is read in the driver.
MAX_ARROW_ROWS = 5_000_000


def need_pyiceberg() -> None:
    """Check that PyIceberg is installed. Raises InvalidPipeline."""
    if find_spec("pyiceberg") is None or find_spec("sqlalchemy") is None:
        raise InvalidPipeline(
            "format = 'iceberg' needs PyIceberg; install it with `pip install '.[tables]'` in a checkout of "
            "AlpacaMQ, or `pip install 'pyiceberg[sql-sqlite]'`"
        )


def table_place(
    settings: CatalogSettings | None, sink: TableSink, place: Callable[[str], str]
) -> "TablePlace":
    """Return a table and its catalog; `place` makes a path of the file absolute."""
    need_pyiceberg()
    from .iceberg import TablePlace

    assert sink.table is not None
    given = settings or CatalogSettings(warehouse=_WAREHOUSE)
    properties = {key: _text(value) for key, value in given.settings.items()}
    if given.type is not None:
        properties["type"] = given.type
    if given.warehouse is not None:
        # A catalog of another system has its own warehouses, by names.
        is_path = given.type in (None, "sql")
        properties["warehouse"] = place(given.warehouse) if is_path else given.warehouse
    uri = given.uri
    if uri is not None and uri.startswith(_SQLITE):
        uri = f"{_SQLITE}{place(uri.removeprefix(_SQLITE))}"
    elif uri is None and given.type in (None, "sql") and "warehouse" in properties:
        uri = _sqlite_in(properties["warehouse"])
        properties["type"] = "sql"
    if uri is not None:
        properties["uri"] = uri
    return TablePlace(table=sink.table, catalog=given.name or "default", properties=properties)


def _sqlite_in(warehouse: str) -> str:
    path = local_path(warehouse)
    if path is None:
        raise InvalidPipeline(
            f"[catalog]: the warehouse {warehouse} is not on this machine; name its catalog with uri"
        )
    return f"{_SQLITE}{path / _CATALOG_FILE}"


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEnd:
    """The totals of a run into a table, and what its report says."""

    stream: StreamEnd
    data: Mapping[str, Plain]
    section: Section


def run_into_table(
    run: PipelineRun,
    frame: "DataFrame",
    sink: TableSink,
    catalog: CatalogSettings | None,
    *,
    trigger: str,
    upsert: "Upsert | None" = None,
    partition_by: tuple[str, ...] | None = None,
    compact: Compact | None = None,
    beside: "Mapping[str, DataStreamWriter]" = NOTHING_BESIDE,
) -> TableEnd:
    """Write what the trigger requests. `partition_by` is for new tables that the sink says nothing of."""
    place = table_place(catalog, sink, run.place)
    from .iceberg import open_table
    from .writer import BatchWriter

    columns = frame.drop(*upsert.control) if upsert is not None else frame
    claim_table(run, place, columns.schema, sink, partition_by or ())
    write = BatchWriter(
        place=place,
        pipeline=run.name,
        checkpoint=run.checkpoint.identity(),
        compression=sink.compression,
        upsert=upsert,
    )
    writer = frame.writeStream.foreachBatch(write)
    if upsert is not None:
        writer = writer.outputMode("update")
    keep = timedelta(milliseconds=parse_duration(sink.keep_snapshots or KEEP))
    cleaning = _Cleaning(run, place, keep, compact, sink.compression)
    end = run_stream(run, writer, trigger=trigger, after_batch=cleaning.after_batch, beside=beside)
    cleaning.clean()
    table = open_table(place, run.name)
    files, size, rows = table.stats()
    data: dict[str, Plain] = {
        "table": table.name,
        "location": table.location,
        "rows": rows,
        "files": files,
        "bytes": size,
        "merged_files": cleaning.merged,
        "expired_snapshots": cleaning.expired,
    }
    section = Section(["table", "rows", "files", "bytes"], [[table.name, rows, files, size]])
    return TableEnd(stream=end, data=data, section=section)


def claim_table(
    run: PipelineRun,
    place: "TablePlace",
    schema: "StructType",
    sink: TableSink,
    partition_by: tuple[str, ...],
) -> None:
    """Make the table ready for a run: its columns, its owner, and no remains of the last batch."""
    from .iceberg import Conflict, create_or_open

    wanted = None if sink.partition_by is None else [parse_partition(each) for each in sink.partition_by]
    default = [parse_partition(each) for each in partition_by]
    for _ in range(_TRIES):
        try:
            table = create_or_open(place, run.name, schema, wanted, default)
            if added := table.evolve(schema):
                run.listener.say(f"added to table {table.name}: {', '.join(added)}")
            table.discard_other_attempts(table.claim(run.checkpoint))
        except Conflict as conflict:
            failed = conflict
        else:
            return
    raise PipelineFailed(f"table {place.table} was changed by others again and again: {failed}")


class _Cleaning:
    """Merges small files and expires old snapshots: between batches now and then, and after the last one."""

    def __init__(
        self,
        run: PipelineRun,
        place: "TablePlace",
        keep: timedelta,
        compact: Compact | None,
        compression: str,
    ) -> None:
        self._run = run
        self._place = place
        self._keep = keep
        self._compact = compact
        self._compression = compression
        self._last = time.monotonic()
        self.expired = 0
        self.merged = 0

    def after_batch(self, _: BatchDone) -> None:
        if time.monotonic() - self._last > _CLEAN_EVERY_S:
            self.clean()

    def clean(self) -> None:
        from .iceberg import Conflict, open_table
        from .writer import merge_small_files

        self._last = time.monotonic()
        name, say = self._place.table, self._run.listener.say
        try:
            table = open_table(self._place, self._run.name)
            if self._compact is not None:
                merged = merge_small_files(table, self._run.spark, self._compact, self._compression)
                if merged:
                    self.merged += merged
                    say(f"merged {merged} files of {name}")
                    table = open_table(self._place, self._run.name)
            if expired := table.clean(self._keep, datetime.now(UTC)):
                self.expired += expired
                say(f"expired {expired} snapshots of {name}")
        except Conflict:
            pass  # another writer was faster; the next time will do


def read_table(table: "IcebergTable", spark: "SparkSession") -> "DataFrame":
    """Read a table: its files with Spark, or with PyIceberg in the driver if Spark cannot."""
    from .writer import read_files

    if table.obstacle() is not None:
        frame: Any = spark.createDataFrame(table.to_arrow(MAX_ARROW_ROWS))
        return frame
    files = table.data_files()
    schema = table.schema()
    return read_files(spark, schema, files) if files else spark.createDataFrame([], schema)
