"""A stretch of an archive or of topics as a data frame: what replays write and analytics count."""

from typing import TYPE_CHECKING, Protocol

from .archive.table import read_archive
from .run import Run
from .sources import Topics, read_topics
from .timestamps import format_timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class StretchSource(Topics, Protocol):
    """Topics, or those of an archive."""

    @property
    def archive(self) -> str | None: ...


def whole(run: Run, source: StretchSource) -> "DataFrame":
    """Everything there is of the source."""
    from pyspark.sql import functions as f

    if source.archive is None:
        return read_topics(run, source)
    frame = read_archive(run.spark, run.place(source.archive))
    if source.topics:
        frame = frame.where(f.col("topic").isin(*source.topics))
    if source.pattern is not None:
        frame = frame.where(f.col("topic").rlike(f"^(?:{source.pattern})$"))
    return frame


def between(
    frame: "DataFrame", source: StretchSource, begin_ms: int | None, end_ms: int | None
) -> "DataFrame":
    """The records from one time to before another, whatever order they are in."""
    from pyspark.sql import functions as f

    if begin_ms is not None:
        frame = frame.where(f.col("timestamp") >= f.timestamp_millis(f.lit(begin_ms)))
    if end_ms is not None:
        frame = frame.where(f.col("timestamp") < f.timestamp_millis(f.lit(end_ms)))
    if source.archive is not None:
        # The same in terms of directories, so that most of them are not even looked into.
        if begin_ms is not None:
            frame = frame.where(f.col("date") >= f.lit(format_timestamp(begin_ms)[:10]).cast("date"))
        if end_ms is not None:
            frame = frame.where(f.col("date") <= f.lit(format_timestamp(end_ms)[:10]).cast("date"))
    return frame
