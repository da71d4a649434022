"""Dead letters in an Iceberg table: malformed records as they are, with the reason and their position."""

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from alpacamq_spark.pipelines.checkpoint import Checkpoint
from alpacamq_spark.pipelines.definition import CatalogSettings, TableSink
from alpacamq_spark.pipelines.run import PipelineRun
from alpacamq_spark.pipelines.timestamps import parse_duration

from .pipeline import KEEP, claim_table, iceberg_place
from .sorting import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

    from .writer import BatchWriter

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


def dead_letter_rows(malformed: "DataFrame", reason: str, group: str) -> "DataFrame":
    """Return the rows of malformed records, which have the columns of the connector."""
    from pyspark.sql import functions as f

    return malformed.select(
        f.lit(reason).alias("reason"),
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
    layout = Layout(compression=sink.compression)
    of_letters = replace(run, name=name, checkpoint=checkpoint)
    claim_table(of_letters, place, rows.schema, sink, layout, _PARTITION_BY)
    write = BatchWriter(place=place, pipeline=name, checkpoint=checkpoint.identity(), layout=layout)
    return rows.writeStream.foreachBatch(DeadLetterWriter(write=write))
