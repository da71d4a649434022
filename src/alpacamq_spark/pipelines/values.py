"""The values of records in columns: JSON by a schema that is declared, or inferred from a sample once.

What was inferred is remembered in the checkpoint, as a query must not change its mind when it is
started again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from alpacamq.client.cluster import Cluster
from alpacamq.client.offsets import Isolation, extents
from alpacamq.client.reader import Reader
from alpacamq.client.topics import find_topic

from .errors import InvalidPipeline
from .failures import explained
from .run import Run
from .schemas import columns_of, from_json_schema, infer
from .sources import reach

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

MAX_SCHEMA_BYTES = 1 << 20
SAMPLE = 1000
_ROUNDS = 50
_INFERRED = "inferred-schemas.json"
# Added to a schema so that Spark marks what it cannot read.
MALFORMED = "_malformed"


def declared(run: Run, schema: str, directory: Path) -> "StructType":
    """What a pipeline declares: columns in DDL, or a .json file with a JSON Schema or a Spark type."""
    if not schema.endswith(".json"):
        return parsed(run, schema)
    path = directory / schema
    try:
        if path.stat().st_size > MAX_SCHEMA_BYTES:
            raise InvalidPipeline(f"schema: {path} is larger than {MAX_SCHEMA_BYTES} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidPipeline(f"schema: there is no file {path}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidPipeline(f"schema: {path} is not JSON: {error}") from None
    if isinstance(document, dict) and document.get("type") == "struct":
        from pyspark.sql.types import StructType

        try:
            return StructType.fromJson(document)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidPipeline(f"schema: {path} is not a Spark type: {error!r}") from None
    try:
        return parsed(run, columns_of(from_json_schema(document)))
    except InvalidPipeline as error:
        raise InvalidPipeline(f"schema: {path}: {error}") from None


def parsed(run: Run, ddl: str) -> "StructType":
    """A type from columns in DDL, by Spark's own reading of it."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = run.spark.createDataFrame([], ddl).schema
    except PySparkException as error:
        words = " ".join(str(error).split("== SQL ==")[0].split())
        raise InvalidPipeline(f"schema: {ddl!r} is not a list of columns and types: {words}") from None
    assert isinstance(found, StructType)
    return found


def inferred(run: Run, topic: str) -> "StructType":
    """The type of a topic's values, by a sample when it is first asked for."""
    known = run.checkpoint.recall(_INFERRED, dict[str, str]) or {}
    if topic not in known:
        with reach(run.broker) as cluster:
            shape = infer(_sample(cluster, topic))
        if shape is None or not shape.fields:
            raise InvalidPipeline(
                f"topic {topic!r} has no values in JSON yet to infer its columns from; declare them with "
                f"schema = 'id BIGINT, name STRING' or a file with a JSON Schema, or set format = 'text'"
            )
        known = {**known, topic: columns_of(shape)}
        run.checkpoint.remember(_INFERRED, known)
        run.teller.say(f"columns of {topic}, by a sample of its values: {known[topic]}")
    with explained():
        return parsed(run, known[topic])


def decoded(value: "Column", schema: "StructType", malformed: str) -> "Column":
    """A value as a struct; where it cannot be read, with nulls and the text under MALFORMED."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    if malformed == "fail":
        return functions.from_json(value.cast("string"), schema, {"mode": "FAILFAST"})
    marked = StructType([*schema.fields, StructField(MALFORMED, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
    return functions.from_json(value.cast("string"), marked, options)


def readable(value: "Column", schema: "StructType") -> "Column":
    """A value as a struct; null where it cannot be read."""
    from pyspark.sql import functions

    struct = decoded(value, schema, "keep")
    return functions.when(struct[MALFORMED].isNull(), struct.dropFields(MALFORMED))


def _sample(cluster: Cluster, topic: str) -> Iterator[object]:
    """The last values of a topic that are JSON, about the same number of each partition."""
    places = find_topic(cluster, topic).all_partitions()
    spans = extents(cluster, places, Isolation.COMMITTED)
    share = max(1, SAMPLE // max(1, len(places)))
    starts = {each: max(spans[each].start, spans[each].end - share) for each in places}
    reader = Reader(
        cluster, {each: at for each, at in starts.items() if at < spans[each].end}, Isolation.COMMITTED
    )
    for _ in range(_ROUNDS):
        if not reader.positions:
            return
        for delivery in reader.read():
            try:
                yield msgspec.json.decode(delivery.record.value or b"")
            except (msgspec.DecodeError, RecursionError):
                continue
        for each in [each for each, at in reader.positions.items() if at >= spans[each].end]:
            reader.drop(each)
