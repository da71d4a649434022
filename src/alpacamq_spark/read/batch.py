"""Batch reads: a fixed range of offsets for every partition, planned once on the driver."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from alpacamq.client.kafka.offsets import Extent, extents
from alpacamq.model.ids import TopicPartition
from alpacamq_spark.errors import DataLost, InvalidOption
from alpacamq_spark.options import DECODED, ReadOptions, warn_of_ignored

from .decoded import read_decoding
from .ranges import OffsetRange, split
from .reader import read_range
from .schema import wanted_columns


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans offset ranges on the driver, and reads one per task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = wanted_columns(schema, [DECODED[part] for part in options.decode])
        self._decoding = read_decoding(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        warn_of_ignored(options.ignored)
        with options.connect() as cluster:
            there = extents(cluster, options.subscription.partitions(cluster), options.isolation)
            starts = options.starting.resolve(cluster, there)
            ends = options.ending.resolve(cluster, there)
        ranges = [self._range(each, starts[each], ends[each], there[each]) for each in there]
        return split(
            [each for each in ranges if each],
            at_least=options.min_partitions,
            at_most=options.max_records_per_partition,
        ) or [InputPartition(None)]

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
        )

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
