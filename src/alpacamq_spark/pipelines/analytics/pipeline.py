"""The kind `analytics`: throughput, sizes, key skew and latency, by topic and time window.

Latency is the time from the timestamp in a header, set by the producer, to the record's timestamp; or,
in an archive and without such a header, from the record's timestamp to its archiving.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpacamq_spark.pipelines.definition import Analytics
from alpacamq_spark.pipelines.errors import InvalidPipeline, translate_spark_errors
from alpacamq_spark.pipelines.run import PipelineRun, Report, RunResult, Section
from alpacamq_spark.pipelines.sources import filter_time, read_source
from alpacamq_spark.pipelines.storage import local_path
from alpacamq_spark.pipelines.timestamps import format_timestamp, parse_duration, parse_timestamp

from .html_report import html_report
from .results import AnalyticsResults, KeyShare, PartitionLoad, TopicStats, WindowStats

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The most windows that a report can show.
MAX_WINDOWS = 20_000
_ACCURACY = 1000
_DISTINCT_ERROR = 0.01
_QUANTILES = (0.5, 0.9, 0.99)


# The groupings that are counted in one pass.
_TOPICS, _WINDOWS, _PARTITIONS = ("topic",), ("topic", "window_ms"), ("topic", "partition")


def run_analytics(definition: Analytics, run: PipelineRun) -> RunResult:
    """Compute the statistics, and write the requested tables and report."""
    now_ms = time.time_ns() // 1_000_000
    with translate_spark_errors():
        base = measured(definition, run, now_ms)
        stats = _stats(base, definition)
        if definition.sink.path is not None:
            _write_tables(run, run.place(definition.sink.path), stats)
    notes = []
    if definition.sink.report is not None:
        path = local_path(run.place(definition.sink.report))
        if path is None:
            raise InvalidPipeline("sink.report: must be a file on this machine")
        _write_report(path, html_report(run.name, stats, now_ms))
        notes.append(f"report written to {path}")
    rows = sum(each.records for each in stats.topics)
    return RunResult(rows=rows, report=_report(stats, notes), is_stopped=run.interruption.is_requested)


def measured(definition: Analytics, run: PipelineRun, now_ms: int) -> "DataFrame":
    """Return one row per record: its position, time and measures."""
    from pyspark.sql import functions as f

    source = definition.source
    begin_ms = None if source.begin is None else parse_timestamp(source.begin, now_ms)
    end_ms = None if source.end is None else parse_timestamp(source.end, now_ms)
    frame = filter_time(read_source(run, source), source, begin_ms, end_ms)
    window_ms = parse_duration(definition.window)
    at_ms = f.unix_millis("timestamp")
    return frame.select(
        "topic",
        "partition",
        f.col("key"),
        at_ms.alias("at_ms"),
        (at_ms - f.pmod(at_ms, f.lit(window_ms))).alias("window_ms"),
        (f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))).alias("size"),
        _latency(definition, at_ms).alias("latency_ms"),
    )


def _latency(definition: Analytics, at_ms: "Column") -> "Column":
    from pyspark.sql import functions as f

    if definition.latency_header is not None:
        name = definition.latency_header.replace("\\", "\\\\").replace("'", "\\'")
        found = f"transform(filter(headers, h -> h.key = '{name}'), h -> CAST(h.value AS STRING))"
        text = f.expr(f"try_element_at({found}, -1)")
        # Milliseconds since 1970, or a time as text.
        written = f.coalesce(text.try_cast("bigint"), f.unix_millis(text.try_cast("timestamp")))
        return at_ms - written
    if definition.source.archive is not None:
        return f.unix_millis("archived_at") - at_ms
    return f.lit(None).cast("bigint")


def _stats(base: "DataFrame", definition: Analytics) -> AnalyticsResults:
    window_ms = parse_duration(definition.window)
    counted = _counted(base)
    topics = [_topic(row) for row in counted[_TOPICS]]
    return AnalyticsResults(
        window_ms=window_ms,
        topics=sorted(topics, key=lambda each: each.topic),
        windows=sorted(
            (_window(row, window_ms) for row in counted[_WINDOWS]),
            key=lambda each: (each.topic, each.start_ms),
        ),
        partitions=_partitions(counted[_PARTITIONS]),
        keys=_top_keys(base, definition.top_keys, {each.topic: each.records for each in topics}),
    )


def _counted(base: "DataFrame") -> dict[tuple[str, ...], list[Any]]:
    """Compute everything except keys, in one pass."""
    from pyspark.sql import functions as f

    groupings = (_TOPICS, _WINDOWS, _PARTITIONS)
    columns = ["topic", "window_ms", "partition"]
    sets = [[f.col(name) for name in grouping] for grouping in groupings]
    rows = (
        base.groupingSets(sets, *columns)
        .agg(
            f.grouping_id().alias("grouping"),
            f.count("*").alias("records"),
            f.sum("size").alias("bytes"),
            f.min("at_ms").alias("first_ms"),
            f.max("at_ms").alias("last_ms"),
            f.percentile_approx("size", list(_QUANTILES), _ACCURACY).alias("sizes"),
            f.percentile_approx("latency_ms", list(_QUANTILES), _ACCURACY).alias("latencies"),
            f.max("latency_ms").alias("slowest"),
            f.count("key").alias("keyed"),
            f.approx_count_distinct("key", _DISTINCT_ERROR).alias("keys"),
        )
        .limit(MAX_WINDOWS + 1)
        .collect()
    )
    if len(rows) > MAX_WINDOWS:
        raise InvalidPipeline(f"window: more than {MAX_WINDOWS} windows; choose a longer window")
    # A bit is set for every column that a grouping omits; the first column has the highest bit.
    ids = {
        sum(1 << (len(columns) - 1 - at) for at, name in enumerate(columns) if name not in grouping): (
            grouping
        )
        for grouping in groupings
    }
    counted: dict[tuple[str, ...], list[Any]] = {grouping: [] for grouping in groupings}
    for row in rows:
        counted[ids[row["grouping"]]].append(row)
    return counted


def _topic(row: Any) -> TopicStats:
    return TopicStats(
        topic=row["topic"],
        records=row["records"],
        size=row["bytes"],
        first_ms=row["first_ms"],
        last_ms=row["last_ms"],
        sizes=tuple(row["sizes"] or ()),
        latencies=tuple(row["latencies"] or ()),
        slowest_ms=row["slowest"],
        distinct_keys=row["keys"],
        without_key=row["records"] - row["keyed"],
    )


def _window(row: Any, window_ms: int) -> WindowStats:
    return WindowStats(
        topic=row["topic"],
        start_ms=row["window_ms"],
        records=row["records"],
        size=row["bytes"],
        records_per_s=row["records"] * 1000 / window_ms,
        bytes_per_s=row["bytes"] * 1000 / window_ms,
        sizes=tuple(row["sizes"] or ()),
        latencies=tuple(row["latencies"] or ()),
        slowest_ms=row["slowest"],
    )


def _partitions(rows: list[Any]) -> list[PartitionLoad]:
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["records"]
    loads = [
        PartitionLoad(
            topic=row["topic"],
            partition=row["partition"],
            records=row["records"],
            size=row["bytes"],
            share=row["records"] / totals[row["topic"]],
        )
        for row in rows
    ]
    return sorted(loads, key=lambda each: (each.topic, each.partition))


def _top_keys(base: "DataFrame", top: int, totals: dict[str, int]) -> list[KeyShare]:
    """Return the most frequent keys of each topic, ignoring records without a key."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    counts = (
        base.where(f.col("key").isNotNull())
        .groupBy("topic", "key")
        .agg(f.count("*").alias("records"), f.sum("size").alias("bytes"))
    )
    rank = f.row_number().over(Window.partitionBy("topic").orderBy(f.desc("records"), "key"))
    rows = counts.withColumn("rank", rank).where(f.col("rank") <= top).orderBy("topic", "rank").collect()
    return [
        KeyShare(
            topic=row["topic"],
            key=bytes(row["key"]).decode(errors="backslashreplace"),
            records=row["records"],
            size=row["bytes"],
            share=row["records"] / totals[row["topic"]],
        )
        for row in rows
    ]


def _write_tables(run: PipelineRun, place: str, stats: AnalyticsResults) -> None:
    for name, (columns, rows) in stats.tables().items():
        frame = run.spark.createDataFrame(rows, columns)
        frame.coalesce(1).write.mode("overwrite").parquet(f"{place}/{name}")


def _write_report(path: Path, html: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")


def _report(stats: AnalyticsResults, notes: list[str]) -> Report:
    rows = [
        [
            each.topic,
            each.records,
            each.size,
            round(each.records_per_s, 1),
            *_three(each.sizes),
            *_three(each.latencies),
            each.distinct_keys,
        ]
        for each in stats.topics
    ]
    top = [[each.topic, each.key, each.records, f"{each.share:.1%}"] for each in stats.keys]
    return Report(
        data=stats.plain(),
        sections=[
            Section(
                [
                    "topic",
                    "records",
                    "bytes",
                    "records/s",
                    "size p50",
                    "p90",
                    "p99",
                    "latency ms p50",
                    "p90",
                    "p99",
                    "keys",
                ],
                rows,
            ),
            Section(
                ["topic", "window", "records", "records/s", "bytes/s", "latency ms p50", "p99"],
                [
                    [
                        each.topic,
                        format_timestamp(each.start_ms),
                        each.records,
                        round(each.records_per_s, 2),
                        round(each.bytes_per_s, 1),
                        _three(each.latencies)[0],
                        _three(each.latencies)[2],
                    ]
                    for each in stats.windows
                ],
                title="by window",
            ),
            Section(["topic", "key", "records", "share"], top, title="most frequent keys"),
            Section(
                ["topic", "partition", "records", "share"],
                [
                    [each.topic, each.partition, each.records, f"{each.share:.1%}"]
                    for each in stats.partitions
                ],
                title="by partition",
            ),
        ],
        notes=notes,
    )


def _three(quantiles: tuple[int, ...]) -> list[int | None]:
    return [*quantiles] if quantiles else [None, None, None]
