"""The kind `replay`: writes a range of an archive, a table or topics to a topic exactly once.

The range is determined once and stored in the checkpoint as a plan. Its batches are written under one
transactional id with their numbers, so that batches written by an earlier run are not written again.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from alpacamq_spark.pipelines.archive.pipeline import filtered
from alpacamq_spark.pipelines.definition import Position, Replay, ReplaySource
from alpacamq_spark.pipelines.errors import BadPlan, translate_spark_errors
from alpacamq_spark.pipelines.registry import encode_options
from alpacamq_spark.pipelines.run import BatchDone, PipelineRun, Report, RunResult, Section
from alpacamq_spark.pipelines.sources import FORMAT, filter_time, read_source, write_records
from alpacamq_spark.pipelines.timestamps import format_timestamp, parse_timestamp

from .plan import PlannedRange, ReplayPlan, ReplayProgress, batches_for, span_options
from .tables import current_snapshot, query_batch, query_rows, table_records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from alpacamq_spark.pipelines.tables.table import TableVersion

# Headers with the original position of a replayed record.
REPLAY_TOPIC = "alpacamq-replay-topic"
REPLAY_PARTITION = "alpacamq-replay-partition"
REPLAY_OFFSET = "alpacamq-replay-offset"
REPLAY_TIMESTAMP = "alpacamq-replay-timestamp"
REPLAY_HEADERS = (REPLAY_TOPIC, REPLAY_PARTITION, REPLAY_OFFSET, REPLAY_TIMESTAMP)

_PLAN = "replay-plan.json"
_PROGRESS = "replay-progress.json"
# With a rate limit, records are sent in bursts of this many seconds' worth.
_BURST_S = 5


def run_replay(definition: Replay, run: PipelineRun) -> RunResult:
    """Write the rest of the replay."""
    plan = run.checkpoint.recall(_PLAN, ReplayPlan)
    if plan is None:
        plan = _planned(definition, run)
        run.checkpoint.remember(_PLAN, plan)
    elif plan.wanted != _wanted(definition):
        raise BadPlan(
            f"the checkpoint {run.checkpoint.place} is of a replay with another source, filter or topic; "
            "use another checkpoint, or delete that one to start over"
        )
    progress = run.checkpoint.recall(_PROGRESS, ReplayProgress) or ReplayProgress()
    notes = []
    if plan.batches and progress.batches == plan.batches:
        notes = [f"already replayed; delete {run.checkpoint.place} to replay again"]
    before, is_stopped = progress.rows, False
    while progress.batches < plan.batches:
        progress = _one_batch(definition, run, plan, progress)
        if run.interruption.is_requested and progress.batches < plan.batches:
            is_stopped = True
            break
    rows = progress.rows - before
    sections = [
        Section(
            ["topic", "rows", "in all", "planned", "batches"],
            [[definition.sink.topic, rows, progress.rows, plan.rows, progress.batches]],
        )
    ]
    if definition.source.sql is None:  # the records of a query have no offsets
        sections.append(
            Section(
                ["source", "partition", "from", "to"],
                [[span.topic, span.partition, span.start, span.end] for span in plan.spans],
                title="replayed offsets",
            )
        )
    report = Report(
        data={
            "rows": rows,
            "rows_in_all": progress.rows,
            "rows_planned": plan.rows,
            "batches": progress.batches,
            "batches_planned": plan.batches,
            "topic": definition.sink.topic,
            "from_ms": plan.begin_ms,
            "to_ms": plan.end_ms,
            "spans": [msgspec.to_builtins(span) for span in plan.spans],
        },
        sections=sections,
        notes=notes,
    )
    return RunResult(rows=rows, report=report, is_stopped=is_stopped)


def _planned(definition: Replay, run: PipelineRun) -> ReplayPlan:
    """Determine the range to replay, which takes one pass over it."""
    from pyspark.sql import functions as f

    now_ms = time.time_ns() // 1_000_000
    source = definition.source
    begin_ms, end_ms = _resolve_time(source.begin, now_ms), _resolve_time(source.end, now_ms)
    with translate_spark_errors():
        snapshot = current_snapshot(definition, run) if source.is_table else None
        if source.sql is not None:
            return _planned_query(definition, run, snapshot)
        found = (
            _within(_rows(definition, run, snapshot), source, begin_ms, end_ms)
            .groupBy("topic", "partition")
            .agg(f.min("offset").alias("start"), f.max("offset").alias("last"), f.count("*").alias("rows"))
            .orderBy("topic", "partition")
            .collect()
        )
    spans = tuple(
        PlannedRange(topic=row.topic, partition=row.partition, start=row.start, end=row.last + 1)
        for row in found
    )
    rows = sum(row["rows"] for row in found)
    plan = ReplayPlan(
        id=uuid4().hex,
        wanted=_wanted(definition),
        begin_ms=begin_ms,
        end_ms=end_ms,
        rows=rows,
        batches=batches_for(rows, spans, _at_most(definition)),
        spans=spans,
        snapshot=snapshot,
    )
    times = (("from", begin_ms), ("to", end_ms))
    shown = "".join(f" {word} {format_timestamp(time)}" for word, time in times if time is not None)
    run.listener.say(f"{rows} records to replay{shown}")
    return plan


def _planned_query(definition: Replay, run: PipelineRun, snapshot: "TableVersion | None") -> ReplayPlan:
    """Determine the records of a query; they have no offsets."""
    rows = query_rows(definition, run, snapshot)
    run.listener.say(f"{rows} records to replay")
    return ReplayPlan(
        id=uuid4().hex,
        wanted=_wanted(definition),
        begin_ms=None,
        end_ms=None,
        rows=rows,
        batches=-(-rows // _at_most(definition)),
        spans=(),
        snapshot=snapshot,
    )


def _at_most(definition: Replay) -> int:
    """Return about how many records a batch has."""
    if definition.rate is None:
        return definition.batch
    return min(definition.batch, definition.rate * _BURST_S)


def _rows(definition: Replay, run: PipelineRun, snapshot: "TableVersion | None") -> "DataFrame":
    """Return the records of the source that pass the steps."""
    if definition.source.is_table:
        return table_records(definition, run, snapshot)
    return filtered(read_source(run, definition.source), definition.steps)


def _wanted(definition: Replay) -> str:
    """Return the part of the definition that must not change between runs of a replay."""
    # Without nulls, the text is that of plans from before the sink had the keys for a schema.
    sink = {name: each for name, each in msgspec.to_builtins(definition.sink).items() if each is not None}
    fixed = (definition.source, definition.steps, sink)
    return msgspec.json.encode(fixed, order="sorted").decode()


def _resolve_time(position: Position | None, now_ms: int) -> int | None:
    return parse_timestamp(position, now_ms) if isinstance(position, str) else None


def _within(
    frame: "DataFrame", source: ReplaySource, begin_ms: int | None, end_ms: int | None
) -> "DataFrame":
    """Filter the rows between two positions."""
    from pyspark.sql import functions as f

    frame = filter_time(frame, source, begin_ms, end_ms)
    for position, is_start in ((source.begin, True), (source.end, False)):
        if isinstance(position, int):
            frame = frame.where(f.col("offset") >= position if is_start else f.col("offset") < position)
        elif isinstance(position, Mapping):
            frame = frame.where(_by_partition(position, is_start=is_start))
    if source.keys:
        frame = frame.where(f.col("key").isin(*(bytearray(key.encode()) for key in source.keys)))
    return frame


def _by_partition(positions: Mapping[str, Mapping[str, int]], *, is_start: bool) -> "Column":
    """Filter by the offsets of named partitions; keep all others."""
    from pyspark.sql import functions as f

    condition = f.lit(True)
    for topic, offsets in positions.items():
        for partition, offset in offsets.items():
            elsewhere = (f.col("topic") != topic) | (f.col("partition") != int(partition))
            inside = f.col("offset") >= offset if is_start else f.col("offset") < offset
            condition = condition & (elsewhere | inside)
    return condition


def _one_batch(
    definition: Replay, run: PipelineRun, plan: ReplayPlan, progress: ReplayProgress
) -> ReplayProgress:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    started_at = time.monotonic()
    number = progress.batches
    seen = Observation(f"replay-{plan.id}-{number}")
    with translate_spark_errors():
        if definition.source.sql is not None:
            records = query_batch(definition, run, plan.snapshot, plan.batches, number)
        else:
            frame = _batch_frame(definition, run, plan, number)
            records = _records(definition, _within(frame, definition.source, plan.begin_ms, plan.end_ms))
        rows = records.observe(seen, f.count(f.lit(1)).alias("rows"))
        options = {
            "topic": definition.sink.topic,
            "transactionalId": plan.transactional_id,
            "batchId": str(number),
            **encode_options(run, definition.sink),
        }
        write_records(rows, run, options)
    written = int(seen.get["rows"])
    progress = ReplayProgress(batches=number + 1, rows=progress.rows + written)
    run.checkpoint.remember(_PROGRESS, progress)
    if definition.rate is not None and progress.batches < plan.batches:
        run.interruption.wait(written / definition.rate - (time.monotonic() - started_at))
    took_s = time.monotonic() - started_at
    run.listener.batch(
        BatchDone(
            batch=number,
            rows=written,
            rows_per_second=written / took_s,
            duration_ms=int(took_s * 1000),
            lag=max(0, plan.rows - progress.rows),
            total_rows=progress.rows,
        )
    )
    return progress


def _batch_frame(definition: Replay, run: PipelineRun, plan: ReplayPlan, number: int) -> "DataFrame":
    """Return the rows of one batch, those of a partition in one task and in order."""
    from functools import reduce
    from operator import or_

    from pyspark.sql import functions as f

    spans = plan.batch(number)
    if definition.source.is_live:
        reader = run.spark.read.format(FORMAT).options(
            **run.servers(), **span_options(spans), includeHeaders="true"
        )
        return filtered(reader.load(), definition.steps)
    inside = [
        (f.col("topic") == span.topic)
        & (f.col("partition") == span.partition)
        & f.col("offset").between(span.start, span.end - 1)
        for span in spans
    ]
    rows = _rows(definition, run, plan.snapshot).where(reduce(or_, inside))
    together = rows.repartition(len(spans), "topic", "partition")
    return together.sortWithinPartitions("topic", "partition", "offset")


def _records(definition: Replay, frame: "DataFrame") -> "DataFrame":
    """Convert rows to the connector's columns."""
    from pyspark.sql import functions as f

    sink = definition.sink
    headers = f.coalesce("headers", f.array().cast("array<struct<key:string,value:binary>>"))
    if sink.position_headers:
        # Headers of an earlier replay would contradict these.
        kept = f.filter(headers, lambda header: ~header["key"].isin(*REPLAY_HEADERS))
        headers = f.concat(kept, f.array(*(_header(name, column) for name, column in _positions())))
    columns = [f.col("key"), f.col("value"), headers.alias("headers")]
    if sink.timestamp == "original":
        columns.append(f.col("timestamp"))
    if sink.partition == "original":
        columns.append(f.col("partition"))
    return frame.select(*columns)


def _positions() -> "list[tuple[str, Column]]":
    from pyspark.sql import functions as f

    return [
        (REPLAY_TOPIC, f.col("topic")),
        (REPLAY_PARTITION, f.col("partition")),
        (REPLAY_OFFSET, f.col("offset")),
        (REPLAY_TIMESTAMP, f.unix_millis("timestamp")),
    ]


def _header(name: str, column: "Column") -> "Column":
    from pyspark.sql import functions as f

    return f.struct(f.lit(name).alias("key"), column.cast("string").cast("binary").alias("value"))
