"""Reads what the registry has stored: aliases, settings in their scopes, references, ids and GUIDs."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from .errors import InvalidVersion, OperationNotPermitted, SchemaNotFound, SchemaTooLarge, SubjectNotFound
from .messages import LATEST, SchemaVersion, Source, SubjectVersion
from .schema import MAX_DEPTH, MAX_SCHEMA_BYTES, Dependency, InvalidSchema, Reference
from .settings import Config, Mode
from .state import MAX_INT32, RegistryState, StoredSchema, Subject
from .subjects import (
    ANY_CONTEXT,
    DEFAULT_CONTEXT,
    GLOBAL_SCOPE,
    SubjectName,
    checked_scope,
    checked_subject,
    context_of,
    in_context_of,
    scopes_of,
    split_context,
    split_subject,
    tenant_context,
)

MAX_REFERENCES: Final = 1000
# Comes after everything that a name can go on with.
_LAST: Final = chr(0x10FFFF)
MAX_DEPENDENCY_CHARACTERS: Final = 16 * MAX_SCHEMA_BYTES


class RegistryView:
    """A state, for reading."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    def name_of(self, subject: str) -> str:
        """Return the normal name of a subject, or of the one that it is an alias for.

        Raises InvalidSubject.
        """
        return self._without_alias(checked_subject(subject))

    def _without_alias(self, name: str) -> str:
        config = self._state.configs.get(name)
        if config is None or not config.alias:
            return name
        return in_context_of(split_subject(name), config.alias)

    def subject(self, name: str, *, deleted: bool) -> Subject:
        """Return a subject; one whose versions are all deleted if wanted. Raises SubjectNotFound."""
        subject = self._state.subjects.get(name)
        if subject is None or (subject.is_all_deleted and not deleted):
            raise SubjectNotFound(name)
        return subject

    def existing_version(self, name: str, version: int, *, deleted: bool) -> int | None:
        """Return the number of a version if it exists. Raises InvalidVersion."""
        check_version(version)
        if (subject := self._state.subjects.get(name)) is None:
            return None
        if version == LATEST:
            return subject.latest()
        exists = subject.get(version) is not None and (deleted or not subject.is_deleted(version))
        return version if exists else None

    def version(self, name: str, version: int) -> SchemaVersion:
        """Return a version that exists."""
        subject = self._state.subjects[name]
        schema = subject.get(version)
        assert schema is not None
        return SchemaVersion(
            subject=name,
            version=version,
            id=schema.id,
            guid=str(UUID(bytes=schema.guid)),
            schema_type=schema.schema_type,
            text=schema.text,
            references=schema.references,
            metadata=schema.metadata,
            rule_set=schema.rule_set,
            deleted=subject.is_deleted(version),
        )

    def contexts(self) -> list[str]:
        """Return the contexts; the default one is first."""
        return [DEFAULT_CONTEXT, *sorted(self._state.named_contexts)]

    def in_any_context(self, name: str) -> Iterator[str]:
        """Yield a subject, and those of the same name in other contexts of its tenant if it names none."""
        yield name
        named = split_subject(name)
        tenant, local = split_context(named.context)
        if local == DEFAULT_CONTEXT:
            for context in self.contexts()[1:]:
                other = str(SubjectName(context, named.name))
                if other != name and other in self._state.subjects and split_context(context)[0] == tenant:
                    yield other

    def with_prefix(self, prefix: str) -> list[Subject]:
        """Return the subjects whose names begin with a prefix, in order."""
        names = self._state.names()
        if prefix.startswith(ANY_CONTEXT):
            if rest := prefix.removeprefix(ANY_CONTEXT):
                names = [each for each in names if split_subject(each).name.startswith(rest)]
        else:
            names = names[bisect_left(names, prefix) : bisect_left(names, prefix + _LAST)]
            # Without a context, the default one is meant.
            if not prefix.startswith(":."):
                names = [each for each in names if not each.startswith(":.")]
        subjects = self._state.subjects
        return [subjects[each] for each in names]

    # Settings.

    def mode_in_scope(self, scope: str | None) -> Mode:
        """Return the mode that applies to a subject or context."""
        modes = self._state.modes
        if any(
            modes.get(each) is Mode.READONLY_OVERRIDE for each in (None, GLOBAL_SCOPE, _default_scope(scope))
        ):
            return Mode.READONLY_OVERRIDE
        return next((modes[each] for each in scopes_of(scope) if each in modes), Mode.READWRITE)

    def config_in_scope(self, scope: str | None) -> Config:
        """Return the configuration that applies to a subject or context."""
        configs = self._state.configs
        if scope is not None and (own := configs.get(scope)) is not None:
            return own.over(configs.get(_default_scope(scope), Config()))
        found = next((configs[each] for each in scopes_of(scope) if each in configs), Config())
        return found.with_level()

    def check_may_write(self, scope: str | None) -> None:
        """Raise OperationNotPermitted if the mode is read-only."""
        if self.mode_in_scope(scope).is_read_only:
            raise OperationNotPermitted(f"{described(scope)} is in read-only mode")

    # Ids.

    def by_id(self, schema_id: int, subject: str | None) -> tuple[StoredSchema, SubjectVersion]:
        """Return a schema and a version that has it, of the subject if possible. Raises SchemaNotFound."""
        name = self._without_alias(checked_scope(subject) or "")
        wanted = split_subject(name)
        if wanted.name:
            for each in self.in_any_context(name):
                found = self._state.context(context_of(each)).schemas.get(schema_id)
                holder = self._state.subjects.get(each)
                if found is not None and holder is not None:
                    version = version_of(holder, found, deleted=True)
                    if version is not None:
                        return found, SubjectVersion(each, version)
        schema = self._state.context(wanted.context).schemas.get(schema_id)
        # Another subject's schema is returned only in the default context, as Confluent's registry does.
        if schema is None or (wanted.name and split_context(wanted.context)[1] != DEFAULT_CONTEXT):
            raise SchemaNotFound(f"schema {schema_id} not found")
        return schema, SubjectVersion(*next(iter(schema.users)))

    def by_guid(self, guid: str) -> Iterator[StoredSchema]:
        """Yield the schemas with a GUID, one per context; that of the default context is first."""
        try:
            wanted = UUID(guid).bytes
        except ValueError:
            return
        for name in self.contexts():
            context = self._state.context(name)
            if (schema_id := context.by_guid.get(wanted)) is not None:
                yield context.schemas[schema_id]

    def users(self, schema: StoredSchema, *, deleted: bool = False) -> Iterator[SubjectVersion]:
        """Yield the versions that have a schema; those that are deleted if wanted."""
        for name, version in schema.users:
            if deleted or not self._state.subjects[name].is_deleted(version):
                yield SubjectVersion(name, version)

    # References.

    def referrers(self, name: str, version: int, *, deleted: bool) -> list[StoredSchema]:
        """Return the schemas that refer to a version, in order; those that are deleted if wanted."""
        found = self._state.referrers.get((name, version), ())
        schemas = [self._state.contexts[context].schemas[schema_id] for context, schema_id in sorted(found)]
        return [schema for schema in schemas if deleted or any(True for _ in self.users(schema))]

    def resolved(self, name: str, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        """Return references with the version that `latest` means now. Raises InvalidSchema."""
        parent = split_subject(name)
        resolved = []
        for each in references:
            version = each.version
            if version == LATEST:
                subject = self._state.subjects.get(in_context_of(parent, each.subject))
                version = (None if subject is None else subject.latest()) or LATEST
            resolved.append(each if version == each.version else Reference(each.name, each.subject, version))
            self._referenced(parent, resolved[-1])
        return tuple(resolved)

    def source_of(self, schema: StoredSchema) -> Source:
        """Return the text of a schema with those that it refers to."""
        parent = str(SubjectName(schema.context, ""))
        return Source(schema.schema_type, schema.text, self.dependencies(parent, schema.references))

    def dependencies(self, name: str, references: tuple[Reference, ...]) -> tuple[Dependency, ...]:
        """Return the schemas that references of a subject lead to, each before those that use it.

        Where two have the same name, the first one counts. Raises InvalidSchema and SchemaTooLarge.
        """
        if not references:
            return ()
        parent = split_subject(name)
        found: dict[str, str] = {}
        visited: set[str] = set()
        left = MAX_DEPENDENCY_CHARACTERS
        # Schemas whose references are being followed, and the names by which they are used.
        path: list[tuple[SubjectName, Iterator[Reference], Dependency]] = [
            (parent, iter(references), Dependency("", ""))
        ]
        while path:
            parent, following, dependency = path[-1]
            for each in following:
                if each.name in visited:
                    continue
                visited.add(each.name)
                schema = self._referenced(parent, each)
                left -= len(schema.text)
                if len(path) > MAX_DEPTH or len(visited) > MAX_REFERENCES or left < 0:
                    raise SchemaTooLarge(
                        f"the schemas that are referred to are more than {MAX_REFERENCES}, "
                        f"more than {MAX_DEPTH} deep, or too large"
                    )
                used = Dependency(each.name, schema.text)
                path.append((SubjectName(schema.context, ""), iter(schema.references), used))
                break
            else:
                path.pop()
                if path:
                    found[dependency.name] = dependency.text
        return tuple(Dependency(*each) for each in found.items())

    def _referenced(self, parent: SubjectName, reference: Reference) -> StoredSchema:
        subject = self._state.subjects.get(in_context_of(parent, reference.subject))
        schema = None if subject is None else subject.get(reference.version)
        if schema is None:
            version = "version" if reference.version == LATEST else f"version {reference.version}"
            raise InvalidSchema(
                f"reference {reference.name!r}: subject {reference.subject!r} has no {version}"
            )
        return schema


def _default_scope(scope: str | None) -> str | None:
    """Return the default context of the tenant that a scope belongs to; that without a tenant is None."""
    tenant = None if scope is None else split_context(context_of(scope))[0]
    return None if tenant is None else str(SubjectName(tenant_context(tenant, DEFAULT_CONTEXT), ""))


def check_version(version: int) -> None:
    """Raise InvalidVersion if no subject can have a version."""
    if version != LATEST and not 0 < version <= MAX_INT32:
        raise InvalidVersion(version)


def version_of(subject: Subject, schema: StoredSchema, *, deleted: bool = False) -> int | None:
    """Return the latest version of a subject that has a schema."""
    if len(schema.users) == 1 and next(iter(schema.users))[0] != subject.name:
        return None
    return next((version for version, each in subject.newest_first(deleted=deleted) if each is schema), None)


def described(scope: str | None) -> str:
    """Return what a message calls a subject or context."""
    named = SubjectName(DEFAULT_CONTEXT, "") if scope is None else split_subject(scope)
    return f"subject {scope!r}" if named.name else f"context {named.context!r}"
