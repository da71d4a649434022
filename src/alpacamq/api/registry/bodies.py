"""The bodies of requests and responses, in the JSON form of Confluent's schema registry."""

import re
from typing import Any, Final

import msgspec

from alpacamq.model.errors import InvalidRequest
from alpacamq.registry.errors import InvalidVersion
from alpacamq.registry.messages import LATEST, Draft, SchemaVersion
from alpacamq.registry.metadata import Metadata, RuleSet
from alpacamq.registry.schema import InvalidSchema, Reference, SchemaType
from alpacamq.registry.settings import CompatibilityLevel, Mode

from .names import Names

_NUMBER: Final = re.compile(r"-?[0-9]{1,10}")


class NewSchema(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A schema to register, to look up or to compare."""

    schema: str | None = None
    schema_type: str | None = None
    references: tuple[Reference, ...] | None = None
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    id: int | None = None
    version: int | None = None
    schema_tags_to_add: Any = None
    schema_tags_to_remove: Any = None

    def draft(self, names: Names) -> Draft:
        """Return the schema with names as they are stored. Raises InvalidSchema."""
        if self.schema_tags_to_add is not None or self.schema_tags_to_remove is not None:
            raise InvalidRequest("schemaTagsToAdd and schemaTagsToRemove are not supported: use metadata")
        return Draft(
            text=self.schema or "",
            schema_type=_schema_type(self.schema_type),
            references=tuple(
                Reference(each.name, names.reference(each.subject), each.version)
                for each in self.references or ()
            ),
            metadata=self.metadata,
            rule_set=self.rule_set,
        )


class ModeBody(msgspec.Struct, frozen=True):
    """A mode, by name."""

    mode: str


class SchemaBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A schema, with the version that it is where the client knows it."""

    subject: str | None = None
    id: int | None = None
    version: int | None = None
    guid: str | None = None
    schema_type: SchemaType | None = None
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    schema: str | None = None
    max_id: int | None = None
    deleted: bool = False


class SubjectBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A subject with its latest version, and the settings that apply to it."""

    subject: str
    versions: int
    latest: int
    id: int
    schema_type: SchemaType
    compatibility: CompatibilityLevel
    mode: Mode


class SubjectsBody(msgspec.Struct, frozen=True):
    """A page of subjects, and how many there are on all pages."""

    total: int
    subjects: list[SubjectBody]


class SubjectVersionBody(msgspec.Struct, frozen=True):
    """A version of a subject, by name."""

    subject: str
    version: int


class ContextIdBody(msgspec.Struct, frozen=True):
    """The id of a schema in a context."""

    context: str
    id: int


class CompatibilityBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a compatibility check."""

    is_compatible: bool
    messages: list[str] | None = None


class ModeAnswer(msgspec.Struct, frozen=True):
    """A mode; null if there was none to delete."""

    mode: Mode | None


def schema_body(version: SchemaVersion, text: str, names: Names) -> SchemaBody:
    """Return a version of a subject."""
    subject, references = names.local_version(version)
    return SchemaBody(
        subject=subject,
        id=version.id,
        version=version.version,
        guid=version.guid,
        schema_type=version.schema_type,
        references=references,
        metadata=version.metadata,
        rule_set=version.rule_set,
        schema=text,
        deleted=version.deleted,
    )


def schema_version(text: str) -> int:
    """Return the number of a version in a path. Raises InvalidVersion."""
    if text == "latest":
        return LATEST
    if _NUMBER.fullmatch(text) is None:
        raise InvalidVersion(text)
    return int(text)


def level_of(name: str) -> CompatibilityLevel | None:
    """Return a compatibility level by its name; None if there is none."""
    return CompatibilityLevel.__members__.get(name.upper())


def _schema_type(name: str | None) -> SchemaType:
    if not name:
        return SchemaType.AVRO
    if (found := SchemaType.__members__.get(name.upper())) is None:
        raise InvalidSchema(f"invalid schema type {name!r}: must be one of {', '.join(SchemaType)}")
    return found
