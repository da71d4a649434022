"""Streaming reads: plans the offsets of each micro-batch and publishes progress.

Runs on the driver, in its own process for as long as the query runs. Spark keeps the position of a
query in its checkpoint; offsets committed to a consumer group are only for monitoring.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from alpacamq.client.errors import ErrorCode, Refused, Unreachable
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Extent, Isolation, commit_offsets, ends, extents
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.errors import DataLost, InvalidOption
from alpacamq_spark.options import DECODED, ReadOptions, warn_of_ignored
from alpacamq_spark.retry import FIRST_CONTACT_TIMEOUT_S, RETRY_TIMEOUT_S, retry

from .decoded import read_decoding
from .positions import Json, Offsets, from_json, to_json
from .ranges import OffsetRange, between, limited, split
from .reader import read_range
from .schema import wanted_columns

T = TypeVar("T")

_TAKEN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH})


class OffsetCommitter:
    """Commits offsets to a consumer group when they have changed."""

    def __init__(self, group_id: str | None) -> None:
        self._group_id = group_id
        self._published: dict[TopicPartition, int] = {}

    def publish(self, cluster: Cluster, reached: Offsets) -> None:
        """Commit that everything before these offsets is processed."""
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


# Written to the standard error of Spark's driver.
log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Base of the readers for all versions of Spark."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._columns = wanted_columns(schema, [DECODED[part] for part in options.decode])
        self._decoding = read_decoding(options, schema)
        self._committer = OffsetCommitter(options.group_id)
        # Opened on first use: Spark sends copies of this object to tasks.
        self._opened: Cluster | None = None
        self._has_met_broker = False
        # When the last batch was allowed; None before the first.
        self._triggered_at: float | None = None

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = self.options.connect()
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
            login=self.options.login,
            tls=self.options.tls,
            decoding=self._decoding,
        )

    def commit(self, end: Json) -> None:
        self.publish(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def publish(self, reached: Json) -> None:
        self._committer.publish(self._cluster, from_json(reached))

    def extents(self) -> dict[TopicPartition, Extent]:
        """Return start and end of all partitions."""
        return self._asked(extents)

    def latest(self) -> dict[TopicPartition, int]:
        """Return the end of all partitions."""
        return self._asked(ends)

    def _asked(
        self, ask: Callable[[Cluster, list[TopicPartition], Isolation], dict[TopicPartition, T]]
    ) -> dict[TopicPartition, T]:
        subscription, isolation = self.options.subscription, self.options.isolation
        if not self._has_met_broker:
            warn_of_ignored(self.options.ignored)
        there = retry(
            lambda: ask(self._cluster, subscription.partitions(self._cluster), isolation),
            RETRY_TIMEOUT_S if self._has_met_broker else FIRST_CONTACT_TIMEOUT_S,
        )
        self._has_met_broker = True
        return there

    def ends(self, start: Offsets) -> dict[TopicPartition, int]:
        """Return the end of each partition, which may be before `start` if data was lost."""
        there = self.latest()
        self.check_loss(start, there)
        return there

    def check_loss(self, start: Offsets, end: Offsets) -> None:
        """Compare two positions. Raises DataLost if the second has less; warns with failOnDataLoss=false."""
        gone = sorted(set(start) - set(end))
        if gone:
            deleted = ", ".join(f"{each} (read to {start[each]})" for each in gone)
            words = f"partitions were deleted: {deleted}"
            if self.options.fail_on_data_loss:
                raise DataLost(f"{words}; set failOnDataLoss=false to skip them")
            log.warning("%s; continuing without them", words)
        for partition, until in end.items():
            if until < start.get(partition, 0):
                # Not from the beginning: a log that lost its end would be read twice.
                words = (
                    f"{partition} was read to {start[partition]} and now ends at {until}: the topic was "
                    f"recreated or lost its end. Records before {until} may not have been read"
                )
                if self.options.fail_on_data_loss:
                    raise DataLost(f"{words}; set failOnDataLoss=false to continue there")
                log.warning("%s; continuing there", words)

    def must_wait(self, start: Offsets, end: Offsets) -> bool:
        """Return whether a batch has to wait for more records; the first of a run does not, as in Spark."""
        least, now = self.options.min_offsets_per_trigger, time.monotonic()
        if (
            least is not None
            and self._triggered_at is not None
            and now - self._triggered_at < self.options.max_trigger_delay_s
            and sum(map(len, between(start, end))) < least
            and all(at >= start.get(each, 0) for each, at in end.items())
        ):
            return True
        self._triggered_at = now
        return False


class PlainStreamReader(StreamReader):
    """Reader for Spark 4.0 and 4.1, which do not pass the start of a batch.

    Keeps the end of the last batch of this run, and no batch ends before it. The first batch of a run is
    not limited: its start is in Spark's checkpoint, and an end before it would make Spark go back and
    read records again. A limit would also keep Trigger.AvailableNow, one batch there, from the end.
    For the same reason a loss before a restart is found when the first batch is planned.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planned: dict[TopicPartition, int] | None = None
        self._initial: Json | None = None

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        there = self.extents()
        if (planned := self._planned) is not None:
            # Spark asks for the end of the first batch before; "latest" is that end, not a later one.
            there = {
                each: Extent(extent.start, min(extent.end, planned[each]))
                for each, extent in there.items()
                if each in planned
            }
        self._initial = to_json(self.options.starting.resolve(self._cluster, there))
        return self._initial

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begin, until = from_json(start), from_json(end)
        if start == self._initial:
            # Nothing was read: partitions that a first batch lacks were added after it was planned.
            begin = {each: offset for each, offset in begin.items() if each in until}
        self.check_loss(begin, until)
        return super().partitions(start, end)

    def latestOffset(self) -> Json:  # noqa: N802 - Spark's name
        end = self.ends(self._planned or {})
        if self.must_wait(self._planned or {}, end) and self._planned is not None:
            return to_json(self._planned)
        if self._planned is not None and self.options.max_offsets_per_trigger is not None:
            end = limited(self._planned, end, self.options.max_offsets_per_trigger)
        self._planned = end
        return to_json(end)
