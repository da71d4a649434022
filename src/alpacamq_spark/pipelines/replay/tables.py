"""Rows of a table as records: of an archive, of a topic's table, or of a query over any table.

A replay reads the snapshot that the table had when the replay was planned.
"""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from alpacamq_spark.pipelines.archive.pipeline import filtered
from alpacamq_spark.pipelines.definition import Replay, TableSink
from alpacamq_spark.pipelines.errors import InvalidPipeline, PipelineFailed
from alpacamq_spark.pipelines.run import PipelineRun
from alpacamq_spark.pipelines.tables import topic_rows
from alpacamq_spark.pipelines.tables.pipeline import table_place
from alpacamq_spark.pipelines.transform import RECORD, as_records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from alpacamq_spark.pipelines.tables.table import LakeTable, Place, TableVersion

# The columns of an archive that make up a record.
_ARCHIVED = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
_OFFSETS = ("_offset", "offset")
_BATCH = "__batch"


def _place(definition: Replay, run: PipelineRun) -> "Place":
    source = definition.source
    sink = TableSink(
        format="iceberg" if source.delta is None else "delta",
        table=source.table,
        path=source.delta,
        storage_options=source.storage_options,
    )
    return table_place(definition.catalog, sink, run.place)


def current_snapshot(definition: Replay, run: PipelineRun) -> "TableVersion | None":
    """Return the current state of the table; None if it has never had rows."""
    return _place(definition, run).open(run.name).snapshot()


def _read(
    definition: Replay, run: PipelineRun, snapshot: "TableVersion | None"
) -> "tuple[LakeTable[Any], DataFrame]":
    from alpacamq_spark.pipelines.tables.writer import read_files

    table = _place(definition, run).open(run.name)
    if snapshot is None:
        return table, run.spark.createDataFrame([], table.schema())
    then = table.at(snapshot)
    if then is None:
        raise PipelineFailed(
            f"table {table.name} no longer has the snapshot {snapshot}, which the replay began with: it has "
            f"expired. To begin again with the rows that the table has now, delete {run.checkpoint.place}"
        )
    files = then.data_files()
    empty = run.spark.createDataFrame([], then.schema())
    return then, read_files(run.spark, then, files) if files else empty


def table_records(definition: Replay, run: PipelineRun, snapshot: "TableVersion | None") -> "DataFrame":
    """Return the records of an archive's or a topic's table that pass the steps. Raises InvalidPipeline."""
    from pyspark.sql import functions as f

    table, rows = _read(definition, run, snapshot)
    rows = filtered(rows, definition.steps)
    if set(_ARCHIVED) <= set(rows.columns):
        found = rows.select(*_ARCHIVED)
        source = definition.source
        if source.topics:
            found = found.where(f.col("topic").isin(*source.topics))
        if source.pattern is not None:
            found = found.where(f.col("topic").rlike(f"^(?:{source.pattern})$"))
        return found
    topic = table.topic()
    if topic is None or not set(topic_rows.RECORD) <= set(rows.columns):
        raise InvalidPipeline(
            f"source: {table.name} is neither an archive nor the table of a topic; choose columns of "
            "records with source.sql"
        )
    fields = [f.col(f"`{name}`") for name in rows.columns if name not in topic_rows.RECORD]
    value: Column = f.col(topic_rows.VALUE)
    if fields:
        # A row of nulls is that of a record without a value.
        has_value = reduce(or_, (field.isNotNull() for field in fields))
        value = f.coalesce(value, f.when(has_value, f.to_json(f.struct(*fields)).cast("binary")))
    return rows.select(
        f.col(topic_rows.KEY).alias("key"),
        value.alias("value"),
        f.col(topic_rows.HEADERS).alias("headers"),
        f.lit(topic).alias("topic"),
        f.col(topic_rows.PARTITION).alias("partition"),
        f.col(topic_rows.OFFSET).alias("offset"),
        f.col(topic_rows.TIMESTAMP).alias("timestamp"),
    )


def _queried(definition: Replay, run: PipelineRun, snapshot: "TableVersion | None") -> "DataFrame":
    """Return the result of the query over the table. Raises InvalidPipeline."""
    from pyspark.errors import AnalysisException, ParseException

    source = definition.source
    assert source.sql is not None
    _, rows = _read(definition, run, snapshot)
    rows.createOrReplaceTempView(f"`{_place(definition, run).view}`")
    try:
        result = run.spark.sql(source.sql)
        result.schema  # noqa: B018 - with Spark Connect, errors come when it is asked for
    except (AnalysisException, ParseException) as error:
        words = str(error).split("== SQL", maxsplit=1)[0].split(";\n", maxsplit=1)[0]
        raise InvalidPipeline(f"source.sql: {' '.join(words.split())}") from None
    return result


def _order(definition: Replay, result: "DataFrame") -> list[str]:
    """Return the columns that order the records of a key."""
    order = [*definition.source.order] or [name for name in _OFFSETS if name in result.columns][:1]
    if not order:
        raise InvalidPipeline(
            "source.order: name the columns that order the records of a key, or select _offset in source.sql"
        )
    if missing := [name for name in order if name not in result.columns]:
        raise InvalidPipeline(
            f"source.order: the query has no column {missing[0]!r}, only {', '.join(result.columns)}"
        )
    return order


def query_rows(definition: Replay, run: PipelineRun, snapshot: "TableVersion | None") -> int:
    """Return how many records a query has."""
    result = _queried(definition, run, snapshot)
    _records(definition, result, _order(definition, result))
    return int(result.count())


def query_batch(
    definition: Replay, run: PipelineRun, snapshot: "TableVersion | None", batches: int, number: int
) -> "DataFrame":
    """Return the records of one batch of a query: those of a key are in the same batch and task, in order."""
    from pyspark.sql import functions as f

    result = _queried(definition, run, snapshot)
    order = _order(definition, result)
    key = next((name for name in ("key", "_key") if name in result.columns), None)
    # Records without a key are in no order among each other.
    spread = f.xxhash64(*(f.col(f"`{name}`") for name in order))
    if key is not None:
        column = f.col(f"`{key}`")
        spread = f.when(column.isNull(), spread).otherwise(f.xxhash64(column))
    rows = result.withColumn(_BATCH, spread).where(f.pmod(f.col(_BATCH), f.lit(batches)) == number)
    rows = rows.repartition(_BATCH).sortWithinPartitions(*(f.col(f"`{name}`") for name in order))
    return _records(definition, rows.drop(_BATCH), order)


def _records(definition: Replay, rows: "DataFrame", order: list[str]) -> "DataFrame":
    """Convert rows to the connector's columns."""
    if "value" in rows.columns:
        # They only order the records.
        rows = rows.drop(*(name for name in order if name not in RECORD))
    sink = definition.sink
    return as_records(
        rows, None, encodes_value=sink.encode is not None, encodes_key=sink.encode_key is not None
    )
