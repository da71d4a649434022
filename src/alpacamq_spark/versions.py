"""Chooses the readers and writers that the installed version of Spark has base classes for."""

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from .options import ReadOptions, WriteOptions
from .read.batch import BatchReader
from .read.stream import PlainStreamReader
from .write.writer import StreamWriter


def batch_reader(options: ReadOptions, schema: StructType) -> BatchReader:
    """The reader that this version of Spark makes the most of.

    Spark 4.1 to 4.3 reads a frame that was read with a filter once with that filter again, whatever
    the next query wants of it. Versions that keep them apart are known by what came with that.
    """
    if not options.push_filters and not hasattr(DataSourceReader, "pushLimit"):
        return BatchReader(options, schema)
    try:
        from .read.pushdown import FilteringReader
    except ImportError:  # before Spark 4.1
        return BatchReader(options, schema)
    return FilteringReader(options, schema)


def stream_reader(options: ReadOptions, schema: StructType) -> DataSourceStreamReader:
    """The reader that this version of Spark makes the most of."""
    try:
        from .read.admission import AdmittingStreamReader
    except ImportError:  # before Spark 4.2
        return PlainStreamReader(options, schema)
    return AdmittingStreamReader(options, schema)


def stream_writer(options: WriteOptions, schema: StructType, *, overwrite: bool) -> StreamWriter:
    """The writer that this version of Spark makes the most of."""
    try:
        from .write.arrow_stream import ArrowStreamWriter
    except ImportError:  # before Spark 4.1
        return StreamWriter(options, schema, overwrite=overwrite)
    return ArrowStreamWriter(options, schema, overwrite=overwrite)
