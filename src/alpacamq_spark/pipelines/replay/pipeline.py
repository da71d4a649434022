"""The kind `replay`: a stretch of an archive or of topics, written to a topic exactly once.

The stretch is found once and kept in the checkpoint as a plan. Its batches are written under one
transactional id by their numbers, so that what was written before a run ended is not written again.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from alpacamq_spark.pipelines.archive.pipeline import filtered
from alpacamq_spark.pipelines.definition import Position, Replay, ReplaySource
from alpacamq_spark.pipelines.errors import BadPlan
from alpacamq_spark.pipelines.failures import explained
from alpacamq_spark.pipelines.run import BatchDone, Outcome, Report, Run, Section
from alpacamq_spark.pipelines.sources import FORMAT, write_records
from alpacamq_spark.pipelines.time_range import between, whole
from alpacamq_spark.pipelines.timestamps import format_timestamp, parse_timestamp

from .plan import ReplayPlan, ReplayProgress, Span, batches_for, span_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Where a replayed record was read, in headers of its own.
REPLAY_TOPIC = "alpacamq-replay-topic"
REPLAY_PARTITION = "alpacamq-replay-partition"
REPLAY_OFFSET = "alpacamq-replay-offset"
REPLAY_TIMESTAMP = "alpacamq-replay-timestamp"
REPLAY_HEADERS = (REPLAY_TOPIC, REPLAY_PARTITION, REPLAY_OFFSET, REPLAY_TIMESTAMP)

_PLAN = "replay-plan.json"
_PROGRESS = "replay-progress.json"
# With a rate, records come in bursts of so many seconds' worth.
_BURST_S = 5


def run_replay(definition: Replay, run: Run) -> Outcome:
    """Write what is left of the replay."""
    plan = run.checkpoint.recall(_PLAN, ReplayPlan)
    if plan is None:
        plan = _planned(definition, run)
        run.checkpoint.remember(_PLAN, plan)
    elif plan.wanted != _wanted(definition):
        raise BadPlan(
            f"the checkpoint {run.checkpoint.place} is of a replay with another source, filter or topic; "
            "give this one a checkpoint of its own, or delete that one to begin anew"
        )
    progress = run.checkpoint.recall(_PROGRESS, ReplayProgress) or ReplayProgress()
    notes = []
    if plan.batches and progress.batches == plan.batches:
        notes = [f"all of it was replayed before; delete {run.checkpoint.place} to do it again"]
    before, is_stopped = progress.rows, False
    while progress.batches < plan.batches:
        progress = _one_batch(definition, run, plan, progress)
        if run.interruption.is_asked and progress.batches < plan.batches:
            is_stopped = True
            break
    rows = progress.rows - before
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
        sections=[
            Section(
                ["topic", "rows", "in all", "planned", "batches"],
                [[definition.sink.topic, rows, progress.rows, plan.rows, progress.batches]],
            ),
            Section(
                ["source", "partition", "from", "to"],
                [[span.topic, span.partition, span.start, span.end] for span in plan.spans],
                title="replayed offsets",
            ),
        ],
        notes=notes,
    )
    return Outcome(rows=rows, report=report, is_stopped=is_stopped)


def _planned(definition: Replay, run: Run) -> ReplayPlan:
    """Find what is to be replayed, which takes one look at all of it."""
    from pyspark.sql import functions as f

    now_ms = time.time_ns() // 1_000_000
    source = definition.source
    begin_ms, end_ms = _moment(source.begin, now_ms), _moment(source.end, now_ms)
    with explained():
        frame = _within(whole(run, source), source, begin_ms, end_ms)
        found = (
            filtered(frame, definition.steps)
            .groupBy("topic", "partition")
            .agg(f.min("offset").alias("start"), f.max("offset").alias("last"), f.count("*").alias("rows"))
            .orderBy("topic", "partition")
            .collect()
        )
    spans = tuple(
        Span(topic=row.topic, partition=row.partition, start=row.start, end=row.last + 1) for row in found
    )
    rows = sum(row["rows"] for row in found)
    at_most = (
        definition.batch if definition.rate is None else min(definition.batch, definition.rate * _BURST_S)
    )
    plan = ReplayPlan(
        id=uuid4().hex,
        wanted=_wanted(definition),
        begin_ms=begin_ms,
        end_ms=end_ms,
        rows=rows,
        batches=batches_for(rows, spans, at_most),
        spans=spans,
    )
    times = (("from", begin_ms), ("to", end_ms))
    shown = "".join(f" {word} {format_timestamp(moment)}" for word, moment in times if moment is not None)
    run.teller.say(f"{rows} records to replay{shown}")
    return plan


def _wanted(definition: Replay) -> str:
    """What may not change between the runs of one replay."""
    fixed = (definition.source, definition.steps, definition.sink)
    return msgspec.json.encode(fixed, order="sorted").decode()


def _moment(position: Position | None, now_ms: int) -> int | None:
    return parse_timestamp(position, now_ms) if isinstance(position, str) else None


def _within(
    frame: "DataFrame", source: ReplaySource, begin_ms: int | None, end_ms: int | None
) -> "DataFrame":
    """The rows between two positions."""
    from pyspark.sql import functions as f

    frame = between(frame, source, begin_ms, end_ms)
    for position, is_start in ((source.begin, True), (source.end, False)):
        if isinstance(position, int):
            frame = frame.where(f.col("offset") >= position if is_start else f.col("offset") < position)
        elif isinstance(position, Mapping):
            frame = frame.where(_by_partition(position, is_start=is_start))
    return frame


def _by_partition(positions: Mapping[str, Mapping[str, int]], *, is_start: bool) -> "Column":
    """Offsets of the partitions that are named, and all of the others."""
    from pyspark.sql import functions as f

    condition = f.lit(True)
    for topic, offsets in positions.items():
        for partition, offset in offsets.items():
            elsewhere = (f.col("topic") != topic) | (f.col("partition") != int(partition))
            inside = f.col("offset") >= offset if is_start else f.col("offset") < offset
            condition = condition & (elsewhere | inside)
    return condition


def _one_batch(definition: Replay, run: Run, plan: ReplayPlan, progress: ReplayProgress) -> ReplayProgress:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    started_at = time.monotonic()
    number = progress.batches
    seen = Observation(f"replay-{plan.id}-{number}")
    with explained():
        frame = filtered(
            _within(
                _batch_frame(definition, run, plan, number), definition.source, plan.begin_ms, plan.end_ms
            ),
            definition.steps,
        )
        rows = _records(definition, frame).observe(seen, f.count(f.lit(1)).alias("rows"))
        options = {
            "topic": definition.sink.topic,
            "transactionalId": plan.transactional_id,
            "batchId": str(number),
        }
        write_records(rows, run, options)
    written = int(seen.get["rows"])
    progress = ReplayProgress(batches=number + 1, rows=progress.rows + written)
    run.checkpoint.remember(_PROGRESS, progress)
    if definition.rate is not None and progress.batches < plan.batches:
        run.interruption.wait(written / definition.rate - (time.monotonic() - started_at))
    took_s = time.monotonic() - started_at
    run.teller.batch(
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


def _batch_frame(definition: Replay, run: Run, plan: ReplayPlan, number: int) -> "DataFrame":
    """The rows of one batch, those of a partition in one task and in order."""
    from functools import reduce
    from operator import or_

    from pyspark.sql import functions as f

    spans = plan.batch(number)
    if definition.source.archive is None:
        reader = run.spark.read.format(FORMAT).options(
            **run.servers(), **span_options(spans), includeHeaders="true"
        )
        return reader.load()
    inside = [
        (f.col("topic") == span.topic)
        & (f.col("partition") == span.partition)
        & f.col("offset").between(span.start, span.end - 1)
        for span in spans
    ]
    rows = whole(run, definition.source).where(reduce(or_, inside))
    together = rows.repartition(len(spans), "topic", "partition")
    return together.sortWithinPartitions("topic", "partition", "offset")


def _records(definition: Replay, frame: "DataFrame") -> "DataFrame":
    """Rows as the connector writes them."""
    from pyspark.sql import functions as f

    sink = definition.sink
    headers = f.coalesce("headers", f.array().cast("array<struct<key:string,value:binary>>"))
    if sink.position_headers:
        # Those of an earlier replay would contradict these.
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
