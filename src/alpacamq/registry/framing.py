"""Finds the name of a record's schema where the registry's serializers put it.

Either the data begins with a magic byte and the id or GUID, or a header of the record has them. In both cases
Protobuf's message indexes may follow. The format is that of Confluent's serializers.
"""

from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

ID_MAGIC: Final = 0
GUID_MAGIC: Final = 1
ID_BYTES: Final = 5  # with the magic byte
GUID_BYTES: Final = 17

# The id of a schema, or its GUID.
SchemaName: TypeAlias = int | UUID


class Part(StrEnum):
    """The part of a record that a schema describes."""

    KEY = "key"
    VALUE = "value"

    @property
    def header(self) -> str:
        """The record header that may name the schema."""
        return f"__{self}_schema_id"


class Framed(NamedTuple):
    """The name of a schema and the data it describes: Protobuf's message indexes, if any, and the value."""

    schema: SchemaName
    data: bytes | memoryview


def unframe(data: bytes | memoryview, header: bytes | memoryview | None = None) -> Framed | None:
    """Return the schema that a key or value names, and its data; None if it names none.

    `header` is the value of the part's header. It counts before a prefix, as for Confluent's deserializers.
    """
    if header is None:
        return _split(data)
    if (named := _split(header)) is None:
        return None
    # What follows the name in the header are message indexes; they belong before the value.
    return Framed(named.schema, bytes(named.data) + bytes(data) if named.data else data)


def _split(framed: bytes | memoryview) -> Framed | None:
    if len(framed) >= ID_BYTES and framed[0] == ID_MAGIC:
        return Framed(int.from_bytes(framed[1:ID_BYTES]), framed[ID_BYTES:])
    if len(framed) >= GUID_BYTES and framed[0] == GUID_MAGIC:
        return Framed(UUID(bytes=bytes(framed[1:GUID_BYTES])), framed[GUID_BYTES:])
    return None


def framed(schema_id: int, data: bytes) -> bytes:
    """Return data with the prefix that names its schema."""
    return bytes([ID_MAGIC]) + schema_id.to_bytes(4) + data
