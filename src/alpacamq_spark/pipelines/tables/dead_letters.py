"""Dead letters in an Iceberg table: malformed records as they are, with the reason and their position."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from alpacamq_spark.pipelines.beginnings import dead_letters_beginning
from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.definition import CatalogSettings, TableSink
from alpacamq_spark.pipelines.malformed import malformed_parts
from alpacamq_spark.pipelines.registry import RegistryColumns
from alpacamq_spark.pipelines.run import PipelineRun
from alpacamq_spark.pipelines.sources import Topics, read_stream
from alpacamq_spark.pipelines.timestamps import parse_duration
from alpacamq_spark.pipelines.values import decoded

from .pipeline import KEEP, claim_table, iceberg_place
from .sorting import Layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming import DataStreamWriter
    from pyspark.sql.types import StructType

    from .writer import BatchWriter

# The query for dead letters and its checkpoint, or the beginning of their names.
DEAD_LETTER_TABLE = "dead-letter-table"
_PARTITION_BY = ("topic", "day(timestamp)")
_CLEAN_EVERY = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterWriter:
    """Writes batches of dead letters, and expires old snapshots now and then. Has plain values only."""

    write: "BatchWriter"

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        self.write(frame, batch)
        if batch % _CLEAN_EVERY == _CLEAN_EVERY - 1:
            from .table import Conflict

            keep = timedelta(milliseconds=parse_duration(KEEP))
            with suppress(Conflict):  # another writer was faster; the next time will do
                self.write.place.open(self.write.pipeline).clean(keep, datetime.now(UTC))


def malformed_reason(columns: RegistryColumns | None, json: "Column | None") -> "Column":
    """Return why a record is malformed, or null; `json` is what `decoded` makes of its value."""
    from pyspark.sql import functions as f

    reasons = [
        f.when(is_malformed, f.lit(f"malformed: the {part} {why}"))
        for part, is_malformed, why in malformed_parts(columns, json)
    ]
    return f.coalesce(*reasons)


def dead_letter_rows(malformed: "DataFrame", reason: "Column", group: str) -> "DataFrame":
    """Return the rows of malformed records, which have the columns of the connector."""
    from pyspark.sql import functions as f

    return malformed.select(
        reason.alias("reason"),
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        f.lit(group).alias("group"),
        f.current_timestamp().alias("dead_lettered_at"),
    )


def dead_letter_writer(
    run: PipelineRun, rows: "DataFrame", table: str, catalog: CatalogSettings | None, beside: str
) -> "DataStreamWriter":
    """Return the query `beside` the pipeline's own that adds dead letters to a table, each once."""
    from .writer import BatchWriter

    sink = TableSink(format="iceberg", table=table)
    place = iceberg_place(catalog, sink, run.place)
    name = f"{run.name}-{beside}"
    checkpoint = Checkpoint(run.checkpoint.place, run.spark, beside)
    layout = Layout(compression=sink.codec)
    of_letters = replace(run, name=name, checkpoint=checkpoint)
    claim_table(of_letters, place, rows.schema, sink, layout, _PARTITION_BY)
    write = BatchWriter(place=place, pipeline=name, checkpoint=checkpoint.identity(), layout=layout)
    return rows.writeStream.foreachBatch(DeadLetterWriter(write=write))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCopies:
    """Copies of records whose values or keys cannot be decoded, beside a sink that has all records.

    What can be decoded depends on the registry, which may change between the two queries, and no record may
    be in neither.
    """

    source: Topics
    start: str
    options: Mapping[str, str]
    # How values and keys are decoded: by the registry, or values as JSON.
    columns: RegistryColumns | None
    data: "StructType | None" = None
    # The records that the pipeline has, of all.
    kept: "Callable[[DataFrame], DataFrame]" = lambda frame: frame

    def writers(
        self, run: PipelineRun, table: str, catalog: CatalogSettings | None
    ) -> "dict[str, DataStreamWriter]":
        """Return the query that writes them, by its name."""
        from pyspark.sql import functions as f

        query = DEAD_LETTER_TABLE
        begin = dead_letters_beginning(run, query, self.source, self.start)
        own = {**begin, "groupId": f"{run.group}-{query}"}
        records = self.kept(read_stream(run, self.source, {**self.options, **own}, self.columns))
        json = None if self.data is None else decoded(f.col("value"), self.data)
        reason = malformed_reason(self.columns, json)
        rows = dead_letter_rows(records.where(reason.isNotNull()), reason, run.group)
        return {query: dead_letter_writer(run, rows, table, catalog, query)}
