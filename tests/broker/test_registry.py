"""The schema registry on a broker: work with languages, durability, and the records of its topic."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from alpacamq.broker.registry import LARGE_CHARACTERS, ParsedSchemas, Registry
from alpacamq.model.errors import InvalidRecord
from alpacamq.model.topics import SCHEMAS_TOPIC
from alpacamq.registry import avro, languages
from alpacamq.registry.errors import IncompatibleSchema, SchemaNotFound
from alpacamq.registry.messages import (
    CheckCompatibility,
    DeleteSubject,
    Draft,
    GetById,
    ImportRecords,
    ListSubjects,
    Lookup,
    Register,
    SchemaVersion,
    SetConfig,
    Source,
)
from alpacamq.registry.schema import InvalidSchema, ParsedSchema, SchemaType
from alpacamq.registry.settings import CompatibilityLevel, ConfigUpdate
from tests.registry.toy_language import ToySchema, teach

from .open_brokers import running, stored


async def register(registry: Registry, subject: str, text: str) -> SchemaVersion:
    return await registry.register(Register(subject=subject, draft=Draft(text=text)))


async def test_large_schemas_are_printed_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def recorded(name: str) -> None:
        original = getattr(avro, name)

        def record(*arguments: Any) -> str:
            threads.append(threading.current_thread())
            text: str = original(*arguments)
            return text

        monkeypatch.setattr(avro, name, record)

    recorded("canonical_text")
    recorded("normalized_text")
    fields = [{"name": f"field{at}", "type": "int"} for at in range(1000)]
    async with running(tmp_path) as broker:
        await register(broker.registry, "one", json.dumps({"type": "record", "name": "R", "fields": fields}))
    assert len(threads) == 2
    assert threading.current_thread() not in threads


async def test_large_schemas_are_parsed_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Semaphore(0), threading.Event()
    parse = languages.parse

    def slow_parse(source: Source) -> ParsedSchema:
        if len(source.text) > LARGE_CHARACTERS:
            began.release()
            may_end.wait(60)
        return parse(source)

    def padded(characters: int) -> Source:
        return Source(SchemaType.AVRO, '"int"' + " " * characters)

    monkeypatch.setattr(languages, "parse", slow_parse)
    async with running(tmp_path) as broker:
        try:
            large = [
                asyncio.create_task(broker.registry.parse(padded(LARGE_CHARACTERS + at))) for at in (1, 2)
            ]
            assert await asyncio.to_thread(began.acquire, timeout=30)
            large[0].cancel()
            # Smaller ones do not wait, and a client that leaves gives its turn to no other.
            await broker.registry.parse(padded(LARGE_CHARACTERS - 10))
            assert not began.acquire(blocking=False)
        finally:
            may_end.set()
        assert await large[1]


async def test_schemas_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        teach(broker.registry)
        first = await register(broker.registry, "one", "a")
        await register(broker.registry, "two", "b")
        await broker.registry.ask(DeleteSubject(subject="two"))
        await broker.registry.ask(DeleteSubject(subject="two", permanent=True))
        assert broker.topics.image.topics[SCHEMAS_TOPIC].partitions == 1
        records = stored(broker, SCHEMAS_TOPIC)
        assert json.loads(records[0].key or b"") == {
            "keytype": "SCHEMA",
            "subject": "one",
            "version": 1,
            "magic": 1,
        }
    async with running(tmp_path) as broker:
        teach(broker.registry)
        assert await broker.registry.ask(GetById(id=1)) == first
        assert await register(broker.registry, "one", "a") == first
        assert (await register(broker.registry, "two", "b")).id == 3


async def test_schemas_are_parsed_and_compared(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        registry = broker.registry
        parsed = teach(registry)
        await register(registry, "one", "a")
        with pytest.raises(InvalidSchema, match="column 2"):
            await register(registry, "one", "a!")
        with pytest.raises(IncompatibleSchema, match="field 'b' has no default") as refused:
            await register(registry, "one", "a,b")
        assert [reason.path for reason in refused.value.reasons] == ["b"]
        assert (await register(registry, "one", "a,b?")).version == 2
        report = await registry.check_compatibility(
            CheckCompatibility(subject="one", draft=Draft(text="a,c"))
        )
        assert [reason.path for reason in report.reasons] == ["c"]
        assert not report.is_compatible
        found = await registry.look_up(Lookup(subject="one", draft=Draft(text=" a ")))
        assert found.version == 1
        large = "a," + ",".join(f"field{at}?" for at in range(1000))
        assert (await register(registry, "one", large)).version == 3
        schema = await registry.schema(3)
        assert isinstance(schema, ToySchema)
        assert schema.canonical == large
        with pytest.raises(SchemaNotFound):
            await registry.schema(4)
        # Each text was parsed once.
        assert len({source.text for source in parsed}) == len(parsed)


async def test_schemas_of_other_languages(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        teach(broker.registry)
        await register(broker.registry, "one", "a")
        json_schema = Draft(text="a", schema_type=SchemaType.JSON)
        with pytest.raises(IncompatibleSchema, match="JSON schema cannot read data of a AVRO"):
            await broker.registry.register(Register(subject="one", draft=json_schema))
        protobuf = Draft(text="a", schema_type=SchemaType.PROTOBUF)
        with pytest.raises(InvalidSchema, match="line 1, column 1"):
            await broker.registry.register(Register(subject="two", draft=protobuf))


async def test_concurrent_versions_of_one_subject_are_compared_with_each_other(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        teach(broker.registry)
        full = ConfigUpdate(compatibility_level=CompatibilityLevel.BACKWARD_TRANSITIVE)
        await broker.registry.ask(SetConfig(subject=None, update=full))
        found = await asyncio.gather(*(register(broker.registry, "one", f"a,b{at}?") for at in range(20)))
        assert sorted(each.version for each in found) == list(range(1, 21))
        assert sorted(each.id for each in found) == list(range(1, 21))
        again = await asyncio.gather(*(register(broker.registry, "two", "a") for _ in range(20)))
        assert {(each.id, each.version) for each in again} == {(21, 1)}


async def test_the_records_of_one_registry_are_imported_by_another(tmp_path: Path) -> None:
    async with running(tmp_path / "source") as broker:
        teach(broker.registry)
        await register(broker.registry, "one", "a")
        await register(broker.registry, "one", "a,b?")
        records = tuple((each.key or b"", each.value) for each in stored(broker, SCHEMAS_TOPIC))
    async with running(tmp_path / "target") as broker:
        teach(broker.registry)
        assert await broker.registry.ask(ImportRecords(records=records)) == 2
        assert (await register(broker.registry, "one", "a,c?")).id == 3
        with pytest.raises(InvalidRecord):
            await broker.registry.ask(ImportRecords(records=((b"{", None),)))
        assert await broker.registry.ask(ListSubjects()) == ("one",)


def test_the_schemas_that_were_used_last_are_kept() -> None:
    kept = ParsedSchemas(max_count=2, max_characters=10)
    sources = [Source(SchemaType.AVRO, text) for text in ("a", "b", "c", "d" * 9, "e" * 11)]
    schemas = [ToySchema(source) for source in sources]

    def found() -> list[int]:
        return [at for at, source in enumerate(sources) if kept.get(source) is schemas[at]]

    kept.add(sources[0], schemas[0])
    kept.add(sources[1], schemas[1])
    assert kept.get(sources[0]) is schemas[0]
    kept.add(sources[2], schemas[2])
    assert found() == [0, 2]
    kept.add(sources[3], schemas[3])
    assert found() == [2, 3]
    kept.add(sources[4], schemas[4])
    assert found() == []


AVRO = '{"type": "record", "name": "Parcel", "fields": [{"name": "weight", "type": "long"}]}'
JSON = '{"type": "object", "properties": {"weight": {"type": "integer"}}, "additionalProperties": false}'


async def test_avro_and_json_schemas_are_understood(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        registry = broker.registry
        avro = await registry.register(Register(subject="avro", draft=Draft(text=AVRO)))
        draft = Draft(text=JSON, schema_type=SchemaType.JSON)
        json_schema = await registry.register(Register(subject="json", draft=draft))
        assert (avro.id, json_schema.id) == (1, 2)
        assert (await registry.schema(avro.id)).mismatch(b"\x02") is None
        assert (await registry.schema(json_schema.id)).mismatch(b'{"weight": "heavy"}') is not None
        other = AVRO.replace("]", ', {"name": "height", "type": "long"}]')
        with pytest.raises(IncompatibleSchema):
            await registry.register(Register(subject="avro", draft=Draft(text=other)))
        with pytest.raises(InvalidSchema):
            await registry.register(Register(subject="avro", draft=Draft(text="{")))
        # Large enough to be parsed in a thread.
        fields = [{"name": f"field_{at}", "type": "long", "default": 0} for at in range(200)]
        large = json.dumps({"type": "record", "name": "Large", "fields": fields})
        assert (await registry.register(Register(subject="large", draft=Draft(text=large)))).id == 3
