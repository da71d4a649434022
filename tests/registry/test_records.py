"""Records in Confluent's JSON form, read and written."""

import json
from hashlib import md5
from typing import Any
from uuid import UUID

import pytest

from alpacamq.model.errors import InvalidRecord
from alpacamq.model.state_machine import Change
from alpacamq.registry.messages import (
    Deleted,
    DeleteSubject,
    DeleteVersion,
    GetByGuid,
    GetById,
    GetConfig,
    GetMode,
    GetVersion,
    ImportRecords,
    ListContexts,
    ListSubjects,
    ListVersions,
    ReferencedBy,
    SetConfig,
    SetMode,
)
from alpacamq.registry.metadata import Metadata, Rule, RuleKind, RuleMode, RuleSet
from alpacamq.registry.schema import Reference, SchemaType
from alpacamq.registry.settings import CompatibilityLevel, ConfigUpdate, Mode
from alpacamq.registry.state import Content

from .registry_host import RegistryHost

RULE = {"name": "check", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true"}

# As a registry of Confluent's writes them, with old and new variants of the same fields.
RECORDS: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({"keytype": "NOOP", "magic": 0}, None),
    ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "NONE"}),
    (
        {"keytype": "CONFIG", "subject": "orders", "magic": 0},
        {
            "subject": "orders",
            "normalize": True,
            "validateFields": True,
            "compatibilityLevel": "FULL_TRANSITIVE",
            "compatibilityGroup": "major",
            "defaultMetadata": {"properties": {"owner": "sales"}},
            "overrideRuleSet": {"domainRules": [RULE]},
        },
    ),
    ({"keytype": "MODE", "subject": "old", "magic": 0}, {"mode": "READONLY"}),
    (
        {"keytype": "SCHEMA", "subject": "base", "version": 1, "magic": 1},
        {"subject": "base", "version": 1, "id": 1, "schema": '"string"', "deleted": False},
    ),
    (
        {"keytype": "SCHEMA", "subject": "orders", "version": 1, "magic": 1},
        {
            "subject": "orders",
            "version": 1,
            "id": 2,
            "schemaType": "PROTOBUF",
            "references": [{"name": "base.proto", "subject": "base", "version": 1}],
            "metadata": {"tags": {"a.b": ["PII"]}, "properties": {"owner": "sales"}, "sensitive": ["key"]},
            "ruleSet": {"domainRules": [RULE]},
            "schema": 'syntax = "proto3";',
            "deleted": False,
            "someday": {"new": True},
        },
    ),
    (
        {"keytype": "CONTEXT", "tenant": "default", "context": ".x", "magic": 0},
        {"tenant": "default", "context": ".x"},
    ),
    (
        {"magic": 0, "keytype": "SCHEMA", "subject": ":.x:a", "version": 3},
        {
            "subject": ":.x:a",
            "version": 3,
            "id": 10001,
            "schema": "{}",
            "schemaType": "JSON",
            "deleted": True,
        },
    ),
    (
        {"keytype": "SCHEMA", "subject": "gone", "version": 1, "magic": 1},
        {"subject": "gone", "version": 1, "id": 3, "schema": '"int"', "deleted": False},
    ),
    (
        {"keytype": "SCHEMA", "subject": "gone", "version": 2, "magic": 1},
        {"subject": "gone", "version": 2, "id": 4, "schema": '"long"', "deleted": False},
    ),
    ({"keytype": "DELETE_SUBJECT", "subject": "gone", "magic": 0}, {"subject": "gone", "version": 2}),
    (
        {"keytype": "SCHEMA", "subject": "gone", "version": 3, "magic": 1},
        {"subject": "gone", "version": 3, "id": 4, "schema": '"long"', "deleted": False},
    ),
    (
        {"keytype": "SCHEMA", "subject": "cleared", "version": 1, "magic": 1},
        {"subject": "cleared", "version": 1, "id": 5, "schema": '"bytes"', "deleted": True},
    ),
    ({"keytype": "CLEAR_SUBJECT", "subject": "cleared", "magic": 0}, {"subject": "cleared"}),
    ({"keytype": "SCHEMA", "subject": "gone", "version": 1, "magic": 1}, None),
    ({"keytype": "ASSOC", "tenant": "default", "resourceName": "orders"}, {"guid": "1", "frozen": False}),
]


def encoded(records: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> list[Change]:
    return [
        Change(json.dumps(key).encode(), None if value is None else json.dumps(value).encode())
        for key, value in records
    ]


def check(host: RegistryHost) -> None:
    """Assert what RECORDS say."""
    assert host.ask(ListSubjects(deleted=Deleted.INCLUDED)) == (":.x:a", "base", "gone", "orders")
    assert host.ask(ListContexts()) == (".", ".x")
    assert host.ask(GetConfig(subject=None)).compatibility_level is CompatibilityLevel.NONE
    config = host.ask(GetConfig(subject="orders"))
    assert (config.normalize, config.validate_fields, config.compatibility_group) == (True, True, "major")
    assert config.default_metadata == Metadata(properties={"owner": "sales"})
    assert host.ask(GetMode(subject="old")) is Mode.READONLY
    order = host.ask(GetById(id=2))
    assert order.schema_type is SchemaType.PROTOBUF
    assert order.references == (Reference("base.proto", "base", 1),)
    assert order.metadata == Metadata({"a.b": ("PII",)}, {"owner": "sales"}, ("key",))
    rule = Rule(name="check", kind=RuleKind.CONDITION, mode=RuleMode.WRITE, type="CEL", expr="true")
    assert order.rule_set == RuleSet(domain_rules=(rule,))
    assert host.ask(ReferencedBy(subject="base", version=1)) == (2,)
    assert host.ask(GetVersion(subject=":.x:a", version=3, deleted=True)).id == 10001
    assert host.ask(ListVersions(subject="gone", deleted=Deleted.NEGATIVE)) == (-2, 3)


def test_records_of_confluents_registry_are_read() -> None:
    host = RegistryHost().restarted(encoded(RECORDS))
    check(host)
    check(host.restarted(host.compacted(with_tombstones=False)))
    check(host.restarted(host.state()))


def test_unknown_records_are_kept() -> None:
    host = RegistryHost().restarted(encoded(RECORDS))
    unknown = encoded(RECORDS)[-1]
    assert unknown in host.state()
    host.machine.replay(unknown.key, None)
    assert unknown not in host.state()


def test_records_are_imported_with_new_keys() -> None:
    host = RegistryHost()
    assert host.ask(ImportRecords(records=tuple(encoded(RECORDS)))) == len(RECORDS) - 1
    check(host)
    check(host.restarted())
    # The key that the registry itself would write, so that a tombstone deletes the record.
    assert {"keytype": "SCHEMA", "subject": ":.x:a", "version": 3, "magic": 1} in [
        json.loads(record.key) for record in host.log
    ]
    written = len(host.log)
    host.ask(ImportRecords(records=tuple(encoded(RECORDS))))
    check(host)
    assert len(host.log) == 2 * written - 1  # the highest id is kept already


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(b"{", b"{}", id="key"),
        pytest.param(b"\xff", b"{}", id="bytes"),
        pytest.param(b'{"keytype":"SCHEMA","magic":1}', b"{}", id="no subject"),
        pytest.param(b'{"keytype":"MODE","magic":0}', b'{"mode":"ANY"}', id="mode"),
        pytest.param(b'{"keytype":"CONFIG"}', b'{"compatibilityLevel":"SOME"}', id="level"),
        pytest.param(
            b'{"keytype":"SCHEMA","subject":"a","version":1}',
            b'{"subject":"a","version":1,"id":2147483648,"schema":""}',
            id="id",
        ),
        pytest.param(
            b'{"keytype":"SCHEMA","subject":"a","version":1}',
            b'{"subject":"a","version":1,"id":1,"schema":"","md5":"AAAA"}',
            id="md5",
        ),
        pytest.param(
            b'{"keytype":"SCHEMA","subject":"b","version":1}',
            b'{"subject":"b","version":1,"id":1,"schema":"other"}',
            id="id of another schema",
        ),
        pytest.param(b'{"keytype":"NOOP","context":"."}', b'{"maxId":-1}', id="highest id"),
        pytest.param(b"[" * 100_000, b"{}", id="deep"),
    ],
)
def test_invalid_records_are_not_imported(key: bytes, value: bytes) -> None:
    host = RegistryHost()
    host.register("one", "a")
    before = host.state()
    valid = encoded(RECORDS)[1]
    with pytest.raises(InvalidRecord):
        host.ask(ImportRecords(records=(valid, Change(key, value))))
    assert host.state() == before


def written(host: RegistryHost) -> list[tuple[str, Any]]:
    return [(key.decode(), None if value is None else json.loads(value)) for key, value in host.log]


def test_records_are_written_as_confluents_registry_writes_them() -> None:
    host = RegistryHost()
    host.register("one", "a")
    host.register(":.x:two", "b", schema_type=SchemaType.JSON, metadata=Metadata(properties={"k": "v"}))
    host.ask(SetConfig(subject=None, update=ConfigUpdate(compatibility_level=CompatibilityLevel.FULL)))
    host.ask(SetMode(subject="one", mode=Mode.READWRITE))
    host.ask(DeleteVersion(subject="one", version=1))
    host.ask(DeleteSubject(subject=":.x:two"))
    host.ask(DeleteVersion(subject="one", version=1, permanent=True))
    assert written(host) == [
        (
            '{"keytype":"SCHEMA","subject":"one","version":1,"magic":1}',
            {"subject": "one", "version": 1, "id": 1, "schema": "a", "deleted": False},
        ),
        (
            '{"keytype":"CONTEXT","tenant":"default","context":".x","magic":0}',
            {"tenant": "default", "context": ".x"},
        ),
        (
            '{"keytype":"SCHEMA","subject":":.x:two","version":1,"magic":1}',
            {
                "subject": ":.x:two",
                "version": 1,
                "id": 1,
                "schemaType": "JSON",
                "metadata": {"properties": {"k": "v"}},
                "schema": "b",
                "deleted": False,
            },
        ),
        ('{"keytype":"CONFIG","magic":0}', {"compatibilityLevel": "FULL"}),
        ('{"keytype":"MODE","subject":"one","magic":0}', {"subject": "one", "mode": "READWRITE"}),
        (
            '{"keytype":"SCHEMA","subject":"one","version":1,"magic":1}',
            {"subject": "one", "version": 1, "id": 1, "schema": "a", "deleted": True},
        ),
        ('{"keytype":"DELETE_SUBJECT","subject":":.x:two","magic":0}', {"subject": ":.x:two", "version": 1}),
        ('{"keytype":"SCHEMA","subject":"one","version":1,"magic":1}', None),
        ('{"keytype":"DELETE_SUBJECT","subject":"one","magic":0}', None),
        ('{"keytype":"MODE","subject":"one","magic":0}', None),
        # Skipped by Confluent's registry, like every NOOP record.
        ('{"keytype":"NOOP","context":".","magic":0}', {"maxId": 1}),
    ]


def test_an_import_clears_what_was_deleted() -> None:
    host = RegistryHost()
    host.register("one", "a")
    host.ask(DeleteSubject(subject="one"))
    host.log.clear()
    host.ask(SetMode(subject="one", mode=Mode.IMPORT))
    assert [key for key, _ in written(host)] == [
        '{"keytype":"SCHEMA","subject":"one","version":1,"magic":1}',
        '{"keytype":"CLEAR_SUBJECT","subject":"one","magic":0}',
        '{"keytype":"MODE","subject":"one","magic":0}',
        '{"keytype":"NOOP","context":".","magic":0}',
    ]


@pytest.mark.parametrize(
    ("content", "md5_of"),
    [
        pytest.param(Content(SchemaType.AVRO, '"string"'), b'"string"', id="text"),
        pytest.param(
            Content(SchemaType.AVRO, "a", (Reference("n", "s", 258),)), b"ans\0\0\1\2", id="references"
        ),
        pytest.param(Content(SchemaType.AVRO, "a", (), Metadata()), b"a\1", id="empty metadata"),
        pytest.param(
            Content(SchemaType.AVRO, "a", (), Metadata({"t": ("v", "w")}, {"p": "q"}, ("s",))),
            b"a\1tvwpqs",
            id="metadata",
        ),
        pytest.param(
            Content(
                SchemaType.AVRO,
                "a",
                rule_set=RuleSet(
                    migration_rules=(Rule(name="m", type="T", mode=RuleMode.UPGRADE, disabled=True),),
                    domain_rules=(
                        Rule(
                            name="d",
                            doc="o",
                            type="T",
                            tags=("x", "y"),
                            params={"k": "v"},
                            expr="e",
                            on_success="s",
                            on_failure="f",
                        ),
                    ),
                    enable_at="CLIENT",
                ).ordered(),
            ),
            b"a\1mTRANSFORMUPGRADET\1doTRANSFORMWRITEREADTxykvesfCLIENT",
            id="rules",
        ),
    ],
)
def test_the_guid_is_confluents(content: Content, md5_of: bytes) -> None:
    assert content.guid() == md5(md5_of, usedforsecurity=False).digest()


def test_a_guid_in_a_record_counts() -> None:
    guid = bytes(range(16))
    value = {"subject": "a", "version": 1, "id": 1, "schema": "x", "md5": "AAECAwQFBgcICQoLDA0ODw=="}
    host = RegistryHost().restarted(
        encoded([({"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1}, value)])
    )
    assert host.ask(GetByGuid(guid=str(UUID(bytes=guid)))).id == 1
    assert host.restarted(host.state()).state() == host.state()


def test_records_that_give_an_id_another_schema_are_ignored() -> None:
    """As Confluent's registry does; it happens when ids were imported twice."""
    host = RegistryHost()
    host.register("one", "a")
    before = host.state()
    key = b'{"keytype":"SCHEMA","subject":"two","version":1,"magic":1}'
    host.machine.replay(key, b'{"subject":"two","version":1,"id":1,"schema":"b","deleted":false}')
    assert host.state() == before
