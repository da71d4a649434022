"""Runs a stream into a table: finds its catalog, claims the table, writes batches, cleans up."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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
from .sorting import Layout, parse_sort

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import StructType

    from .iceberg import TablePlace
    from .table import LakeTable, Place
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


def need_deltalake() -> None:
    """Check that delta-rs is installed. Raises InvalidPipeline."""
    if find_spec("deltalake") is None:
        raise InvalidPipeline(
            "format = 'delta' needs deltalake; install it with `pip install '.[delta]'` in a checkout of "
            "AlpacaMQ, or `pip install deltalake`"
        )


def table_place(settings: CatalogSettings | None, sink: TableSink, place: Callable[[str], str]) -> "Place":
    """Return a table and its catalog; `place` makes a path of the file absolute."""
    if sink.format == "delta":
        need_deltalake()
        from .delta import DeltaPlace

        assert sink.path is not None
        options = {key: _text(value) for key, value in sink.storage_options.items()}
        return DeltaPlace(name=place(sink.path), options=options)
    return iceberg_place(settings, sink, place)


def iceberg_place(
    settings: CatalogSettings | None, sink: TableSink, place: Callable[[str], str]
) -> "TablePlace":
    """Return an Iceberg table and its catalog."""
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

    name: str
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
    from .writer import BatchWriter

    columns = frame.drop(*upsert.control) if upsert is not None else frame
    layout = Layout(compression=sink.codec, sort_by=[parse_sort(each) for each in sink.sort_by])
    claim_table(run, place, columns.schema, sink, layout, partition_by or ())
    write = BatchWriter(
        place=place,
        pipeline=run.name,
        checkpoint=run.checkpoint.identity(),
        layout=layout,
        upsert=upsert,
    )
    writer = frame.writeStream.foreachBatch(write)
    if upsert is not None:
        writer = writer.outputMode("update")
    keep = timedelta(milliseconds=parse_duration(sink.keep_snapshots or KEEP))
    cleaning = _Cleaning(run, place, keep, compact, layout)
    end = run_stream(run, writer, trigger=trigger, after_batch=cleaning.after_batch, beside=beside)
    cleaning.clean()
    table = place.open(run.name)
    files, size, rows = table.stats()
    data: dict[str, Plain] = {
        "table": table.name,
        "location": table.location,
        "rows": rows,
        "files": files,
        "bytes": size,
        "merged_files": cleaning.merged,
        table.CLEANED: cleaning.cleaned,
    }
    section = Section(["table", "rows", "files", "bytes"], [[table.name, rows, files, size]])
    return TableEnd(name=table.name, stream=end, data=data, section=section)


def claim_table(
    run: PipelineRun,
    place: "Place",
    schema: "StructType",
    sink: TableSink,
    layout: Layout,
    partition_by: tuple[str, ...],
) -> None:
    """Make the table ready for a run: its columns, its owner, and no remains of the last batch."""
    from .table import Conflict

    wanted = None if sink.partition_by is None else [parse_partition(each) for each in sink.partition_by]
    default = [parse_partition(each) for each in partition_by]
    for _ in range(_TRIES):
        try:
            table = place.create_or_open(run.name, schema, wanted, default)
            if added := table.evolve(schema):
                run.listener.say(f"added to table {table.name}: {', '.join(added)}")
            for each in layout.sort_by:
                each.check(table.schema())
            table.declare_order(layout.sort_by)
            table.discard_other_attempts(table.claim(run.checkpoint))
        except Conflict as conflict:
            failed = conflict
        else:
            return
    raise PipelineFailed(f"table {place.name} was changed by others again and again: {failed}")


class _Cleaning:
    """Merges small files and deletes what old states need: between batches, and after the last one."""

    def __init__(
        self,
        run: PipelineRun,
        place: "Place",
        keep: timedelta,
        compact: Compact | None,
        layout: Layout,
    ) -> None:
        self._run = run
        self._place = place
        self._keep = keep
        self._compact = compact
        self._layout = layout
        self._last = time.monotonic()
        self.cleaned = 0
        self.merged = 0

    def after_batch(self, _: BatchDone) -> None:
        if time.monotonic() - self._last > _CLEAN_EVERY_S:
            self.clean()

    def clean(self) -> None:
        from .table import Conflict
        from .writer import merge_small_files

        self._last = time.monotonic()
        run, name, say = self._run, self._place.name, self._run.listener.say
        if self._compact is not None:
            with suppress(Conflict):  # other writers were faster; the next time will do
                merged = merge_small_files(self._place, run.name, run.spark, self._compact, self._layout)
                if merged:
                    self.merged += merged
                    say(f"merged {merged} files of {name}")
        for _ in range(_TRIES):
            with suppress(Conflict):  # look again
                table = self._place.open(run.name)
                if cleaned := table.clean(self._keep, datetime.now(UTC)):
                    self.cleaned += cleaned
                    say(f"{table.CLEANED.replace('_', ' ')} of {name}: {cleaned}")
                return


def read_table(table: "LakeTable[Any]", spark: "SparkSession") -> "DataFrame":
    """Read a table: its files with Spark, or in the driver if Spark cannot."""
    from .writer import read_files

    if table.obstacle() is not None:
        frame: Any = spark.createDataFrame(table.to_arrow(MAX_ARROW_ROWS))
        return frame
    files = table.data_files()
    return read_files(spark, table, files) if files else spark.createDataFrame([], table.schema())
