"""The Avro language of the registry.

Needs no Avro library: fastavro is slower than the check here, crashes on deep values of recursive types, and
builds as many nulls as a few bytes ask for.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property

from alpacamq.registry.schema import Dependency, Incompatibility, Mismatch, ParsedSchema

from .data import DataChecker
from .decoding import Decoder
from .encoding import Encoder
from .parsing import parse_text
from .printing import canonical_text, normalized_text
from .resolution import incompatibilities
from .types import AvroType, Record


class AvroSchema:
    """A valid Avro schema."""

    def __init__(self, root: AvroType, imported: Collection[str]) -> None:
        self.root = root
        self._imported = imported

    @property
    def name(self) -> str | None:
        """Return the full name of a record."""
        return self.root.name.full if isinstance(self.root, Record) else None

    @cached_property
    def canonical(self) -> str:
        return canonical_text(self.root, self._imported)

    @cached_property
    def normalized(self) -> str:
        return normalized_text(self.root, self._imported)

    @property
    def resolved(self) -> str:
        """Return the canonical text with the types of referenced schemas written out."""
        return canonical_text(self.root, imported=())

    def incompatibilities(self, writer: ParsedSchema) -> Sequence[Incompatibility]:
        assert isinstance(writer, AvroSchema)
        return incompatibilities(self.root, writer.root)

    def decode(self, data: bytes | memoryview) -> object:
        return self._decoder.decode(data)

    def encode(self, value: object) -> bytes:
        return self._encoder.encode(value)

    def decoder_of(self, writer: "AvroSchema") -> Decoder:
        """Return what reads data of another schema as values of this one, by Avro's rules of resolution.

        Data that this schema has no place for is refused when it is read, not here. Raises InvalidSchema if
        the schemas are too large.
        """
        return Decoder(writer.root, self.root)

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.root, self.root)

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.root)

    def record_name(self, data: bytes | memoryview) -> str | None:  # noqa: ARG002 - that of the schema
        return self.name

    @cached_property
    def mismatch(self) -> Callable[[bytes | memoryview], Mismatch | None]:
        """Return the function that checks one value."""
        return DataChecker(self.root).mismatch


def parse(text: str, dependencies: Sequence[Dependency] = ()) -> AvroSchema:
    """Parse the text of a schema with the texts of those it refers to, or raise InvalidSchema."""
    root, imported = parse_text(text, dependencies)
    return AvroSchema(root, imported)
