"""The kind `archive`: writes topics to Parquet, each record exactly once.

Every micro-batch is one segment of the archive, named by its number and written in one Spark job:
written again after a crash, it replaces itself. The stream's checkpoint has the next batch number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq_spark.options import DECODED
from alpacamq_spark.pipelines.beginnings import beginning
from alpacamq_spark.pipelines.definition import Archive, Compact, Filter, TopicSource
from alpacamq_spark.pipelines.errors import PipelineFailed, condition, translate_spark_errors
from alpacamq_spark.pipelines.malformed import counted, not_decoded, with_malformed
from alpacamq_spark.pipelines.registry import RegistryColumns, decoded_parts, registry_columns
from alpacamq_spark.pipelines.run import BatchDone, PipelineRun, Plain, Report, RunResult, Section
from alpacamq_spark.pipelines.sources import matching_topics, reach, read_stream, stream_options
from alpacamq_spark.pipelines.streaming import StreamEnd, run_stream
from alpacamq_spark.pipelines.tables.dead_letters import DeadLetterCopies
from alpacamq_spark.pipelines.tables.pipeline import run_into_table, table_place
from alpacamq_spark.pipelines.values import declared, readable

from .segments import Segment, merged, merges
from .table import DATA, PARTITIONED_BY, ArchiveTable, Compression, is_complete, write_segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import DataType, StructType

_MB = 1 << 20


@dataclass(slots=True)
class Compaction:
    """Settings of an archive's compaction, and the number of segments merged so far."""

    table: ArchiveTable
    run: PipelineRun
    step: Compact
    compression: Compression
    merged: int = 0


def compact(compaction: Compaction) -> int:
    """Merge segments where that pays; return the total number merged."""
    table, step = compaction.table, compaction.step
    _sweep(table)
    while True:
        planned = list(
            merges(
                table.weighed(),
                fan_in=step.fan_in,
                target_size=step.target_mb * _MB,
                edges=table.owner().edges,
            )
        )
        if not planned:
            return compaction.merged
        for segments in planned:
            _merge(compaction, segments)
            compaction.merged += len(segments)


def _merge(compaction: Compaction, segments: list[Segment]) -> None:
    from pyspark.sql import functions as f

    table, spark = compaction.table, compaction.run.spark
    target = merged(segments)
    with translate_spark_errors():
        rows = table.read_segments(spark, segments, is_cast=False)
        before = rows.count()
        # Spark chooses the number of tasks by the amount of data, and groups the rows of an hour.
        spread = rows.hint("rebalance", *[f.col(name) for name in PARTITIONED_BY])
        ordered = spread.sortWithinPartitions(*PARTITIONED_BY, "partition", "offset")
        write_segment(ordered, table.at(target), compaction.compression)
        after = table.read_segments(spark, [target]).count()
    if before != after:
        table.discard(target)
        raise PipelineFailed(
            f"merging {len(segments)} segments of {table.place} turned {before} rows into {after}; "
            "the merge was undone"
        )
    compaction.run.listener.say(f"merged {len(segments)} segments of the archive, {after} rows")
    _sweep(table)


def _sweep(table: ArchiveTable) -> None:
    """Delete superseded segments and incomplete merges.

    An incomplete single batch is left for Spark to write again.
    """
    counting, rest = table.segments()
    for segment in rest:
        if segment.width > 1 or any(each.covers(segment) for each in counting):
            table.discard(segment)


def run_archive(definition: Archive, run: PipelineRun, directory: Path) -> RunResult:
    """Archive what the trigger requests."""
    if definition.sink.is_table:
        return _run_into_table(definition, run, directory)
    assert definition.sink.path is not None
    table = ArchiveTable(run.place(definition.sink.path), run.spark)
    source = definition.source
    data = None if definition.schema is None else declared(run, definition.schema, directory)
    columns = _registry_columns(definition, run, table.types())
    types: dict[str, DataType] = {} if data is None else {DATA: data}
    if columns is not None:
        types |= {DECODED[part]: kind for part, kind in columns.types.items()}
    owner = table.claim(run.checkpoint, types)
    options = {**_options(source), **beginning(run, source, source.start)}
    frame = archived(filtered(read_stream(run, source, options, columns), definition.steps), data)
    step = next((each for each in definition.steps if isinstance(each, Compact)), None)
    compaction = None if step is None else Compaction(table, run, step, definition.sink.codec)
    writer = frame.writeStream.foreachBatch(batch_writer(table.place, owner.writer, definition.sink.codec))
    # Between batches if compaction is frequent; after the last batch in any case.
    every = _compacting(compaction) if definition.trigger not in ("once", "available-now") else None
    end = run_stream(
        run,
        writer,
        trigger=definition.trigger,
        after_batch=every or _nothing,
        beside=_dead_letter_writers(definition, run, columns, data),
    )
    if compaction is not None:
        compact(compaction)
    weighed = table.weighed()
    files, size = sum(each.files for each in weighed), sum(each.size for each in weighed)
    data_of_report: dict[str, Plain] = {
        "rows": end.rows,
        "batches": end.batches,
        "lag": end.lag,
        "archive": {"path": table.place, "files": files, "bytes": size, "segments": len(weighed)},
        "merged_segments": 0 if compaction is None else compaction.merged,
    }
    report = Report(
        data=data_of_report,
        sections=[
            Section(["rows", "batches", "lag"], [[end.rows, end.batches, end.lag]]),
            Section(["archive", "files", "bytes"], [[table.place, files, size]]),
        ],
    )
    report = with_malformed(report, end.malformed, _handled(definition, end))
    return RunResult(rows=end.rows, report=report, is_stopped=end.is_stopped)


def _run_into_table(definition: Archive, run: PipelineRun, directory: Path) -> RunResult:
    """Archive to a table: every record, or the last one for each key."""
    place = table_place(definition.catalog, definition.sink, run.place)
    from alpacamq_spark.pipelines.tables.writer import Upsert

    source = definition.source
    data = None if definition.schema is None else declared(run, definition.schema, directory)
    columns = _registry_columns(definition, run, place.types())
    options = {**_options(source), **beginning(run, source, source.start)}
    records = filtered(read_stream(run, source, options, columns), definition.steps)
    frame = archived(records, data)
    day = "date"
    if definition.sink.format == "iceberg":
        # It derives the partitions of a time itself.
        frame, day = frame.drop("date", "hour"), "day(timestamp)"
    upsert = None
    if definition.sink.mode == "upsert":
        frame = frame.selectExpr("*", "value IS NULL AS _tombstone", "offset AS _offset")
        upsert = Upsert(key=("topic", "key"), order="_offset", deleted="_tombstone")
    with translate_spark_errors():
        ended = run_into_table(
            run,
            frame,
            definition.sink,
            definition.catalog,
            trigger=definition.trigger,
            upsert=upsert,
            # A key has one row, whose time changes.
            partition_by=("topic",) if upsert else ("topic", day),
            compact=next((each for each in definition.steps if isinstance(each, Compact)), None),
            beside=_dead_letter_writers(definition, run, columns, data),
        )
    end = ended.stream
    report = Report(
        data={"rows": end.rows, "batches": end.batches, "lag": end.lag, "table": ended.data},
        sections=[Section(["rows", "batches", "lag"], [[end.rows, end.batches, end.lag]]), ended.section],
    )
    report = with_malformed(report, end.malformed, _handled(definition, end))
    return RunResult(rows=end.rows, report=report, is_stopped=end.is_stopped)


def _registry_columns(
    definition: Archive, run: PipelineRun, stored: "Mapping[str, DataType]"
) -> RegistryColumns | None:
    """Return the columns that the schema registry describes, with those that the archive has already."""
    parts = decoded_parts(definition)
    if not parts:
        return None
    with reach(run.broker, run.access) as cluster:
        topics = [topic.name for topic in matching_topics(cluster, definition.source)]
    known = {part: stored[DECODED[part]] for part in parts if DECODED[part] in stored}
    return registry_columns(run, topics, definition, known, follows=True)


def _options(source: TopicSource) -> dict[str, str]:
    return stream_options(max_records=source.max_records, on_data_loss=source.on_data_loss)


def _handled(definition: Archive, end: StreamEnd) -> dict[str, str]:
    """Say what was done with malformed values."""
    said = "archived without their columns"
    if definition.dead_letter_table is not None:
        said = f"{said}, and copied to table {definition.dead_letter_table}"
    return dict.fromkeys(end.malformed, said)


def _dead_letter_writers(
    definition: Archive, run: PipelineRun, columns: RegistryColumns | None, data: "StructType | None"
) -> "dict[str, DataStreamWriter]":
    """Return the query that copies malformed records to their table, if there is one."""
    if definition.dead_letter_table is None:
        return {}
    copies = DeadLetterCopies(
        source=definition.source,
        start=definition.source.start,
        options=_options(definition.source),
        columns=columns,
        data=data,
        kept=lambda frame: filtered(frame, definition.steps),
    )
    return copies.writers(run, definition.dead_letter_table, definition.catalog)


def filtered(frame: "DataFrame", steps: Sequence[object]) -> "DataFrame":
    """Apply the filters among the steps."""
    for number, step in enumerate(steps, 1):
        if isinstance(step, Filter):
            with condition(f"steps[{number}].where"):
                frame = frame.where(step.where)
    return frame


def archived(frame: "DataFrame", data: "StructType | None") -> "DataFrame":
    """Convert records to the columns of an archive."""
    from pyspark.sql import functions as f

    # The hour is in UTC, whatever the session's time zone is; computed from numbers, because some
    # zones skip hours.
    hours = f.floor(f.unix_seconds("timestamp") / 3600)
    days = f.floor(hours / 24).cast("int")
    columns = ["key", "value", "headers", "partition", "offset", "timestamp"]
    if data is not None:
        frame = frame.withColumn(DATA, readable(f.col("value"), data))
    decoded = [part for part in DECODED if DECODED[part] in frame.columns]
    for part in decoded:
        place = [f.col("topic"), f.col("partition"), f.col("offset")]
        frame = counted(frame, not_decoded(part), f"{part}s", place)
    return frame.select(
        *columns,
        f.current_timestamp().alias("archived_at"),
        *(DECODED[part] for part in decoded),
        "topic",
        f.date_add(f.lit("1970-01-01").cast("date"), days).alias("date"),
        f.pmod(hours, f.lit(24)).cast("int").alias("hour"),
    )


def batch_writer(place: str, writer: str, compression: Compression) -> "Callable[[DataFrame, int], None]":
    """Return a function that writes one micro-batch idempotently. It captures plain values only: with
    Spark Connect it runs on the server."""

    def write(frame: "DataFrame", batch: int) -> None:
        segment = f"{place}/{Segment(writer, batch, batch).name}"
        if not is_complete(segment, frame.sparkSession):
            write_segment(frame, segment, compression)
            return
        # Records that were deleted since must not take those of the archive with them: read before writing.
        rows = frame.persist()
        try:
            # With a schema, as one without rows has no files to find it in.
            if rows.count() >= frame.sparkSession.read.schema("offset BIGINT").parquet(segment).count():
                write_segment(rows, segment, compression)
        finally:
            rows.unpersist()

    return write


def _compacting(compaction: Compaction | None) -> Callable[[BatchDone], None] | None:
    if compaction is None:
        return None

    def after(_: BatchDone) -> None:
        compact(compaction)

    return after


def _nothing(_: BatchDone) -> None:
    return None
