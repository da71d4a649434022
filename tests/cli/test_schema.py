"""`alpacactl schema`, and producing and consuming by schemas."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.brokers import Broker

from .command import Command, InProcess
from .conftest import CONFIG

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}


def order(*fields: dict[str, Any]) -> dict[str, Any]:
    return ORDER | {"fields": [*ORDER["fields"], *fields]}


WITH_PRICE = order({"name": "price", "type": "double", "default": 0})
WITHOUT_DEFAULT = order({"name": "price", "type": "double"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    return path


@pytest.fixture
def subject(ctl: Command, topic: str, file: Path) -> str:
    """A subject with two versions, for the values of a topic."""
    name = f"{topic}-value"
    ctl.ok("schema", "register", name, "--file", str(file))
    ctl.ok("schema", "register", name, "--file", "-", stdin=json.dumps(WITH_PRICE).encode())
    return name


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Command]:
    """The command with a broker of its own."""
    broker = Broker(tmp_path / "empty", config=CONFIG)
    try:
        broker.start()
        yield InProcess(broker.address, broker.http_address)
    finally:
        broker.end()


def test_registering_says_the_version_and_id(ctl: Command, topic: str, file: Path) -> None:
    registered = ctl.json("schema", "register", topic, "--file", str(file))
    assert registered == {"subject": topic, "id": registered["id"], "version": 1, "registered": True}
    again = ctl.json("schema", "register", topic, "--file", str(file))
    assert again == registered | {"registered": False}


def test_a_dry_run_registers_nothing(ctl: Command, topic: str, file: Path) -> None:
    ran = ctl("schema", "register", topic, "--file", str(file), "--dry-run")
    assert ran.code == 0
    assert "nothing was changed" in ran.errors
    assert f"there is no subject '{topic}'" in ctl.fails(4, "schema", "get", topic)


def test_a_dry_run_of_an_incompatible_schema_fails(ctl: Command, subject: str) -> None:
    ran = ctl(
        "schema", "register", subject, "--file", "-", "--dry-run", stdin=json.dumps(WITHOUT_DEFAULT).encode()
    )
    assert ran.code == 0, "version 2 has a price"
    incompatible = json.dumps(order({"name": "must", "type": "int"})).encode()
    ran = ctl("schema", "register", subject, "--file", "-", "--dry-run", stdin=incompatible)
    assert ran.code == 1
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in ran.errors
    assert ctl("schema", "register", subject, "--file", "-", stdin=incompatible).code == 1


def test_subjects_and_versions_are_listed(ctl: Command, subject: str) -> None:
    [latest] = ctl.json("schema", "list", "--prefix", subject)
    assert (latest["subject"], latest["version"]) == (subject, 2)
    assert [each["version"] for each in ctl.json("schema", "list", subject)] == [1, 2]
    table = ctl.ok("schema", "list", subject).splitlines()
    assert table[1].split() == ["SUBJECT", "VERSION", "ID", "TYPE", "REFERENCES"]
    assert len(table) == 4


def test_schemas_are_printed_to_be_edited(ctl: Command, subject: str) -> None:
    assert json.loads(ctl.ok("schema", "get", subject, "--version", "1")) == ORDER
    latest = ctl.json("schema", "get", subject)
    assert json.loads(latest["schema"]) == WITH_PRICE
    assert json.loads(ctl.ok("schema", "get", "--id", str(latest["id"]))) == WITH_PRICE


def test_what_does_not_exist_is_not_found(ctl: Command, subject: str, tmp_path: Path) -> None:
    assert f"did you mean '{subject}'" in ctl.fails(4, "schema", "get", f"{subject}s")
    assert "there is no version" in ctl.fails(4, "schema", "get", subject, "--version", "9")
    assert "there is no schema '2000000000'" in ctl.fails(4, "schema", "get", "--id", "2000000000")
    assert "no file" in ctl.fails(4, "schema", "register", subject, "--file", str(tmp_path / "none.avsc"))
    assert ctl("schema", "get").code == 2


def test_an_invalid_schema_is_refused_with_its_place(ctl: Command, topic: str) -> None:
    ran = ctl("schema", "register", topic, "--file", "-", stdin=b'{"type": "record"}')
    assert ran.code == 1
    assert "missing 'name' of record" in ran.errors
    assert ctl("schema", "register", topic, "--file", "-", "--reference", "a=b", stdin=b'"int"').code == 2


def test_checks_say_why_a_schema_is_not_compatible(ctl: Command, subject: str, tmp_path: Path) -> None:
    path = tmp_path / "new.avsc"
    path.write_text(json.dumps(WITHOUT_DEFAULT))
    assert ctl("schema", "check", subject, "--file", str(path)).code == 0
    ran = ctl("schema", "check", subject, "--file", str(path), "--version", "1", "-o", "json")
    assert ran.code == 1
    answer = json.loads(ran.text)
    assert answer["is_compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer["messages"][0]
    assert ctl("schema", "check", subject, "--file", str(path), "--version", "7").code == 4


def test_the_language_follows_from_the_name_of_the_file(ctl: Command, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text('{"type": "object"}')
    ctl.ok("schema", "register", topic, "--file", str(path))
    assert ctl.json("schema", "get", topic)["schemaType"] == "JSON"


def test_references_are_schemas_of_other_subjects(ctl: Command, topic: str) -> None:
    part = {"type": "record", "name": "shop.Part", "fields": [{"name": "n", "type": "int"}]}
    whole = {"type": "record", "name": "Whole", "fields": [{"name": "part", "type": "shop.Part"}]}
    ctl.ok("schema", "register", f"{topic}-part", "--file", "-", stdin=json.dumps(part).encode())
    reference = f"shop.Part={topic}-part:1"
    ctl.ok(
        "schema",
        "register",
        f"{topic}-value",
        "--file",
        "-",
        "--reference",
        reference,
        stdin=json.dumps(whole).encode(),
    )
    ctl.ok("topics", "create", topic, "--partitions", "1")
    ctl.ok("produce", topic, "--schema", f"{topic}-value", stdin=b'{"part": {"n": 5}}\n')
    assert ctl.ok("consume", topic, "--schema", "--exit") == '{"part": {"n": 5}}\n'


def test_versions_and_subjects_are_deleted(ctl: Command, subject: str) -> None:
    would = ctl.json("schema", "delete", subject, "--dry-run")
    assert (would["versions"], would["deleted"]) == ([1, 2], False)
    assert "use --yes" in ctl.fails(2, "schema", "delete", subject)
    assert ctl.json("schema", "delete", subject, "--version", "1", "--yes")["versions"] == [1]
    assert [each["version"] for each in ctl.json("schema", "list", subject)] == [2]
    assert [each["version"] for each in ctl.json("schema", "list", subject, "--deleted")] == [1, 2]
    assert ctl.json("schema", "delete", subject, "--permanent", "--yes")["versions"] == [1, 2]
    assert ctl("schema", "list", subject, "--deleted").code == 4
    assert ctl("schema", "delete", subject, "--yes").code == 4


def test_compatibility_and_modes_are_set_for_a_subject_and_reset(ctl: Command, subject: str) -> None:
    assert ctl.json("schema", "config", subject)["is_inherited"] is True
    changed = ctl.json("schema", "config", subject, "--compatibility", "none", "--normalize", "true")
    assert changed == {
        "subject": subject,
        "normalize": True,
        "compatibilityLevel": "NONE",
        "is_inherited": False,
    }
    assert ctl.json("schema", "config", subject, "--reset")["is_inherited"] is True
    assert ctl.json("schema", "mode", subject)["mode"] == "READWRITE"
    assert ctl.json("schema", "mode", subject, "--set", "READONLY")["is_inherited"] is False
    ran = ctl("schema", "register", subject, "--file", "-", stdin=b'"int"')
    assert ran.code == 1
    assert "is in read-only mode" in ran.errors
    assert ctl.json("schema", "mode", subject, "--reset")["mode"] == "READWRITE"
    assert ctl("schema", "config", subject, "--compatibility", "some").code == 2


def test_differences_of_versions_come_with_their_compatibility(ctl: Command, subject: str) -> None:
    ctl.ok("schema", "config", subject, "--compatibility", "NONE")
    ctl.ok(
        "schema",
        "register",
        subject,
        "--file",
        "-",
        stdin=json.dumps(order({"name": "must", "type": "int"})).encode(),
    )
    shown = ctl.ok("schema", "diff", subject, "1", "2")
    assert f"--- {subject} version 1" in shown
    assert '+      "name": "price",' in shown
    found = ctl.json("schema", "diff", subject)
    assert (found["old"], found["new"]) == (2, 3)
    assert found["forward"]["is_compatible"] is True
    [why] = found["backward"]["incompatibilities"]
    assert (why["rule"], why["path"]) == ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/2")


def test_an_export_is_imported_with_its_ids(
    ctl: Command, subject: str, empty: Command, tmp_path: Path
) -> None:
    ctl.ok("schema", "delete", subject, "--version", "1", "--yes")
    ctl.ok("schema", "config", subject, "--compatibility", "FULL")
    ctl.ok("schema", "mode", subject, "--set", "READONLY")
    in_context = f":.shop:{subject}"
    ctl.ok("schema", "register", in_context, "--file", "-", stdin=b'"int"')
    path = tmp_path / "schemas.jsonl"
    exported = ctl.json("schema", "export", "--file", str(path))
    assert ctl("schema", "export").raw == path.read_bytes()
    would = empty.json("schema", "import", "--file", str(path), "--dry-run")
    assert would["imported"] is False
    assert empty.json("schema", "list") == []
    imported = empty.json("schema", "import", "--file", str(path))
    assert imported["versions"] == exported["versions"]
    for each in (subject, in_context):
        options = ("schema", "list", each, "--deleted")
        assert empty.json(*options) == ctl.json(*options)
    assert [each["version"] for each in empty.json("schema", "list", subject)] == [2]
    assert empty.json("schema", "config", subject)["compatibilityLevel"] == "FULL"
    assert empty.json("schema", "mode", subject)["mode"] == "READONLY"
    assert empty.json("schema", "mode")["mode"] == "READWRITE"
    assert "has" in empty.fails(1, "schema", "import", "--file", str(path))
    assert empty("schema", "export").raw == path.read_bytes()


def test_another_registry_is_imported_by_its_url(
    ctl: Command, broker: Broker, subject: str, empty: Command
) -> None:
    empty.ok("schema", "import", "--from", f"http://{broker.http_address}/schemas")
    assert empty.json("schema", "list", subject) == ctl.json("schema", "list", subject)
    assert empty("schema", "import", "--from", "localhost:8081").code == 2


def test_records_of_a_registrys_topic_are_imported(empty: Command, tmp_path: Path) -> None:
    def record(version: int, schema: str, **more: Any) -> str:
        key = {"keytype": "SCHEMA", "subject": "s", "version": version, "magic": 1}
        value = {"subject": "s", "version": version, "id": 10 + version, "schema": schema, "deleted": False}
        return json.dumps({"key": key, "value": value | more})

    lines = [
        '{"key": {"keytype": "NOOP", "magic": 0}, "value": null}',
        record(1, '"int"'),
        record(2, '"long"'),
        record(3, '"float"'),
        '{"key": {"keytype": "SCHEMA", "subject": "s", "version": 3, "magic": 1}, "value": null}',
        '{"key": {"keytype": "DELETE_SUBJECT", "subject": "s"}, "value": {"subject": "s", "version": 1}}',
    ]
    path = tmp_path / "topic.jsonl"
    path.write_text("\n".join(lines))
    empty.ok("schema", "import", "--file", str(path))
    assert [(each["version"], each["id"]) for each in empty.json("schema", "list", "s")] == [(2, 12)]
    assert [each["version"] for each in empty.json("schema", "list", "s", "--deleted")] == [1, 2]
    path.write_text("\n".join([*lines, "nonsense"]))
    assert "line 7 is not a record" in empty.fails(1, "schema", "import", "--file", str(path), "--dry-run")


def test_lines_are_encoded_and_records_decoded(ctl: Command, topic: str, subject: str) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    ctl.ok("schema", "register", f"{topic}-key", "--file", "-", stdin=b'"string"')
    both = ("--schema", subject, "--key-schema", f"{topic}-key", "--key-separator", "\t")
    ctl.ok("produce", topic, *both, stdin=b'"a"\t{"id": 1, "note": "tea"}\n"b"\t{"id": 2, "price": 1.5}\n')
    decoded = ctl.ok("consume", topic, "--schema", "--key-schema", "--key-separator", "=", "--exit")
    assert decoded.splitlines() == [
        '"a"={"id": 1, "note": "tea", "price": 0.0}',
        '"b"={"id": 2, "note": null, "price": 1.5}',
    ]
    first, _ = ctl.lines("consume", topic, "--schema", "--exit")
    assert first["value"] == {"id": 1, "note": "tea", "price": 0.0}
    assert first["key"].endswith("\2a"), "only what is asked for is decoded"


def test_a_given_id_selects_an_older_schema(ctl: Command, topic: str, subject: str) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    first = ctl.json("schema", "get", subject, "--version", "1")["id"]
    ctl.ok("produce", topic, "--schema", str(first), stdin=b'{"id": 1}\n')
    assert ctl.ok("consume", topic, "--schema", "--exit") == '{"id": 1, "note": null}\n'


def test_lines_that_do_not_match_are_refused_after_those_before_them(
    ctl: Command, topic: str, subject: str
) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    ran = ctl("produce", topic, "--schema", subject, stdin=b'{"id": 1}\n{"id": "2"}\n{"id": 3}\n')
    assert ran.code == 1
    assert "wrote 1 record" in ran.errors
    assert 'line 2 does not match the schema: id: expected a whole number of 64 bits, not "2"' in ran.errors
    ran = ctl("produce", topic, "--schema", subject, stdin=b"{\n")
    assert (ran.code, "line 1 is not JSON" in ran.errors) == (1, True)
    assert ctl("produce", topic, "--schema", f"{subject}x", stdin=b"{}\n").code == 4
    assert ctl("produce", topic, "--key-schema", subject, stdin=b"{}\n").code == 2


def test_records_without_a_schema_are_reported_and_the_others_printed(
    ctl: Command, topic: str, subject: str
) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    ctl.ok("produce", topic, stdin=b"plain text\n")
    ctl.ok("produce", topic, "--schema", subject, stdin=b'{"id": 1}\n')
    ctl.ok("produce", topic, stdin=b"\0\x7f\xff\xff\xff?\n")
    ran = ctl("consume", topic, "--schema", "--exit")
    assert ran.code == 1
    assert ran.text == '{"id": 1, "note": null, "price": 0.0}\n'
    assert f"{topic}-0 offset 0: the value cannot be decoded" in ran.errors
    assert "there is no schema '2147483647'" in ran.errors
    assert "2 records could not be decoded" in ran.errors


def test_records_of_other_clients_are_decoded(ctl: Command, broker: Broker, topic: str, subject: str) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    registry = SchemaRegistryClient({"url": f"http://{broker.http_address}/schemas"})
    serializer = AvroSerializer(registry, json.dumps(WITH_PRICE), conf={"auto.register.schemas": False})
    value = serializer({"id": 1, "note": None, "price": 2.5}, SerializationContext(topic, MessageField.VALUE))
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce(topic, value=value)
    producer.flush()
    assert ctl.ok("consume", topic, "--schema", "--exit") == '{"id": 1, "note": null, "price": 2.5}\n'


def test_protobuf_is_encoded_and_decoded_without_a_compiler(ctl: Command, topic: str, tmp_path: Path) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    (tmp_path / "money.proto").write_text('syntax = "proto3"; message Money { int64 cents = 1; }')
    path = tmp_path / "order.proto"
    start = 'syntax = "proto3"; import "money.proto"; message Order { string name = 1; Money price = 2;'
    path.write_text(start + " }")
    ctl.ok("schema", "register", f"{topic}-money", "--file", str(tmp_path / "money.proto"))
    options = (f"{topic}-value", "--file", str(path), "--reference", f"money.proto={topic}-money:1")
    ctl.ok("schema", "register", *options)
    ctl.ok(
        "produce", topic, "--schema", f"{topic}-value", stdin=b'{"name": "tea", "price": {"cents": 250}}\n'
    )
    [record] = ctl.lines("consume", topic, "--schema", "--exit")
    assert record["value"] == {"name": "tea", "price": {"cents": "250"}}
    path.write_text(start + " bool hot = 3; }")
    ctl.ok("schema", "register", *options)
    found = ctl.json("schema", "diff", f"{topic}-value")
    assert found["backward"]["is_compatible"] is True
    assert any("hot" in line for line in found["diff"])
