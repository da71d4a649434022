"""Plans how the schema registry is used by a read: the types of decoded columns, and the schemas read as."""

from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, StructType

from alpacamq.client.errors import NotFound
from alpacamq_spark.options import DECODED, ReadOptions
from alpacamq_spark.retry import FIRST_CONTACT_TIMEOUT_S

if TYPE_CHECKING:
    from alpacamq_spark.decoding.planning import Plan
    from alpacamq_spark.decoding.values import Decoding


def decoded_types(options: ReadOptions) -> dict[str, DataType]:
    """Return the decoded columns of a read without a schema of its own, by the latest versions.

    Raises NotFound if no topic has a subject.
    """
    if not options.decode:
        return {}
    found = _plan(options)
    for part in options.decode:
        if part not in found.types:
            raise NotFound("subject in the schema registry for topics with", f"decode={part}")
    return {DECODED[part]: found.types[part] for part in options.decode}


def read_decoding(options: ReadOptions, schema: StructType) -> "Decoding | None":
    """Return how the columns of a read are decoded; None if none is."""
    kinds = {field.name: field.dataType for field in schema.fields}
    types = {part: kinds[DECODED[part]] for part in options.decode if DECODED[part] in kinds}
    if not types or options.registry is None:
        return None
    from alpacamq_spark.decoding.values import Decoding

    readers = options.reader_schemas
    return Decoding(
        access=options.registry,
        readers=_plan(options).readers if readers is None else readers,
        types=types,
        message=options.message,
        watched=options.watched_subjects,
    )


def _plan(options: ReadOptions) -> "Plan":
    from alpacamq_spark.decoding.planning import Subjects, plan
    from alpacamq_spark.decoding.registry import Registry

    assert options.registry is not None
    with options.connect() as cluster, Registry(options.registry, FIRST_CONTACT_TIMEOUT_S) as registry:
        topics = {each.topic for each in options.subscription.partitions(cluster)}
        return plan(registry, topics, options.decode, Subjects(message=options.message))
