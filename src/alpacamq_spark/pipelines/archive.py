"""The kind `archive`: topics to Parquet, each record exactly once.

Every micro-batch is one segment of the archive, under its number, in one Spark job: written again
after a crash, it replaces itself. The stream's checkpoint says which batch comes next.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .archive_table import DATA, ArchiveTable, Compression, write_segment
from .compaction import Compaction, compact
from .definition import Archive, Compact, Filter
from .failures import condition
from .report import Plain, Report, Section
from .run import BatchDone, Outcome, Run
from .segments import Segment
from .sources import read_stream, stream_options
from .streaming import run_stream
from .values import declared, readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def run_archive(definition: Archive, run: Run, directory: Path) -> Outcome:
    """Archive what the trigger asks for."""
    table = ArchiveTable(run.place(definition.sink.path), run.spark)
    data = None if definition.schema is None else declared(run, definition.schema, directory)
    owner = table.claim(run.checkpoint, data)
    source = definition.source
    options = stream_options(
        start=source.start, max_records=source.max_records, on_data_loss=source.on_data_loss
    )
    frame = archived(filtered(read_stream(run, source, options), definition.steps), data)
    step = next((each for each in definition.steps if isinstance(each, Compact)), None)
    compaction = None if step is None else Compaction(table, run, step, definition.sink.compression)
    writer = frame.writeStream.foreachBatch(
        batch_writer(table.place, owner.writer, definition.sink.compression)
    )
    # Between batches, if there are to be many; after the last, in any case.
    every = _compacting(compaction) if definition.trigger not in ("once", "available-now") else None
    end = run_stream(run, writer, trigger=definition.trigger, after_batch=every or _nothing)
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
    return Outcome(rows=end.rows, report=report, is_stopped=end.is_stopped)


def filtered(frame: "DataFrame", steps: Sequence[object]) -> "DataFrame":
    """What the filters among the steps leave."""
    for number, step in enumerate(steps, 1):
        if isinstance(step, Filter):
            with condition(f"steps[{number}].where"):
                frame = frame.where(step.where)
    return frame


def archived(frame: "DataFrame", data: "StructType | None") -> "DataFrame":
    """Records with the columns of an archive."""
    from pyspark.sql import functions as f

    # The hour of a record is that of UTC, whatever the session's time zone is; by numbers, as in some
    # zones there are hours that do not exist.
    hours = f.floor(f.unix_seconds("timestamp") / 3600)
    days = f.floor(hours / 24).cast("int")
    columns = ["key", "value", "headers", "partition", "offset", "timestamp"]
    return frame.select(
        *columns,
        f.current_timestamp().alias("archived_at"),
        *([] if data is None else [readable(f.col("value"), data).alias(DATA)]),
        "topic",
        f.date_add(f.lit("1970-01-01").cast("date"), days).alias("date"),
        f.pmod(hours, f.lit(24)).cast("int").alias("hour"),
    )


def batch_writer(place: str, writer: str, compression: Compression) -> "Callable[[DataFrame, int], None]":
    """What writes one micro-batch, so that writing it again replaces it. Carries plain values only: with
    Spark Connect it runs on the server."""

    def write(frame: "DataFrame", batch: int) -> None:
        write_segment(frame, f"{place}/{Segment(writer, batch, batch).name}", compression)

    return write


def _compacting(compaction: Compaction | None) -> Callable[[BatchDone], None] | None:
    if compaction is None:
        return None

    def after(_: BatchDone) -> None:
        compact(compaction)

    return after


def _nothing(_: BatchDone) -> None:
    return None
