"""The registry under arbitrary histories, compared with a model and loaded from every form of its log."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alpacamq.model.errors import AlpacaError
from alpacamq.model.state_machine import Change
from alpacamq.registry.errors import (
    IdDoesNotMatch,
    OperationNotPermitted,
    ReferenceExists,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from alpacamq.registry.messages import (
    DeleteConfig,
    DeleteMode,
    DeleteSubject,
    DeleteVersion,
    ListSchemas,
    MaxId,
    ReferencedBy,
    SetConfig,
    SetMode,
)
from alpacamq.registry.metadata import Metadata
from alpacamq.registry.schema import Reference
from alpacamq.registry.settings import CompatibilityLevel, ConfigUpdate, Mode

from .registry_host import RegistryHost

SUBJECTS = st.sampled_from(["a", "b", ":.x:a"])
TEXTS = st.sampled_from(["p", "q", "r"])
METADATA = st.sampled_from([None, Metadata(properties={"k": "1"}), Metadata(properties={"k": "2"})])
VERSIONS = st.integers(1, 4)
Referenced = tuple[str, int]
Content = tuple[str, str | None, Referenced | None]


def context_of(subject: str) -> str:
    return ".x" if subject.startswith(":.x:") else "."


@dataclass
class Version:
    content: Content
    id: int
    is_deleted: bool = False


@dataclass
class Model:
    """Subjects with their versions, and the highest id of each context."""

    subjects: dict[str, dict[int, Version]] = field(default_factory=dict)
    max_ids: dict[str, int] = field(default_factory=dict)
    importing: set[str] = field(default_factory=set)

    def versions(self) -> Iterator[tuple[str, int, Version]]:
        for subject in sorted(self.subjects):
            for number, version in sorted(self.subjects[subject].items()):
                yield subject, number, version

    def id_of(self, context: str, content: Content) -> int | None:
        ids = {v.id for s, _, v in self.versions() if context_of(s) == context and v.content == content}
        assert len(ids) <= 1
        return ids.pop() if ids else None

    def content_of(self, context: str, schema_id: int) -> Content | None:
        found = (v.content for s, _, v in self.versions() if context_of(s) == context and v.id == schema_id)
        return next(found, None)

    def referrers(self, subject: str, number: int, *, deleted: bool) -> list[tuple[str, int]]:
        """Return subjects and ids."""
        return [
            (s, v.id)
            for s, _, v in self.versions()
            if context_of(s) == context_of(subject)
            and v.content[2] == (subject, number)
            and (deleted or not v.is_deleted)
        ]

    def register(self, subject: str, content: Content, schema_id: int | None, number: int | None) -> Version:
        """Return the version; raise what the registry is to raise."""
        context = context_of(subject)
        versions = self.subjects.get(subject, {})
        known = self.id_of(context, content)
        active = [n for n, v in versions.items() if not v.is_deleted and v.content == content]
        if active and (schema_id in (None, known)):
            if number is None:
                return versions[max(active)]
            if number in active:
                return versions[number]
        if (subject in self.importing) != (schema_id is not None):
            raise OperationNotPermitted
        if schema_id is not None and known not in (None, schema_id):
            raise IdDoesNotMatch(str(known))
        if known is None and schema_id is not None and self.content_of(context, schema_id) is not None:
            raise OperationNotPermitted
        number = number or max(versions, default=0) + 1
        replaced = versions.get(number)
        if replaced and replaced.content != content and self.referrers(subject, number, deleted=True):
            raise ReferenceExists(subject, number)
        new_id = known or schema_id or self.max_ids.get(context, 0) + 1
        self.max_ids[context] = max(self.max_ids.get(context, 0), new_id)
        for n, v in list(versions.items()):
            is_same = v.is_deleted and v.content == content and n < number
            if is_same and not self.referrers(subject, n, deleted=True):
                del versions[n]
        self.subjects[subject] = versions
        versions[number] = Version(content, new_id)
        return versions[number]

    def delete_version(self, subject: str, number: int, *, permanent: bool) -> None:
        if subject not in self.subjects:
            raise SubjectNotFound(subject)
        version = self.subjects[subject].get(number)
        if version is None:
            raise VersionNotFound(subject, number)
        if version.is_deleted and not permanent:
            raise VersionSoftDeleted(subject, number)
        if self.referrers(subject, number, deleted=permanent):
            raise ReferenceExists(subject, number)
        if permanent and not version.is_deleted:
            raise VersionNotSoftDeleted(subject, number)
        version.is_deleted = True
        if permanent:
            self.remove(subject, [number])

    def delete_subject(self, subject: str, *, permanent: bool) -> None:
        if subject not in self.subjects:
            raise SubjectNotFound(subject)
        versions = self.subjects[subject]
        if not permanent and all(v.is_deleted for v in versions.values()):
            raise SubjectSoftDeleted(subject)
        for number, version in versions.items():
            if permanent or not version.is_deleted:
                ids = {schema_id for _, schema_id in self.referrers(subject, number, deleted=permanent)}
                users = {
                    s
                    for s, _, v in self.versions()
                    if v.id in ids
                    and context_of(s) == context_of(subject)
                    and (permanent or not v.is_deleted)
                }
                if users - {subject}:
                    raise ReferenceExists(subject, number)
        if permanent and not all(v.is_deleted for v in versions.values()):
            raise SubjectNotSoftDeleted(subject)
        for version in versions.values():
            version.is_deleted = True
        if permanent:
            self.remove(subject, list(versions))

    def remove(self, subject: str, numbers: list[int]) -> None:
        for number in numbers:
            del self.subjects[subject][number]
        if not self.subjects[subject]:
            del self.subjects[subject]
            self.importing.discard(subject)


class RegistryModel(RuleBasedStateMachine):
    """A registry, its model, and a snapshot that is taken meanwhile."""

    @initialize()
    def start(self) -> None:
        self.host = RegistryHost()
        self.model = Model()
        self.snapshot: Iterator[Change] | None = None
        self.taken: list[Change] = []
        self.began_at = 0
        for scope in (None, ":.x:"):
            level = ConfigUpdate(compatibility_level=CompatibilityLevel.NONE)
            self.host.ask(SetConfig(subject=scope, update=level))

    def expect(self, error: AlpacaError | None, act: Callable[[], object]) -> None:
        if error is None:
            act()
        else:
            with pytest.raises(type(error)):
                act()

    @rule(subject=SUBJECTS, text=TEXTS)
    def register_text(self, subject: str, text: str) -> None:
        self.register(subject, text)

    @rule(subject=SUBJECTS, text=TEXTS, metadata=METADATA)
    def register_metadata(self, subject: str, text: str, metadata: Metadata | None) -> None:
        self.register(subject, text, metadata)

    @rule(subject=SUBJECTS, text=TEXTS, data=st.data())
    def register_reference(self, subject: str, text: str, data: st.DataObject) -> None:
        near = [each[:2] for each in self.model.versions() if context_of(each[0]) == context_of(subject)]
        if near:
            name, number = data.draw(st.sampled_from(near))
            self.register(subject, text, None, (name.removeprefix(":.x:"), number))

    @rule(subject=SUBJECTS, text=TEXTS, schema_id=st.integers(1, 6), number=st.none() | VERSIONS)
    def import_schema(self, subject: str, text: str, schema_id: int, number: int | None) -> None:
        self.register(subject, text, None, None, schema_id, number)

    @precondition(lambda self: self.model.importing)
    @rule(text=TEXTS, schema_id=st.integers(1, 6), number=st.none() | VERSIONS, data=st.data())
    def import_more(self, text: str, schema_id: int, number: int | None, data: st.DataObject) -> None:
        subject = data.draw(st.sampled_from(sorted(self.model.importing)))
        self.register(subject, text, None, None, schema_id, number)

    def register(
        self,
        subject: str,
        text: str,
        metadata: Metadata | None = None,
        reference: Referenced | None = None,
        schema_id: int | None = None,
        number: int | None = None,
    ) -> None:
        if schema_id is None:
            number = None  # other than the next one only in import mode
        target = None
        references: list[Reference] = []
        if reference is not None:
            name = (":.x:" if context_of(subject) == ".x" else "") + reference[0]
            target = (name, reference[1])
            if reference[1] not in self.model.subjects.get(name, {}) or self.leads_to(
                target, subject, number
            ):
                return
            references = [Reference("type", *reference)]
        owner = None if metadata is None else (metadata.properties or {})["k"]
        if owner is None and schema_id is None and subject not in self.model.importing:
            owner = self.inherited(subject, text, target)
        expected: Version | None = None
        error: AlpacaError | None = None
        try:
            expected = self.model.register(subject, (text, owner, target), schema_id, number)
        except AlpacaError as refused:
            error = refused

        def act() -> None:
            found = self.host.register(
                subject, text, *references, metadata=metadata, id=schema_id, version=number or 0
            )
            assert expected is not None
            assert found.id == expected.id

        self.expect(error, act)

    def leads_to(self, target: Referenced, subject: str, number: int | None) -> bool:
        """Whether a reference would lead back to what is registered, which only an import can do."""
        found: Referenced | None = target
        while found is not None:
            if found[0] == subject and number is not None:
                return True
            version = self.model.subjects.get(found[0], {}).get(found[1])
            found = None if version is None else version.content[2]
        return False

    def inherited(self, subject: str, text: str, target: Referenced | None) -> str | None:
        """Return the metadata that a version without any gets."""
        versions = self.model.subjects.get(subject, {})
        active = {n: v for n, v in versions.items() if not v.is_deleted}
        if not active or any(v.content == (text, None, target) for v in active.values()):
            return None
        return active[max(active)].content[1]

    @rule(subject=SUBJECTS, number=VERSIONS, permanent=st.booleans())
    def delete_any_version(self, subject: str, number: int, permanent: bool) -> None:
        self.delete_version(subject, number, permanent=permanent)

    @precondition(lambda self: self.model.subjects)
    @rule(permanent=st.booleans(), data=st.data())
    def delete_existing_version(self, permanent: bool, data: st.DataObject) -> None:
        subject, number, version = data.draw(st.sampled_from(list(self.model.versions())))
        if not version.is_deleted:
            self.delete_version(subject, number, permanent=False)
        if permanent:
            self.delete_version(subject, number, permanent=True)

    def delete_version(self, subject: str, number: int, *, permanent: bool) -> None:
        request = DeleteVersion(subject=subject, version=number, permanent=permanent)
        try:
            self.model.delete_version(subject, number, permanent=permanent)
        except AlpacaError as error:
            self.expect(error, lambda: self.host.ask(request))
        else:
            assert self.host.ask(request) == number

    @rule(subject=SUBJECTS, steps=st.sampled_from([(False,), (False,), (True,), (False, True)]))
    def delete_subject(self, subject: str, steps: tuple[bool, ...]) -> None:
        for permanent in steps:
            request = DeleteSubject(subject=subject, permanent=permanent)
            try:
                self.model.delete_subject(subject, permanent=permanent)
            except AlpacaError as error:
                self.expect(error, lambda: self.host.ask(request))  # noqa: B023 - called at once
            else:
                self.host.ask(request)

    @rule(subject=SUBJECTS)
    def import_on(self, subject: str) -> None:
        self.host.ask(SetMode(subject=subject, mode=Mode.IMPORT, force=True))
        self.model.importing.add(subject)

    @rule(subject=SUBJECTS)
    def import_cleared(self, subject: str) -> None:
        """Begin an import where only deleted versions are left."""
        versions = self.model.subjects.get(subject, {})
        if subject in self.model.importing or not all(v.is_deleted for v in versions.values()):
            return
        request = SetMode(subject=subject, mode=Mode.IMPORT)
        if any(self.model.referrers(subject, number, deleted=True) for number in versions):
            self.expect(ReferenceExists(subject, 0), lambda: self.host.ask(request))
            return
        self.host.ask(request)
        if versions:
            self.model.remove(subject, list(versions))
        self.model.importing.add(subject)

    @rule(subject=SUBJECTS)
    def import_off(self, subject: str) -> None:
        if subject in self.model.importing:
            self.host.ask(DeleteMode(subject=subject))
            self.model.importing.discard(subject)

    @rule(subject=SUBJECTS, normalize=st.booleans())
    def configure(self, subject: str, normalize: bool) -> None:
        update = ConfigUpdate(normalize=normalize, compatibility_level=CompatibilityLevel.NONE)
        self.host.ask(SetConfig(subject=subject, update=update))

    @rule(subject=SUBJECTS)
    def unconfigure(self, subject: str) -> None:
        try:
            self.host.ask(DeleteConfig(subject=subject))
        except SubjectNotFound:
            return

    @rule(form=st.sampled_from(["log", "compacted", "without tombstones", "snapshot"]))
    def restart(self, form: str) -> None:
        """Go on from what is stored."""
        records = {
            "log": self.host.log,
            "compacted": self.host.compacted(with_tombstones=True),
            "without tombstones": self.host.compacted(with_tombstones=False),
            "snapshot": list(self.host.machine.snapshot()),
        }[form]
        restarted = self.host.restarted(records)
        assert restarted.state() == self.host.state()
        if form == "snapshot":
            restarted.log = self.host.log  # it is no log: settings that were deleted are not in it
        self.host = restarted
        self.snapshot = None

    @rule()
    def begin_snapshot(self) -> None:
        self.snapshot, self.taken, self.began_at = self.host.machine.snapshot(), [], len(self.host.log)

    @precondition(lambda self: self.snapshot is not None)
    @rule(count=st.integers(0, 4))
    def continue_snapshot(self, count: int) -> None:
        assert self.snapshot is not None
        self.taken += islice(self.snapshot, count)

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def end_snapshot(self) -> None:
        """Take the rest: with the changes since it began, it leads to the state."""
        assert self.snapshot is not None
        self.taken += self.snapshot
        loaded = self.host.restarted([*self.taken, *self.host.log[self.began_at :]])
        assert loaded.state() == self.host.state()
        self.snapshot = None

    @invariant()
    def the_registry_has_what_the_model_has(self) -> None:
        if not hasattr(self, "host"):
            return
        listed = [
            (each.subject, each.version, each.id, each.text, each.deleted)
            for each in self.host.ask(ListSchemas(deleted=True))
        ]
        assert listed == [(s, n, v.id, v.content[0], v.is_deleted) for s, n, v in self.model.versions()]
        for context in (".", ".x"):
            found = self.host.ask(MaxId(subject=f":{context}:"))
            assert found == self.model.max_ids.get(context, 0)
        for subject, number, _ in self.model.versions():
            for deleted in (False, True):
                query = ReferencedBy(subject=subject, version=number, deleted=deleted)
                ids = {each for _, each in self.model.referrers(subject, number, deleted=deleted)}
                assert set(self.host.ask(query)) == ids


TestRegistryModel = RegistryModel.TestCase
TestRegistryModel.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
