"""Decodes the keys or values of one topic in a task: finds the schema of each and converts it to columns.

A value that names no schema, or an unknown one, or does not match it, or does not fit the column, is null.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.types import DataType

from alpacamq.registry.avro import AvroSchema
from alpacamq.registry.framing import Part, SchemaName, unframe
from alpacamq.registry.json_schema.schema import JsonSchema
from alpacamq.registry.protobuf import ProtobufSchema
from alpacamq.registry.schema import InvalidData, InvalidSchema, ParsedSchema
from alpacamq_spark.errors import NewSchema

from .avro import avro_layout
from .json_values import json_layout
from .layout import Convert, Layout, Misfit, UnusableSchema, as_row, compiled, type_of
from .protobuf import message_class, message_reader, protobuf_layout
from .registry import Registry, RegistryAccess
from .types import arrow_type

# Values whose Python objects exist at the same time.
_SLICE = 4096

Read: TypeAlias = Callable[[bytes | memoryview], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the records of some topics are decoded.

    `readers` are the ids of the schemas that values are read as, by topic and part. Values of other topics
    are read as their own schema says.
    """

    access: RegistryAccess
    readers: Mapping[str, Mapping[Part, int]]
    # The types of the columns.
    types: Mapping[Part, DataType]
    # The message that values of Protobuf schemas have; the first of the schema by default.
    message: str | None = None
    # The subjects whose later versions are refused, by part; an empty one is that of the topic.
    watched: Mapping[Part, str] = field(default_factory=dict)


def layout_of(schema: ParsedSchema, message: str | None = None) -> Layout:
    """Return the layout of the values of a schema. Raises UnusableSchema."""
    match schema:
        case AvroSchema():
            return avro_layout(schema.root)
        case JsonSchema():
            return json_layout(schema.documents)
        case ProtobufSchema():
            return protobuf_layout(message_class(schema, message).DESCRIPTOR)
    raise UnusableSchema(f"{type(schema).__name__} is unknown")


def column_type(schema: ParsedSchema, part: Part, message: str | None = None) -> DataType:
    """Return the type of a part with this schema: that of a value is always a struct."""
    layout = layout_of(schema, message)
    return type_of(as_row(layout) if part is Part.VALUE else layout)


class PartDecoder:
    """Decodes the keys or the values of a topic to one column."""

    def __init__(
        self,
        registry: Registry,
        part: Part,
        reader: int | None,
        wanted: DataType,
        message: str | None = None,
        watched: str | None = None,
    ) -> None:
        self._message = message
        # The subject whose later versions are refused.
        self._watched = watched
        self._reader_id = reader
        self.part = part
        self._registry = registry
        self._reader = None if reader is None else registry.schema(reader)
        self._wanted = wanted
        self._arrow_type = arrow_type(wanted)
        self._decoders: dict[SchemaName, Convert | None] = {}

    def decode(self, data: pa.Array, headers: Sequence[bytes | None] | None) -> pa.Array:
        """Return the column of some records; `headers` are the values of the part's header."""
        chunks = []
        for start in range(0, len(data), _SLICE):
            some = data.slice(start, _SLICE).to_pylist()
            names = [None] * len(some) if headers is None else headers[start : start + _SLICE]
            chunks.append(self._column([self._decoded(*each) for each in zip(some, names, strict=True)]))
        return pa.concat_arrays(chunks) if chunks else pa.array([], self._arrow_type)

    def _column(self, values: list[Any]) -> pa.Array:
        try:
            return pa.array(values, self._arrow_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return pa.array([each if self._fits(each) else None for each in values], self._arrow_type)

    def _fits(self, value: Any) -> bool:
        """Return whether Arrow takes a value. Decimals may have too many digits, text lone surrogates."""
        try:
            pa.array([value], self._arrow_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return False
        return True

    def _decoded(self, data: bytes | None, header: bytes | None) -> Any:
        if data is None or (framed := unframe(data, header)) is None:
            return None
        if framed.schema not in self._decoders:
            if len(self._decoders) >= 10_000:
                self._decoders.clear()
            self._decoders[framed.schema] = self._decoder(framed.schema)
        decode = self._decoders[framed.schema]
        if decode is None:
            return None
        try:
            return decode(framed.data)
        except (InvalidData, Misfit, ValueError, OverflowError, RecursionError):
            return None

    def _decoder(self, name: SchemaName) -> Convert | None:
        """Return how data of a schema is decoded and converted; None if it cannot be. Raises NewSchema."""
        self._check_is_known(name)
        try:
            writer = self._registry.schema(name)
            if writer is None:
                return None
            reader = self._reader or writer
            read, layout = _reading(writer, reader, self._message)
            convert = compiled(as_row(layout) if self.part is Part.VALUE else layout, self._wanted)
        except (InvalidSchema, UnusableSchema):
            return None
        return lambda data: convert(read(data))

    def _check_is_known(self, name: SchemaName) -> None:
        known = self._reader_id
        # Ids ascend: earlier versions have lower ones.
        if self._watched is None or (known is not None and isinstance(name, int) and name <= known):
            return
        latest = self._registry.version(self._watched)
        if latest is not None and latest.id != known:
            raise NewSchema(f"records were written as {latest}, which is later than the columns")


def _reading(writer: ParsedSchema, reader: ParsedSchema, message: str | None) -> tuple[Read, Layout]:
    """Return how to read data of one schema as values of another, and their layout."""
    layout = layout_of(reader, message)
    match writer, reader:
        case AvroSchema(), AvroSchema():
            return reader.decoder_of(writer).decode, layout
        case JsonSchema(), JsonSchema():
            return _read_json, layout
        case ProtobufSchema(), ProtobufSchema():
            return message_reader(writer, reader, message), layout
    raise UnusableSchema("data cannot be read with a schema of another language")


def _read_json(data: bytes | memoryview) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Misfit(f"not JSON: {error}") from None


def part_decoders(decoding: Decoding, registry: Registry, topic: str) -> dict[Part, PartDecoder]:
    """Return the decoders of the parts that a task is to decode."""
    readers = decoding.readers.get(topic, {})
    return {
        part: PartDecoder(
            registry,
            part,
            readers.get(part),
            wanted,
            decoding.message if part is Part.VALUE else None,
            decoding.watched[part] or f"{topic}-{part}" if part in decoding.watched else None,
        )
        for part, wanted in decoding.types.items()
    }
