"""The requests to the registry that change nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from alpacamq.model.state_machine import HandlesOneByOne, Outcome, Request, reply

from .drafts import Drafts, NotParsed, checked_draft
from .errors import ConfigNotFound, ModeNotFound, SchemaNotFound, VersionNotFound
from .messages import (
    LATEST,
    MAX_LISTED,
    MAX_LISTED_CHARACTERS,
    CheckCompatibility,
    CompareFirst,
    ContextId,
    CountSchemas,
    Deleted,
    DescribeSubjects,
    Draft,
    GetByGuid,
    GetById,
    GetConfig,
    GetMode,
    GetVersion,
    IdentifiedSchema,
    IdentifySchema,
    IdsOfGuid,
    LatestWithMetadata,
    ListContexts,
    ListSchemas,
    ListSubjects,
    ListVersions,
    Lookup,
    MaxId,
    ParseFirst,
    ReferencedBy,
    RegistryStats,
    SchemaVersion,
    SourceOfId,
    SubjectDescription,
    VersionsOfId,
)
from .schema import InvalidSchema, SchemaType
from .settings import Config, Mode
from .state import MAX_INT32, RegistryState, StoredSchema
from .subjects import GLOBAL_SCOPE, checked_scope, context_of, split_subject
from .view import RegistryView, version_of

T = TypeVar("T")


class Queries(HandlesOneByOne):
    """Answers queries."""

    def __init__(self) -> None:
        self._state = RegistryState()
        self._view = RegistryView(self._state)
        self._drafts = Drafts(self._state, self._view)

    def lookup(self, request: Lookup, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the version of a subject that has a schema; of any context if the subject names none."""
        name = self._view.name_of(request.subject)
        draft = checked_draft(request.draft)
        if not draft.text:
            raise InvalidSchema("the schema is empty")
        try:
            for each in self._view.in_any_context(name):
                try:
                    found = self._look_up(each, draft, request)
                except InvalidSchema:
                    if each == name:
                        raise
                    continue  # what it refers to is not in that context
                if found is not None:
                    return reply(reply_to, found)
        except NotParsed as missing:
            return reply(reply_to, ParseFirst(missing.source))
        self._view.subject(name, deleted=request.deleted)
        raise SchemaNotFound(f"subject {name!r} does not have the schema")

    def _look_up(self, name: str, draft: Draft, request: Lookup) -> SchemaVersion | None:
        target = self._drafts.target(
            name, request.evidence, normalize=request.normalize, deleted=request.deleted
        )
        if (found := self._drafts.find(draft, target)) is not None:
            return found
        subject = self._state.subjects.get(name)
        if subject is None or subject.latest() is None:
            return None
        # As it would be completed if it was registered.
        completed = self._drafts.completed(draft, target)
        return None if completed == draft else self._drafts.find(completed, target)

    def check_compatibility(self, request: CheckCompatibility, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with what to compare a schema with."""
        name = self._view.name_of(request.subject)
        draft = checked_draft(request.draft)
        if not draft.text:
            raise InvalidSchema("the schema is empty")
        version = request.version
        # Everything is compatible with the latest version of a subject that has none.
        if version not in (None, LATEST) and not self._view.existing_version(name, version, deleted=False):
            raise VersionNotFound(name, version)
        target = self._drafts.target(name, request.evidence, normalize=request.normalize)
        try:
            content, source = self._drafts.parsed(draft, target)
        except NotParsed as missing:
            return reply(reply_to, ParseFirst(missing.source))
        return reply(reply_to, CompareFirst(self._drafts.comparison(content, source, target, version)))

    def get_config(self, request: GetConfig, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with a configuration."""
        scope = checked_scope(request.subject)
        if request.default_to_global:
            return reply(reply_to, self._view.config_in_scope(scope))
        if (config := self._state.configs.get(scope)) is None:
            if scope is not None and scope != GLOBAL_SCOPE:
                raise ConfigNotFound(scope)
            config = Config()
        return reply(reply_to, config.with_level())

    def get_mode(self, request: GetMode, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with a mode."""
        scope = checked_scope(request.subject)
        if request.default_to_global:
            return reply(reply_to, self._view.mode_in_scope(scope))
        if (mode := self._state.modes.get(scope)) is None:
            if scope is not None and scope != GLOBAL_SCOPE:
                raise ModeNotFound(scope)
            mode = Mode.READWRITE
        return reply(reply_to, mode)

    def get_version(self, request: GetVersion, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with a version; of any context if the subject names none."""
        name = self._view.name_of(request.subject)
        for each in self._view.in_any_context(name):
            version = self._view.existing_version(each, request.version, deleted=request.deleted)
            if version is not None:
                return reply(reply_to, self._view.version(each, version))
        self._view.subject(name, deleted=request.deleted)
        raise VersionNotFound(name, request.version)

    def list_versions(self, request: ListVersions, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the numbers of a subject's versions."""
        wanted = request.deleted
        subject = self._view.subject(
            self._view.name_of(request.subject), deleted=wanted in (Deleted.INCLUDED, Deleted.ONLY)
        )
        versions = (
            -version if wanted is Deleted.NEGATIVE and subject.is_deleted(version) else version
            for version in subject.numbers
            if _is_listed(wanted, is_deleted=subject.is_deleted(version))
        )
        return reply(reply_to, _page(versions, request.offset, request.limit))

    def list_subjects(self, request: ListSubjects, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the names of subjects."""
        names = (
            subject.name
            for subject in self._view.with_prefix(request.prefix)
            # Most subjects have no deleted version.
            if _is_listed(request.deleted, is_deleted=subject.deleted is not None and subject.is_all_deleted)
        )
        return reply(reply_to, _page(names, request.offset, request.limit))

    def describe_subjects(self, request: DescribeSubjects, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the latest versions of subjects and the settings that apply to them."""
        found: list[SubjectDescription] = []
        for name in request.subjects:
            subject = self._state.subjects.get(name)
            latest = None if subject is None else next(subject.newest_first(), None)
            if subject is None or latest is None:
                continue
            version, schema = latest
            description = SubjectDescription(
                subject=name,
                versions=len(subject.numbers) - len(subject.deleted or ()),
                latest=version,
                id=schema.id,
                schema_type=schema.schema_type,
                compatibility=self._view.config_in_scope(name).level,
                mode=self._view.mode_in_scope(name),
            )
            found.append(description)
        return reply(reply_to, tuple(found))

    def list_schemas(self, request: ListSchemas, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with versions of subjects; with fewer than wanted if they are very large."""
        limit = request.limit if 0 < request.limit <= MAX_LISTED else MAX_LISTED
        found: list[SchemaVersion] = []
        characters = 0
        for name, version in _page(self._listed(request), request.offset, limit):
            found.append(self._view.version(name, version))
            characters += len(found[-1].text)
            if characters > MAX_LISTED_CHARACTERS:
                break
        return reply(reply_to, tuple(found))

    def _listed(self, request: ListSchemas) -> Iterator[tuple[str, int]]:
        for subject in self._view.with_prefix(request.prefix):
            versions = subject.numbers
            if subject.deleted and not request.deleted:
                versions = [each for each in versions if not subject.is_deleted(each)]
            for version in versions[-1:] if request.latest_only else versions:
                yield subject.name, version

    def latest_with_metadata(self, request: LatestWithMetadata, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the latest version that has these properties."""
        name = self._view.name_of(request.subject)
        subject = self._view.subject(name, deleted=request.deleted)
        for version, schema in subject.newest_first(deleted=request.deleted):
            if schema.metadata is not None:
                properties = schema.metadata.properties or {}
                if request.properties.items() <= properties.items():
                    return reply(reply_to, self._view.version(name, version))
        raise SchemaNotFound(f"no version of subject {name!r} has this metadata")

    def referenced_by(self, request: ReferencedBy, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the ids of the schemas that refer to a version."""
        name = self._view.name_of(request.subject)
        version = self._view.existing_version(name, request.version, deleted=True)
        if version is None:
            self._view.subject(name, deleted=True)
            raise VersionNotFound(name, request.version)
        ids = (schema.id for schema in self._view.referrers(name, version, deleted=request.deleted))
        return reply(reply_to, _page(ids, request.offset, request.limit))

    def get_by_id(self, request: GetById, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with a schema."""
        _, user = self._view.by_id(request.id, request.subject)
        return reply(reply_to, self._view.version(*user))

    def source_of_id(self, request: SourceOfId, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the text of a schema, and those that it refers to."""
        schema, _ = self._view.by_id(request.id, request.subject)
        return reply(reply_to, self._view.source_of(schema))

    def identify(self, request: IdentifySchema, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the identity of a schema, and whether the subject has it."""
        name, schema = request.subject, request.schema
        if isinstance(schema, int):
            candidates = [self._view.by_id(schema, name)[0]]
        else:
            candidates = list(self._view.by_guid(schema))
        if not candidates:
            raise SchemaNotFound(f"schema {schema!r} not found")
        subjects: tuple[str, ...] = ()
        if name is not None and split_subject(name).name:
            subjects = tuple(self._view.in_any_context(self._view.name_of(name)))
        for found in candidates:
            for each in subjects:
                subject = self._state.subjects.get(each)
                if subject is not None and version_of(subject, found) is not None:
                    return reply(reply_to, _identified(found, is_version=True))
        return reply(reply_to, _identified(candidates[0], is_version=False))

    def versions_of_id(self, request: VersionsOfId, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the versions that have an id."""
        schema, _ = self._view.by_id(request.id, request.subject)
        return reply(reply_to, tuple(self._view.users(schema, deleted=request.deleted)))

    def get_by_guid(self, request: GetByGuid, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with a schema; with that of the default context first."""
        for schema in self._view.by_guid(request.guid):
            return reply(reply_to, self._view.version(*next(iter(schema.users))))
        raise SchemaNotFound(f"schema {request.guid!r} not found")

    def ids_of_guid(self, request: IdsOfGuid, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the ids of a schema in all contexts."""
        ids = tuple(ContextId(schema.context, schema.id) for schema in self._view.by_guid(request.guid))
        return reply(reply_to, ids)

    def max_id(self, request: MaxId, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the highest id of a context."""
        return reply(reply_to, self._state.context(context_of(request.subject or "")).max_id)

    def list_contexts(self, _request: ListContexts, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the contexts."""
        return reply(reply_to, tuple(self._view.contexts()))

    def count(self, _request: CountSchemas, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with how much there is."""
        subjects = self._state.subjects.values()
        deleted = sum(len(subject.deleted or ()) for subject in subjects)
        deleted_subjects = sum(subject.is_all_deleted for subject in subjects)
        by_type = dict.fromkeys(SchemaType, 0)
        for context in self._state.contexts.values():
            for schema in context.schemas.values():
                by_type[schema.schema_type] += 1
        stats = RegistryStats(
            contexts=len(self._view.contexts()),
            subjects=len(subjects) - deleted_subjects,
            deleted_subjects=deleted_subjects,
            versions=sum(len(subject.numbers) for subject in subjects) - deleted,
            deleted_versions=deleted,
            schemas=by_type,
        )
        return reply(reply_to, stats)

    HANDLERS: ClassVar[Mapping[type[Request[Any]], Callable[[Any, Any, object, int], Outcome]]] = {
        Lookup: lookup,
        CheckCompatibility: check_compatibility,
        GetConfig: get_config,
        GetMode: get_mode,
        GetVersion: get_version,
        ListVersions: list_versions,
        ListSubjects: list_subjects,
        DescribeSubjects: describe_subjects,
        ListSchemas: list_schemas,
        LatestWithMetadata: latest_with_metadata,
        ReferencedBy: referenced_by,
        GetById: get_by_id,
        SourceOfId: source_of_id,
        IdentifySchema: identify,
        VersionsOfId: versions_of_id,
        GetByGuid: get_by_guid,
        IdsOfGuid: ids_of_guid,
        MaxId: max_id,
        ListContexts: list_contexts,
        CountSchemas: count,
    }


def _identified(schema: StoredSchema, *, is_version: bool) -> IdentifiedSchema:
    return IdentifiedSchema(
        guid=str(UUID(bytes=schema.guid)), id=schema.id, context=schema.context, is_version=is_version
    )


def _is_listed(wanted: Deleted, *, is_deleted: bool) -> bool:
    match wanted:
        case Deleted.EXCLUDED:
            return not is_deleted
        case Deleted.ONLY:
            return is_deleted
        case Deleted.INCLUDED | Deleted.NEGATIVE:
            return True


def _page(found: Iterable[T], offset: int, limit: int) -> tuple[T, ...]:
    # Clients choose the numbers, and `islice` raises ValueError for those above sys.maxsize.
    start = min(max(offset, 0), MAX_INT32)
    return tuple(islice(found, start, None if limit < 0 else start + min(limit, MAX_INT32)))
