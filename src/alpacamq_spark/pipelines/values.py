"""Decodes JSON values into columns, by a declared schema or one inferred from a sample.

An inferred schema is stored in the checkpoint, because a query must not change its schema on restart.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.offsets import Isolation, extents
from alpacamq.client.kafka.reader import Reader
from alpacamq.client.kafka.topics import find_topic

from .errors import InvalidPipeline, translate_spark_errors
from .run import PipelineRun
from .sources import reach

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

MAX_DEPTH = 32
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAMES: Mapping[str, str] = {
    "string": "STRING",
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
}
_NUMBERS = ("BIGINT", "DOUBLE")
_FORMATS: Mapping[str, str] = {"date-time": "TIMESTAMP", "date": "DATE"}


@dataclass(slots=True)
class Struct:
    """An object with known fields."""

    fields: dict[str, "Shape"] = field(default_factory=dict)


@dataclass(slots=True)
class Array:
    """A list of equal elements."""

    element: "Shape" = None


@dataclass(slots=True)
class Dictionary:
    """An object with arbitrary keys."""

    value: "Shape" = None


# A DDL type name, or None for a value that was always null.
Shape: TypeAlias = Struct | Array | Dictionary | str | None


def columns_of(shape: Struct) -> str:
    """Return the fields of an object as columns in DDL."""
    return ", ".join(f"{_quoted(name)} {_ddl(inner)}" for name, inner in shape.fields.items())


def _ddl(shape: Shape) -> str:
    match shape:
        case Struct():
            inner = ", ".join(f"{_quoted(name)}: {_ddl(each)}" for name, each in shape.fields.items())
            return f"STRUCT<{inner}>"
        case Array():
            return f"ARRAY<{_ddl(shape.element)}>"
        case Dictionary():
            return f"MAP<STRING, {_ddl(shape.value)}>"
        case None:
            return "STRING"
        case _:
            return shape


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def from_json_schema(document: object) -> Struct:
    """Return the columns that a JSON Schema describes. Raises InvalidPipeline."""
    shape = _described(document, document, "$", 0)
    if not isinstance(shape, Struct):
        raise InvalidPipeline("the schema does not describe an object with properties")
    return shape


def _described(part: object, whole: object, place: str, depth: int) -> Shape:
    if depth > MAX_DEPTH:
        raise InvalidPipeline(f"the schema is nested deeper than {MAX_DEPTH} levels at {place}")
    if not isinstance(part, Mapping):
        return "STRING"
    if isinstance(reference := part.get("$ref"), str):
        return _described(_referenced(reference, whole, place), whole, place, depth + 1)
    for word in ("oneOf", "anyOf"):
        if isinstance(choices := part.get(word), list):
            some = [each for each in choices if each != {"type": "null"}]
            if len(some) == 1:
                return _described(some[0], whole, place, depth + 1)
            return "STRING"  # raw JSON
    kind = part.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "object" or (kind is None and "properties" in part):
        return _object(part, whole, place, depth)
    if kind == "array":
        return Array(_described(part.get("items"), whole, f"{place}[]", depth + 1))
    if kind == "string" and isinstance(part.get("format"), str):
        return _FORMATS.get(part["format"], "STRING")
    return _NAMES.get(kind, "STRING") if isinstance(kind, str) else "STRING"


def _object(part: Mapping[str, Any], whole: object, place: str, depth: int) -> Shape:
    properties = part.get("properties")
    if isinstance(properties, Mapping) and properties:
        return Struct(
            {
                str(name): _described(inner, whole, f"{place}.{name}", depth + 1)
                for name, inner in properties.items()
            }
        )
    values = part.get("additionalProperties")
    if isinstance(values, Mapping):
        return Dictionary(_described(values, whole, f"{place}{{}}", depth + 1))
    return "STRING"


def _referenced(reference: str, whole: object, place: str) -> object:
    if not reference.startswith("#/"):
        raise InvalidPipeline(
            f"{place} refers to {reference!r}; only references inside the file are supported"
        )
    found = whole
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            raise InvalidPipeline(f"{place} refers to {reference!r}, which is not in the schema")
        found = found[name]
    return found


def infer(values: Iterable[object]) -> Struct | None:
    """Return columns that fit all of these JSON values; None if none of them is an object.

    Fields whose type differs between values become text.
    """
    shape: Shape = None
    for value in values:
        if isinstance(value, Mapping):
            shape = _merged(shape, _shape(value, 0))
    return shape if isinstance(shape, Struct) else None


def _shape(value: object, depth: int) -> Shape:
    if depth > MAX_DEPTH:
        return "STRING"
    match value:
        case None:
            return None
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -(2**63) <= value < 2**63 else "DOUBLE"
        case float():
            return "DOUBLE"
        case Mapping():
            return Struct({str(name): _shape(inner, depth + 1) for name, inner in value.items()})
        case list():
            element: Shape = None
            for each in value:
                element = _merged(element, _shape(each, depth + 1))
            return Array(element)
        case _:
            return "STRING"


def _merged(one: Shape, other: Shape) -> Shape:
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Struct) and isinstance(other, Struct):
        names = [*one.fields, *(name for name in other.fields if name not in one.fields)]
        return Struct({name: _merged(one.fields.get(name), other.fields.get(name)) for name in names})
    if isinstance(one, Array) and isinstance(other, Array):
        return Array(_merged(one.element, other.element))
    if one == other:
        return one
    both_numbers = one in _NUMBERS and other in _NUMBERS
    return "DOUBLE" if both_numbers else "STRING"


MAX_SCHEMA_BYTES = 1 << 20
SAMPLE = 1000
_ROUNDS = 50
_INFERRED = "inferred-schemas.json"
# Added to a schema to make Spark mark malformed values.
MALFORMED = "_malformed"


def declared(run: PipelineRun, schema: str, directory: Path) -> "StructType":
    """Return the declared type: columns in DDL, or a .json file with a JSON Schema or a Spark type."""
    if not schema.endswith(".json"):
        return parsed(run, schema)
    path = directory / schema
    try:
        if path.stat().st_size > MAX_SCHEMA_BYTES:
            raise InvalidPipeline(f"schema: {path} is larger than {MAX_SCHEMA_BYTES} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidPipeline(f"schema: file {path} does not exist") from None
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


def parsed(run: PipelineRun, ddl: str) -> "StructType":
    """Parse columns in DDL with Spark."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = run.spark.createDataFrame([], ddl).schema
    except PySparkException as error:
        words = " ".join(str(error).split("== SQL ==")[0].split())
        raise InvalidPipeline(f"schema: {ddl!r} is not a list of columns and types: {words}") from None
    assert isinstance(found, StructType)
    return found


def inferred(run: PipelineRun, topic: str) -> "StructType":
    """Return the type of a topic's values, inferred from a sample on first use."""
    known = run.checkpoint.recall(_INFERRED, dict[str, str]) or {}
    if topic not in known:
        with reach(run.broker, run.access) as cluster:
            shape = infer(_sample(cluster, topic))
        if shape is None or not shape.fields:
            raise InvalidPipeline(
                f"topic {topic!r} has no values in JSON yet to infer its columns from; declare them with "
                f"schema = 'id BIGINT, name STRING' or a file with a JSON Schema, or set format = 'text'"
            )
        known = {**known, topic: columns_of(shape)}
        run.checkpoint.remember(_INFERRED, known)
        run.listener.say(f"columns of {topic}, by a sample of its values: {known[topic]}")
    with translate_spark_errors():
        return parsed(run, known[topic])


def decoded(value: "Column", schema: "StructType") -> "Column":
    """Decode a value to a struct; a malformed one has nulls and its text under MALFORMED.

    Blank text, which is malformed too, is null. `malformed_parts` tells malformed values from others.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    marked = StructType([*schema.fields, StructField(MALFORMED, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
    return functions.from_json(value.cast("string"), marked, options)


def readable(value: "Column", schema: "StructType") -> "Column":
    """Decode a value to a struct; null if it is malformed."""
    from pyspark.sql import functions

    struct = decoded(value, schema)
    return functions.when(struct[MALFORMED].isNull(), struct.dropFields(MALFORMED))


def _sample(cluster: Cluster, topic: str) -> Iterator[object]:
    """Yield recent JSON values of a topic, about the same number from each partition."""
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
