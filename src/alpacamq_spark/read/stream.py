"""Streaming reads: which offsets each micro-batch covers, and what operators see of the progress.

Lives on the driver, in a process of its own for as long as the query runs. Spark keeps the
position of a query in its checkpoint; what is published to a consumer group is for people.
"""

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from alpacamq.client.errors import ErrorCode, Refused, Unreachable
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Extent, commit_offsets, extents
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.errors import DataLost, InvalidOption
from alpacamq_spark.options import ReadOptions
from alpacamq_spark.retry import FIRST_CONTACT_S, PATIENCE_S, persistently

from .offset_json import Json, from_json, to_json
from .ranges import OffsetRange, Offsets, between, limited, split
from .reader import read_range
from .schema import wanted_columns

_TAKEN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH})


class Progress:
    """Commits what was reached when it has changed."""

    def __init__(self, group_id: str | None) -> None:
        self._group_id = group_id
        self._published: dict[TopicPartition, int] = {}

    def publish(self, cluster: Cluster, reached: Offsets) -> None:
        """Make known that everything before these offsets is processed."""
        if self._group_id is None:
            return
        changed = {each: offset for each, offset in reached.items() if self._published.get(each) != offset}
        if not changed:
            return
        try:
            commit_offsets(cluster, self._group_id, changed)
        except Unreachable:
            return
        except Refused as refused:
            if refused.code in _TAKEN:
                raise InvalidOption(
                    f"groupId={self._group_id!r} belongs to a consumer group with members; "
                    "give the query a group of its own"
                ) from refused
            return
        self._published.update(changed)


# Goes to the standard error of Spark's driver.
log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """What readers for every version of Spark have in common."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._columns = wanted_columns(schema)
        self._progress = Progress(options.group_id)
        # Opened when first asked: Spark sends copies of this object to tasks.
        self._opened: Cluster | None = None
        self._has_met_broker = False

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = Cluster(*self.options.servers)
        return self._opened

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        there = self.extents()
        return to_json(self.options.starting.resolve(self._cluster, there))

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        self.publish(start)
        ranges = between(from_json(start), from_json(end))
        options = self.options
        return split(ranges, at_least=options.min_partitions, at_most=options.max_records_per_partition)

    def read(self, partition: OffsetRange) -> Iterator[pa.RecordBatch]:
        return read_range(
            self.options.servers,
            partition,
            self._columns,
            self.options.isolation,
            fail_on_data_loss=self.options.fail_on_data_loss,
        )

    def commit(self, end: Json) -> None:
        self.publish(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def publish(self, reached: Json) -> None:
        self._progress.publish(self._cluster, from_json(reached))

    def extents(self) -> dict[TopicPartition, Extent]:
        subscription, isolation = self.options.subscription, self.options.isolation
        there = persistently(
            lambda: extents(self._cluster, subscription.partitions(self._cluster), isolation),
            PATIENCE_S if self._has_met_broker else FIRST_CONTACT_S,
        )
        self._has_met_broker = True
        return there

    def ends(self, start: Offsets) -> dict[TopicPartition, int]:
        """How far each partition goes; one that has become shorter than `start` goes back to its end."""
        there = self.extents()
        gone = sorted(set(start) - there.keys())
        if gone and self.options.fail_on_data_loss:
            raise DataLost(
                f"{', '.join(f'{each} was read to {start[each]} and' for each in gone)} is no more; "
                "failOnDataLoss=false goes on without it"
            )
        for partition, extent in there.items():
            if extent.end < start.get(partition, 0):
                # Not from where it begins: a log that lost its end would be read twice.
                words = (
                    f"{partition} was read to {start[partition]} and now ends at {extent.end}: the topic was "
                    f"made anew or lost its end. What it holds before {extent.end} may not have been read"
                )
                if self.options.fail_on_data_loss:
                    raise DataLost(f"{words}; failOnDataLoss=false goes on from there")
                log.warning("%s; going on from there", words)
        return {each: extent.end for each, extent in there.items()}


class PlainStreamReader(StreamReader):
    """For Spark 4.0 and 4.1, which do not say where a batch begins.

    What the last batch of this run ended at is remembered, and no batch ends before it. The
    first batch of a run is not limited: where it begins is in Spark's checkpoint, and an end
    before that would have Spark go back and read records again. Nor would Trigger.AvailableNow,
    which is one batch there, come to the end.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planned: dict[TopicPartition, int] | None = None

    def latestOffset(self) -> Json:  # noqa: N802 - Spark's name
        end = self.ends(self._planned or {})
        if self._planned is not None and self.options.max_offsets_per_trigger is not None:
            end = limited(self._planned, end, self.options.max_offsets_per_trigger)
        self._planned = end
        return to_json(end)
