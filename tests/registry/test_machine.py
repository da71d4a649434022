"""Subjects, versions, ids, deletion, references, settings and contexts, one row or test per rule."""

from contextlib import suppress
from typing import Any

import pytest

from alpacamq.model.errors import AlpacaError, InvalidRequest
from alpacamq.model.state_machine import Change, Pending, Request
from alpacamq.registry.drafts import MAX_STORED_CHARACTERS
from alpacamq.registry.errors import (
    ConfigNotFound,
    IdDoesNotMatch,
    IdsExhausted,
    IncompatibleSchema,
    InvalidMode,
    InvalidRuleSet,
    InvalidSubject,
    InvalidVersion,
    ModeNotFound,
    OperationNotPermitted,
    ReferenceExists,
    SchemaNotFound,
    SchemaTooLarge,
    SubjectNotFound,
    SubjectNotSoftDeleted,
    SubjectSoftDeleted,
    VersionNotFound,
    VersionNotSoftDeleted,
    VersionSoftDeleted,
)
from alpacamq.registry.messages import (
    LATEST,
    CheckCompatibility,
    CompareFirst,
    ContextId,
    CountSchemas,
    DeleteConfig,
    Deleted,
    DeleteMode,
    DeleteSubject,
    DeleteVersion,
    Draft,
    Evidence,
    GetByGuid,
    GetById,
    GetConfig,
    GetMode,
    GetVersion,
    IdentifySchema,
    IdsOfGuid,
    LatestWithMetadata,
    ListContexts,
    ListSchemas,
    ListSubjects,
    ListVersions,
    Lookup,
    MaxId,
    ParsedText,
    ParseFirst,
    ReferencedBy,
    Register,
    SetConfig,
    SetMode,
    Source,
    SourceOfId,
    SubjectVersion,
    VersionsOfId,
)
from alpacamq.registry.metadata import Metadata, Rule, RuleMode, RuleSet
from alpacamq.registry.queries import Queries
from alpacamq.registry.schema import (
    MAX_DEPTH,
    MAX_SCHEMA_BYTES,
    Dependency,
    InvalidSchema,
    Reference,
    SchemaType,
)
from alpacamq.registry.settings import CompatibilityLevel, Config, ConfigUpdate, Mode

from .registry_host import RegistryHost, parse

MAX_INT32 = 2**31 - 1


@pytest.fixture
def host() -> RegistryHost:
    return RegistryHost()


def set_level(host: RegistryHost, level: str, subject: str | None = None) -> None:
    host.ask(SetConfig(subject=subject, update=ConfigUpdate(compatibility_level=CompatibilityLevel(level))))


def delete_for_good(host: RegistryHost, subject: str) -> None:
    host.ask(DeleteSubject(subject=subject))
    host.ask(DeleteSubject(subject=subject, permanent=True))


class TestRegistering:
    def test_a_schema_has_one_id_and_guid_under_all_subjects(self, host: RegistryHost) -> None:
        first = host.register("one", "a")
        host.register("one", "a,b?")
        again = host.register("two", "a")
        assert (first.id, first.version, again.id, again.version) == (1, 1, 1, 1)
        assert first.guid == again.guid
        assert host.register("two", "a,b?").id == 2

    def test_a_schema_that_exists_is_found_and_nothing_is_written(self, host: RegistryHost) -> None:
        first = host.register("one", "a")
        host.register("one", "a,b?")
        written = len(host.log)
        assert host.register("one", " a ") == first
        assert len(host.log) == written

    def test_a_schema_that_exists_is_found_in_read_only_mode(self, host: RegistryHost) -> None:
        first = host.register("one", "a")
        host.ask(SetMode(subject=None, mode=Mode.READONLY))
        assert host.register("one", "a") == first
        with pytest.raises(OperationNotPermitted, match="subject 'one' is in read-only mode"):
            host.register("one", "b")

    def test_a_deleted_schema_comes_back_as_a_new_version_with_its_id(self, host: RegistryHost) -> None:
        host.register("one", "a")
        host.register("one", "a,b?")
        host.ask(DeleteVersion(subject="one", version=1))
        again = host.register("one", "a")
        assert (again.id, again.version) == (1, 3)
        assert host.ask(ListVersions(subject="one", deleted=Deleted.INCLUDED)) == (2, 3)

    def test_the_text_is_stored_in_canonical_or_normal_form(self, host: RegistryHost) -> None:
        assert host.register("one", " b, a ").text == "b,a"
        assert host.register("two", " b, a ", normalize=True).text == "a,b"
        host.ask(SetConfig(subject="three", update=ConfigUpdate(normalize=True)))
        assert host.register("three", "b,a").id == 2

    def test_equal_texts_of_two_languages_are_two_schemas(self, host: RegistryHost) -> None:
        avro = host.register("one", "a")
        json = host.register("two", "a", schema_type=SchemaType.JSON)
        assert (avro.id, json.id) == (1, 2)
        assert avro.guid != json.guid
        assert host.register("three", "a", schema_type=SchemaType.JSON).id == 2
        assert host.restarted().register("four", "a", schema_type=SchemaType.JSON).guid == json.guid

    def test_metadata_and_rules_are_part_of_the_identity(self, host: RegistryHost) -> None:
        owned = Metadata(properties={"owner": "sales"})
        checked = RuleSet(domain_rules=(Rule(name="check", type="CEL"),))
        ids = [
            host.register("one", "a").id,
            host.register("two", "a", metadata=owned).id,
            host.register("three", "a", rule_set=checked).id,
            host.register("four", "a", metadata=owned, rule_set=checked).id,
            host.register("five", "a", metadata=Metadata()).id,
        ]
        assert ids == [1, 2, 3, 4, 5]
        assert host.ask(GetById(id=4)).metadata == owned
        assert host.ask(GetById(id=4)).rule_set == checked.ordered()

    def test_the_order_of_tags_and_properties_is_not_part_of_the_identity(self, host: RegistryHost) -> None:
        first = Metadata({"b": ("y", "x"), "a": ("z", "z")}, {"q": "1", "p": "2"}, ("t", "s"))
        second = Metadata({"a": ("z",), "b": ("x", "y")}, {"p": "2", "q": "1"}, ("s", "t", "s"))
        assert host.register("one", "a", metadata=first) == host.register("one", "a", metadata=second)

    def test_a_version_without_text_metadata_or_rules_inherits_them(self, host: RegistryHost) -> None:
        owned = Metadata(properties={"owner": "sales"})
        host.register("one", "a", metadata=owned)
        assert host.register("one", "a,b?").metadata == owned
        renamed = host.register("one", "", metadata=Metadata(properties={"owner": "hr"}))
        assert (renamed.version, renamed.text) == (3, "a,b?")

    def test_the_configuration_adds_metadata_and_rules(self, host: RegistryHost) -> None:
        def rule(name: str, expr: str) -> Rule:
            return Rule(name=name, type="CEL", expr=expr)

        update = ConfigUpdate(
            default_metadata=Metadata(properties={"owner": "all", "tier": "1"}, tags={"x": ("PII",)}),
            override_metadata=Metadata(properties={"audited": "yes"}, sensitive=("key",)),
            default_rule_set=RuleSet(domain_rules=(rule("one", "default"), rule("two", "default"))),
            override_rule_set=RuleSet(domain_rules=(rule("three", "override"),), enable_at="CLIENT"),
        )
        host.ask(SetConfig(subject="one", update=update))
        mine = Metadata(properties={"owner": "sales", "audited": "no"})
        mine_rules = RuleSet(domain_rules=(rule("two", "mine"), rule("three", "mine")))
        found = host.register("one", "a", metadata=mine, rule_set=mine_rules)
        assert found.metadata == Metadata(
            {"x": ("PII",)}, {"audited": "yes", "owner": "sales", "tier": "1"}, ("key",)
        )
        assert found.rule_set is not None
        assert [(each.name, each.expr) for each in found.rule_set.domain_rules or ()] == [
            ("one", "default"),
            ("two", "mine"),
            ("three", "override"),
        ]
        assert found.rule_set.enable_at == "CLIENT"
        # What a client has sent is found, and not registered again.
        lookup = Lookup(subject="one", draft=Draft(text="a", metadata=mine, rule_set=mine_rules))
        assert host.ask(lookup) == found
        assert host.register("one", "a", metadata=mine, rule_set=mine_rules) == found

    def test_the_version_is_repeated_in_the_metadata_if_wanted(self, host: RegistryHost) -> None:
        first = host.register("one", "a", version=LATEST)
        assert first.metadata == Metadata(properties={"confluent:version": "1"})
        assert host.register("one", "a") == first
        assert host.register("one", "a", version=LATEST) == first
        second = host.register("one", "a,b?", version=2)
        assert second.metadata == Metadata(properties={"confluent:version": "2"})
        third = host.register("one", "a,b?,c?")
        assert third.metadata == Metadata(properties={"confluent:version": "3"})
        assert host.ask(Lookup(subject="one", draft=Draft(text="a,b?"))) == second

    def test_a_given_version_must_be_the_next_one(self, host: RegistryHost) -> None:
        with pytest.raises(InvalidSchema, match="version 2 is not the next one, which is 1"):
            host.register("one", "a", version=2)

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            pytest.param({"text": "a!"}, InvalidSchema, id="syntax"),
            pytest.param({"text": " "}, InvalidSchema, id="empty"),
            pytest.param({"text": "\ud800"}, InvalidSchema, id="not Unicode"),
            pytest.param({"text": "a" * (MAX_SCHEMA_BYTES + 1)}, SchemaTooLarge, id="too large"),
            pytest.param({"text": "ü" * (MAX_SCHEMA_BYTES // 2 + 1)}, SchemaTooLarge, id="too many bytes"),
            pytest.param(
                {"text": "a", "metadata": Metadata(properties={"a": "x" * MAX_SCHEMA_BYTES})},
                SchemaTooLarge,
                id="too much metadata",
            ),
            pytest.param(
                {"text": "a", "metadata": Metadata(properties={"a": "\ud800"})},
                InvalidSchema,
                id="metadata that is not Unicode",
            ),
            pytest.param(
                {"text": "a", "rule_set": RuleSet(domain_rules=(Rule(name="one"),))},
                InvalidRuleSet,
                id="rule without type",
            ),
            pytest.param({"text": "a", "version": -2}, InvalidVersion, id="version -2"),
            pytest.param({"text": "a", "version": 2**31}, InvalidVersion, id="version 2^31"),
            pytest.param({"text": "a", "id": -1}, InvalidRequest, id="id -1"),
            pytest.param({"text": "a", "id": 2**31}, InvalidRequest, id="id 2^31"),
            pytest.param({"text": "a", "id": 5}, OperationNotPermitted, id="id outside import mode"),
        ],
    )
    def test_invalid_requests_change_nothing(
        self, host: RegistryHost, request_: dict[str, Any], error: type[AlpacaError]
    ) -> None:
        with pytest.raises(error):
            host.register("one", **request_)
        assert host.log == []

    @pytest.mark.parametrize(
        "subject",
        [
            pytest.param("", id="empty"),
            pytest.param(":.context:", id="context only"),
            pytest.param(":.context", id="context without end"),
            pytest.param("a\0b", id="NUL"),
            pytest.param("a\nb", id="control character"),
            pytest.param("\ud800", id="not Unicode"),
            pytest.param("__GLOBAL", id="reserved"),
            pytest.param(":.context:__EMPTY", id="reserved in a context"),
            pytest.param(":.__GLOBAL:a", id="global context"),
            pytest.param(":*:a", id="any context"),
            pytest.param("a" * 1001, id="too long"),
        ],
    )
    def test_invalid_subjects(self, host: RegistryHost, subject: str) -> None:
        with pytest.raises(InvalidSubject):
            host.register(subject, "a")

    @pytest.mark.parametrize("subject", ["a/b", "a%2Fb", "a b", "ü", ":a", "a:.b:c"])
    def test_unusual_subjects(self, host: RegistryHost, subject: str) -> None:
        assert host.register(subject, "a").subject == subject
        assert host.ask(ListSubjects()) == (subject,)


class TestEvidence:
    """Work outside the registry is accepted only if it is about what would be asked for now."""

    def register(self, host: RegistryHost, text: str, evidence: Evidence) -> Any:
        return host.send(Register(subject="one", draft=Draft(text=text), evidence=evidence))

    def test_a_text_has_to_be_parsed_and_compared(self, host: RegistryHost) -> None:
        host.register("one", "a")
        (asked,) = [self.register(host, "a,b?", Evidence())]
        assert isinstance(asked, ParseFirst)
        parsed = parse(asked.source)
        asked = self.register(host, "a,b?", Evidence((parsed,)))
        assert isinstance(asked, CompareFirst)
        assert asked.comparison.schema.text == "a,b?"
        assert [each.text for each in asked.comparison.earlier] == ["a"]
        assert self.register(host, "a,b?", Evidence((parsed,), asked.comparison)).version == 2

    def test_a_parse_of_another_text_is_not_accepted(self, host: RegistryHost) -> None:
        asked = self.register(host, "a", Evidence())
        assert self.register(host, "b", Evidence((parse(asked.source),))) == ParseFirst(
            host.send(Register(subject="one", draft=Draft(text="b"))).source
        )

    @pytest.mark.parametrize("change", ["version", "level"])
    def test_a_comparison_is_repeated_if_something_has_changed(self, host: RegistryHost, change: str) -> None:
        host.register("one", "a")
        parsed = parse(self.register(host, "a,b?", Evidence()).source)
        asked = self.register(host, "a,b?", Evidence((parsed,)))
        if change == "version":
            host.register("one", "a,c?")
        else:
            set_level(host, "FULL", "one")
        again = self.register(host, "a,b?", Evidence((parsed,), asked.comparison))
        assert isinstance(again, CompareFirst)
        assert again != asked
        assert self.register(host, "a,b?", Evidence((parsed,), again.comparison)).text == "a,b?"

    def test_a_schema_that_was_registered_meanwhile_is_found(self, host: RegistryHost) -> None:
        host.register("one", "a")
        parsed = parse(self.register(host, "a,b?", Evidence()).source)
        asked = self.register(host, "a,b?", Evidence((parsed,)))
        host.register("one", "a,b?")
        assert self.register(host, "a,b?", Evidence((parsed,), asked.comparison)).version == 2


class TestCompatibility:
    @pytest.mark.parametrize(
        ("level", "versions", "compatible", "incompatible"),
        [
            ("NONE", ["a"], ["b", "a,b", "c"], []),
            ("BACKWARD", ["a", "a,b?"], ["b", "a,c?", "c?"], ["c", "a,c"]),
            ("BACKWARD_TRANSITIVE", ["a", "a,b?"], ["a,c?", "c?"], ["b", "a,c"]),
            ("FORWARD", ["a", "b"], ["b,c", "b,a"], ["c", "c,a"]),
            ("FORWARD_TRANSITIVE", ["a", "b"], ["b,a", "a,b,c"], ["b,c", "c,a"]),
            ("FULL", ["z", "a"], ["a,c?"], ["a,c", "c?"]),
            ("FULL_TRANSITIVE", ["a,z", "a"], ["a,z?"], ["a,c?", "a,z,c"]),
        ],
    )
    def test_levels(
        self,
        host: RegistryHost,
        level: str,
        versions: list[str],
        compatible: list[str],
        incompatible: list[str],
    ) -> None:
        set_level(host, "NONE")
        for text in versions:
            host.register("one", text)
        set_level(host, level)
        for text in incompatible:
            with pytest.raises(IncompatibleSchema, match=f"compatibility level {level}: field"):
                host.register("one", text)
        for text in compatible:
            fresh = host.restarted()
            assert fresh.register("one", text).version == len(versions) + 1

    @pytest.mark.parametrize(
        ("level", "pairs"),
        [
            ("BACKWARD", [("c", "b")]),
            ("FORWARD", [("b", "c")]),
            ("FULL", [("c", "b"), ("b", "c")]),
            ("BACKWARD_TRANSITIVE", [("c", "b"), ("c", "a")]),
            ("FORWARD_TRANSITIVE", [("b", "c"), ("a", "c")]),
            ("FULL_TRANSITIVE", [("c", "b"), ("b", "c"), ("c", "a"), ("a", "c")]),
            ("NONE", []),
        ],
    )
    def test_which_readers_must_read_which_writers(
        self, host: RegistryHost, level: str, pairs: list[tuple[str, str]]
    ) -> None:
        set_level(host, "NONE")
        host.register("one", "a")
        host.register("one", "b")
        set_level(host, level)
        comparison = host.ask(CheckCompatibility(subject="one", draft=Draft(text="c")))
        assert [(reader.text, writer.text) for reader, writer in comparison.pairs()] == pairs
        assert comparison.level == level

    def test_deleted_versions_do_not_count(self, host: RegistryHost) -> None:
        host.register("one", "a")
        host.ask(DeleteVersion(subject="one", version=1))
        assert host.register("one", "b").version == 2

    def test_force_skips_the_comparison(self, host: RegistryHost) -> None:
        host.register("one", "a")
        assert host.register("one", "b", force=True).version == 2

    def test_only_versions_of_the_same_group_are_compared(self, host: RegistryHost) -> None:
        host.ask(SetConfig(subject="one", update=ConfigUpdate(compatibility_group="major")))

        def major(number: int) -> Metadata:
            return Metadata(properties={"major": str(number)})

        host.register("one", "a", metadata=major(1))
        host.register("one", "b", metadata=major(2))
        assert host.register("one", "a,c?", metadata=major(1)).version == 3
        with pytest.raises(IncompatibleSchema):
            host.register("one", "a,d", metadata=major(1))

    def test_a_check_against_one_version(self, host: RegistryHost) -> None:
        set_level(host, "NONE")
        host.register("one", "a")
        host.register("one", "b")
        set_level(host, "BACKWARD_TRANSITIVE")

        def earlier(version: int | None) -> list[str]:
            check = CheckCompatibility(subject="one", draft=Draft(text="c"), version=version)
            return [each.text for each in host.ask(check).earlier]

        assert (earlier(None), earlier(1), earlier(LATEST)) == (["b", "a"], ["a"], ["b"])
        with pytest.raises(VersionNotFound):
            earlier(3)
        with pytest.raises(InvalidVersion):
            earlier(0)
        check = CheckCompatibility(subject="none", draft=Draft(text="c"), version=LATEST)
        assert host.ask(check).earlier == ()


class TestReferences:
    def test_dependencies_come_before_what_uses_them(self, host: RegistryHost) -> None:
        host.register("d", "d")
        host.register("c", "c")
        host.register("b", "@d", Reference("d", "d", 1))
        host.register("a", "@b,@c,@d", Reference("b", "b", 1), Reference("c", "c", 1), Reference("d", "d", 1))
        source = host.ask(SourceOfId(id=4))
        assert source.dependencies == (Dependency("d", "d"), Dependency("b", "@d"), Dependency("c", "c"))

    def test_the_latest_version_is_stored_as_the_version_it_is(self, host: RegistryHost) -> None:
        host.register("base", "a")
        host.register("base", "a,b?")
        found = host.register("one", "@base", Reference("base", "base", LATEST))
        assert found.references == (Reference("base", "base", 2),)
        assert host.register("one", "@base", Reference("base", "base", 2)) == found

    @pytest.mark.parametrize(
        "reference",
        [
            Reference("base", "none", 1),
            Reference("base", "base", 2),
            Reference("base", "base", 0),
            Reference("base", "base", -2),
            Reference("base", "none", LATEST),
            Reference("other", "base", 1),
        ],
        ids=str,
    )
    def test_unknown_references(self, host: RegistryHost, reference: Reference) -> None:
        host.register("base", "a")
        with pytest.raises(InvalidSchema):
            host.register("one", "@base", reference)

    def test_references_have_a_limited_depth(self, host: RegistryHost) -> None:
        host.register("s0", "a")
        for at in range(1, MAX_DEPTH + 1):
            host.register(f"s{at}", f"@r{at - 1}", Reference(f"r{at - 1}", f"s{at - 1}", 1))
        with pytest.raises(SchemaTooLarge):
            host.register("deep", f"@r{MAX_DEPTH}", Reference(f"r{MAX_DEPTH}", f"s{MAX_DEPTH}", 1))

    def test_the_text_that_is_stored_has_a_limited_length(self, host: RegistryHost) -> None:
        source = Source(SchemaType.AVRO, "a")
        printed = ParsedText(source, (MAX_STORED_CHARACTERS + 1) * "a", "a")
        with pytest.raises(SchemaTooLarge, match="in its stored form"):
            host.send(Register(subject="one", draft=Draft(text="a"), evidence=Evidence((printed,))))

    def test_references_have_a_limited_number(self, host: RegistryHost) -> None:
        with pytest.raises(SchemaTooLarge):
            host.register("one", "a", *(Reference(str(at), "s", 1) for at in range(1001)))

    def test_references_to_the_own_context(self, host: RegistryHost) -> None:
        host.register("base", "a")
        host.register(":.x:base", "b")
        host.register(":.x:one", "@base", Reference("base", "base", 1))
        assert host.parsed[-1].dependencies == (Dependency("base", "b"),)
        host.register("one", "@base", Reference("base", ":.x:base", 1))
        assert host.parsed[-1].dependencies == (Dependency("base", "b"),)
        assert host.ask(ReferencedBy(subject=":.x:base", version=1)) == (2, 2)
        assert host.ask(ReferencedBy(subject="base", version=1)) == ()

    def test_what_is_referred_to_cannot_be_deleted(self, host: RegistryHost) -> None:
        host.register("base", "a")
        host.register("one", "@base", Reference("base", "base", 1))
        host.register("two", "@base", Reference("base", "base", 1))
        assert host.ask(ReferencedBy(subject="base", version=LATEST)) == (2,)
        for request in (DeleteVersion(subject="base", version=1), DeleteSubject(subject="base")):
            with pytest.raises(ReferenceExists, match="version 1 of subject 'base'"):
                host.ask(request)
        host.ask(DeleteSubject(subject="one"))
        host.ask(DeleteSubject(subject="two"))
        assert host.ask(ReferencedBy(subject="base", version=1)) == ()
        assert host.ask(ReferencedBy(subject="base", version=1, deleted=True)) == (2,)
        host.ask(DeleteSubject(subject="base"))
        for permanent in (
            DeleteVersion(subject="base", version=1, permanent=True),
            DeleteSubject(subject="base", permanent=True),
        ):
            with pytest.raises(ReferenceExists):
                host.ask(permanent)
        host.ask(DeleteSubject(subject="one", permanent=True))
        host.ask(DeleteSubject(subject="two", permanent=True))
        assert host.ask(DeleteSubject(subject="base", permanent=True)) == (1,)

    def test_a_subject_that_refers_to_itself_can_be_deleted(self, host: RegistryHost) -> None:
        host.register("one", "a")
        host.register("one", "@one,a", Reference("one", "one", 1), force=True)
        with pytest.raises(ReferenceExists):
            host.ask(DeleteVersion(subject="one", version=1))
        delete_for_good(host, "one")
        assert host.ask(ListSubjects(deleted=Deleted.INCLUDED)) == ()


class TestDeleting:
    """Rows of the order in which versions and subjects are deleted."""

    @pytest.mark.parametrize(
        ("before", "request_", "error"),
        [
            ([], DeleteVersion(subject="none", version=1), SubjectNotFound),
            ([], DeleteVersion(subject="none", version=1, permanent=True), SubjectNotFound),
            ([], DeleteVersion(subject="one", version=9), VersionNotFound),
            ([], DeleteVersion(subject="one", version=0), InvalidVersion),
            ([], DeleteVersion(subject="one", version=-2), InvalidVersion),
            ([], DeleteVersion(subject="one", version=2**31), InvalidVersion),
            ([], DeleteVersion(subject="one", version=1, permanent=True), VersionNotSoftDeleted),
            ([], DeleteVersion(subject="one", version=LATEST, permanent=True), VersionNotSoftDeleted),
            (
                [DeleteVersion(subject="one", version=1)],
                DeleteVersion(subject="one", version=1),
                VersionSoftDeleted,
            ),
            (
                [DeleteVersion(subject="one", version=1)],
                DeleteSubject(subject="one", permanent=True),
                SubjectNotSoftDeleted,
            ),
            ([], DeleteSubject(subject="none"), SubjectNotFound),
            ([], DeleteSubject(subject="one", permanent=True), SubjectNotSoftDeleted),
            ([DeleteSubject(subject="one")], DeleteSubject(subject="one"), SubjectSoftDeleted),
            ([DeleteSubject(subject="one")], DeleteVersion(subject="one", version=2), VersionSoftDeleted),
            ([DeleteSubject(subject="one")], DeleteVersion(subject="one", version=LATEST), VersionNotFound),
            (
                [SetMode(subject="one", mode=Mode.READONLY)],
                DeleteSubject(subject="one"),
                OperationNotPermitted,
            ),
            (
                [SetMode(subject="one", mode=Mode.READONLY)],
                DeleteVersion(subject="one", version=1),
                OperationNotPermitted,
            ),
        ],
    )
    def test_refused(
        self,
        host: RegistryHost,
        before: list[Request[Any]],
        request_: Request[Any],
        error: type[AlpacaError],
    ) -> None:
        host.register("one", "a")
        host.register("one", "a,b?")
        for each in before:
            host.ask(each)
        with pytest.raises(error):
            host.ask(request_)

    def test_a_deleted_version_can_be_read_by_its_id_and_if_wanted(self, host: RegistryHost) -> None:
        host.register("one", "a")
        host.register("one", "a,b?")
        assert host.ask(DeleteVersion(subject="one", version=LATEST)) == 2
        assert host.ask(GetVersion(subject="one", version=LATEST)).version == 1
        assert host.ask(GetVersion(subject="one", version=2, deleted=True)).deleted
        assert host.ask(GetById(id=2)).text == "a,b?"
        assert host.ask(VersionsOfId(id=2)) == ()
        assert host.ask(VersionsOfId(id=2, deleted=True)) == (SubjectVersion("one", 2),)
        with pytest.raises(VersionNotFound):
            host.ask(GetVersion(subject="one", version=2))
        with pytest.raises(SchemaNotFound):
            host.ask(Lookup(subject="one", draft=Draft(text="a,b?")))
        assert host.ask(Lookup(subject="one", draft=Draft(text="a,b?"), deleted=True)).version == 2

    def test_a_subject_is_deleted_in_two_steps(self, host: RegistryHost) -> None:
        host.register("one", "a")
        host.register("one", "a,b?")
        assert host.ask(DeleteSubject(subject="one")) == (1, 2)
        assert host.ask(ListSubjects()) == ()
        assert host.ask(ListSubjects(deleted=Deleted.ONLY)) == ("one",)
        with pytest.raises(SubjectNotFound):
            host.ask(ListVersions(subject="one"))
        assert host.ask(DeleteSubject(subject="one", permanent=True)) == (1, 2)
        with pytest.raises(SchemaNotFound):
            host.ask(GetById(id=1))
        assert host.register("one", "a").version == 1

    def test_settings_go_with_the_last_version(self, host: RegistryHost) -> None:
        host.register("one", "a")
        set_level(host, "FULL", "one")
        host.ask(SetMode(subject="one", mode=Mode.READWRITE))
        host.ask(DeleteVersion(subject="one", version=1))
        assert host.ask(GetConfig(subject="one")).compatibility_level == "FULL"
        host.ask(DeleteVersion(subject="one", version=1, permanent=True))
        with pytest.raises(ConfigNotFound):
            host.ask(GetConfig(subject="one"))
        with pytest.raises(ModeNotFound):
            host.ask(GetMode(subject="one"))


class TestIds:
    @pytest.mark.parametrize("how", ["log", "compacted", "compacted without tombstones", "snapshot"])
    def test_an_id_is_never_given_again(self, host: RegistryHost, how: str) -> None:
        host.register("one", "a")
        host.register("two", "b")
        host.register(":.x:one", "c")
        delete_for_good(host, "two")
        delete_for_good(host, ":.x:one")
        records: dict[str, list[Change]] = {
            "log": host.log,
            "compacted": host.compacted(with_tombstones=True),
            "compacted without tombstones": host.compacted(with_tombstones=False),
            "snapshot": host.state(),
        }
        again = host.restarted(records[how])
        assert again.register("three", "b").id == 3
        assert again.register(":.x:two", "c").id == 2
        assert again.ask(MaxId()) == 3
        assert again.ask(MaxId(subject=":.x:")) == 2
        assert again.ask(MaxId(subject=":.y:")) == 0

    def test_the_records_of_another_registry_are_enough_at_first(self, host: RegistryHost) -> None:
        host.register("one", "a")
        written = [record for record in host.log if b"NOOP" not in record.key]
        tombstone = Change(written[0].key, None)
        loaded = host.restarted([*written, tombstone])
        assert loaded.restarted(loaded.compacted(with_tombstones=False)).register("two", "b").id == 2

    def test_ids_are_used_up(self, host: RegistryHost) -> None:
        host.ask(SetMode(subject="one", mode=Mode.IMPORT))
        host.register("one", "a", id=MAX_INT32, version=MAX_INT32)
        host.ask(SetMode(subject="one", mode=Mode.READWRITE))
        with pytest.raises(IdsExhausted, match="no version left"):
            host.register("one", "a,b?")
        with pytest.raises(IdsExhausted, match="no id is left"):
            host.register("two", "b")
        assert host.register(":.x:two", "b").id == 1

    def test_ids_and_guids_in_contexts(self, host: RegistryHost) -> None:
        host.register("two", "b")
        first = host.register("one", "a")
        second = host.register(":.x:one", "a")
        assert (first.id, second.id) == (2, 1)
        assert first.guid == second.guid
        assert host.ask(IdsOfGuid(guid=first.guid)) == (ContextId(".", 2), ContextId(".x", 1))
        assert host.ask(GetByGuid(guid=first.guid.replace("-", ""))).id == 2
        assert host.ask(IdsOfGuid(guid="no guid")) == ()
        with pytest.raises(SchemaNotFound):
            host.ask(GetByGuid(guid="00000000-0000-0000-0000-000000000000"))

    @pytest.mark.parametrize(
        ("subject", "expected"),
        [
            pytest.param(None, ("one", 1), id="of the default context"),
            pytest.param("two", ("two", 1), id="as the subject's version"),
            pytest.param("three", ("one", 1), id="of another subject"),
            pytest.param("four", (":.x:four", 1), id="of the subject in another context"),
            pytest.param(":.x:", (":.x:four", 1), id="of a context"),
            pytest.param(":.x:four", (":.x:four", 1), id="of a subject in a context"),
            pytest.param(":.x:five", None, id="not of another subject in a context"),
            pytest.param(":.y:", None, id="not of an empty context"),
        ],
    )
    def test_whose_schema_an_id_means(
        self, host: RegistryHost, subject: str | None, expected: tuple[str, int] | None
    ) -> None:
        host.register("one", "a")
        host.register("two", "a")
        host.register("three", "b")
        host.register(":.x:four", "c")
        if expected is None:
            with pytest.raises(SchemaNotFound):
                host.ask(GetById(id=1, subject=subject))
        else:
            found = host.ask(GetById(id=1, subject=subject))
            assert (found.subject, found.version) == expected


class TestModes:
    @pytest.mark.parametrize("mode", [Mode.READONLY, Mode.READONLY_OVERRIDE])
    @pytest.mark.parametrize("scope", [None, "one", ":.__GLOBAL:"])
    def test_read_only(self, host: RegistryHost, mode: Mode, scope: str | None) -> None:
        host.register("one", "a")
        set_level(host, "FULL", "one")
        host.ask(SetMode(subject=scope, mode=mode))
        requests: list[Request[Any]] = [
            SetConfig(subject="one", update=ConfigUpdate(normalize=True)),
            DeleteConfig(subject="one"),
            DeleteSubject(subject="one"),
        ]
        for request in requests:
            with pytest.raises(OperationNotPermitted, match="read-only"):
                host.ask(request)
        with pytest.raises(OperationNotPermitted, match="read-only"):
            host.register("one", "a,b?")

    def test_the_nearest_mode_counts_unless_it_is_overridden(self, host: RegistryHost) -> None:
        def modes() -> list[Mode]:
            subjects = ["one", "two", ":.x:one", ":.x:two", ":.y:one", ":.x:", None]
            return [host.ask(GetMode(subject=each, default_to_global=True)) for each in subjects]

        rw, ro, im = Mode.READWRITE, Mode.READONLY, Mode.IMPORT
        assert modes() == [rw] * 7
        host.ask(SetMode(subject=":.__GLOBAL:", mode=ro))
        assert modes() == [ro] * 7
        host.ask(SetMode(subject=None, mode=rw))
        assert modes() == [rw, rw, ro, ro, ro, ro, rw]
        host.ask(SetMode(subject=":.x:", mode=im))
        assert modes() == [rw, rw, im, im, ro, im, rw]
        host.ask(SetMode(subject=":.x:one", mode=ro))
        assert modes() == [rw, rw, ro, im, ro, im, rw]
        host.ask(SetMode(subject=None, mode=Mode.READONLY_OVERRIDE))
        assert set(modes()) == {Mode.READONLY_OVERRIDE}

    def test_a_tenant_can_override_the_modes_of_its_own_subjects(self, host: RegistryHost) -> None:
        for subject in (":.@red:one", ":.@red.x:one", ":.@blue:one", "one"):
            host.ask(SetMode(subject=subject, mode=Mode.READWRITE))
        host.ask(SetMode(subject=":.@red:", mode=Mode.READONLY_OVERRIDE))

        def mode(subject: str) -> Mode:
            found: Mode = host.ask(GetMode(subject=subject, default_to_global=True))
            return found

        assert mode(":.@red:one") is mode(":.@red.x:one") is Mode.READONLY_OVERRIDE
        assert mode(":.@blue:one") is mode("one") is Mode.READWRITE

    def test_own_modes(self, host: RegistryHost) -> None:
        assert host.ask(GetMode(subject=None)) is Mode.READWRITE
        assert host.ask(DeleteMode(subject=None)) is Mode.READWRITE
        with pytest.raises(ModeNotFound):
            host.ask(GetMode(subject="one"))
        with pytest.raises(SubjectNotFound):
            host.ask(DeleteMode(subject="one"))
        host.ask(SetMode(subject="one", mode=Mode.READONLY))
        assert host.ask(GetMode(subject="one")) is Mode.READONLY
        assert host.ask(DeleteMode(subject="one")) is Mode.READONLY
        with pytest.raises(InvalidMode):
            host.ask(SetMode(subject=None, mode=Mode.FORWARD))

    def test_the_modes_of_a_context_are_deleted_with_it_if_wanted(self, host: RegistryHost) -> None:
        for subject in (":.x:", ":.x:one", ":.y:one", "one"):
            host.ask(SetMode(subject=subject, mode=Mode.READONLY))
        assert host.ask(DeleteMode(subject=":.x:", recursive=True)) is Mode.READONLY
        assert host.ask(GetMode(subject=":.y:one")) is Mode.READONLY
        assert host.ask(GetMode(subject="one")) is Mode.READONLY
        with pytest.raises(ModeNotFound):
            host.ask(GetMode(subject=":.x:one"))
        assert host.ask(DeleteMode(subject=None, recursive=True)) is None
        with pytest.raises(ModeNotFound):
            host.ask(GetMode(subject="one"))

    def test_import_keeps_ids_and_versions_and_compares_nothing(self, host: RegistryHost) -> None:
        host.ask(SetMode(subject="one", mode=Mode.IMPORT))
        third = host.register("one", "b, a", id=30, version=3, normalize=True)
        first = host.register("one", "a", id=10, version=1)
        assert (third.id, third.version, third.text) == (30, 3, "b,a")
        assert (first.id, first.version) == (10, 1)
        assert host.register("one", "a", id=10, version=2).version == 2
        assert host.ask(VersionsOfId(id=10)) == (SubjectVersion("one", 1), SubjectVersion("one", 2))
        assert host.register("one", "c", id=5).version == 4
        host.ask(SetMode(subject="one", mode=Mode.READWRITE))
        assert host.register("one", "c,d?").id == 31

    @pytest.mark.parametrize(
        ("text", "options", "error"),
        [
            pytest.param("b", {}, OperationNotPermitted, id="an id is needed"),
            pytest.param("b", {"id": 10}, OperationNotPermitted, id="the id of another schema"),
            pytest.param("a", {"id": 11}, IdDoesNotMatch, id="a schema with another id"),
            pytest.param("b!", {"id": 11}, InvalidSchema, id="no schema"),
            pytest.param("b", {"id": 11, "version": 1}, ReferenceExists, id="a version that is referred to"),
        ],
    )
    def test_what_cannot_be_imported(
        self, host: RegistryHost, text: str, options: dict[str, int], error: type[AlpacaError]
    ) -> None:
        host.ask(SetMode(subject=None, mode=Mode.IMPORT))
        host.register("one", "a", id=10, version=1)
        host.register("two", "@one", Reference("one", "one", 1), id=12)
        with pytest.raises(error):
            host.register("one", text, **options)

    def test_import_replaces_a_version(self, host: RegistryHost) -> None:
        host.ask(SetMode(subject=None, mode=Mode.IMPORT))
        host.register("one", "a", id=10, version=1)
        assert host.register("one", "b", id=2, version=1).version == 1
        assert host.ask(ListSchemas())[0].text == "b"
        host.ask(SetMode(subject=None, mode=Mode.READWRITE))
        again = host.restarted(host.compacted(with_tombstones=False))
        assert again.register("two", "a").id == 11

    def test_import_needs_an_empty_scope_or_force(self, host: RegistryHost) -> None:
        host.register("one", "a")
        host.register("two", "b")
        host.register(":.x:one", "c")
        host.ask(DeleteSubject(subject="two"))
        for scope in (None, "one", ":.__GLOBAL:", ":.x:"):
            with pytest.raises(OperationNotPermitted):
                host.ask(SetMode(subject=scope, mode=Mode.IMPORT))
        assert host.ask(SetMode(subject="two", mode=Mode.IMPORT)) is Mode.IMPORT
        assert host.ask(ListSubjects(deleted=Deleted.INCLUDED)) == (":.x:one", "one")
        host.ask(SetMode(subject=None, mode=Mode.IMPORT, force=True))
        assert host.register("one", "a,b", id=7).version == 2

    @pytest.mark.parametrize("scope", [None, ":.__GLOBAL:"])
    def test_import_leaves_subjects_of_tenants_alone(self, host: RegistryHost, scope: str | None) -> None:
        host.register(":.@red:one", "a")
        host.register(":.@red:two", "b")
        host.ask(DeleteSubject(subject=":.@red:two"))
        host.ask(SetMode(subject=scope, mode=Mode.IMPORT))
        assert host.ask(ListSubjects(deleted=Deleted.INCLUDED)) == (":.@red:one", ":.@red:two")

    def test_import_does_not_remove_what_is_referred_to(self, host: RegistryHost) -> None:
        host.register("base", "a")
        host.register("one", "@base", Reference("base", "base", 1))
        host.ask(DeleteSubject(subject="one"))
        host.ask(DeleteSubject(subject="base"))
        with pytest.raises(ReferenceExists):
            host.ask(SetMode(subject="base", mode=Mode.IMPORT))


class TestConfig:
    def test_a_tenant_inherits_settings_of_its_own_default_context(self, host: RegistryHost) -> None:
        host.ask(SetConfig(subject=None, update=ConfigUpdate(normalize=True)))
        host.ask(SetConfig(subject=":.@red:", update=ConfigUpdate(compatibility_group="major")))
        for subject in (":.@red:one", ":.@red.x:one"):
            set_level(host, "FULL", subject)
            found = host.ask(GetConfig(subject=subject, default_to_global=True))
            assert (found.normalize, found.compatibility_group) == (None, "major")

    def test_own_configurations(self, host: RegistryHost) -> None:
        assert host.ask(GetConfig(subject=None)) == Config(compatibility_level=CompatibilityLevel.BACKWARD)
        with pytest.raises(ConfigNotFound):
            host.ask(GetConfig(subject="one"))
        with pytest.raises(SubjectNotFound):
            host.ask(DeleteConfig(subject="one"))
        set_level(host, "FULL", "one")
        assert host.ask(GetConfig(subject="one")).compatibility_level == "FULL"
        assert host.ask(DeleteConfig(subject="one")).compatibility_level == "FULL"
        assert host.ask(DeleteConfig(subject=None)).compatibility_level == "BACKWARD"

    def test_fields_stay_unless_they_are_given(self, host: RegistryHost) -> None:
        set_level(host, "FULL")
        host.ask(SetConfig(subject=None, update=ConfigUpdate(normalize=True, alias="two")))
        updated = host.ask(SetConfig(subject=None, update=ConfigUpdate(alias=None)))
        assert updated == Config(compatibility_level=CompatibilityLevel.FULL, normalize=True)
        assert host.restarted().ask(GetConfig(subject=None)) == updated

    def test_what_a_subject_inherits(self, host: RegistryHost) -> None:
        owned = Metadata(properties={"owner": "sales"})
        general = ConfigUpdate(
            compatibility_level=CompatibilityLevel.FULL, normalize=True, default_metadata=owned, alias="x"
        )
        host.ask(SetConfig(subject=None, update=general))
        assert host.ask(GetConfig(subject="one", default_to_global=True)).default_metadata == owned
        host.ask(SetConfig(subject="one", update=ConfigUpdate(compatibility_group="g")))
        assert host.ask(GetConfig(subject="one", default_to_global=True)) == Config(
            compatibility_level=CompatibilityLevel.BACKWARD, normalize=True, compatibility_group="g"
        )

    def test_the_configuration_of_a_context(self, host: RegistryHost) -> None:
        set_level(host, "FULL")
        set_level(host, "FORWARD", ":.__GLOBAL:")
        set_level(host, "NONE", ":.x:")

        def level(subject: str | None) -> str:
            return str(host.ask(GetConfig(subject=subject, default_to_global=True)).compatibility_level)

        assert [level(each) for each in ("one", ":.x:one", ":.y:one", None, ":.:one")] == [
            "FULL",
            "NONE",
            "FORWARD",
            "FULL",
            "FULL",
        ]

    def test_an_alias_stands_for_another_subject(self, host: RegistryHost) -> None:
        host.ask(SetConfig(subject="alias", update=ConfigUpdate(alias="real")))
        host.ask(SetConfig(subject=":.x:alias", update=ConfigUpdate(alias="real")))
        assert host.register("alias", "a").subject == "real"
        assert host.register(":.x:alias", "a").subject == ":.x:real"
        assert host.ask(GetVersion(subject="alias", version=1)).subject == "real"
        assert host.ask(GetById(id=1, subject="alias")).subject == "real"
        assert host.ask(DeleteSubject(subject="alias")) == (1,)
        assert host.ask(ListSubjects()) == (":.x:real",)

    @pytest.mark.parametrize(
        "rules",
        [
            pytest.param({"domain_rules": (Rule(type="CEL"),)}, id="no name"),
            pytest.param({"domain_rules": (Rule(name="1", type="CEL"),)}, id="name"),
            pytest.param({"domain_rules": (Rule(name="a" * 65, type="CEL"),)}, id="long name"),
            pytest.param({"domain_rules": (Rule(name="a", type="CEL"),) * 2}, id="two of one name"),
            pytest.param({"migration_rules": (Rule(name="a", type="CEL"),)}, id="mode of migration rules"),
            pytest.param(
                {"encoding_rules": (Rule(name="a", type="CEL", mode=RuleMode.UPGRADE),)}, id="mode of others"
            ),
            pytest.param(
                {"domain_rules": (Rule(name="a", type="CEL", mode=RuleMode.READ, on_failure="x,y"),)},
                id="two actions",
            ),
        ],
    )
    def test_invalid_rules(self, host: RegistryHost, rules: dict[str, Any]) -> None:
        with pytest.raises(InvalidRuleSet):
            host.ask(SetConfig(subject=None, update=ConfigUpdate(default_rule_set=RuleSet(**rules))))


class TestLists:
    def test_subjects_by_prefix(self, host: RegistryHost) -> None:
        for subject in ("b", "ab", "aa", ":.x:ab", ":.xy:c", ":.:d"):
            host.register(subject, "a")
        listed = {
            prefix: host.ask(ListSubjects(prefix=prefix))
            for prefix in (":*:", ":*:a", "a", "", ":.x", ":.x:")
        }
        assert listed == {
            ":*:": (":.x:ab", ":.xy:c", "aa", "ab", "b", "d"),
            ":*:a": (":.x:ab", "aa", "ab"),
            "a": ("aa", "ab"),
            "": ("aa", "ab", "b", "d"),
            ":.x": (":.x:ab", ":.xy:c"),
            ":.x:": (":.x:ab",),
        }
        assert host.ask(ListContexts()) == (".", ".x", ".xy")

    @pytest.mark.parametrize(
        ("offset", "limit", "expected"),
        [
            (0, -1, "abcd"),
            (1, 2, "bc"),
            (3, 9, "d"),
            (9, 1, ""),
            (0, 0, ""),
            (-5, 1, "a"),
            (1, 2**63, "bcd"),
            (2**63, 1, ""),
        ],
    )
    def test_pages(self, host: RegistryHost, offset: int, limit: int, expected: str) -> None:
        for subject in "dacb":
            host.register(subject, "a")
        assert host.ask(ListSubjects(offset=offset, limit=limit)) == tuple(expected)

    def test_names_stay_in_order_when_subjects_come_and_go(self, host: RegistryHost) -> None:
        for subject in ("b", "a", "c"):
            host.register(subject, "a")
            host.ask(ListSubjects())
        delete_for_good(host, "b")
        host.register("aa", "a")
        host.register("b", "a")
        delete_for_good(host, "a")
        assert host.ask(ListSubjects()) == ("aa", "b", "c")

    @pytest.mark.parametrize(
        ("deleted", "expected"),
        [
            (Deleted.EXCLUDED, (1, 3)),
            (Deleted.INCLUDED, (1, 2, 3)),
            (Deleted.ONLY, (2,)),
            (Deleted.NEGATIVE, (1, -2, 3)),
        ],
    )
    def test_versions(self, host: RegistryHost, deleted: Deleted, expected: tuple[int, ...]) -> None:
        for text in ("a", "a,b?", "a,c?"):
            host.register("one", text)
        host.ask(DeleteVersion(subject="one", version=2))
        assert host.ask(ListVersions(subject="one", deleted=deleted)) == expected

    def test_schemas(self, host: RegistryHost) -> None:
        host.register("one", "a")
        host.register("one", "a,b?")
        host.register("two", "c")
        host.ask(DeleteVersion(subject="one", version=2))

        def listed(**options: Any) -> list[tuple[str, int]]:
            return [(each.subject, each.version) for each in host.ask(ListSchemas(**options))]

        assert listed() == [("one", 1), ("two", 1)]
        assert listed(deleted=True) == [("one", 1), ("one", 2), ("two", 1)]
        assert listed(deleted=True, latest_only=True) == [("one", 2), ("two", 1)]
        assert listed(prefix="o", latest_only=True) == [("one", 1)]
        assert listed(offset=1, limit=1) == [("two", 1)]

    def test_a_list_of_large_schemas_ends_early(self, host: RegistryHost) -> None:
        for at in range(36):
            host.register("one", f"{at:02}" + "a" * 999_998, force=True)
        assert len(host.ask(ListSchemas())) == 34
        assert len(host.ask(ListSchemas(offset=34))) == 2

    def test_the_latest_version_with_metadata(self, host: RegistryHost) -> None:
        for text, owner in (("a", "x"), ("a,b?", "x"), ("a,c?", "y")):
            host.register("one", text, metadata=Metadata(properties={"owner": owner, "tier": "1"}))
        assert host.ask(LatestWithMetadata(subject="one", properties={"owner": "x"})).version == 2
        assert host.ask(LatestWithMetadata(subject="one", properties={})).version == 3
        with pytest.raises(SchemaNotFound):
            host.ask(LatestWithMetadata(subject="one", properties={"owner": "z"}))
        with pytest.raises(SubjectNotFound):
            host.ask(LatestWithMetadata(subject="two", properties={}))

    def test_counts(self, host: RegistryHost) -> None:
        host.register("one", "a")
        host.register("two", "a")
        host.register("two", "a,b?")
        host.register(":.x:one", "a", schema_type=SchemaType.JSON)
        host.ask(DeleteSubject(subject="two"))
        stats = host.ask(CountSchemas())
        assert (stats.contexts, stats.subjects, stats.deleted_subjects) == (2, 2, 1)
        assert (stats.versions, stats.deleted_versions) == (2, 2)
        assert stats.schemas == {SchemaType.AVRO: 2, SchemaType.JSON: 1, SchemaType.PROTOBUF: 0}


class TestContexts:
    def test_a_subject_without_a_context_is_found_in_others(self, host: RegistryHost) -> None:
        host.register(":.x:one", "a")
        assert host.ask(GetVersion(subject="one", version=LATEST)).subject == ":.x:one"
        assert host.ask(Lookup(subject="one", draft=Draft(text="a"))).subject == ":.x:one"
        with pytest.raises(SubjectNotFound):
            host.ask(GetVersion(subject=":.y:one", version=1))
        with pytest.raises(SubjectNotFound):
            host.ask(Lookup(subject=":.y:one", draft=Draft(text="a")))
        assert host.register("one", "b").id == 1

    def test_references_that_are_not_in_another_context(self, host: RegistryHost) -> None:
        host.register("base", "a")
        host.register("one", "b")
        host.register(":.x:one", "c")
        draft = Draft(text="@base", references=(Reference("base", "base", 1),))
        with pytest.raises(SchemaNotFound):
            host.ask(Lookup(subject="one", draft=draft))

    def test_the_default_context_may_be_named(self, host: RegistryHost) -> None:
        assert host.register(":.:one", "a").subject == "one"


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (GetVersion(subject="none", version=1), SubjectNotFound),
        (GetVersion(subject="one", version=2), VersionNotFound),
        (GetVersion(subject="one", version=0), InvalidVersion),
        (GetVersion(subject="one", version=2**31), InvalidVersion),
        (ListVersions(subject="none"), SubjectNotFound),
        (ReferencedBy(subject="none", version=1), SubjectNotFound),
        (ReferencedBy(subject="one", version=2), VersionNotFound),
        (GetById(id=2), SchemaNotFound),
        (GetById(id=-1), SchemaNotFound),
        (VersionsOfId(id=2), SchemaNotFound),
        (SourceOfId(id=2), SchemaNotFound),
        (IdentifySchema(schema=2, subject="one"), SchemaNotFound),
        (IdentifySchema(schema="no guid", subject="one"), SchemaNotFound),
        (Lookup(subject="one", draft=Draft(text="b")), SchemaNotFound),
        (Lookup(subject="none", draft=Draft(text="a")), SubjectNotFound),
        (Lookup(subject="none", draft=Draft(text="a!")), InvalidSchema),
        (Lookup(subject="one", draft=Draft(text="")), InvalidSchema),
        (CheckCompatibility(subject="one", draft=Draft(text="a!")), InvalidSchema),
    ],
)
def test_what_is_not_there(host: RegistryHost, query: Request[Any], error: type[AlpacaError]) -> None:
    host.register("one", "a")
    with pytest.raises(error):
        host.ask(query)


def test_a_schema_is_identified_with_the_subjects_that_have_it(host: RegistryHost) -> None:
    first = host.register("one", "a")
    host.register("two", "b")
    for name in (first.id, first.guid):
        found = host.ask(IdentifySchema(schema=name, subject="one"))
        assert (found.id, found.guid, found.context) == (first.id, first.guid, ".")
        assert found.is_version
        assert not host.ask(IdentifySchema(schema=name, subject="two")).is_version
        assert not host.ask(IdentifySchema(schema=name, subject="none")).is_version
        assert not host.ask(IdentifySchema(schema=name)).is_version
    host.ask(SetConfig(subject="alias", update=ConfigUpdate(alias="one")))
    assert host.ask(IdentifySchema(schema=first.id, subject="alias")).is_version
    in_context = host.register(":.other:one", "c")
    found = host.ask(IdentifySchema(schema=in_context.guid, subject=":.other:one"))
    assert (found.context, found.is_version) == (".other", True)
    host.ask(DeleteVersion(subject="one", version=1))
    assert not host.ask(IdentifySchema(schema=first.id, subject="one")).is_version


def test_queries_change_nothing(host: RegistryHost) -> None:
    host.register("b", "a")
    host.register("a", "a,b?")
    host.ask(DeleteSubject(subject="b"))
    before = host.state(), len(host.log)
    draft = Draft(text="c")
    for query in Queries.HANDLERS:
        known = {"subject": "a", "version": 1, "id": 1, "guid": "0" * 32, "properties": {}, "draft": draft}
        known.update(schema=1, subjects=("a",))
        with suppress(AlpacaError):
            host.send(query(**{name: known[name] for name in query.__struct_fields__ if name in known}))
    assert (host.state(), len(host.log)) == before


def test_a_batch_is_handled_in_order_and_errors_do_not_stop_it(host: RegistryHost) -> None:
    host.register("one", "a")
    requests = [DeleteSubject(subject=each) for each in ("one", "one", "none")]
    outcome = host.machine.handle([Pending(each, at) for at, each in enumerate(requests)], 0)
    assert [type(reply.answer) for reply in outcome.replies] == [tuple, SubjectSoftDeleted, SubjectNotFound]
    assert [reply.to for reply in outcome.replies] == [0, 1, 2]
    assert len(outcome.changes) == 1
