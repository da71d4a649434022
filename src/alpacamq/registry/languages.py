"""Parses schemas without a compiler: of Avro and JSON their texts, of Protobuf their descriptors."""

from . import avro
from .json_schema import schema as json_schema
from .messages import Source
from .schema import ParsedSchema, SchemaType


def parse(source: Source) -> ParsedSchema:
    """Return the parsed schema of a text, or of descriptors in base64. Raises InvalidSchema."""
    match source.schema_type:
        case SchemaType.AVRO:
            return avro.parse(source.text, source.dependencies)
        case SchemaType.JSON:
            return json_schema.parse(source.text, source.dependencies)
        case SchemaType.PROTOBUF:
            # The protobuf runtime is loaded with the first schema.
            from .protobuf import from_descriptors

            return from_descriptors(source.text, source.dependencies)
