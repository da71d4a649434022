"""The vocabulary of the registry: schemas, references, and what the schema languages have in common.

Each language is a module with `parse`, which returns a `ParsedSchema`. Parsing and comparing are pure; the
Protobuf compiler runs elsewhere, and its descriptors come in.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec

from alpacamq.model.errors import AlpacaError

MAX_SCHEMA_BYTES = 1 << 20
# Of nested types in a schema, and of references.
MAX_DEPTH = 100


class SchemaType(StrEnum):
    """The schema languages, by the names that clients use."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]++={0,2}")


def is_base64(text: str) -> bool:
    """Return whether a text can be a Protobuf descriptor in base64: no .proto text looks like one."""
    # The pattern has no white space at its end: matching would take quadratic time.
    return _BASE64.fullmatch(text.rstrip()) is not None


class Reference(msgspec.Struct, frozen=True):
    """A schema that another one uses: `name` is what its text calls it."""

    name: str
    subject: str
    version: int


class Dependency(NamedTuple):
    """A referenced schema with its text. Dependencies are listed before the schemas that use them."""

    name: str
    text: str


class InvalidSchema(AlpacaError):
    """A text is not a schema of its language. The message names the line and column where they are known."""


class Incompatibility(msgspec.Struct, frozen=True):
    """A reason why a reader cannot read all data of a writer."""

    rule: str  # Confluent's name of the difference, such as READER_FIELD_MISSING_DEFAULT_VALUE
    path: str  # the place in the reader's schema
    message: str  # what a user sees


class Mismatch(msgspec.Struct, frozen=True):
    """Where and why data does not match a schema."""

    path: str  # a JSON pointer, an Avro path or a Protobuf field
    message: str


class InvalidData(AlpacaError):
    """Data does not match its schema, or a JSON value cannot be written with it."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(f"{mismatch.path}: {mismatch.message}" if mismatch.path else mismatch.message)
        self.mismatch = mismatch


class ParsedSchema(Protocol):
    """A valid schema of one of the languages."""

    @property
    def canonical(self) -> str:
        """The text that identifies the schema: as it was given, without differences that have no meaning."""
        ...

    @property
    def normalized(self) -> str:
        """The text that identifies the schema for clients that ask for normalization."""
        ...

    def incompatibilities(self, writer: "ParsedSchema") -> Sequence[Incompatibility]:
        """Return why a reader with this schema cannot read all data of `writer`, of the same language."""
        ...

    def mismatch(self, data: bytes | memoryview) -> Mismatch | None:
        """Check one value, without the prefix that names its schema."""
        ...

    def decode(self, data: bytes | memoryview) -> object:
        """Return one value, without the prefix that names its schema, as JSON has it. Raises InvalidData."""
        ...

    def encode(self, value: object) -> bytes:
        """Return the data of a JSON value. Raises InvalidData."""
        ...

    def record_name(self, data: bytes | memoryview) -> str | None:
        """Return the name of the record that data begins with, by which a subject can be named."""
        ...
