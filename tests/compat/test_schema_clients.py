"""JavaScript and Go clients of the schema registry, also with data of others; skipped if not installed."""

import base64
import json
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.brokers import Broker

from .schema_clients.programs import run_go, run_node

AVRO = '{"type":"record","name":"Parcel","fields":[{"name":"city","type":"string"}]}'
AVRO_NEXT = json.dumps(
    {
        "type": "record",
        "name": "Parcel",
        "fields": [{"name": "city", "type": "string"}, {"name": "weight", "type": "long", "default": 0}],
    },
    separators=(",", ":"),
)
AVRO_INCOMPATIBLE = '{"type":"record","name":"Parcel","fields":[{"name":"street","type":"string"}]}'
AVRO_REFERRING = '{"type":"record","name":"Letter","fields":[{"name":"parcel","type":"Parcel"}]}'
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Parcel",
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
)
PROTOBUF = 'syntax = "proto3";\npackage post;\n\nmessage Parcel {\n  string city = 1;\n}\n'
VALUE = {"city": "Cusco"}

_numbers = count()


@pytest.fixture
def url(broker: Broker) -> str:
    return f"http://{broker.registry_address}"


@pytest.fixture
def topic(worker_id: str) -> str:
    return f"parcels-{worker_id}-{next(_numbers)}"


def parcel_type() -> Any:
    """Return the class that protoc would generate for PROTOBUF, and its descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name="parcel.proto", package="post", syntax="proto3")
    field = file.message_type.add(name="Parcel").field.add(name="city", number=1, json_name="city")
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("post.Parcel")), file


def test_confluents_javascript_client_administers_schemas(url: str, topic: str) -> None:
    other = f"{topic}-other"
    request = {
        "subject": topic,
        "other": other,
        "first": AVRO,
        "second": AVRO_NEXT,
        "incompatible": AVRO_INCOMPATIBLE,
    }
    found = run_node("confluent.js", url, "administer", request)
    assert found.pop("id") == found.pop("again")
    assert found.pop("next") > 0
    assert {each: found.pop(each)["error_code"] for each in ("refused", "invalid", "missingConfig")} == {
        "refused": 409,
        "invalid": 42201,
        "missingConfig": 40408,
    }
    assert {each: found.pop(each)["error_code"] for each in ("hidden", "tooEarly", "gone")} == {
        "hidden": 40402,
        "tooEarly": 40405,
        "gone": 40401,
    }
    assert found == {
        "version": 1,
        "byId": AVRO,
        "byGuid": AVRO,
        "latest": 2,
        "versions": [1, 2],
        "compatible": True,
        "incompatible": False,
        "level": "FULL_TRANSITIVE",
        "readLevel": "FULL_TRANSITIVE",
        "defaultLevel": "BACKWARD",
        "config": True,
        "metadata": {"owner": "parcels"},
        "rule": "check",
        "deletedVersion": 1,
        "stillThere": 1,
        "deleted": [2],
        "removed": [1, 2],
    }


def test_franz_go_administers_schemas(url: str, topic: str) -> None:
    other = f"{topic}-other"
    request = {
        "Subject": topic,
        "Other": other,
        "First": AVRO,
        "Second": AVRO_NEXT,
        "Incompatible": AVRO_INCOMPATIBLE,
        "Referring": AVRO_REFERRING,
    }
    found = run_go(url, request)
    assert ".go" in found.pop("contexts")
    assert sorted(found.pop("types")) == ["AVRO", "JSON", "PROTOBUF"]
    assert found.pop("first_id_of_context") > 0
    assert [each["subject"] for each in found.pop("versions_by_id")] == [topic]
    assert found == {
        "versions_created": [1, 2],
        "looked_up": True,
        "text": AVRO,
        "latest_text": AVRO_NEXT,
        "schema": AVRO_NEXT,
        "versions": [1, 2],
        "usages": 1,
        "subjects_by_id": [topic],
        "by_guid": AVRO,
        "ids_by_guid": True,
        "among_all": 2,
        "stats": True,
        "metadata": True,
        "referring": True,
        "is_compatible": False,
        "reasons": True,
        "incompatible": 409,
        "invalid": 42201,
        "level": "FULL",
        "global_level": "BACKWARD",
        "mode": "READONLY",
        "read_only": 42205,
        "imported": [777, 7],
        "referenced": 42206,
        "not_soft_deleted": 40405,
        "missing": 40401,
    }


def written_by_python(url: str, topic: str, kind: str, *, in_header: bool = False) -> dict[str, Any]:
    client = SchemaRegistryClient({"url": url})
    settings = {"schema.id.serializer": header_schema_id_serializer} if in_header else {}
    headers: list[tuple[str, bytes]] = []
    context = SerializationContext(topic, MessageField.VALUE, headers)
    if kind == "AVRO":
        data = AvroSerializer(client, AVRO, conf=settings)(VALUE, context)
    elif kind == "JSON":
        data = JSONSerializer(JSON, client, conf=settings)(VALUE, context)
    else:
        message, _ = parcel_type()
        data = ProtobufSerializer(message, client, {"use.deprecated.format": False, **settings})(
            message(**VALUE), context
        )
    assert data is not None
    return {"data": encoded(data), "headers": {name: encoded(each) for name, each in headers}}


def read_by_python(url: str, topic: str, kind: str, written: Mapping[str, Any]) -> object:
    client = SchemaRegistryClient({"url": url})
    headers = [(name, base64.b64decode(each)) for name, each in written.get("headers", {}).items()]
    context = SerializationContext(topic, MessageField.VALUE, headers)
    data = base64.b64decode(written["data"])
    if kind == "AVRO":
        return AvroDeserializer(client)(data, context)
    if kind == "JSON":
        return JSONDeserializer(None, schema_registry_client=client)(data, context)
    message, _ = parcel_type()
    decoded = ProtobufDeserializer(message, {"use.deprecated.format": False}, client)(data, context)
    return {"city": decoded.city}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("in_header", [False, True], ids=["prefix", "header"])
@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_confluents_javascript_and_python_clients_read_each_others_data(
    url: str, topic: str, kind: str, in_header: bool
) -> None:
    by_python = written_by_python(url, topic, kind, in_header=in_header)
    read = run_node("confluent.js", url, "read", {"topic": topic, "type": kind, **by_python})
    assert read["value"] == VALUE
    schema = {"AVRO": AVRO, "JSON": JSON}.get(kind) or encoded(parcel_type()[1].SerializeToString())
    request = {
        "topic": f"{topic}-js",
        "type": kind,
        "schema": schema,
        "value": VALUE,
        "header": in_header,
        "message": "post.Parcel",
    }
    by_node = run_node("confluent.js", url, "write", request)
    assert bool(by_node["headers"]) == in_header
    assert read_by_python(url, f"{topic}-js", kind, by_node) == VALUE


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_kafkajs_and_python_clients_read_each_others_data(url: str, topic: str, kind: str) -> None:
    by_python = written_by_python(url, topic, kind)
    assert run_node("kafkajs.js", url, "read", by_python)["value"] == VALUE
    schema = {"AVRO": AVRO, "JSON": JSON, "PROTOBUF": PROTOBUF}[kind]
    request = {"topic": f"{topic}-js", "type": kind, "schema": schema, "value": VALUE}
    by_node = run_node("kafkajs.js", url, "write", request)
    assert by_node["id"] == by_node["latest"]
    if kind == "PROTOBUF":
        # This client writes no message indexes, and other clients cannot read its data anywhere.
        assert run_node("kafkajs.js", url, "read", by_node)["value"] == VALUE
    else:
        assert read_by_python(url, f"{topic}-js", kind, by_node) == VALUE


def test_kafkajs_resolves_references(url: str, topic: str) -> None:
    run_node(
        "kafkajs.js",
        url,
        "write",
        {"topic": f"{topic}-parcel", "type": "AVRO", "schema": AVRO, "value": VALUE},
    )
    request = {
        "topic": topic,
        "type": "AVRO",
        "schema": AVRO_REFERRING,
        "value": {"parcel": VALUE},
        "references": [{"name": "Parcel", "subject": f"{topic}-parcel-value", "version": 1}],
    }
    written = run_node("kafkajs.js", url, "write", request)
    assert run_node("kafkajs.js", url, "read", written)["value"] == {"parcel": VALUE}
    assert read_by_python(url, topic, "AVRO", written) == {"parcel": VALUE}
