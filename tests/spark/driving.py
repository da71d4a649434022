"""Reads without Spark: the calls it would make, in its order, on the objects it would make them on."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict

from alpacamq_spark.source import AlpacaSource
from tests.brokers import Broker

try:
    import alpacamq_spark.read.admission
except ImportError:
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = alpacamq_spark.read.admission is not None


def source(broker: Broker, **options: Any) -> AlpacaSource:
    """The data source with options; two underscores stand for a dot."""
    named = {name.replace("__", "."): str(value) for name, value in options.items()}
    return AlpacaSource(CaseInsensitiveDict({"kafka.bootstrap.servers": broker.address, **named}))


def plan(broker: Broker, **options: Any) -> tuple[Any, list[Any]]:
    """The reader of a batch read, and the ranges it plans."""
    loaded = source(broker, **options)
    reader = loaded.reader(loaded.schema())
    return reader, list(reader.partitions())


def read(broker: Broker, **options: Any) -> pa.Table:
    """Everything a batch read brings."""
    reader, ranges = plan(broker, **options)
    return _table(batch for each in ranges for batch in reader.read(each))


def values(table: pa.Table) -> list[str]:
    if not table.num_rows:
        return []
    return sorted((value or b"").decode() for value in table.column("value").to_pylist())


class Stream:
    """A streaming query's driver: batch after batch, from a position it may have stored."""

    def __init__(self, broker: Broker, position: Any = None, **options: Any) -> None:
        loaded = source(broker, **{"startingOffsets": "earliest", **options})
        self.reader = loaded.streamReader(loaded.schema())
        self.position = self.reader.initialOffset() if position is None else position

    def batch(self) -> pa.Table:
        """The next micro-batch."""
        if HAS_ADMISSION_CONTROL:
            end = self.reader.latestOffset(self.position, self.reader.getDefaultReadLimit())
        else:
            end = self.reader.latestOffset()
        ranges = self.reader.partitions(self.position, end)
        self.position = end
        return _table(batch for each in ranges for batch in self.reader.read(each))

    def stop(self) -> None:
        self.reader.stop()


def _table(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    found = list(batches)
    return pa.Table.from_batches(found) if found else pa.table({})
