"""Decodes and encodes the records of a pipeline by the schema registry.

The schemas to decode with are chosen when a run begins. Values are read as the latest version of their
subject. The columns of earlier runs are kept, so that a query or an archive goes on when fields are added,
removed or given wider types.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from alpacamq.registry.framing import Part
from alpacamq_spark.options import DECODED, read_login

from .errors import InvalidPipeline
from .run import PipelineRun

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from alpacamq_spark.decoding.planning import Plan, Subjects
    from alpacamq_spark.decoding.registry import RegisteredVersion, Registry

    from .definition import Decoded, Encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryColumns:
    """The types of decoded columns, and the connector's options that decode them."""

    types: "Mapping[Part, DataType]"
    options: Mapping[str, str]

    def schema(self) -> "StructType":
        """Return the columns to read."""
        from alpacamq_spark.read.schema import source_schema

        return source_schema(
            include_headers=True, decoded={DECODED[part]: kind for part, kind in self.types.items()}
        )


def decoded_parts(decoded: "Decoded") -> tuple[Part, ...]:
    """Return the parts of a record that are to be decoded."""
    wanted = {Part.VALUE: decoded.decode, Part.KEY: decoded.decode_key}
    return tuple(part for part, how in wanted.items() if how is not None)


def registry_columns(
    run: PipelineRun,
    topics: Iterable[str],
    decoded: "Decoded",
    known: "Mapping[Part, DataType]",
    *,
    follows: bool = False,
) -> RegistryColumns:
    """Return the columns of topics in this run; `known` are those of earlier runs.

    With `follows` the query fails with NewSchema when it meets a later version.

    Raises InvalidPipeline if a topic has no subject, or if a field has got a type that does not go with the
    one it had.
    """
    from alpacamq_spark.decoding.layout import UnusableSchema
    from alpacamq_spark.decoding.planning import Subjects
    from alpacamq_spark.decoding.types import merged_all

    topics = list(topics)
    parts = decoded_parts(decoded)
    subjects = Subjects(
        named={} if decoded.subject is None else {Part.VALUE: decoded.subject},
        pinned={} if decoded.version is None else {Part.VALUE: decoded.version},
        message=decoded.message,
    )
    try:
        plan = _plan(run, topics, parts, subjects)
        types: dict[Part, DataType] = {}
        for part in parts:
            named = [("earlier runs", known[part])] if part in known else []
            named += [("the registry", plan.types[part])] if part in plan.types else []
            merged = merged_all(named)
            if merged is None:
                wanted = " or ".join(repr(subjects.of(topic, part)) for topic in topics[:3])
                raise InvalidPipeline(
                    f"the schema registry at {run.registry} has no schema for {wanted}; register one, or "
                    "name the subject with subject = '…'"
                )
            types[part] = merged
    except UnusableSchema as error:
        raise InvalidPipeline(
            f"decode: {error}. Set an earlier version of the subject with version = …, or start anew with "
            "another checkpoint"
        ) from None
    for topic, versions in plan.versions.items():
        for version in versions.values():
            run.listener.say(f"{topic} is read as {version}")
    options = {
        "decode": ",".join(parts),
        "registry": run.registry,
        "readerSchemas": msgspec.json.encode(plan.readers).decode(),
        **({} if decoded.message is None else {"message": decoded.message}),
    }
    if follows:
        watched = {part: subjects.named.get(part, "") for part in parts if part not in subjects.pinned}
        options["watchedSubjects"] = msgspec.json.encode(watched).decode()
    return RegistryColumns(types=types, options=options)


def encode_options(run: PipelineRun, sink: "Encoded") -> dict[str, str]:
    """Return the connector's options that encode the columns of a sink; none if none is encoded."""
    wanted = {Part.VALUE: sink.encode, Part.KEY: sink.encode_key}
    parts = [part for part, how in wanted.items() if how is not None]
    if not parts:
        return {}
    options = {
        "derive": sink.derive,
        "message": sink.message,
        "schemaType": sink.schema_type,
        "subject": sink.subject,
        "version": None if sink.version is None else str(sink.version),
    }
    given = {name: text for name, text in options.items() if text is not None}
    return {"encode": ",".join(parts), "registry": run.registry, **given}


def _plan(run: PipelineRun, topics: list[str], parts: tuple[Part, ...], subjects: "Subjects") -> "Plan":
    from alpacamq_spark.decoding.planning import plan

    with _registry(run) as registry:
        return plan(registry, topics, parts, subjects)


def latest_version(run: PipelineRun, subject: str) -> "RegisteredVersion | None":
    """Return the latest version of a subject; None if it has none."""
    with _registry(run) as registry:
        return registry.version(subject)


def _registry(run: PipelineRun) -> "Registry":
    from alpacamq_spark.decoding.registry import Registry, RegistryAccess
    from alpacamq_spark.retry import FIRST_CONTACT_TIMEOUT_S

    access = run.access
    login = None
    if access.user is not None and access.password_file is not None:
        login = read_login(access.user, access.password_file)
    return Registry(RegistryAccess(url=run.registry, login=login, tls=access.tls), FIRST_CONTACT_TIMEOUT_S)


def type_text(kind: "DataType") -> str:
    """Return a type as text, to store it."""
    return str(kind.json())


def parse_type(text: str) -> "DataType":
    """Parse a stored type."""
    from pyspark.sql.types import StructField

    # Spark's parser of a type alone is not public.
    field = {"name": "only", "type": msgspec.json.decode(text), "nullable": True, "metadata": {}}
    return StructField.fromJson(field).dataType
