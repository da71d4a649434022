"""Merging the segments of an archive, so that its files become few and large.

Neighbours are read, written as one segment, counted, and only then deleted. Until the new segment is
marked as whole it does not count; from then on those it replaces do not.
"""

from dataclasses import dataclass

from .archive_table import PARTITIONED_BY, ArchiveTable, Compression, write_segment
from .definition import Compact
from .errors import PipelineFailed
from .failures import explained
from .run import Run
from .segments import Segment, merged, merges

_MB = 1 << 20


@dataclass(slots=True)
class Compaction:
    """How an archive is compacted, and how many segments were so far."""

    table: ArchiveTable
    run: Run
    step: Compact
    compression: Compression
    merged: int = 0


def compact(compaction: Compaction) -> int:
    """Merge whatever is worth it; returns how many segments were merged in all."""
    table, step = compaction.table, compaction.step
    _sweep(table)
    while True:
        planned = list(merges(table.weighed(), fan_in=step.fan_in, target_size=step.target_mb * _MB))
        if not planned:
            return compaction.merged
        for segments in planned:
            _merge(compaction, segments)
            compaction.merged += len(segments)


def _merge(compaction: Compaction, segments: list[Segment]) -> None:
    from pyspark.sql import functions as f

    table, spark = compaction.table, compaction.run.spark
    target = merged(segments)
    with explained():
        rows = table.read_segments(spark, segments)
        before = rows.count()
        # Spark makes as many tasks as the amount of data asks for, and puts the rows of an hour together.
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
    compaction.run.teller.say(f"merged {len(segments)} segments of the archive, {after} rows")
    _sweep(table)


def _sweep(table: ArchiveTable) -> None:
    """Delete what a whole segment covers, and merges that were never finished.

    A single batch that is not finished is Spark's to write again.
    """
    counting, rest = table.segments()
    for segment in rest:
        if segment.width > 1 or any(each.covers(segment) for each in counting):
            table.discard(segment)
