"""Chooses the schemas that rows are encoded with, and registers derived ones; runs on the driver."""

from dataclasses import dataclass

from pyspark.sql.types import DataType, StructType

from alpacamq.client.http.schemas import ResolvedSchema, SchemaText
from alpacamq.registry.avro import AvroSchema
from alpacamq.registry.framing import Part
from alpacamq.registry.json_schema.schema import JsonSchema
from alpacamq.registry.messages import Source
from alpacamq.registry.protobuf import ProtobufSchema
from alpacamq.registry.schema import InvalidSchema, ParsedSchema, SchemaType
from alpacamq_spark.decoding.registry import RegisteredVersion, Registry, SchemaRefused
from alpacamq_spark.errors import InvalidColumns
from alpacamq_spark.options import Derive, EncodeOptions

from .avro_schema import derived_avro, extended_avro, type_name_for
from .json_values import derived_json, extended_json
from .protobuf import derived_protobuf, extended_protobuf
from .values import Encoding, PartEncoding, schema_encoder


def plan_encoding(options: EncodeOptions, topic: str, columns: StructType, timeout_s: float) -> Encoding:
    """Return how the rows of a write are encoded.

    Raises InvalidColumns if columns do not fit their schema, or SchemaRefused if the registry lacks it or
    does not take the derived one.
    """
    with Registry(options.registry, timeout_s) as registry:
        return {
            part: _PartPlanner(registry, options, topic, part, columns[part].dataType).plan()
            for part in options.parts
        }


@dataclass(frozen=True, slots=True)
class _PartPlanner:
    """Plans the encoding of the keys or the values of a topic."""

    registry: Registry
    options: EncodeOptions
    topic: str
    part: Part
    column: DataType

    @property
    def _is_value(self) -> bool:
        return self.part is Part.VALUE

    @property
    def _message(self) -> str | None:
        return self.options.message if self._is_value else None

    @property
    def _subject(self) -> str:
        named = self.options.subject if self._is_value else None
        return named or f"{self.topic}-{self.part}"

    @property
    def _name(self) -> str:
        """The name of the type that a derived schema describes."""
        return type_name_for(self.topic if self._is_value else f"{self.topic}-{self.part}")

    def plan(self) -> PartEncoding:
        """Return how the part is encoded."""
        version = self.options.version if self._is_value else None
        found = self.registry.version(self._subject, version)
        if found is None:
            if version is not None or self.options.derive is Derive.NEVER:
                which = "subject" if version is None else f"version {version} of subject"
                raise SchemaRefused(f"the schema registry has no {which} {self._subject}")
            return self._register(self._derived(), None)
        known = self.registry.resolved(found.id)
        if known is None:
            raise SchemaRefused(f"{found}: the registry lacks the schema, or one that it refers to")
        wanted = self.options.schema_type
        if wanted not in (None, known.source.schema_type):
            raise SchemaRefused(
                f"{found} has the type {known.source.schema_type.lower()}, not {wanted.lower()}"
            )
        try:
            schema = known.parsed()
        except InvalidSchema as error:
            raise SchemaRefused(f"{found}: {error}") from None
        try:
            schema_encoder(schema, self.column, self.part, self._message)
        except InvalidColumns as error:
            if self.options.derive is not Derive.ALWAYS:
                raise InvalidColumns(f"{found}: {error}") from None
            return self._register(self._extended(schema, known, found), known)
        return PartEncoding(schema_id=found.id, schema=known, column=self.column, message=self._message)

    def _derived(self) -> Source:
        column, name, path = self.column, self._name, str(self.part)
        match self.options.schema_type or SchemaType.AVRO:
            case SchemaType.AVRO:
                return Source(SchemaType.AVRO, derived_avro(column, name, path))
            case SchemaType.JSON:
                return Source(SchemaType.JSON, derived_json(column, self.topic, path))
            case SchemaType.PROTOBUF:
                return derived_protobuf(column, self._message or name, path).descriptors

    def _extended(self, schema: ParsedSchema, known: ResolvedSchema, version: RegisteredVersion) -> Source:
        column, path, used = self.column, str(self.part), known.source.dependencies
        match schema:
            case AvroSchema():
                return Source(SchemaType.AVRO, extended_avro(schema, column, self._name, path), used)
            case JsonSchema():
                return Source(SchemaType.JSON, extended_json(schema, column, path), used)
            case ProtobufSchema():
                return extended_protobuf(schema, column, path, self._message).descriptors
        raise InvalidColumns(f"{version}: {type(schema).__name__} is unknown")

    def _register(self, source: Source, extends: ResolvedSchema | None) -> PartEncoding:
        references = extends.references if extends is not None else ()
        resolved = ResolvedSchema(source=source, references=references)
        try:
            schema = resolved.parsed()
        except InvalidSchema as error:
            raise SchemaRefused(
                f"no schema for subject {self._subject} follows from the columns: {error}"
            ) from None
        # Before it is registered: what is wrong with the columns is not the registry's business.
        schema_encoder(schema, self.column, self.part, self._message)
        text = SchemaText(schema=schema.canonical, schema_type=source.schema_type, references=references)
        schema_id = self.registry.register(self._subject, text)
        return PartEncoding(schema_id=schema_id, schema=resolved, column=self.column, message=self._message)
