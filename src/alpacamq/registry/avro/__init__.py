"""The Avro language of the registry.

Needs no Avro library: a check of data does not need the values that one builds. fastavro is slower than the
check here, crashes on deep values of recursive types, and builds as many nulls as a few bytes ask for.
"""

from collections.abc import Collection, Sequence
from functools import cached_property

from alpacamq.registry.schema import Dependency, Incompatibility, Mismatch, ParsedSchema

from .data import DataChecker
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

    def mismatch(self, data: bytes | memoryview) -> Mismatch | None:
        return self._checker.mismatch(data)

    @cached_property
    def _checker(self) -> DataChecker:
        return DataChecker(self.root)


def parse(text: str, dependencies: Sequence[Dependency] = ()) -> AvroSchema:
    """Parse the text of a schema with the texts of those it refers to, or raise InvalidSchema."""
    root, imported = parse_text(text, dependencies)
    return AvroSchema(root, imported)
