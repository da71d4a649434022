"""SQL queries over an archive, as a table and each of its topics as one, or over a table of the lakehouse."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from alpacamq_spark.pipelines.checkpoint import local_checkpoint
from alpacamq_spark.pipelines.definition import Archive, Tables, Transform
from alpacamq_spark.pipelines.errors import InvalidPipeline, translate_spark_errors
from alpacamq_spark.pipelines.run import Plain, Report, Section
from alpacamq_spark.pipelines.sessions import session_for
from alpacamq_spark.pipelines.sources import reach
from alpacamq_spark.pipelines.storage import local_path
from alpacamq_spark.pipelines.tables.pipeline import iceberg_place, read_table, table_place
from alpacamq_spark.pipelines.tables.topic_settings import enabled_tables

from .table import DATA, ArchiveTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from alpacamq_spark.pipelines.pipeline import Pipeline

TABLE = "archive"
# More rows belong in files, not on a terminal.
MAX_ROWS = 10_000


def query_sink(pipeline: "Pipeline", query: str, *, spark: "SparkSession | None" = None) -> Report:
    """Run a query over a pipeline's archive or table. Without `spark`, creates a session."""
    define = _definer(pipeline)
    if spark is not None:
        return _run_query(define, spark, query)
    definition = pipeline.definition
    checkpoint = local_checkpoint(pipeline.checkpoint_place)
    log = None if checkpoint is None or definition.spark.remote else checkpoint.log
    with translate_spark_errors(), session_for(pipeline.name, pipeline.spark, log) as session:
        return _run_query(define, session, query)


def _definer(pipeline: "Pipeline") -> "Callable[[SparkSession], None]":
    """Return what defines the tables of a query. Fails before Spark starts, which is slow, if it can."""
    definition = pipeline.definition
    if isinstance(definition, Archive | Transform) and definition.sink.is_table:
        place = table_place(definition.catalog, definition.sink, pipeline.place)
        table = place.open(pipeline.name)
        return lambda spark: read_table(table, spark).createOrReplaceTempView(f"`{place.view}`")
    if isinstance(definition, Tables):
        return _topic_tables(pipeline, definition)
    if not isinstance(definition, Archive):
        raise InvalidPipeline(
            f"{pipeline.name} is a pipeline of kind {definition.kind} and has no archive or table"
        )
    assert definition.sink.path is not None
    archive = pipeline.place(definition.sink.path)
    if local_path(archive) is not None:
        ArchiveTable(archive, None).owner()
    return lambda spark: define_tables(ArchiveTable(archive, spark), spark)


def _topic_tables(pipeline: "Pipeline", definition: Tables) -> "Callable[[SparkSession], None]":
    """Return what defines the tables of all topics that have one, each by its name and its topic's."""
    with reach(pipeline.broker, pipeline.access) as cluster:
        enabled = enabled_tables(cluster, definition.namespace)
    places = {each.topic: iceberg_place(definition.catalog, each.sink, pipeline.place) for each in enabled}
    from alpacamq_spark.pipelines.tables.iceberg import table_exists

    tables = {topic: place.open(pipeline.name) for topic, place in places.items() if table_exists(place)}

    def define(spark: "SparkSession") -> None:
        for topic, table in tables.items():
            rows = read_table(table, spark)
            for name in (topic, table.name.rpartition(".")[2]):
                rows.createOrReplaceTempView(f"`{name}`")

    return define


def define_tables(table: ArchiveTable, spark: "SparkSession") -> None:
    """Define the archive and its topics as tables for SQL.

    A topic has the fields of its values as columns if the archive has decoded them, and key and value as
    text. Columns of the archive that have the name of a field begin with an underscore.
    """
    rows = table.read(spark)
    rows.createOrReplaceTempView(TABLE)
    for (topic,) in rows.select("topic").distinct().collect():
        _topic_rows(rows, topic).createOrReplaceTempView(f"`{topic}`")


def _topic_rows(rows: "DataFrame", topic: str) -> "DataFrame":
    from pyspark.sql import functions as f

    fields = rows.schema[DATA].dataType.fieldNames() if DATA in rows.columns else []
    taken = {name.lower() for name in fields}

    def named(name: str) -> str:
        # Fields of values keep their names.
        return f"_{name}" if name in taken else name

    own = [
        f.col(name).alias(named(name)) for name in rows.columns if name not in ("key", "value", "topic", DATA)
    ]
    decoded = [f.col(DATA).getField(name).alias(name) for name in fields]
    text = [f.col(name).cast("string").alias(named(name)) for name in ("key", "value")]
    return rows.where(f.col("topic") == topic).select(*text, *own, *decoded)


def _run_query(define: "Callable[[SparkSession], None]", spark: "SparkSession", query: str) -> Report:
    with translate_spark_errors():
        define(spark)
        result = spark.sql(query)
        rows = result.limit(MAX_ROWS + 1).collect()
    cells = [[_plain(value) for value in row] for row in rows[:MAX_ROWS]]
    data: list[Plain] = [dict(zip(result.columns, row, strict=True)) for row in cells]
    notes = [f"only the first {MAX_ROWS} rows are shown"] if len(rows) > MAX_ROWS else []
    return Report(data={"rows": data}, sections=[Section(result.columns, cells)], notes=notes)


def _plain(value: Any) -> Plain:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return bytes(value).decode(errors="backslashreplace")
        case dict():
            return {str(key): _plain(each) for key, each in value.items()}
        case _ if hasattr(value, "asDict"):
            return {key: _plain(each) for key, each in value.asDict().items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return str(value)
