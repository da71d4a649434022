"""The data source named `alpacamq`: what Spark asks first, handed on to readers and writers.

Light to import, as Spark does so to see what is there: the rest is loaded when it is used.
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
    """`spark.read.format("alpacamq")` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        return "alpacamq"

    def schema(self) -> "StructType":
        from .options import ReadMode, read_options
        from .read.schema import source_schema

        # Batch and stream accept the same options but for the end, which does not matter here.
        return source_schema(include_headers=read_options(self.options, ReadMode.BATCH).include_headers)

    def reader(self, schema: "StructType") -> "DataSourceReader":
        from .options import ReadMode, read_options
        from .versions import batch_reader

        return batch_reader(read_options(self.options, ReadMode.BATCH), schema)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802 - Spark's name
        from .options import ReadMode, read_options
        from .versions import stream_reader

        return stream_reader(read_options(self.options, ReadMode.STREAM), schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        from .options import write_options
        from .write.writer import BatchWriter, check_reachable

        options = write_options(self.options)
        check_reachable(options)
        return BatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        from .options import write_options
        from .versions import stream_writer

        return stream_writer(write_options(self.options), schema, overwrite=overwrite)
