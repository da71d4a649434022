"""The kind `transform`: streaming SQL over topics as tables, to a topic or to Parquet files.

A topic is a table whose columns are the fields of its JSON values; other parts of a record are columns
whose names begin with an underscore.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from alpacamq.client.errors import ErrorCode, NotFound, Refused
from alpacamq.client.kafka.topics import create_topic, find_topic
from alpacamq.model import headers
from alpacamq.registry.framing import Part
from alpacamq_spark.options import DECODED

from .beginnings import beginning, dead_letters_beginning
from .checkpoint import STREAM
from .definition import TableSource, Transform, TransformSink
from .errors import ForeignTable, InvalidPipeline, translate_spark_errors
from .malformed import counted, malformed_parts, with_malformed
from .registry import RegistryColumns, decoded_parts, encode_options, parse_type, registry_columns, type_text
from .run import PipelineRun, Report, RunResult, Section
from .sources import FORMAT, Named, reach, read_stream, stream_options
from .storage import storage_at
from .streaming import run_stream
from .tables.dead_letters import DEAD_LETTER_TABLE, dead_letter_rows, dead_letter_writer, malformed_reason
from .tables.pipeline import TableEnd, run_into_table
from .timestamps import parse_duration
from .values import MALFORMED, declared, decoded, inferred

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import StructType

    from .tables.writer import Upsert

# The parts of a record besides its value, as columns.
META = {
    "_key": "CAST(key AS STRING)",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_headers": "map_from_entries(transform(array_distinct(transform(headers, h -> h.key)), "
    "k -> struct(k, CAST(element_at(filter(headers, h -> h.key = k), -1).value AS STRING))))",
}
# For upserts: whether the record is a tombstone. A result with it or with the offset does not store them.
_TOMBSTONE = "_tombstone"
_ORDER = "_offset"
# Columns that a result can use to define its records directly.
RECORD = ("key", "value", "headers", "partition", "timestamp", "delay", "deliver_at", "priority", "topic")
# The owner of a directory of Parquet files, and Spark's log of the batches in it.
_OWNER = "_alpacamq-checkpoint"
_FILE_LOG = "_spark_metadata"
# What is done with malformed values and keys, by the setting of their source.
_HANDLED = {
    "keep": "kept with nulls",
    "drop": "dropped",
    "fail": "refused",
    "dead-letter": "sent to {place}",
}
# The names of the queries for dead letters, and of their checkpoints, begin with this.
_DEAD_LETTERS = "dead-letters-"
# As the broker creates these topics.
_OF_DEAD_LETTERS = {"cleanup.policy": "delete", "queue.max.deliveries": "0", "queue.ttl.ms": "-1"}
_REGISTRY_TYPES = "registry-types.json"
_NO_KEY = "the query has no key; name its column with sink.key"


def run_transform(definition: Transform, run: PipelineRun, directory: Path) -> RunResult:
    """Run the query as the trigger requests."""
    names = [*definition.sources, *(step.name for step in definition.steps)]
    try:
        with translate_spark_errors():
            result = transformed(definition, run, directory)
            if definition.sink.path is not None and not definition.sink.is_table:
                _claim(run.place(definition.sink.path), run)
            beside = dict(_dead_letter_writers(definition, run, directory))
            sink = definition.sink
            into: TableEnd | None = None
            if sink.is_table:
                into = run_into_table(
                    run,
                    result,
                    sink,
                    definition.catalog,
                    trigger=definition.trigger,
                    upsert=_upsert(sink, result),
                    beside=beside,
                )
                end = into.stream
            else:
                writer = _writer(sink, run, result)
                end = run_stream(run, writer, trigger=definition.trigger, beside=beside)
    finally:
        for name in names:
            run.spark.catalog.dropTempView(name)
    if into is not None:
        to, described = f"table {into.name}", into.data
    elif sink.topic is not None:
        to, described = f"topic {sink.topic}", {"topic": sink.topic}
    else:
        to = run.place(sink.path or "")
        described = {"path": to}
    report = Report(
        data={
            "rows": end.rows,
            "batches": end.batches,
            "lag": end.lag,
            "sink": described,
            "columns": {field.name: field.dataType.simpleString() for field in result.schema.fields},
        },
        sections=[Section(["rows read", "batches", "lag", "to"], [[end.rows, end.batches, end.lag, to]])],
    )
    handled = {
        _label(name, part): _HANDLED[source.malformed].format(
            place=f"table {source.dead_letter_table}"
            if source.dead_letter_table is not None
            else definition.dead_letter_topic(name)
        )
        for name, source in definition.sources.items()
        for part in Part
    }
    report = with_malformed(report, end.malformed, handled)
    return RunResult(rows=end.rows, report=report, is_stopped=end.is_stopped)


def _upsert(sink: TransformSink, result: "DataFrame") -> "Upsert | None":
    """Return how rows replace others in a table, if they do."""
    if sink.mode != "upsert":
        return None
    from .tables.writer import Upsert

    if missing := [name for name in sink.keys if name not in result.columns]:
        raise InvalidPipeline(
            f"sink.key: the query has no column {missing[0]!r}, only {', '.join(result.columns)}"
        )
    return Upsert(
        key=sink.keys,
        order=_ORDER if _ORDER in result.columns else None,
        deleted=_TOMBSTONE if _TOMBSTONE in result.columns else None,
    )


def transformed(definition: Transform, run: PipelineRun, directory: Path) -> "DataFrame":
    """Return the result of the query as a stream, after defining its tables and steps."""
    for name, source in definition.sources.items():
        frame = _table(name, source, run, directory, has_tombstones=definition.sink.mode == "upsert")
        frame.createOrReplaceTempView(_quoted(name))
    for step in definition.steps:
        run.spark.sql(step.sql).createOrReplaceTempView(_quoted(step.name))
    result = run.spark.sql(definition.sql)
    if not result.isStreaming:
        raise InvalidPipeline("sql reads none of the sources, so there is nothing to stream")
    return result


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _table(
    name: str, source: TableSource, run: PipelineRun, directory: Path, *, has_tombstones: bool
) -> "DataFrame":
    """Define a topic as a table."""
    from pyspark.sql import functions as f

    topic = source.topic or name
    columns = _registry_columns(name, topic, source, run)
    named = Named((topic,))
    options = {**_options(source), **beginning(run, named, source.start, name)}
    records = read_stream(run, named, options, columns)
    meta = META if source.decode_key is None else {**META, "_key": DECODED[Part.KEY]}
    if has_tombstones:
        meta = {**meta, _TOMBSTONE: "value IS NULL"}
    data = f.col(DECODED[Part.VALUE])
    json: Column | None = None
    match source.decode or source.format:
        case "registry":
            assert columns is not None
            names = columns.types[Part.VALUE].fieldNames()
            fields = [data.getField(field).alias(field) for field in names]
        case "json":
            schema = _json_schema(source, topic, run, directory)
            names, json = schema.fieldNames(), data
            records = records.withColumn(DECODED[Part.VALUE], decoded(f.col("value"), schema))
            fields = [data.getField(field).alias(field) for field in names]
        case "text":
            names, fields = [], [f.col("value").cast("string").alias("value")]
        case "binary":
            names, fields = [], [f.col("value")]
    if taken := sorted({*meta, MALFORMED} & set(names)):
        raise InvalidPipeline(f"sources.{name}: values must not have the field {taken[0]}, which is reserved")
    for part, is_malformed, why in malformed_parts(columns, json):
        records = _handled(records, part, is_malformed, why, source, name)
    frame = records.select(*fields, *(f.expr(what).alias(column) for column, what in meta.items()))
    if source.watermark is not None:
        if source.watermark.column not in frame.columns:
            raise InvalidPipeline(
                f"sources.{name}.watermark.column: unknown column {source.watermark.column!r}; "
                f"columns are {', '.join(frame.columns)}"
            )
        delay = f"{parse_duration(source.watermark.delay)} milliseconds"
        frame = frame.withWatermark(source.watermark.column, delay)
    return frame


def _options(source: TableSource) -> dict[str, str]:
    return stream_options(max_records=source.max_records, on_data_loss=source.on_data_loss)


def _registry_columns(name: str, topic: str, source: TableSource, run: PipelineRun) -> RegistryColumns | None:
    """Return the columns of a table that the registry describes, and store them for later runs."""
    if not decoded_parts(source):
        return None
    stored = run.checkpoint.recall(_REGISTRY_TYPES, dict[str, dict[Part, str]]) or {}
    known = {part: parse_type(text) for part, text in stored.get(name, {}).items()}
    columns = registry_columns(run, (topic,), source, known)
    stored[name] = {part: type_text(kind) for part, kind in columns.types.items()}
    run.checkpoint.remember(_REGISTRY_TYPES, stored)
    return columns


def _json_schema(source: TableSource, topic: str, run: PipelineRun, directory: Path) -> "StructType":
    return inferred(run, topic) if source.schema is None else declared(run, source.schema, directory)


def _label(table: str, part: Part) -> str:
    """Return what malformed parts of the records of a table are counted as."""
    return table if part is Part.VALUE else f"{table} {part}s"


def _handled(
    records: "DataFrame", part: Part, is_malformed: "Column", why: str, source: TableSource, table: str
) -> "DataFrame":
    """Count malformed values or keys, and drop their records or fail if the source says so."""
    from pyspark.sql import functions as f

    place = [f.col("topic"), f.col("partition"), f.col("offset")]
    records = counted(records, is_malformed, _label(table, part), place)
    match source.malformed:
        case "keep":
            return records
        case "fail":
            said = f.format_string(
                f"the {part} of {table.replace('%', '%%')} at partition %d, offset %d {why}",
                "partition",
                "offset",
            )
            # A condition, because Spark leaves out columns that the query does not use.
            failing = f.raise_error(said).cast("boolean")
            return records.where(f.when(is_malformed, failing).otherwise(f.lit(True)))
        case "drop" | "dead-letter":
            return records.where(~is_malformed)


def _dead_letter_writers(
    definition: Transform, run: PipelineRun, directory: Path
) -> Iterator[tuple[str, "DataStreamWriter"]]:
    """Yield a query for each table that sends its malformed records to a dead-letter topic or table.

    It reads the topic once more: a query has one sink, and only that makes every dead letter exactly one.
    """
    for name, source in definition.sources.items():
        topic = source.topic or name
        if source.dead_letter_table is not None:
            beside = f"{DEAD_LETTER_TABLE}-{quote(name, safe='')}"
            malformed, reason = _malformed(name, topic, source, run, directory, beside)
            rows = dead_letter_rows(malformed, reason, run.group)
            yield beside, dead_letter_writer(run, rows, source.dead_letter_table, definition.catalog, beside)
        letters = definition.dead_letter_topic(name)
        if letters is None:
            continue
        _make_dead_letter_topic(run, topic, letters)
        frame = _dead_letters(name, topic, source, run, directory)
        writer = frame.writeStream.format(FORMAT).options(**run.servers(), topic=letters)
        yield f"{_DEAD_LETTERS}{quote(name, safe='')}", writer


def _make_dead_letter_topic(run: PipelineRun, topic: str, letters: str) -> None:
    with reach(run.broker, run.access) as cluster:
        try:
            find_topic(cluster, letters)
        except NotFound:
            partitions = len(find_topic(cluster, topic).partitions)
            try:
                create_topic(cluster, letters, partitions=partitions, replicas=-1, settings=_OF_DEAD_LETTERS)
            except Refused as refused:
                if refused.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise


def _malformed(
    name: str, topic: str, source: TableSource, run: PipelineRun, directory: Path, query: str
) -> "tuple[DataFrame, Column]":
    """Return the malformed records of a table as they are, and the reason of each."""
    from pyspark.sql import functions as f

    columns = _registry_columns(name, topic, source, run)
    named = Named((topic,))
    begin = dead_letters_beginning(run, query, named, source.start, name)
    options = {**_options(source), **begin, "groupId": f"{run.group}-{query}"}
    records = read_stream(run, named, options, columns)
    json = None
    if (source.decode or source.format) == "json":
        json = decoded(f.col("value"), _json_schema(source, topic, run, directory))
    reason = malformed_reason(columns, json)
    return records.where(reason.isNotNull()), reason


def _dead_letters(
    name: str, topic: str, source: TableSource, run: PipelineRun, directory: Path
) -> "DataFrame":
    """Return the malformed records of a table with the reason and their position as headers."""
    from pyspark.sql import functions as f

    records, reason = _malformed(name, topic, source, run, directory, f"{_DEAD_LETTERS}{name}")
    added = {
        headers.DEAD_LETTER_REASON: reason,
        headers.ORIGIN_TOPIC: f.col("topic"),
        headers.ORIGIN_PARTITION: f.col("partition").cast("string"),
        headers.ORIGIN_OFFSET: f.col("offset").cast("string"),
        headers.ORIGIN_TIMESTAMP: f.unix_millis("timestamp").cast("string"),
        headers.ORIGIN_GROUP: f.lit(run.group),
        headers.DEAD_LETTERED_AT: f.unix_millis(f.current_timestamp()).cast("string"),
    }
    entries = [
        f.struct(f.lit(header).alias("key"), value.cast("binary").alias("value"))
        for header, value in added.items()
    ]
    given = f.coalesce(f.col("headers"), f.array().cast(records.schema["headers"].dataType))
    given = f.filter(given, lambda header: ~header["key"].isin(*headers.DEAD_LETTER_HEADERS))
    return records.select("key", "value", f.concat(given, f.array(*entries)).alias("headers"))


def _claim(place: str, run: PipelineRun) -> None:
    """Claim a table for this checkpoint, or continue it. Raises ForeignTable if another one owns it.

    Spark silently skips batches whose numbers a table already has, whichever query wrote them.
    """
    try:
        storage = storage_at(place, run.spark)
    except InvalidPipeline:
        return  # not accessible from here
    mine = run.checkpoint.identity().encode()
    owner = storage.read(_OWNER)
    if owner is None and (_is_begun(run) or not storage.names(_FILE_LOG)):
        storage.write(_OWNER, mine)
    elif owner != mine:
        raise ForeignTable(
            f"the files at {place} were written with another checkpoint. Use that one, or give this pipeline "
            "another path: Spark would take its batches for existing ones and skip them"
        )


def _is_begun(run: PipelineRun) -> bool:
    return bool(run.checkpoint.storage.names(f"{STREAM}/offsets"))


def _writer(sink: TransformSink, run: PipelineRun, result: "DataFrame") -> "DataStreamWriter":
    if sink.path is not None:
        writer = result.writeStream.format("parquet").option("path", run.place(sink.path))
        if sink.compression is not None:
            codec = "uncompressed" if sink.compression == "none" else sink.compression
            writer = writer.option("compression", codec)
        return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
    assert sink.topic is not None
    records = as_records(
        result,
        sink.keys[0] if sink.keys else None,
        encodes_value=sink.encode is not None,
        encodes_key=sink.encode_key is not None,
    )
    options = {**run.servers(), **encode_options(run, sink)}
    if sink.compression is not None:
        options["kafka.compression.type"] = sink.compression
    return records.writeStream.format(FORMAT).options(**options, topic=sink.topic)


def as_records(
    result: "DataFrame", key: str | None, *, encodes_value: bool = False, encodes_key: bool = False
) -> "DataFrame":
    """Convert rows to the connector's columns.

    A result with a column `value` defines its records directly. Others are converted to JSON, or to a struct
    that the connector encodes, with the key that they name or have kept.
    """
    from pyspark.sql import functions as f

    names = result.columns
    if key is not None and key not in names:
        raise InvalidPipeline(f"sink.key: the query has no column {key!r}, only {', '.join(names)}")
    if "value" in names:
        if unknown := [name for name in names if name not in RECORD and name != key]:
            raise InvalidPipeline(
                f"the query has a column 'value', but {', '.join(unknown)} is not a column of a record; "
                f"these are {', '.join(RECORD)}. Omit 'value' to write all columns as JSON"
            )
        kept = [f.col(name) for name in names if name != key and (name != "key" or key is None)]
        if encodes_key and key is None and "key" not in names:
            raise InvalidPipeline(f"sink.encode_key: {_NO_KEY}")
        return result.select(*([] if key is None else [_key(key, is_encoded=encodes_key)]), *kept)
    fields = [name for name in names if not name.startswith("_")]
    if not fields:
        raise InvalidPipeline(
            "the query has no column for the value: columns with an underscore do not count"
        )
    chosen = key or ("_key" if "_key" in names else None)
    row = f.struct(*[f.col(f"`{name}`") for name in fields])
    value = (row if encodes_value else f.to_json(row)).alias("value")
    if chosen is None:
        if encodes_key:
            raise InvalidPipeline(f"sink.encode_key: {_NO_KEY}")
        return result.select(value)
    return result.select(_key(chosen, is_encoded=encodes_key), value)


def _key(name: str, *, is_encoded: bool) -> "Column":
    from pyspark.sql import functions as f

    column = f.col(f"`{name}`")
    return (column if is_encoded else column.cast("string")).alias("key")
