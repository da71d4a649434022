"""The rows of a topic's table: columns by the schema of its values in the registry, or else the bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from alpacamq.registry.framing import Part
from alpacamq_spark.options import DECODED
from alpacamq_spark.pipelines.beginnings import beginning
from alpacamq_spark.pipelines.errors import InvalidPipeline
from alpacamq_spark.pipelines.malformed import counted, not_decoded
from alpacamq_spark.pipelines.registry import RegistryColumns, latest_version, registry_columns
from alpacamq_spark.pipelines.run import PipelineRun
from alpacamq_spark.pipelines.sources import Named, read_stream, stream_options

from .topic_settings import TopicTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from .writer import Upsert

# The columns of every table, beside the fields of the values.
KEY, VALUE, HEADERS = "_key", "_value", "_headers"
TIMESTAMP, PARTITION, OFFSET = "_timestamp", "_partition", "_offset"
RECORD = (KEY, VALUE, HEADERS, TIMESTAMP, PARTITION, OFFSET)
# Of upserts; not stored.
_ORDER, _TOMBSTONE = "_order", "_tombstone"
LABEL = "values"
START = "earliest"


@dataclass(frozen=True, slots=True)
class ByTopic:
    """Decodes values by the subject of their topic, read as its latest version."""

    schema: str | None = None
    decode: Literal["registry"] | None = "registry"
    decode_key: Literal["registry"] | None = None
    subject: str | None = None
    version: int | None = None
    message: str | None = None


BY_TOPIC = ByTopic()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRows:
    """The rows of a topic as a stream, and how they replace others; `schema` is the id of the values'.

    `columns` describes decoded values, if they are.
    """

    frame: "DataFrame"
    upsert: "Upsert | None"
    schema: int | None
    columns: RegistryColumns | None


def topic_rows(
    run: PipelineRun, table: TopicTable, known: "Mapping[str, DataType]", max_records: int | None
) -> TopicRows:
    """Return the rows of a topic; `known` are the columns that its table has. Raises InvalidPipeline."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructField, StructType

    schema = latest_schema(run, table.topic)
    fields = {name: kind for name, kind in known.items() if name not in RECORD}
    columns = None
    if schema is not None or fields:
        before = {Part.VALUE: StructType([StructField(*each) for each in fields.items()])} if fields else {}
        columns = registry_columns(run, (table.topic,), BY_TOPIC, before, follows=True)
    source = Named((table.topic,))
    options = {**topic_options(max_records), **beginning(run, source, START)}
    records = read_stream(run, source, options, columns)
    value: Column = f.col("value")
    names: list[str] = []
    if columns is not None:
        names = _names(columns, table)
        is_malformed = not_decoded(Part.VALUE)
        place = [f.col("topic"), f.col("partition"), f.col("offset")]
        records = counted(records, is_malformed, LABEL, place)
        # Only what has no columns of its own.
        value = f.when(is_malformed, value)
    is_upsert = table.mode == "upsert"
    frame = records.select(
        *(f.col(DECODED[Part.VALUE]).getField(name).alias(name) for name in names),
        f.col("key").alias(KEY),
        value.alias(VALUE),
        f.col("headers").alias(HEADERS),
        f.col("timestamp").alias(TIMESTAMP),
        f.col("partition").alias(PARTITION),
        f.col("offset").alias(OFFSET),
        *([f.col("offset").alias(_ORDER), f.col("value").isNull().alias(_TOMBSTONE)] if is_upsert else []),
    )
    upsert = None
    if is_upsert:
        from .writer import Upsert

        upsert = Upsert(key=table.key or (KEY,), order=_ORDER, deleted=_TOMBSTONE)
        frame = _with_keys(frame, table, names)
    return TopicRows(frame=frame, upsert=upsert, schema=schema, columns=columns)


def topic_options(max_records: int | None) -> dict[str, str]:
    """Return the options with which a topic is read."""
    return stream_options(max_records=max_records, on_data_loss="fail")


def latest_schema(run: PipelineRun, topic: str) -> int | None:
    """Return the id of the latest schema of a topic's values; None if its subject has none."""
    version = latest_version(run, f"{topic}-{Part.VALUE}")
    return None if version is None else version.id


def _names(columns: RegistryColumns, table: TopicTable) -> list[str]:
    names: list[str] = columns.types[Part.VALUE].fieldNames()
    reserved = {*RECORD, _ORDER, _TOMBSTONE}
    if taken := [name for name in names if name.lower() in reserved]:
        raise InvalidPipeline(
            f"the schema of topic {table.topic} has the field {taken[0]}, which is a column of the record; "
            "the table cannot have both"
        )
    return names


def _with_keys(frame: "DataFrame", table: TopicTable, names: list[str]) -> "DataFrame":
    """Let the query fail for a record without a key; the message names it."""
    from pyspark.sql import functions as f

    if missing := [name for name in table.key if name not in names]:
        raise InvalidPipeline(
            f"table.key of topic {table.topic}: its values have no column {missing[0]!r}, "
            f"only {', '.join(names) or 'bytes: the registry has no schema for them'}"
        )
    topic = table.topic.replace("%", "%%")
    for name in table.key or (KEY,):
        advice = (
            f"no {name}, which table.key needs; without table.key, the key of the record counts"
            if table.key
            else "no key, which table.mode=upsert needs; use table.mode=append"
        ).replace("%", "%%")
        said = f.format_string(
            f"the record in partition %d of {topic} at offset %d has {advice}",
            f.col(PARTITION),
            f.col(OFFSET),
        )
        column = f.col(f"`{name}`")
        failing = f.raise_error(said).cast(frame.schema[name].dataType)
        frame = frame.withColumn(name, f.when(column.isNull(), failing).otherwise(column))
    return frame
