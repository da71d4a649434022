"""What the registry has stored: contexts, schemas by id, subjects with their versions, and settings.

It changes only by applying records, the same ones while it runs and when it is loaded. A text is kept once
per id, however many subjects use it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from hashlib import md5
from typing import Final, NamedTuple

from alpacamq.model.state_machine import Change

from .metadata import Metadata, RuleSet
from .records import (
    KeyType,
    SchemaValue,
    config_change,
    context_change,
    decode_record,
    encode_guid,
    max_id_change,
    mode_change,
    schema_change,
)
from .schema import Reference, SchemaType
from .settings import Config, Mode
from .subjects import DEFAULT_CONTEXT, SubjectName, context_of, covers, in_context_of

MAX_INT32: Final = 2**31 - 1


class Content(NamedTuple):
    """Everything that makes a schema different from others."""

    schema_type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None

    def guid(self, *, with_type: bool = False) -> bytes:
        """Return Confluent's GUID, which is the same in every registry.

        It does not depend on the type. `with_type` makes one for the schema that comes second where a text is
        valid in two languages.
        """
        digest = md5(self.text.encode(), usedforsecurity=False)
        for name, subject, version in ((each.name, each.subject, each.version) for each in self.references):
            digest.update(name.encode() + subject.encode() + version.to_bytes(4, "big", signed=True))
        for part in (self.metadata, self.rule_set):
            if part is not None:
                digest.update(b"\x01")
                part.feed(digest.update)
        if with_type:
            digest.update(self.schema_type.encode())
        return digest.digest()


class StoredSchema:
    """A schema with an id, and the versions that have it, deleted or not."""

    __slots__ = (
        "context",
        "guid",
        "id",
        "metadata",
        "references",
        "rule_set",
        "schema_type",
        "text",
        "users",
    )

    def __init__(self, context: str, schema_id: int, guid: bytes, content: Content) -> None:
        self.context = context
        self.id = schema_id
        self.guid = guid
        self.schema_type, self.text, self.references, self.metadata, self.rule_set = content
        self.users: dict[tuple[str, int], None] = {}

    @property
    def content(self) -> Content:
        return Content(self.schema_type, self.text, self.references, self.metadata, self.rule_set)


class Subject:
    """The versions of a subject in order, deleted or not; there is at least one."""

    __slots__ = ("deleted", "name", "numbers", "schemas")

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers: list[int] = []
        self.schemas: list[StoredSchema] = []
        self.deleted: set[int] | None = None

    def get(self, version: int) -> StoredSchema | None:
        """Return the schema of a version, deleted or not."""
        at = bisect_left(self.numbers, version)
        return self.schemas[at] if at < len(self.numbers) and self.numbers[at] == version else None

    def is_deleted(self, version: int) -> bool:
        return self.deleted is not None and version in self.deleted

    @property
    def is_all_deleted(self) -> bool:
        return self.deleted is not None and len(self.deleted) == len(self.numbers)

    def newest_first(self, *, deleted: bool = False) -> Iterator[tuple[int, StoredSchema]]:
        """Yield versions and their schemas, with the deleted ones if wanted."""
        for version, schema in zip(reversed(self.numbers), reversed(self.schemas), strict=True):
            if deleted or not self.is_deleted(version):
                yield version, schema

    def latest(self) -> int | None:
        """Return the latest version that is not deleted."""
        return next((version for version, _ in self.newest_first()), None)

    def put(self, version: int, schema: StoredSchema, *, deleted: bool) -> StoredSchema | None:
        """Set a version, and return the schema that it had before."""
        at = bisect_left(self.numbers, version)
        before = None
        if at < len(self.numbers) and self.numbers[at] == version:
            before, self.schemas[at] = self.schemas[at], schema
        else:
            self.numbers.insert(at, version)
            self.schemas.insert(at, schema)
        if deleted:
            self.delete(version)
        elif self.deleted is not None:
            self.deleted.discard(version)
        return before

    def delete(self, version: int) -> None:
        """Mark a version as deleted."""
        if self.deleted is None:
            self.deleted = set()
        self.deleted.add(version)

    def remove(self, version: int) -> StoredSchema | None:
        """Remove a version, and return the schema that it had."""
        at = bisect_left(self.numbers, version)
        if at == len(self.numbers) or self.numbers[at] != version:
            return None
        del self.numbers[at]
        if self.deleted is not None:
            self.deleted.discard(version)
        return self.schemas.pop(at)


class Context:
    """The schemas of a context by id and GUID."""

    __slots__ = ("by_guid", "max_id", "name", "schemas", "stored_max_id")

    def __init__(self, name: str) -> None:
        self.name = name
        self.schemas: dict[int, StoredSchema] = {}
        self.by_guid: dict[bytes, int] = {}
        # The highest id ever used, and that in the record which keeps it.
        self.max_id = 0
        self.stored_max_id = 0

    @property
    def has_lost_max_id(self) -> bool:
        """Whether no record has the highest id, so that it could be given again after a restart."""
        return self.max_id > self.stored_max_id and self.max_id not in self.schemas

    def find(self, content: Content) -> StoredSchema | None:
        """Return the schema with this content."""
        for with_type in (False, True):
            schema_id = self.by_guid.get(content.guid(with_type=with_type))
            found = None if schema_id is None else self.schemas.get(schema_id)
            if found is None or found.schema_type is content.schema_type:
                return found
        return None

    def new_guid(self, content: Content) -> bytes:
        """Return the GUID for a schema that is not stored yet."""
        guid = content.guid()
        return content.guid(with_type=True) if guid in self.by_guid else guid


class RegistryState:
    """Everything that the records say."""

    def __init__(self) -> None:
        self.contexts: dict[str, Context] = {}
        self.subjects: dict[str, Subject] = {}
        self.configs: dict[str | None, Config] = {}
        self.modes: dict[str | None, Mode] = {}
        self.named_contexts: set[str] = set()  # those that have a record
        # Contexts whose highest id was removed.
        self._lost_max_ids: dict[str, Context] = {}
        # The schemas that refer to a version, by context and id.
        self.referrers: dict[tuple[str, int], dict[tuple[str, int], None]] = {}
        self._unknown: dict[bytes, bytes] = {}
        # Names of subjects for listing; appended to, and put in order when they are needed.
        self._names: list[str] = []
        self._are_names_sorted = True

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply a record. Raises InvalidRecord if it cannot be read."""
        record = decode_record(key, value)
        scope = record.key.subject
        match record.key.keytype, record.value:
            case KeyType.SCHEMA, None:
                self._remove_version(record.subject, record.version)
            case KeyType.SCHEMA, stored:
                self._put_version(record.subject, record.version, stored)
            case KeyType.CONFIG, None:
                self.configs.pop(scope, None)
            case KeyType.CONFIG, stored:
                self.configs[scope] = stored.config
            case KeyType.MODE, None:
                self.modes.pop(scope, None)
            case KeyType.MODE, stored:
                self.modes[scope] = stored.mode
            case KeyType.CONTEXT, stored:
                self._set_context(record.key.context or DEFAULT_CONTEXT, exists=stored is not None)
            case ((KeyType.DELETE_SUBJECT | KeyType.CLEAR_SUBJECT | KeyType.NOOP), None):
                pass
            case KeyType.DELETE_SUBJECT, stored:
                self._delete_versions(stored.subject, stored.version)
            case KeyType.CLEAR_SUBJECT, stored:
                self._clear(stored.subject)
            case KeyType.NOOP, stored:
                context = self._context(record.key.context or DEFAULT_CONTEXT)
                context.stored_max_id = max(context.stored_max_id, stored.max_id)
                context.max_id = max(context.max_id, context.stored_max_id)
            case _:
                if value is None:
                    self._unknown.pop(key, None)
                else:
                    self._unknown[key] = value

    def records(self) -> Iterator[Change]:
        """Yield records that lead to this state; it may change meanwhile."""
        for name, context in list(self.contexts.items()):
            if context.stored_max_id:
                yield max_id_change(name, context.stored_max_id)
        for name in sorted(self.named_contexts):
            yield context_change(name)
        for scope, config in list(self.configs.items()):
            yield config_change(scope, config)
        for scope, mode in list(self.modes.items()):
            yield mode_change(scope, mode)
        for key, value in list(self._unknown.items()):
            yield Change(key, value)
        for subject in list(self.subjects.values()):
            for version, schema in zip(list(subject.numbers), list(subject.schemas), strict=True):
                deleted = subject.is_deleted(version)
                yield schema_change(
                    make_schema_value(
                        subject.name, version, schema.id, schema.guid, schema.content, deleted=deleted
                    )
                )

    def context(self, name: str) -> Context:
        """Return a context, which is empty if nothing was registered in it."""
        return self.contexts.get(name) or Context(name)

    def take_lost_max_ids(self) -> list[Context]:
        """Return the contexts whose highest id no record has, since the last call."""
        lost = [context for context in self._lost_max_ids.values() if context.has_lost_max_id]
        self._lost_max_ids.clear()
        return lost

    def names(self) -> list[str]:
        """Return the names of all subjects in order; not to be changed."""
        if len(self._names) != len(self.subjects):
            self._names = [name for name in dict.fromkeys(self._names) if name in self.subjects]
        if not self._are_names_sorted:
            self._names.sort()
            self._are_names_sorted = True
        return self._names

    def _context(self, name: str) -> Context:
        if (context := self.contexts.get(name)) is None:
            context = self.contexts[name] = Context(name)
        return context

    def _set_context(self, context: str, *, exists: bool) -> None:
        if context == DEFAULT_CONTEXT:
            return
        if exists:
            self.named_contexts.add(context)
        else:
            self.named_contexts.discard(context)

    def _put_version(self, name: str, version: int, value: SchemaValue) -> None:
        context = self._context(context_of(name))
        context.max_id = max(context.max_id, value.id)
        schema = context.schemas.get(value.id)
        if schema is not None and schema.text != value.schema:
            # Confluent's registry ignores it too. In a snapshot it can be an id that was imported again
            # after its deletion, while the snapshot was taken: the records behind it follow.
            return
        if schema is None:
            schema = self._add_schema(context, name, value)
        schema.users[name, version] = None
        if (subject := self.subjects.get(name)) is None:
            subject = self.subjects[name] = Subject(name)
            self._are_names_sorted = self._are_names_sorted and (not self._names or self._names[-1] < name)
            self._names.append(name)
        before = subject.put(version, schema, deleted=bool(value.deleted))
        if before is not None and before is not schema:
            self._release(before, name, version)

    def _add_schema(self, context: Context, subject: str, value: SchemaValue) -> StoredSchema:
        content = Content(
            value.schema_type,
            value.schema,
            value.references or (),
            value.metadata and value.metadata.ordered(),
            value.rule_set and value.rule_set.ordered(),
        )
        guid = value.guid or content.guid()
        schema = context.schemas[value.id] = StoredSchema(context.name, value.id, guid, content)
        context.by_guid[guid] = value.id
        for key in referenced(subject, content.references):
            self.referrers.setdefault(key, {})[context.name, value.id] = None
        return schema

    def _remove_version(self, name: str, version: int) -> None:
        if (subject := self.subjects.get(name)) is None:
            return
        if (schema := subject.remove(version)) is not None:
            if not subject.numbers:
                del self.subjects[name]
            self._release(schema, name, version)

    def _release(self, schema: StoredSchema, subject: str, version: int) -> None:
        """Remove a version from the users of a schema, and the schema with its last user."""
        del schema.users[subject, version]
        if schema.users:
            return
        context = self.contexts[schema.context]
        del context.schemas[schema.id]
        if schema.id == context.max_id:
            self._lost_max_ids[context.name] = context
        if context.by_guid.get(schema.guid) == schema.id:
            del context.by_guid[schema.guid]
        for key in referenced(subject, schema.references):
            referrers = self.referrers[key]
            referrers.pop((schema.context, schema.id), None)
            if not referrers:
                del self.referrers[key]

    def _delete_versions(self, name: str, last: int) -> None:
        if (subject := self.subjects.get(name)) is not None:
            for version in subject.numbers:
                if version <= last:
                    subject.delete(version)

    def _clear(self, scope: str | None) -> None:
        for name, subject in list(self.subjects.items()):
            if subject.deleted and covers(scope, name):
                for version in sorted(subject.deleted, reverse=True):
                    self._remove_version(name, version)


def referenced(subject: str, references: tuple[Reference, ...]) -> dict[tuple[str, int], None]:
    """Return the versions that a schema of a subject refers to."""
    if not references:
        return {}
    parent = SubjectName(context_of(subject), "")
    return {(in_context_of(parent, each.subject), each.version): None for each in references}


def make_schema_value(
    subject: str, version: int, schema_id: int, guid: bytes, content: Content, *, deleted: bool
) -> SchemaValue:
    """Return the value of the record of a version."""
    return SchemaValue(
        subject=subject,
        version=version,
        id=schema_id,
        md5=None if guid == content.guid() else encode_guid(guid),
        schema_type=content.schema_type,
        references=content.references or None,
        metadata=content.metadata,
        rule_set=content.rule_set,
        schema=content.text,
        deleted=deleted,
    )
