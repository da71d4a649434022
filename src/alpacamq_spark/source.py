"""The Spark data source `alpacamq`; chooses readers and writers for the installed version of Spark.

Light to import, because Spark imports it to discover data sources: the rest is loaded on use.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class AlpacaSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("alpacamq")`, and the same for readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "alpacamq"

    def schema(self) -> "StructType":
        from .options import ReadMode, read_options
        from .read.decoded import decoded_types
        from .read.schema import source_schema

        # Batch and stream options differ only in the end, which does not matter here.
        options = read_options(self.options, ReadMode.BATCH)
        return source_schema(include_headers=options.include_headers, decoded=decoded_types(options))

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from .options import ReadMode, read_options
        from .read.batch import BatchReader

        # Without `pushFilters`: Spark 4.1 to 4.3 keeps the pushed filters and the plan of a read with its
        # frame, not with the query, so that another use of the frame reads the wrong rows.
        return BatchReader(read_options(self.options, ReadMode.BATCH), schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802 - Spark's name
        from .options import ReadMode, read_options
        from .read.stream import PlainStreamReader

        options = read_options(self.options, ReadMode.STREAM)
        try:
            from .read.admission import AdmittingStreamReader
        except ImportError:  # before Spark 4.2
            return PlainStreamReader(options, schema)
        return AdmittingStreamReader(options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from .options import warn_of_ignored, write_options
        from .write.writer import BatchWriter, check_reachable

        options = write_options(self.options)
        warn_of_ignored(options.ignored)
        check_reachable(options)
        return BatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        from .options import warn_of_ignored, write_options
        from .worker import skip_modules_in_collections
        from .write.writer import StreamWriter

        # Spark asks for the writer in every micro-batch.
        skip_modules_in_collections()
        options = write_options(self.options)
        warn_of_ignored(options.ignored)
        try:
            from .write.arrow_stream import ArrowStreamWriter
        except ImportError:  # before Spark 4.1
            return StreamWriter(options, schema, overwrite=overwrite)
        return ArrowStreamWriter(options, schema, overwrite=overwrite)
