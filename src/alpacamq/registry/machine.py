"""The state machine of the schema registry: which requests are allowed, and the records that they lead to.

Behaves as Confluent's schema registry. Two things are stricter: an id is never given again, not even after it
was deleted permanently and the topic was compacted; and a schema that is imported keeps the id that it has.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from alpacamq.model.errors import InvalidRecord, InvalidRequest
from alpacamq.model.state_machine import Change, Outcome, reply

from .drafts import NotParsed, Target, check_size, checked_draft, next_version
from .errors import (
    IdDoesNotMatch,
    IdsExhausted,
    InvalidMode,
    InvalidVersion,
    OperationNotPermitted,
    ReferenceExists,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from .messages import (
    LATEST,
    CompareFirst,
    ContextId,
    DeleteConfig,
    DeleteMode,
    DeleteSubject,
    DeleteVersion,
    Draft,
    ImportRecords,
    ParseFirst,
    Register,
    SchemaVersion,
    SetConfig,
    SetMode,
)
from .queries import Queries
from .records import (
    KeyType,
    SchemaValue,
    clear_subject_change,
    config_change,
    context_change,
    decode_record,
    delete_subject_change,
    max_id_change,
    mode_change,
    schema_change,
    schema_key,
    schema_tombstone,
)
from .schema import InvalidSchema
from .settings import Config, Mode
from .state import MAX_INT32, Context, StoredSchema, make_schema_value
from .subjects import (
    DEFAULT_CONTEXT,
    GLOBAL_SCOPE,
    SubjectName,
    checked_scope,
    context_of,
    covers,
    split_subject,
)
from .view import described


class SchemaRegistry(Queries):
    """The registry, on one partition."""

    @property
    def next_deadline_ms(self) -> int | None:
        return None

    def tick(self, now_ms: int) -> Outcome:  # noqa: ARG002 - of the protocol
        """Do nothing: nothing is ever due."""
        return Outcome()

    def cancel(self, reply_to: object) -> None:
        """Do nothing: no request waits here."""

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a stored record. Raises InvalidRecord if it cannot be read."""
        self._state.apply(key, value)

    def loaded(self, now_ms: int) -> Outcome:  # noqa: ARG002 - of the protocol
        """Keep the highest ids of a topic that another registry has written."""
        return Outcome(self._write(()))

    def snapshot(self) -> Iterator[Change]:
        """Yield records that lead to the state."""
        return self._state.records()

    def register(self, request: Register, reply_to: object, _now_ms: int) -> Outcome:
        """Reply with the version that has the schema, which is new unless it existed."""
        name = self._view.name_of(request.subject)
        draft = checked_draft(request.draft)
        if request.id is not None and not 0 <= request.id <= MAX_INT32:
            raise InvalidRequest(f"invalid id {request.id}: must be between 0 and {MAX_INT32}")
        if not LATEST <= request.version <= MAX_INT32:
            raise InvalidVersion(request.version)
        target = self._drafts.target(name, request.evidence, normalize=request.normalize)
        try:
            if (found := self._registered(draft, request, target)) is not None:
                return reply(reply_to, found)
            return self._register(draft, request, target, reply_to)
        except NotParsed as missing:
            return reply(reply_to, ParseFirst(missing.source))

    def _registered(self, draft: Draft, request: Register, target: Target) -> SchemaVersion | None:
        """Return what a request to register asks for, if it exists: that is allowed in every mode."""
        if target.config.changes_schemas or not draft.text:
            return None
        found = self._drafts.find(draft, target)
        if found is None or (request.id is not None and request.id != found.id):
            return None
        if request.version in (0, found.version):
            return found
        subject = self._state.subjects[target.subject]
        if request.version == LATEST:
            return found if found.version == subject.latest() else None
        same = subject.get(request.version)
        is_same = same is not None and same.id == found.id and not subject.is_deleted(request.version)
        return self._view.version(subject.name, request.version) if is_same else None

    def _register(self, draft: Draft, request: Register, target: Target, reply_to: object) -> Outcome:
        name = target.subject
        mode = self._view.mode_in_scope(name)
        _check_may_register(name, mode, request.id)
        if not mode.is_import:
            draft = self._drafts.completed(draft, target, request.version)
        if not draft.text:
            raise InvalidSchema("the schema is empty")
        content, source = self._drafts.parsed(draft, target)
        context = self._state.context(context_of(name))
        known = context.find(content)
        if known is not None and request.id is not None and request.id != known.id:
            raise IdDoesNotMatch(f"the schema has id {known.id} already, not {request.id}")
        if request.version == 0 and (found := self._drafts.find_content(content, target)) is not None:
            return reply(reply_to, found)
        following = next_version(self._state.subjects.get(name))
        version = request.version if request.version > 0 else following
        if version > MAX_INT32:
            raise IdsExhausted(f"subject {name!r} has no version left")
        if version != following and not mode.is_import:
            raise InvalidSchema(f"version {version} is not the next one, which is {following}")
        if not mode.is_import and not request.force:
            comparison = self._drafts.comparison(content, source, target)
            if comparison.earlier and comparison != request.evidence.compared:
                return reply(reply_to, CompareFirst(comparison))
        if known is not None:
            schema_id, guid = known.id, known.guid
        else:
            schema_id, guid = _new_id(context, request.id), context.new_guid(content)
        value = make_schema_value(name, version, schema_id, guid, content, deleted=False)
        changes = self._write([*self._replacement(name, version, known), schema_change(value)])
        return reply(reply_to, self._view.version(name, version), changes)

    def _replacement(self, name: str, version: int, known: StoredSchema | None) -> list[Change]:
        """Return the records that go before that of a new version. Raises ReferenceExists."""
        changes = []
        context = context_of(name)
        if context != DEFAULT_CONTEXT and context not in self._state.named_contexts:
            changes.append(context_change(context))
        if (subject := self._state.subjects.get(name)) is not None:
            replaced = subject.get(version)
            if replaced is not None and replaced is not known and (name, version) in self._state.referrers:
                raise ReferenceExists(name, version)
            # The deleted version comes back as the new one.
            changes += [
                schema_tombstone(name, each)
                for each in sorted(subject.deleted or ())
                if each < version and subject.get(each) is known and (name, each) not in self._state.referrers
            ]
        return changes

    def delete_version(self, request: DeleteVersion, reply_to: object, _now_ms: int) -> Outcome:
        """Delete a version, and reply with its number."""
        name = self._view.name_of(request.subject)
        version = self._view.existing_version(name, request.version, deleted=True)
        subject = self._view.subject(name, deleted=True)
        schema = None if version is None else subject.get(version)
        if version is None or schema is None:
            raise VersionNotFound(name, request.version)
        is_deleted = subject.is_deleted(version)
        if is_deleted and not request.permanent:
            raise VersionSoftDeleted(name, version)
        self._view.check_may_write(name)
        if self._view.referrers(name, version, deleted=request.permanent):
            raise ReferenceExists(name, version)
        if request.permanent and not is_deleted:
            raise VersionNotSoftDeleted(name, version)
        if request.permanent:
            changes = self._removal(name, [version])
        else:
            value = make_schema_value(name, version, schema.id, schema.guid, schema.content, deleted=True)
            changes = [schema_change(value)]
        return reply(reply_to, version, self._write(changes))

    def delete_subject(self, request: DeleteSubject, reply_to: object, _now_ms: int) -> Outcome:
        """Delete the versions of a subject, and reply with their numbers."""
        name = self._view.name_of(request.subject)
        subject = self._view.subject(name, deleted=True)
        if subject.is_all_deleted and not request.permanent:
            raise SubjectSoftDeleted(name)
        self._view.check_may_write(name)
        versions = [each for each in subject.numbers if request.permanent or not subject.is_deleted(each)]
        for version in versions:
            for schema in self._view.referrers(name, version, deleted=request.permanent):
                if any(user != name for user, _ in self._view.users(schema, deleted=request.permanent)):
                    raise ReferenceExists(name, version)
        if request.permanent and not subject.is_all_deleted:
            raise SubjectNotSoftDeleted(name)
        if request.permanent:
            changes = self._removal(name, versions)
        else:
            changes = [delete_subject_change(name, versions[-1])]
        return reply(reply_to, tuple(versions), self._write(changes))

    def _removal(self, name: str, versions: Sequence[int]) -> list[Change]:
        """Return the records that remove versions for good, and the subject's settings with the last one."""
        # The latest first: versions of a subject may refer to earlier ones.
        changes = [schema_tombstone(name, version) for version in reversed(versions)]
        if len(versions) == len(self._state.subjects[name].numbers):
            changes.append(delete_subject_change(name, None))
            if name in self._state.modes:
                changes.append(mode_change(name, None))
            if name in self._state.configs:
                changes.append(config_change(name, None))
        return changes

    def set_config(self, request: SetConfig, reply_to: object, _now_ms: int) -> Outcome:
        """Change a configuration, and reply with it."""
        scope = checked_scope(request.subject)
        self._view.check_may_write(scope)
        config = request.update.applied_to(self._state.configs.get(scope, Config()))
        for rule_set in (config.default_rule_set, config.override_rule_set):
            if rule_set is not None:
                rule_set.check()
        check_size(config)
        return reply(reply_to, config, self._write([config_change(scope, config)]))

    def delete_config(self, request: DeleteConfig, reply_to: object, _now_ms: int) -> Outcome:
        """Delete a configuration, and reply with what it was."""
        scope = checked_scope(request.subject)
        config = self._state.configs.get(scope)
        if config is None and scope is not None:
            raise SubjectNotFound(scope)
        self._view.check_may_write(scope)
        return reply(reply_to, (config or Config()).with_level(), self._write([config_change(scope, None)]))

    def set_mode(self, request: SetMode, reply_to: object, _now_ms: int) -> Outcome:
        """Set a mode, and reply with it."""
        scope = checked_scope(request.subject)
        if request.mode is Mode.FORWARD:
            raise InvalidMode("mode FORWARD cannot be set")
        changes: list[Change] = []
        if (
            request.mode is Mode.IMPORT
            and self._view.mode_in_scope(scope) is not Mode.IMPORT
            and not request.force
        ):
            changes = self._clearing(scope)
        return reply(reply_to, request.mode, self._write([*changes, mode_change(scope, request.mode)]))

    def _clearing(self, scope: str | None) -> list[Change]:
        """Return the records that remove what is left of deleted subjects before an import."""
        subjects = [subject for name, subject in self._state.subjects.items() if covers(scope, name)]
        if any(not subject.is_all_deleted for subject in subjects):
            raise OperationNotPermitted("mode IMPORT needs force where subjects exist: their ids are in use")
        changes = []
        for subject in subjects:
            for version in subject.numbers:
                if (subject.name, version) in self._state.referrers:
                    raise ReferenceExists(subject.name, version)
                changes.append(schema_tombstone(subject.name, version))
        return [*changes, clear_subject_change(scope)]

    def delete_mode(self, request: DeleteMode, reply_to: object, _now_ms: int) -> Outcome:
        """Delete a mode, and reply with what it was."""
        scope = checked_scope(request.subject)
        mode = self._state.modes.get(scope)
        if mode is None and not request.recursive:
            if scope is not None and scope != GLOBAL_SCOPE:
                raise SubjectNotFound(scope)
            mode = Mode.READWRITE
        named = SubjectName(DEFAULT_CONTEXT, "") if scope is None else split_subject(scope)
        changes = [mode_change(scope, None)]
        if request.recursive and not named.name:
            changes += [
                mode_change(each, None)
                for each in self._state.modes
                if each is not None and each != scope and context_of(each) == named.context
            ]
        return reply(reply_to, mode, self._write(changes))

    def import_records(self, request: ImportRecords, reply_to: object, _now_ms: int) -> Outcome:
        """Write records of another registry's topic, and reply with how many were used."""
        changes = []
        texts: dict[ContextId, str] = {}
        for key, value in request.records:
            record = decode_record(key, value)
            if isinstance(record.value, SchemaValue):
                schema_id = ContextId(context_of(record.subject), record.value.id)
                known = self._state.context(schema_id.context).schemas.get(schema_id.id)
                if (
                    texts.setdefault(schema_id, known.text if known else record.value.schema)
                    != record.value.schema
                ):
                    raise InvalidRecord(f"id {schema_id.id} belongs to another schema already")
            if record.key.keytype == KeyType.SCHEMA:
                # Old registries wrote other fields. A tombstone must have the same key as its record.
                changes.append(Change(schema_key(record.subject, record.version), value))
            elif record.key.keytype != KeyType.NOOP or record.key.context is not None:
                changes.append(Change(key, value))
        return reply(reply_to, len(changes), self._write(changes))

    HANDLERS: ClassVar = {
        **Queries.HANDLERS,
        Register: register,
        DeleteVersion: delete_version,
        DeleteSubject: delete_subject,
        SetConfig: set_config,
        DeleteConfig: delete_config,
        SetMode: set_mode,
        DeleteMode: delete_mode,
        ImportRecords: import_records,
    }

    def _write(self, changes: Iterable[Change]) -> list[Change]:
        """Apply records, and return them with those that keep ids from being given again."""
        written = list(changes)
        for change in written:
            self._state.apply(*change)
        for context in self._state.take_lost_max_ids():
            written.append(max_id_change(context.name, context.max_id))
            self._state.apply(*written[-1])
        return written


def _new_id(context: Context, wanted: int | None) -> int:
    """Return the id of a schema that has none yet. Raises IdsExhausted and OperationNotPermitted."""
    if wanted is None:
        if context.max_id >= MAX_INT32:
            raise IdsExhausted(f"no id is left in context {context.name!r}")
        return context.max_id + 1
    if wanted in context.schemas:
        raise OperationNotPermitted(f"id {wanted} belongs to another schema in context {context.name!r}")
    return wanted


def _check_may_register(name: str, mode: Mode, schema_id: int | None) -> None:
    if mode.is_read_only:
        raise OperationNotPermitted(f"{described(name)} is in read-only mode")
    if schema_id is not None and not mode.is_import:
        raise OperationNotPermitted(f"{described(name)} is not in import mode, so no id can be given")
    if schema_id is None and mode.is_import:
        raise OperationNotPermitted(f"{described(name)} is in import mode, so an id must be given")
