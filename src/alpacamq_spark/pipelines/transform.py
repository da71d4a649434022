"""The kind `transform`: SQL over topics as tables, as a stream, to a topic or to Parquet files.

A topic is a table with the fields of its JSON values as columns, and what a record has besides
them under names that begin with an underscore.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoint import STREAM
from .definition import TableSource, Transform, TransformSink
from .errors import ForeignTable, InvalidPipeline
from .failures import explained
from .run import Outcome, Report, Run, Section
from .sources import FORMAT, Named, read_stream, stream_options
from .storage import storage_at
from .streaming import run_stream
from .timestamps import parse_span
from .values import MALFORMED, declared, decoded, inferred

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import StructType

# What a record has besides its value, as columns.
META = {
    "_key": "CAST(key AS STRING)",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "map_from_entries(transform(array_distinct(transform(headers, h -> h.key)), "
    "k -> struct(k, CAST(element_at(filter(headers, h -> h.key = k), -1).value AS STRING))))",
}
# The columns by which a result says itself what its records are.
_RECORD = ("key", "value", "headers", "partition", "timestamp", "delay", "deliver_at", "priority", "topic")
# Whose a directory of Parquet files is, and where Spark keeps which batches are in it.
_OWNER = "_alpacamq-checkpoint"
_FILE_LOG = "_spark_metadata"


def run_transform(definition: Transform, run: Run, directory: Path) -> Outcome:
    """Run the query over what the trigger asks for."""
    names = [*definition.sources, *(step.name for step in definition.steps)]
    try:
        with explained():
            result = transformed(definition, run, directory)
            if definition.sink.path is not None:
                _claim(run.place(definition.sink.path), run)
            end = run_stream(run, _writer(definition.sink, run, result), trigger=definition.trigger)
    finally:
        for name in names:
            run.spark.catalog.dropTempView(name)
    sink = definition.sink
    to = f"topic {sink.topic}" if sink.topic else run.place(sink.path or "")
    report = Report(
        data={
            "rows": end.rows,
            "batches": end.batches,
            "lag": end.lag,
            "sink": {"topic": sink.topic} if sink.topic else {"path": to},
            "columns": {field.name: field.dataType.simpleString() for field in result.schema.fields},
        },
        sections=[Section(["rows read", "batches", "lag", "to"], [[end.rows, end.batches, end.lag, to]])],
    )
    return Outcome(rows=end.rows, report=report, is_stopped=end.is_stopped)


def transformed(definition: Transform, run: Run, directory: Path) -> "DataFrame":
    """The result of the query as a stream, with its tables and steps defined."""
    for name, source in definition.sources.items():
        _table(name, source, run, directory).createOrReplaceTempView(_quoted(name))
    for step in definition.steps:
        run.spark.sql(step.sql).createOrReplaceTempView(_quoted(step.name))
    result = run.spark.sql(definition.sql)
    if not result.isStreaming:
        raise InvalidPipeline("sql reads none of the sources, so there is nothing to stream")
    return result


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _table(name: str, source: TableSource, run: Run, directory: Path) -> "DataFrame":
    """A topic as a table."""
    topic = source.topic or name
    options = stream_options(
        start=source.start, max_records=source.max_records, on_data_loss=source.on_data_loss
    )
    records = read_stream(run, Named((topic,)), options)
    frame = records.selectExpr("value", *(f"{what} AS {column}" for column, what in META.items()))
    match source.format:
        case "json":
            schema = (
                inferred(run, topic) if source.schema is None else declared(run, source.schema, directory)
            )
            frame = _json(frame, schema, source.malformed, name)
        case "text":
            frame = frame.withColumn("value", frame["value"].cast("string"))
        case "binary":
            pass
    if source.watermark is not None:
        if source.watermark.column not in frame.columns:
            raise InvalidPipeline(
                f"sources.{name}.watermark.column: there is no column {source.watermark.column!r}; "
                f"there are {', '.join(frame.columns)}"
            )
        delay = f"{parse_span(source.watermark.delay)} milliseconds"
        frame = frame.withWatermark(source.watermark.column, delay)
    return frame


def _json(frame: "DataFrame", schema: "StructType", malformed: str, table: str) -> "DataFrame":
    from pyspark.sql import functions as f

    if taken := sorted({*META, MALFORMED} & set(schema.fieldNames())):
        raise InvalidPipeline(f"sources.{table}: values may not have the field {taken[0]}, which is ours")
    frame = frame.withColumn("value", decoded(f.col("value"), schema, malformed))
    if malformed == "drop":
        frame = frame.where(f.col("value").isNull() | f.col(f"value.{MALFORMED}").isNull())
    fields = [f.col("value").getField(name).alias(name) for name in schema.fieldNames()]
    return frame.select(*fields, *META)


def _claim(place: str, run: Run) -> None:
    """Make a table ours, or go on with it; ForeignTable if it belongs to another checkpoint.

    Spark passes over batches whose numbers a table has already, whoever wrote them, and says nothing.
    """
    try:
        storage = storage_at(place, run.spark)
    except InvalidPipeline:
        return  # out of sight from here
    mine = run.checkpoint.identity().encode()
    owner = storage.read(_OWNER)
    if owner is None and (_is_begun(run) or not storage.names(_FILE_LOG)):
        storage.write(_OWNER, mine)
    elif owner != mine:
        raise ForeignTable(
            f"the files at {place} were written with another checkpoint. Use that one, or give this pipeline "
            "a place of its own: its batches would be taken for those that are there, and be left out"
        )


def _is_begun(run: Run) -> bool:
    return bool(run.checkpoint.storage.names(f"{STREAM}/offsets"))


def _writer(sink: TransformSink, run: Run, result: "DataFrame") -> "DataStreamWriter":
    if sink.path is not None:
        writer = result.writeStream.format("parquet").option("path", run.place(sink.path))
        return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
    assert sink.topic is not None
    records = as_records(result, sink.key)
    return records.writeStream.format(FORMAT).options(**run.servers(), topic=sink.topic).outputMode(sink.mode)


def as_records(result: "DataFrame", key: str | None) -> "DataFrame":
    """Rows as the connector writes them.

    A result with a column `value` says itself what its records are. Any other becomes JSON, with
    the key it names, or the one it has kept.
    """
    from pyspark.sql import functions as f

    names = result.columns
    if key is not None and key not in names:
        raise InvalidPipeline(f"sink.key: the query has no column {key!r}, only {', '.join(names)}")
    if "value" in names:
        if unknown := [name for name in names if name not in _RECORD and name != key]:
            raise InvalidPipeline(
                f"the query has a column 'value', so it also has to say what {', '.join(unknown)} is: there "
                f"are {', '.join(_RECORD)}; or leave 'value' out to have all columns written as JSON"
            )
        kept = [f.col(name) for name in names if name != key and (name != "key" or key is None)]
        return result.select(*([] if key is None else [f.col(key).cast("string").alias("key")]), *kept)
    fields = [name for name in names if not name.startswith("_")]
    if not fields:
        raise InvalidPipeline("the query has no column for a value: those with an underscore are left out")
    chosen = key or ("_key" if "_key" in names else None)
    value = f.to_json(f.struct(*[f.col(f"`{name}`") for name in fields])).alias("value")
    if chosen is None:
        return result.select(value)
    return result.select(f.col(f"`{chosen}`").cast("string").alias("key"), value)
