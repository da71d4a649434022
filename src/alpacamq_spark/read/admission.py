"""Streaming reads on Spark 4.2 and later, which passes the start and the limit of a batch."""

from typing import TYPE_CHECKING

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from alpacamq_spark.options import ReadOptions

from .positions import Json, from_json, to_json
from .ranges import limited
from .stream import StreamReader

if TYPE_CHECKING:
    from alpacamq.model.ids import TopicPartition


class AdmittingStreamReader(StreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Supports read limits, Trigger.AvailableNow, and the latest offsets in Spark's reports."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Where a query with Trigger.AvailableNow ends.
        self._target: dict[TopicPartition, int] | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self.latest()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 - Spark's name
        self.publish(start)
        begin = from_json(start)
        end = self.ends(begin)
        if self._target is None:
            if self.must_wait(begin, end):
                return start
        else:
            target = self._target
            end = {
                # A partition whose end moved back was recreated: use its end whatever the target was.
                each: at if at < begin.get(each, 0) else max(min(at, target.get(each, 0)), begin.get(each, 0))
                for each, at in end.items()
            }
        if isinstance(limit, ReadMaxRows):
            end = limited(begin, end, limit.max_rows)
        return to_json(end)

    def reportLatestOffset(self) -> Json:  # noqa: N802 - Spark's name
        return to_json(self.latest())
