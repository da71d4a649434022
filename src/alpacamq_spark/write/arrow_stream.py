"""The streaming writer for Spark 4.1 and later, which passes rows as Arrow batches."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from .staging import StagedWrite
from .writer import StreamWriter


class ArrowStreamWriter(StreamWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes micro-batches without an object per row."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedWrite:
        return self.stage(iterator)
