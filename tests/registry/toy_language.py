"""The small schema language of registry_host, for brokers."""

from collections.abc import Sequence

from alpacamq.broker.registry import Registry
from alpacamq.registry.messages import Source
from alpacamq.registry.schema import Incompatibility, Mismatch, ParsedSchema, SchemaType

from .registry_host import incompatibilities, parse


class ToySchema:
    """A parsed schema."""

    def __init__(self, source: Source) -> None:
        parsed = parse(source)
        self.source = source
        self.canonical = parsed.canonical
        self.normalized = parsed.normalized

    def incompatibilities(self, writer: ParsedSchema) -> Sequence[Incompatibility]:
        assert isinstance(writer, ToySchema)
        return incompatibilities(self.source, writer.source)

    def mismatch(self, data: bytes | memoryview) -> Mismatch | None:
        raise NotImplementedError

    def decode(self, data: bytes | memoryview) -> object:
        raise NotImplementedError

    def encode(self, value: object) -> bytes:
        raise NotImplementedError

    def record_name(self, data: bytes | memoryview) -> str | None:
        raise NotImplementedError


def teach(registry: Registry) -> list[Source]:
    """Make a registry understand the language, and return the list of what it parses."""
    parsed: list[Source] = []

    async def language(source: Source) -> ToySchema:
        parsed.append(source)
        return ToySchema(source)

    registry.languages.update(dict.fromkeys((SchemaType.AVRO, SchemaType.JSON), language))
    return parsed
