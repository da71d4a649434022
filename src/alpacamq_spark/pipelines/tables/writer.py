"""Writes the micro-batches of a stream to a table, each exactly once: appended, or upserted by key.

Every step can be cut off. Files that were not committed do not count; a batch that is in the table is
not written again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from alpacamq_spark.pipelines.definition import Compact
from alpacamq_spark.pipelines.errors import PipelineFailed, translate_spark_errors

from .partitions import DIRECTORY, PartitionField
from .sorting import Layout
from .table import Conflict, LakeTable, Place, WriterState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_COMMITS = 10
_PAUSE_S = 0.2
# About how much an upsert writes to one file.
_FILE_BYTES = 128 << 20
_FILE_ROWS = 1_000_000
# How much is merged at a time.
_MERGED_BYTES = 8 << 30
_TIMESTAMPS, _MICROS = "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"
_FILE = "__file"
_ROW = "__row"
_COUNT = "__count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upsert:
    """How rows replace others: by key columns, the last by `order`; `deleted` is true for tombstones.

    Without `order` a batch must have only one row for each key. Both columns are not stored.
    """

    key: Sequence[str]
    order: str | None = None
    deleted: str | None = None

    @property
    def control(self) -> list[str]:
        return [name for name in (self.order, self.deleted) if name is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWriter:
    """Writes batches. Has plain values only: with Spark Connect it is called on the server."""

    place: Place
    pipeline: str
    checkpoint: str
    layout: Layout
    upsert: Upsert | None = None

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        """Write a batch unless the table has it."""
        # Spark's default has no statistics, which partitions need. The session is that of the query.
        frame.sparkSession.conf.set(_TIMESTAMPS, _MICROS)
        with translate_spark_errors():
            if self.upsert is None:
                self._append(frame, batch)
                return
            storable = self.place.open(self.pipeline).storable(frame)
            latest = latest_rows(storable, self.upsert).persist()
            try:
                self._upsert(latest, batch, self.upsert)
            finally:
                latest.unpersist()

    def _open(self, batch: int) -> tuple[LakeTable[Any], WriterState, bool]:
        """Return the table, its state, and whether it has the batch."""
        table = self.place.open(self.pipeline)
        state = table.state()
        if state is None or state.checkpoint != self.checkpoint:
            raise PipelineFailed(f"table {self.place.name} was replaced while the pipeline ran")
        return table, state, state.batch >= batch

    def _append(self, frame: "DataFrame", batch: int) -> None:
        table, state, is_done = self._open(batch)
        if is_done:
            table.discard_other_attempts(state)
            return
        attempt = table.next_attempt(state, batch)
        self._write(table.storable(frame), table, attempt)
        for number in range(_COMMITS):
            try:
                table.commit(attempt)
                break
            except Conflict as conflict:
                table, state, is_done = self._open(batch)
                if is_done and state.attempt == attempt.attempt:
                    break  # the answer was lost
                if is_done:
                    raise PipelineFailed(f"another process wrote batch {batch} to {table.name}") from None
                _pause(number, conflict, table.name)
        table.discard_other_attempts(attempt)

    def _upsert(self, latest: "DataFrame", batch: int, upsert: Upsert) -> None:
        """Replace the files that have rows with the keys of a batch."""
        for number in range(_COMMITS):
            table, state, is_done = self._open(batch)
            if is_done:
                table.discard_other_attempts(state)
                return
            attempt = table.next_attempt(state, batch)
            replaced = files_with_keys(table, latest, upsert.key)
            stored = latest.drop(*upsert.control)
            rows = stored if upsert.deleted is None else stored.where(~_is_deleted(latest, upsert.deleted))
            if replaced:
                kept = read_files(latest.sparkSession, table, replaced)
                others = kept.join(latest.select(*upsert.key), list(upsert.key), "left_anti")
                rows = others.unionByName(rows.to(table.schema()))
            size = sum(file.file_size_in_bytes for file in replaced)
            rows = rows.coalesce(1 + size // _FILE_BYTES + latest.count() // _FILE_ROWS)
            self._write(rows, table, attempt)
            try:
                table.commit(attempt, replaced)
            except Conflict as conflict:
                # The files to replace may be others now.
                _pause(number, conflict, table.name)
            else:
                table.discard_other_attempts(attempt)
                return

    def _write(self, frame: "DataFrame", table: LakeTable[Any], attempt: WriterState) -> None:
        """Write files with the columns and types of the table, which may have more and wider ones."""
        rows = frame.to(table.schema())
        write_files(rows, table.attempt_directory(attempt), table.partitions(), self.layout)


def merge_small_files(
    place: Place, pipeline: str, spark: "SparkSession", step: Compact, layout: Layout
) -> int:
    """Merge small files where a partition has many. Returns how many were merged. Raises Conflict."""
    table = place.open(pipeline)
    state = table.state()
    target = step.target_mb << 20
    small = table.small_files(step.fan_in, target, _MERGED_BYTES)
    if state is None or not small:
        return 0
    partitions = table.partitions()
    rows = read_files(spark, table, small)
    tasks = 1 + sum(file.file_size_in_bytes for file in small) // target
    # Rows of a partition of the table come together, so that it gets one file.
    rows = (
        rows.repartition(tasks, *(field.value(rows) for field in partitions))
        if partitions
        else rows.coalesce(tasks)
    )
    directory = table.merge_directory(state)
    before = spark.conf.get(_TIMESTAMPS)
    spark.conf.set(_TIMESTAMPS, _MICROS)
    try:
        write_files(rows, directory, partitions, layout)
    finally:
        spark.conf.set(_TIMESTAMPS, str(before))
    return _commit_merge(place, pipeline, table, state, directory, small)


def _commit_merge(
    place: Place,
    pipeline: str,
    table: LakeTable[Any],
    state: WriterState,
    directory: str,
    small: Sequence[Any],
) -> int:
    """Replace files by those merged from them, also if others commit meanwhile. Raises Conflict.

    Returns how many were replaced. Merged files that a commit may have added, whose answer was lost, are left
    for some days.
    """
    for number in range(_COMMITS):
        try:
            table.commit_merge(state, directory, small)
        except Conflict:
            if number == _COMMITS - 1:
                raise
        else:
            break
        time.sleep(_PAUSE_S * (number + 1))
        table = place.open(pipeline)
        current = {file.file_path: file for file in table.data_files()}
        if any(path in current for path in table.parquet_files(directory)):
            break  # the answer was lost
        remaining = [current[file.file_path] for file in small if file.file_path in current]
        found = table.state()
        if found is None or len(remaining) < len(small):
            if remaining:
                # Our commit would have removed all of them, and can no longer follow on an older state.
                table.discard_merge(directory)
            return 0
        state, small = found, remaining
    return len(small)


def _pause(number: int, conflict: Conflict, table: str) -> None:
    if number == _COMMITS - 1:
        raise PipelineFailed(
            f"table {table} was changed by others during {_COMMITS} commits in a row: {conflict}"
        )
    time.sleep(_PAUSE_S * (number + 1))


def write_files(
    frame: "DataFrame", directory: str, partitions: Sequence[PartitionField], layout: Layout
) -> None:
    """Write Parquet files, each with rows of one partition, sorted."""
    names = []
    for number, field in enumerate(partitions):
        names.append(f"{DIRECTORY}{number}")
        frame = frame.withColumn(names[-1], field.value(frame))
    if layout.sort_by:
        # Spark sorts rows by partition if they are not, and would not keep the order.
        frame = frame.sortWithinPartitions(*names, *(each.order() for each in layout.sort_by))
    writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "static")
    compression = "uncompressed" if layout.compression == "none" else layout.compression
    writer = writer.option("compression", compression)
    (writer.partitionBy(*names) if names else writer).parquet(spark_path(directory))


def _is_deleted(rows: "DataFrame", column: str) -> "Column":
    """Return whether rows are tombstones. A null, as outer joins make them, is none."""
    from pyspark.sql import functions as f

    return f.coalesce(rows[column], f.lit(False))


def latest_rows(frame: "DataFrame", upsert: Upsert) -> "DataFrame":
    """Return the last row for each key of a batch. The query fails for keys or orders with nulls, or without
    an order if a key has several rows."""
    from pyspark.sql import functions as f

    key = [f.col(f"`{name}`") for name in upsert.key]
    words = " and ".join(upsert.key)
    kinds = {field.name: field.dataType for field in frame.schema.fields}

    def failing(message: "Column", name: str) -> "Column":
        return f.raise_error(message).cast(kinds[name])

    for name in upsert.key:
        position = f.lit("")
        if {"topic", "partition", "offset"} <= set(frame.columns):
            position = f.format_string(
                " (%s-%d at offset %d)", f.col("topic"), f.col("partition"), f.col("offset")
            )
        said = f.concat(
            f.lit(f"mode = 'upsert' needs a key, and {name} is null in a row"),
            position,
            f.lit("; leave such rows out with a condition"),
        )
        column = f.col(f"`{name}`")
        frame = frame.withColumn(name, f.when(column.isNull(), failing(said, name)).otherwise(column))
    if upsert.order is not None:
        # max_by ignores rows without an order, and a key with no other rows would get a row of nulls.
        said = f.concat(
            f.lit(f"mode = 'upsert' orders rows by {upsert.order}, which is null in a row with the {words} "),
            f.to_json(f.struct(*key)),
            f.lit("; leave such rows out with a condition, or select another order under this name"),
        )
        column = f.col(f"`{upsert.order}`")
        checked = f.when(column.isNull(), failing(said, upsert.order)).otherwise(column)
        frame = frame.withColumn(upsert.order, checked)
    row = f.struct(*(f.col(f"`{name}`") for name in frame.columns))
    chosen = f.first(row) if upsert.order is None else f.max_by(row, f.col(f"`{upsert.order}`"))
    grouped = frame.groupBy(*key).agg(chosen.alias(_ROW), f.count(f.lit(1)).alias(_COUNT))
    if upsert.order is None:
        said = f.concat(
            f.lit(f"a batch has several rows with the same {words}: "),
            f.to_json(f.struct(*key)),
            f.lit("; select _offset, so that the last one counts"),
        )
        first = upsert.key[0]
        checked = f.when(f.col(_COUNT) > 1, failing(said, first)).otherwise(f.col(_ROW).getField(first))
        grouped = grouped.withColumn(_ROW, f.col(_ROW).withField(f"`{first}`", checked))
    return grouped.select(*(f.col(_ROW).getField(name).alias(name) for name in frame.columns))


def read_files(
    spark: "SparkSession", table: LakeTable[Any], files: Sequence[Any], path: str | None = None
) -> "DataFrame":
    """Read data files of a table by its column names; columns that a file lacks are null.

    With `path`, a column of this name has the file of a row.
    """
    from pyspark.sql import functions as f

    schema = table.schema()
    groups: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for file in files:
        constants = tuple(table.constants(file).items())
        groups.setdefault(constants, []).append(spark_path(file.file_path))
    frames = []
    for constants, paths in groups.items():
        rows = spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)
        if path is not None:
            rows = rows.withColumn(path, rows["_metadata.file_path"])
        for name, value in constants:
            rows = rows.withColumn(name, f.lit(value).cast(schema[name].dataType))
        frames.append(rows)
    return reduce(lambda one, other: one.unionAll(other), frames)


def files_with_keys(table: LakeTable[Any], rows: "DataFrame", key: Sequence[str]) -> list[Any]:
    """Return the data files that have a row with one of these keys."""
    files = table.data_files()
    if not files:
        return []
    stored = read_files(rows.sparkSession, table, files, _FILE)
    found = (
        stored.select(*key, _FILE)
        .join(rows.select(*key).distinct(), list(key), "left_semi")
        .select(_FILE)
        .distinct()
        .collect()
    )
    by_path = {_bare(file.file_path): file for file in files}
    # Spark gives paths as URIs.
    return [by_path[_bare(unquote(row[0]))] for row in found]


def spark_path(location: str) -> str:
    """Return a location as Spark's file systems know it."""
    return f"s3a{location[2:]}" if location.startswith("s3://") else location


def _bare(location: str) -> str:
    """Return a location without its scheme, of which there are several spellings."""
    scheme, separator, rest = location.partition(":")
    return rest.lstrip("/") if separator and "/" not in scheme else location.lstrip("/")
