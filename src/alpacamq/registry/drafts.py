"""Compares the schemas that clients send with those that are stored.

A draft becomes a schema when its text was parsed, its references were resolved, and its metadata and rules
were completed. Then it can be found, or compared with earlier versions.
"""

from typing import Final

import msgspec

from .errors import SchemaTooLarge
from .messages import LATEST, Comparison, Draft, Evidence, ParsedText, SchemaVersion, Source
from .metadata import Metadata, merge_metadata, merge_rule_sets
from .schema import MAX_SCHEMA_BYTES, InvalidSchema
from .settings import CompatibilityLevel, Config
from .state import MAX_INT32, Content, RegistryState, Subject
from .subjects import context_of
from .view import MAX_REFERENCES, RegistryView, version_of

# Of a text as it is stored. It can be longer than what was sent: names and indentation are written out.
MAX_STORED_CHARACTERS: Final = 4 * MAX_SCHEMA_BYTES


class NotParsed(Exception):
    """The evidence does not say what a text means."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source


class Target(msgspec.Struct, frozen=True):
    """Where a draft is looked for, and how."""

    subject: str
    config: Config
    evidence: Evidence
    is_normalized: bool
    deleted: bool = False


class Drafts:
    """Finds and compares drafts."""

    def __init__(self, state: RegistryState, view: RegistryView) -> None:
        self._state = state
        self._view = view

    def target(self, subject: str, evidence: Evidence, *, normalize: bool, deleted: bool = False) -> Target:
        """Return how drafts are handled for a subject."""
        config = self._view.config_in_scope(subject)
        is_normalized = (normalize or bool(config.normalize)) and not self._view.mode_in_scope(
            subject
        ).is_import
        return Target(subject, config, evidence, is_normalized, deleted)

    def parsed(self, draft: Draft, target: Target) -> tuple[Content, Source]:
        """Return the content of a draft, and what was parsed. Raises NotParsed and SchemaTooLarge."""
        references = self._view.resolved(target.subject, draft.references)
        source = Source(draft.schema_type, draft.text, self._view.dependencies(target.subject, references))
        parsed = _parsed_in(target.evidence, source)
        text = parsed.canonical
        if target.is_normalized:
            text = parsed.normalized
            references = tuple(
                sorted(dict.fromkeys(references), key=lambda each: (each.subject, each.version))
            )
        if len(text) > MAX_STORED_CHARACTERS:
            raise SchemaTooLarge(
                f"the schema has {len(text)} characters in its stored form, more than {MAX_STORED_CHARACTERS}"
            )
        return Content(draft.schema_type, text, references, draft.metadata, draft.rule_set), source

    def find(self, draft: Draft, target: Target) -> SchemaVersion | None:
        """Return the version of a subject with the content of a draft. Raises NotParsed."""
        return self.find_content(self.parsed(draft, target)[0], target)

    def find_content(self, content: Content, target: Target) -> SchemaVersion | None:
        """Return the version of a subject with a content."""
        if (subject := self._state.subjects.get(target.subject)) is None:
            return None
        version = None
        if (known := self._state.context(context_of(subject.name)).find(content)) is not None:
            version = version_of(subject, known, deleted=target.deleted)
        if version is None:
            version = _differs_by_version_only(subject, content, deleted=target.deleted)
        return None if version is None else self._view.version(subject.name, version)

    def completed(self, draft: Draft, target: Target, version: int | None = None) -> Draft:
        """Return a draft with what it inherits from the latest version, and what the configuration adds.

        For a new version: if `version` is not 0, or the metadata has a version, it gets the next one.
        """
        subject = self._state.subjects.get(target.subject)
        latest = None if subject is None else next((schema for _, schema in subject.newest_first()), None)
        metadata, rule_set = draft.metadata, draft.rule_set
        if latest is not None:
            if not draft.text:
                draft = msgspec.structs.replace(
                    draft, text=latest.text, schema_type=latest.schema_type, references=latest.references
                )
            metadata = latest.metadata if metadata is None else metadata
            rule_set = latest.rule_set if rule_set is None else rule_set
        config = target.config
        metadata = merge_metadata(merge_metadata(config.default_metadata, metadata), config.override_metadata)
        rule_set = merge_rule_sets(
            merge_rule_sets(config.default_rule_set, rule_set), config.override_rule_set
        )
        if version or (version == 0 and metadata is not None and metadata.version is not None):
            metadata = (metadata or Metadata()).with_version(next_version(subject))
        return msgspec.structs.replace(draft, metadata=metadata, rule_set=rule_set)

    def comparison(
        self, content: Content, source: Source, target: Target, version: int | None = None
    ) -> Comparison:
        """Return what a schema has to be compatible with: a version, or those that the level names."""
        level = target.config.level
        subject = self._state.subjects.get(target.subject)
        if subject is None or level is CompatibilityLevel.NONE:
            return Comparison(level, source, ())
        earlier = list(subject.newest_first())
        if version is not None:
            wanted = subject.latest() if version == LATEST else version
            earlier = [each for each in earlier if each[0] == wanted]
        if (group := target.config.compatibility_group) is not None:
            value = _property(content.metadata, group)
            earlier = [each for each in earlier if _property(each[1].metadata, group) == value]
        if not level.is_transitive:
            del earlier[1:]
        return Comparison(level, source, tuple(self._view.source_of(schema) for _, schema in earlier))


def next_version(subject: Subject | None) -> int:
    """Return the version that is registered next; also deleted ones count."""
    return 1 if subject is None else subject.numbers[-1] + 1


def checked_draft(draft: Draft) -> Draft:
    """Return a draft with its metadata and rules in order.

    Raises InvalidSchema, SchemaTooLarge and InvalidRuleSet.
    """
    text = draft.text if draft.text.strip() else ""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidSchema(f"the schema is not valid Unicode at character {error.start}") from None
    if size > MAX_SCHEMA_BYTES:
        raise SchemaTooLarge(f"the schema has {size} bytes, more than {MAX_SCHEMA_BYTES}")
    if len(draft.references) > MAX_REFERENCES:
        raise SchemaTooLarge(f"the schema has {len(draft.references)} references, more than {MAX_REFERENCES}")
    for each in draft.references:
        if not (each.version == LATEST or 0 < each.version <= MAX_INT32):
            raise InvalidSchema(f"reference {each.name!r}: invalid version {each.version}")
    if draft.rule_set is not None:
        draft.rule_set.check()
    if draft.references or draft.metadata is not None or draft.rule_set is not None:
        check_size((draft.references, draft.metadata, draft.rule_set))
    return msgspec.structs.replace(
        draft,
        text=text,
        metadata=draft.metadata and draft.metadata.ordered(),
        rule_set=draft.rule_set and draft.rule_set.ordered(),
    )


def check_size(value: object) -> None:
    """Raise SchemaTooLarge if an addition to a schema is too large, InvalidSchema if it is not Unicode."""
    try:
        size = len(msgspec.json.encode(value))
    except UnicodeEncodeError:
        raise InvalidSchema("references, metadata or rules are not valid Unicode") from None
    if size > MAX_SCHEMA_BYTES:
        raise SchemaTooLarge(
            f"references, metadata and rules have {size} bytes, more than {MAX_SCHEMA_BYTES}"
        )


def _parsed_in(evidence: Evidence, source: Source) -> ParsedText:
    for parsed in evidence.parsed:
        if parsed.source == source:
            return parsed
    raise NotParsed(source)


def _differs_by_version_only(subject: Subject, content: Content, *, deleted: bool) -> int | None:
    """Return the latest version that is the same but for the property that repeats its number."""
    wanted = None if content.metadata is None else content.metadata.version
    for version, schema in subject.newest_first(deleted=deleted):
        repeated = None if schema.metadata is None else schema.metadata.version
        if (wanted is None) == (repeated is None) or (wanted is not None and wanted != version):
            continue
        stored = schema.content
        if (content.metadata or Metadata()).without_version() == (
            stored.metadata or Metadata()
        ).without_version() and content._replace(metadata=None) == stored._replace(metadata=None):
            return version
    return None


def _property(metadata: Metadata | None, name: str) -> str | None:
    return None if metadata is None else (metadata.properties or {}).get(name)
