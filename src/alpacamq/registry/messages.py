"""Requests to the registry, their replies, and the work with schema languages that the registry asks for.

The registry neither parses nor compares schemas: that can take long, and Protobuf's compiler is another
process. A request that depends on it, such as Register, is answered with `ParseFirst` or `CompareFirst`. The
client does that work and sends the request again with the result as `Evidence`. The registry accepts evidence
only if it is about exactly what it would ask for now, so it does not matter what has changed meanwhile.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import msgspec

from alpacamq.model.state_machine import Request

from .metadata import Metadata, RuleSet
from .schema import Dependency, Incompatibility, Reference, SchemaType
from .settings import CompatibilityLevel, Config, ConfigUpdate, Mode

R = TypeVar("R")

LATEST: Final = -1
# What one reply to ListSchemas has at most.
MAX_LISTED: Final = 1000
MAX_LISTED_CHARACTERS: Final = 32 << 20


class Source(msgspec.Struct, frozen=True, array_like=True):
    """A text to parse, with the texts that it refers to, directly or not."""

    schema_type: SchemaType
    text: str
    dependencies: tuple[Dependency, ...] = ()


class ParsedText(msgspec.Struct, frozen=True, array_like=True):
    """The texts that identify a valid schema."""

    source: Source
    canonical: str
    normalized: str


class Comparison(msgspec.Struct, frozen=True, array_like=True):
    """A new schema and the versions it has to be compatible with, the newest first."""

    level: CompatibilityLevel
    schema: Source
    earlier: tuple[Source, ...]

    def pairs(self) -> Iterator[tuple[Source, Source]]:
        """Yield readers and writers: each reader must be able to read the writer's data.

        The first pair that cannot decides; its incompatibilities are those to report.
        """
        for each in self.earlier:
            if self.level.reads_earlier:
                yield self.schema, each
            if self.level.is_read_by_earlier:
                yield each, self.schema


class Evidence(msgspec.Struct, frozen=True, array_like=True):
    """Schemas that were parsed, and a comparison that has found no incompatibility."""

    parsed: tuple[ParsedText, ...] = ()
    compared: Comparison | None = None

    def with_parsed(self, text: ParsedText) -> "Evidence":
        return Evidence((*self.parsed, text), self.compared)

    def with_compared(self, comparison: Comparison) -> "Evidence":
        return Evidence(self.parsed, comparison)


class ParseFirst(msgspec.Struct, frozen=True, tag="parse-first"):
    """Asks to parse a text and to add the result to the evidence."""

    source: Source


class CompareFirst(msgspec.Struct, frozen=True, tag="compare-first"):
    """Asks to compare schemas and to add that to the evidence if they are compatible."""

    comparison: Comparison


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A schema as a client sends it. Without a text, it has that of the latest version."""

    text: str
    schema_type: SchemaType = SchemaType.AVRO
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True, tag="schema-version"):
    """A schema as a version of a subject."""

    subject: str
    version: int
    id: int
    guid: str
    schema_type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    deleted: bool = False


class CompatibilityReport(msgspec.Struct, frozen=True, tag="compatibility-report"):
    """The result of a comparison."""

    level: CompatibilityLevel
    reasons: tuple[Incompatibility, ...] = ()
    # The text of the version that the schema is incompatible with.
    earlier: str = ""

    @property
    def is_compatible(self) -> bool:
        return not self.reasons


class SubjectVersion(NamedTuple):
    """A version, by name."""

    subject: str
    version: int


class ContextId(NamedTuple):
    """The id of a schema in a context."""

    context: str
    id: int


class RegistryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the registry. Deleted subjects and versions are counted on their own."""

    contexts: int
    subjects: int
    deleted_subjects: int
    versions: int
    deleted_versions: int
    schemas: dict[SchemaType, int]


class SubjectDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A subject with its latest version, and the settings that apply to it."""

    subject: str
    versions: int
    latest: int
    id: int
    schema_type: SchemaType
    compatibility: CompatibilityLevel
    mode: Mode


class Deleted(Enum):
    """Which of the deleted subjects and versions a list contains."""

    EXCLUDED = "excluded"
    INCLUDED = "included"
    ONLY = "only"
    # Included, with a minus sign before the version.
    NEGATIVE = "negative"


class RegistryRequest(Request[R], frozen=True, kw_only=True):
    """A request to the registry, which has one partition."""

    @property
    def routing_key(self) -> str:
        return ""


class Query(RegistryRequest[R], frozen=True, kw_only=True):
    """A request that changes nothing."""

    IS_IDEMPOTENT = True


class Register(RegistryRequest[SchemaVersion | ParseFirst | CompareFirst], frozen=True, kw_only=True):
    """Register a schema under a subject, or find it there.

    `id` and `version` are those of another registry and need the mode IMPORT. `version` -1 or the next one
    repeats the version in the metadata. `force` skips the compatibility check.
    """

    IS_IDEMPOTENT = True

    subject: str
    draft: Draft
    normalize: bool = False
    id: int | None = None
    version: int = 0
    force: bool = False
    evidence: Evidence = Evidence()


class Lookup(Query[SchemaVersion | ParseFirst], frozen=True, kw_only=True):
    """Find the version of a subject that has a schema."""

    subject: str
    draft: Draft
    normalize: bool = False
    deleted: bool = False
    evidence: Evidence = Evidence()


class CheckCompatibility(Query[CompatibilityReport | ParseFirst | CompareFirst], frozen=True, kw_only=True):
    """Compare a schema with a version, or with what `Register` would compare it with."""

    subject: str
    draft: Draft
    normalize: bool = False
    version: int | None = None
    evidence: Evidence = Evidence()


class DeleteVersion(RegistryRequest[int], frozen=True, kw_only=True):
    """Delete a version, and reply with its number. Permanently: the id is never used again."""

    subject: str
    version: int
    permanent: bool = False


class DeleteSubject(RegistryRequest[tuple[int, ...]], frozen=True, kw_only=True):
    """Delete all versions of a subject, and reply with their numbers. Permanently: also its settings."""

    subject: str
    permanent: bool = False


class SetConfig(RegistryRequest[Config], frozen=True, kw_only=True):
    """Change the configuration of a subject or context; of the default context if `subject` is None."""

    IS_IDEMPOTENT = True

    subject: str | None
    update: ConfigUpdate


class DeleteConfig(RegistryRequest[Config], frozen=True, kw_only=True):
    """Delete a configuration, and reply with what it was."""

    subject: str | None


class SetMode(RegistryRequest[Mode], frozen=True, kw_only=True):
    """Set a mode. IMPORT needs an empty subject or context, unless forced."""

    IS_IDEMPOTENT = True

    subject: str | None
    mode: Mode
    force: bool = False


class DeleteMode(RegistryRequest[Mode | None], frozen=True, kw_only=True):
    """Delete a mode, and reply with what it was; `recursive` deletes those of the context's subjects too."""

    subject: str | None
    recursive: bool = False


class ImportRecords(RegistryRequest[int], frozen=True, kw_only=True):
    """Write records of the topic of another registry, and reply with how many were used.

    All or none. Raises InvalidRecord if one cannot be read, or gives an id another schema.
    """

    IS_IDEMPOTENT = True

    records: tuple[tuple[bytes, bytes | None], ...]


class GetVersion(Query[SchemaVersion], frozen=True, kw_only=True):
    """Return a version; LATEST is the latest that is not deleted."""

    subject: str
    version: int
    deleted: bool = False


class ListVersions(Query[tuple[int, ...]], frozen=True, kw_only=True):
    """Return the versions of a subject in order. A limit below 0 is none."""

    subject: str
    deleted: Deleted = Deleted.EXCLUDED
    offset: int = 0
    limit: int = -1


class ListSubjects(Query[tuple[str, ...]], frozen=True, kw_only=True):
    """Return subjects in order. `:*:` before the prefix stands for every context."""

    prefix: str = ":*:"
    deleted: Deleted = Deleted.EXCLUDED
    offset: int = 0
    limit: int = -1


class DescribeSubjects(Query[tuple[SubjectDescription, ...]], frozen=True, kw_only=True):
    """Describe subjects; those that do not exist or are deleted are left out."""

    subjects: tuple[str, ...]


class ListSchemas(Query[tuple[SchemaVersion, ...]], frozen=True, kw_only=True):
    """Return versions of subjects in order, no more than MAX_LISTED."""

    prefix: str = ":*:"
    deleted: bool = False
    latest_only: bool = False
    offset: int = 0
    limit: int = MAX_LISTED


class LatestWithMetadata(Query[SchemaVersion], frozen=True, kw_only=True):
    """Return the latest version that has all these properties in its metadata."""

    subject: str
    properties: dict[str, str]
    deleted: bool = False


class ReferencedBy(Query[tuple[int, ...]], frozen=True, kw_only=True):
    """Return the ids of the schemas that refer to a version."""

    subject: str
    version: int
    deleted: bool = False
    offset: int = 0
    limit: int = -1


class GetById(Query[SchemaVersion], frozen=True, kw_only=True):
    """Return a schema by its id in the context of a subject, as one of the versions that have it."""

    id: int
    subject: str | None = None


class SourceOfId(Query[Source], frozen=True, kw_only=True):
    """Return the text of an id with those that it refers to."""

    id: int
    subject: str | None = None


class VersionsOfId(Query[tuple[SubjectVersion, ...]], frozen=True, kw_only=True):
    """Return the versions that have an id."""

    id: int
    subject: str | None = None
    deleted: bool = False


class IdentifiedSchema(msgspec.Struct, frozen=True, kw_only=True, tag="identified-schema"):
    """The identity of a schema, and whether a subject has a version with it."""

    guid: str
    id: int
    context: str
    is_version: bool


class IdentifySchema(Query[IdentifiedSchema], frozen=True, kw_only=True):
    """Find the schema that a record names, and whether it is a version of a subject that is not deleted.

    `schema` is an id in the context of the subject, or a GUID. A subject may be a context only.
    """

    schema: int | str
    subject: str | None = None


class GetByGuid(Query[SchemaVersion], frozen=True, kw_only=True):
    """Return a schema by its GUID, as one of the versions that have it."""

    guid: str


class IdsOfGuid(Query[tuple[ContextId, ...]], frozen=True, kw_only=True):
    """Return the ids of a schema in all contexts."""

    guid: str


class MaxId(Query[int], frozen=True, kw_only=True):
    """Return the highest id that was ever used in the context of a subject; 0 if none was."""

    subject: str | None = None


class ListContexts(Query[tuple[str, ...]], frozen=True, kw_only=True):
    """Return the contexts; the default one is first."""


class GetConfig(Query[Config], frozen=True, kw_only=True):
    """Return the configuration of a subject or context: its own, or that which applies."""

    subject: str | None
    default_to_global: bool = False


class GetMode(Query[Mode], frozen=True, kw_only=True):
    """Return the mode of a subject or context: its own, or that which applies."""

    subject: str | None
    default_to_global: bool = False


class CountSchemas(Query[RegistryStats], frozen=True, kw_only=True):
    """Return how much the registry has."""
