"""The streaming writer on Spark 4.1 and later, which hands over rows as Arrow batches."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from .staging import StagedWrite
from .writer import StreamWriter


class ArrowStreamWriter(StreamWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Micro-batches without an object for each row."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedWrite:
        return self.stage(iterator)
