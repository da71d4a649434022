"""Values of records decoded by the broker's registry, without Spark."""

from uuid import uuid4

import httpx
import pyarrow as pa
import pytest

from alpacamq.client.errors import Unreachable
from alpacamq.registry.framing import Part
from alpacamq_spark.decoding.planning import Subjects, plan
from alpacamq_spark.decoding.registry import Registry, RegistryAccess, RegistryRefused
from alpacamq_spark.decoding.values import PartDecoder
from alpacamq_spark.errors import InvalidOption
from tests.brokers import Broker

from .registries import record, register


@pytest.fixture
def url(broker: Broker) -> str:
    return f"http://{broker.http_address}/schemas"


def test_values_are_read_as_the_version_of_the_reader(url: str, topic: str) -> None:
    subject = f"{topic}-value"
    first = register(url, subject, record("A", id="int", gone="string"))
    register(url, subject, record("A", id="long", added=("string", "none")))
    with Registry(RegistryAccess(url=url)) as registry:
        found = plan(registry, [topic, "no-such-topic"], [Part.VALUE, Part.KEY])
        assert {
            name: {part: each.version for part, each in parts.items()}
            for name, parts in found.versions.items()
        } == {topic: {Part.VALUE: 2}}
        assert found.types[Part.VALUE].simpleString() == "struct<id:bigint,added:string>"
        decoder = PartDecoder(registry, Part.VALUE, found.readers[topic][Part.VALUE], found.types[Part.VALUE])
        column = decoder.decode(pa.array([first.avro({"id": 1, "gone": "x"}), None]), None)
        assert column.to_pylist() == [{"id": 1, "added": "none"}, None]
        pinned = plan(registry, [topic], [Part.VALUE], Subjects(pinned={Part.VALUE: 1}))
        assert pinned.types[Part.VALUE].simpleString() == "struct<id:int,gone:string>"


def test_values_that_cannot_be_decoded_are_null_and_cost_no_others(url: str, topic: str) -> None:
    good = register(url, f"{topic}-value", record("A", id="int"))
    other = register(url, f"{topic}-other", record("B", name="string"))
    as_json = register(url, f"{topic}-json", {"type": "object"}, "JSON")
    data = good.avro({"id": 1})[5:]
    values = [
        good.avro({"id": 1}),
        b"",
        b"plain",
        b"\x00\xff\xff\xff\xff" + data,
        b"\x00\x0f\xff\xff\xff" + data,
        b"\x01" + uuid4().bytes + data,
        good.avro({"id": 1}) + b"\x00",
        other.avro({"name": "x"}),
        as_json.json({"id": 1}),
        as_json.json("\ud800"),
        b"\x01" + good.guid.bytes + data,
    ]
    with Registry(RegistryAccess(url=url)) as registry:
        found = plan(registry, [topic], [Part.VALUE])
        decoder = PartDecoder(registry, Part.VALUE, good.id, found.types[Part.VALUE])
        expected = [{"id": 1}, *[None] * (len(values) - 2), {"id": 1}]
        assert decoder.decode(pa.array(values, pa.binary()), None).to_pylist() == expected
        headers: list[bytes | None] = [b"\x01" + good.guid.bytes, b"unknown", None]
        column = decoder.decode(pa.array([data, data, data]), headers)
        assert column.to_pylist() == [{"id": 1}, None, None]


def test_schemas_are_read_with_what_they_refer_to(url: str, topic: str) -> None:
    register(url, f"{topic}-inner", record("Inner", name="string"))
    refers = {"name": "Inner", "subject": f"{topic}-inner", "version": 1}
    outer = register(url, f"{topic}-value", record("Outer", inner="Inner"), references=[refers])
    for path in ("", "?permanent=true"):  # what is referred to is kept, also when its subject is deleted
        httpx.delete(f"{url}/subjects/{topic}-inner{path}")
    with Registry(RegistryAccess(url=url)) as registry:
        found = plan(registry, [topic], [Part.VALUE])
        assert found.types[Part.VALUE].simpleString() == "struct<inner:struct<name:string>>"
        decoder = PartDecoder(registry, Part.VALUE, None, found.types[Part.VALUE])
        assert decoder.decode(pa.array([b"\x00" + outer.id.to_bytes(4) + b"\x02x"]), None).to_pylist() == [
            {"inner": {"name": "x"}}
        ]


def test_a_registry_that_is_none_is_named(broker: Broker, url: str) -> None:
    with (
        Registry(RegistryAccess(url=f"http://{broker.http_address}")) as registry,
        pytest.raises(RegistryRefused, match="The registry of a broker is at"),
    ):
        registry.version("a")
    with (
        Registry(RegistryAccess(url="http://127.0.0.1:1"), timeout_s=0) as registry,
        pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"),
    ):
        registry.version("a")
    with pytest.raises(InvalidOption, match="is not the URL of a registry"):
        RegistryAccess(url="localhost:8081").client()
