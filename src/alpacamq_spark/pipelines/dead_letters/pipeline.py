"""The kind `dead-letters`: counts dead letters by reason, age and origin, and redrives some of them.

Topics are read up to their end at the start of the run, so that messages that fail again meanwhile
are not counted or sent twice.
"""

import json
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpacamq_spark.pipelines.definition import DeadLetters
from alpacamq_spark.pipelines.errors import translate_spark_errors
from alpacamq_spark.pipelines.run import PipelineRun, Plain, Report, RunResult, Section
from alpacamq_spark.pipelines.storage import storage_at
from alpacamq_spark.pipelines.timestamps import format_duration, format_timestamp, parse_duration
from alpacamq_spark.pipelines.values import declared

from .letters import dead_letter_topics, letters_frame
from .redrive import redriven

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Reasons are free text; only the most frequent are shown.
_MOST_GROUPS = 100


class Summary:
    """Dead letters counted by reason, age and origin, in one pass."""

    _SETS = (("topic",), ("reason",), ("age",), ("origin_topic", "origin_group"))

    def __init__(self, frame: "DataFrame", age_buckets: Sequence[str]) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        self._buckets = _bucket_names(age_buckets)
        age = f.lit(self._buckets[-1])
        for bucket, name in reversed(list(zip(age_buckets, self._buckets, strict=False))):
            age = f.when(f.col("age_ms") < parse_duration(bucket), name).otherwise(age)
        marked = frame.withColumn("age", age)
        columns = [column for group in self._SETS for column in group]
        sets = [[f.col(column) for column in group] for group in self._SETS]
        counted = marked.groupingSets(sets, *columns).agg(
            f.grouping_id().alias("set"),
            f.count("*").alias("count"),
            f.unix_millis(f.min("dead_lettered_at")).alias("oldest"),
            f.unix_millis(f.max("dead_lettered_at")).alias("newest"),
            f.avg("delivery_count").alias("deliveries"),
        )
        # Separate for each grouping: many reasons must not displace a topic or an age.
        place = f.row_number().over(Window.partitionBy("set").orderBy(f.desc("count")))
        ranked = counted.withColumn("place", place).where(f.col("place") <= _MOST_GROUPS)
        self._rows: dict[tuple[str, ...], list[Any]] = {group: [] for group in self._SETS}
        for row in ranked.orderBy("place").collect():
            self._rows[self._set_of(row["set"])].append(row)

    def _set_of(self, grouping_id: int) -> tuple[str, ...]:
        """Return the grouping of a row: a bit is set for every column that it omits."""
        columns = [column for group in self._SETS for column in group]
        for group in self._SETS:
            bits = 0
            for column in columns:
                bits = bits << 1 | (column not in group)
            if bits == grouping_id:
                return group
        raise AssertionError(f"no grouping has the id {grouping_id}")

    @property
    def total(self) -> int:
        # Summed over ages, of which there are few; there may be more topics than are shown.
        return sum(row["count"] for row in self._rows[("age",)])

    def _ages(self) -> list[Any]:
        return sorted(self._rows[("age",)], key=lambda row: self._buckets.index(row["age"]))

    def plain(self) -> dict[str, Plain]:
        return {
            "total": self.total,
            "topics": [{"topic": row["topic"], **_stats(row)} for row in self._rows[("topic",)]],
            "reasons": [{"reason": row["reason"], **_stats(row)} for row in self._rows[("reason",)]],
            "ages": [{"age": row["age"], **_stats(row)} for row in self._ages()],
            "sources": [
                {"topic": row["origin_topic"] or None, "group": row["origin_group"], **_stats(row)}
                for row in self._rows[("origin_topic", "origin_group")]
            ],
        }

    def sections(self) -> list[Section]:
        by_source = self._rows[("origin_topic", "origin_group")]
        return [
            Section(
                ["dead letters in", "count", "oldest", "newest"],
                [[row["topic"], row["count"], *_times(row)] for row in self._rows[("topic",)]],
            ),
            Section(
                ["reason", "count", "oldest", "newest"],
                [[row["reason"], row["count"], *_times(row)] for row in self._rows[("reason",)]],
                title="by reason",
            ),
            Section(["age", "count"], [[row["age"], row["count"]] for row in self._ages()], title="by age"),
            Section(
                ["source", "group", "count", "mean deliveries"],
                [
                    [row["origin_topic"], row["origin_group"], row["count"], _rounded(row["deliveries"])]
                    for row in by_source
                ],
                title="by source",
            ),
        ]


def _bucket_names(buckets: Sequence[str]) -> list[str]:
    shown = [format_duration(parse_duration(bucket)) for bucket in buckets]
    if not shown:
        return ["any"]
    middle = [f"{low} to {high}" for low, high in pairwise(shown)]
    return [f"under {shown[0]}", *middle, f"over {shown[-1]}"]


def _stats(row: Any) -> dict[str, Plain]:
    oldest, newest = _times(row)
    return {
        "count": row["count"],
        "oldest": oldest,
        "newest": newest,
        "mean_deliveries": _rounded(row["deliveries"]),
    }


def _times(row: Any) -> tuple[str | None, str | None]:
    return (_shown(row["oldest"]), _shown(row["newest"]))


def _shown(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None else format_timestamp(timestamp_ms)


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)


def run_dead_letters(definition: DeadLetters, run: PipelineRun, directory: Path) -> RunResult:
    """Count the dead letters, and redrive those requested."""
    letters = dead_letter_topics(run.broker, definition.source, run.access)
    data = None if definition.schema is None else declared(run, definition.schema, directory)
    now_ms = time.time_ns() // 1_000_000
    with translate_spark_errors():
        frame = letters_frame(run, letters, data, now_ms)
        summary = Summary(frame, definition.age_buckets)
        redrive = None if definition.redrive is None else redriven(definition.redrive, run, letters, data)
    report_data: dict[str, Plain] = {"as_of": format_timestamp(now_ms), **summary.plain()}
    sections = summary.sections()
    notes: list[str] = []
    if redrive is not None:
        report_data["redrive"] = redrive.data
        sections += redrive.sections
        notes += redrive.notes
    if definition.sink is not None:
        _write(run.place(definition.sink.path), run, report_data)
    return RunResult(
        rows=0 if redrive is None else redrive.rows,
        report=Report(data=report_data, sections=sections, notes=notes),
        is_stopped=run.interruption.is_requested,
    )


def _write(place: str, run: PipelineRun, data: Mapping[str, Plain]) -> None:
    directory, _, name = place.rpartition("/")
    storage_at(directory, run.spark).write(name, json.dumps(data, indent=2, ensure_ascii=False).encode())
