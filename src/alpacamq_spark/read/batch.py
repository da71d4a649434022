"""Batch reads: a fixed range of offsets for every partition, planned once on the driver."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Extent, extents, offsets_at
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.errors import DataLost, InvalidOption
from alpacamq_spark.options import DECODED, ReadOptions

from .decoded import read_decoding
from .predicates import Predicates
from .ranges import OffsetRange, split
from .reader import read_range
from .schema import wanted_columns


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans offset ranges on the driver, and reads one per task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = wanted_columns(schema, [DECODED[part] for part in options.decode])
        self._decoding = read_decoding(options, schema)
        self.predicates = Predicates()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with options.connect() as cluster:
            there = extents(cluster, options.subscription.partitions(cluster), options.isolation)
            starts = options.starting.resolve(cluster, there)
            ends = options.ending.resolve(cluster, there)
            ranges = [self._range(each, starts[each], ends[each], there[each]) for each in there]
            some = self._narrowed(cluster, [each for each in ranges if each])
        return split(some, at_least=options.min_partitions, at_most=options.max_records_per_partition) or [
            InputPartition(None)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, OffsetRange):
            return iter(())  # Spark plans one task even if there is nothing to read
        return read_range(
            self._options.servers,
            partition,
            self._columns,
            self._options.isolation,
            fail_on_data_loss=self._options.fail_on_data_loss,
            login=self._options.login,
            tls=self._options.tls,
            decoding=self._decoding,
            timestamp_ms=self.predicates.timestamp_ms,
        )

    def _narrowed(self, cluster: Cluster, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Restrict the ranges by the predicates of the query."""
        wanted = self.predicates
        admitted = [each for each in ranges if wanted.admits(each.partition)]
        first: Mapping[TopicPartition, int | None] = {}
        if wanted.timestamp_ms.low > 0:
            # Skip everything before the first record at or after this time. The end cannot be restricted
            # that way, because producers set any timestamps. Nor can times before 1970, which brokers do
            # not search and which records without a timestamp have.
            first = offsets_at(cluster, [each.partition for each in admitted], wanted.timestamp_ms.low)
        narrowed = []
        for each in admitted:
            begin = first.get(each.partition, each.start)
            start = max(each.start, wanted.offset.low, each.end if begin is None else begin)
            end = min(each.end, wanted.offset.high)
            if start < end:
                narrowed.append(OffsetRange(each.partition, start, end))
        return narrowed

    def _range(self, partition: TopicPartition, start: int, end: int, extent: Extent) -> OffsetRange:
        if start < extent.start:
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"startingOffsets requests {partition} from {start}, but its log begins at "
                    f"{extent.start}; failOnDataLoss=false reads what is left"
                )
            start = extent.start
        if max(start, end) > extent.end:
            which = "startingOffsets" if start > extent.end else "endingOffsets"
            raise InvalidOption(
                f"{which} requests {partition} at {max(start, end)}, but its log ends at {extent.end}"
            )
        return OffsetRange(partition, start, max(start, end))
