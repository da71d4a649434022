"""The schema registry with confluent-kafka's own clients and serializers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.brokers import Broker

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]})
NEWER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "item", "type": "string"}, {"name": "count", "type": "int", "default": 1}],
    }
)
JSON_ORDER = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"item": {"type": "string"}},
    }
)
# The deserializer takes no less than six bytes, also where the id is in a header.
VALUE = {"item": "fresh hay"}


@pytest.fixture(params=["listener", "http"])
def url(request: pytest.FixtureRequest, broker: Broker) -> str:
    """The registry at both places where it is."""
    if request.param == "listener":
        return f"http://{broker.registry_address}"
    return f"http://{broker.http_address}/schemas"


@pytest.fixture
def client(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url})


@pytest.fixture
def subject(topic: str) -> str:
    return f"{topic}-value"


def context(topic: str, headers: list[tuple[str, bytes]] | None = None) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, headers)


def test_avro_is_registered_and_read_by_another_client(
    client: SchemaRegistryClient, url: str, topic: str, subject: str
) -> None:
    data = AvroSerializer(client, ORDER)(VALUE, context(topic))
    assert data is not None
    assert data[0] == 0
    other = SchemaRegistryClient({"url": url})
    assert AvroDeserializer(other)(data, context(topic)) == VALUE
    assert other.get_latest_version(subject).schema_id == int.from_bytes(data[1:5], "big")


def test_json_is_registered_and_read_by_another_client(
    client: SchemaRegistryClient, url: str, topic: str
) -> None:
    data = JSONSerializer(JSON_ORDER, client)(VALUE, context(topic))
    reader: Any = JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": url}))
    assert reader(data, context(topic)) == VALUE


@pytest.mark.parametrize("write", [AvroSerializer, JSONSerializer])
def test_ids_travel_in_headers(client: SchemaRegistryClient, topic: str, write: Callable[..., Any]) -> None:
    conf = {"schema.id.serializer": header_schema_id_serializer}
    headers: list[tuple[str, bytes]] = []
    sent = context(topic, headers)
    if write is AvroSerializer:
        data = AvroSerializer(client, ORDER, conf=conf)(VALUE, sent)
        reader: Any = AvroDeserializer(client)
    else:
        data = JSONSerializer(JSON_ORDER, client, conf=conf)(VALUE, sent)
        reader = JSONDeserializer(None, schema_registry_client=client)
    assert sent.headers
    assert reader(data, sent) == VALUE


def test_the_latest_version_is_used_without_registering(
    client: SchemaRegistryClient, topic: str, subject: str
) -> None:
    client.register_schema(subject, Schema(ORDER, "AVRO"))
    client.register_schema(subject, Schema(NEWER, "AVRO"))
    conf = {"auto.register.schemas": False, "use.latest.version": True}
    data = AvroSerializer(client, ORDER, conf=conf)({**VALUE, "count": 2}, context(topic))
    assert AvroDeserializer(client)(data, context(topic)) == {**VALUE, "count": 2}
    assert AvroDeserializer(client, ORDER)(data, context(topic)) == VALUE


def test_nothing_is_registered_if_the_serializer_must_not(
    client: SchemaRegistryClient, topic: str, subject: str
) -> None:
    strict = AvroSerializer(client, ORDER, conf={"auto.register.schemas": False})
    with pytest.raises(SchemaRegistryError) as refused:
        strict(VALUE, context(topic))
    assert refused.value.error_code == 40401
    client.register_schema(subject, Schema(ORDER, "AVRO"))
    strict = AvroSerializer(client, ORDER, conf={"auto.register.schemas": False})
    assert strict(VALUE, context(topic))


def test_schemas_refer_to_others(client: SchemaRegistryClient, topic: str, subject: str) -> None:
    part = f"{subject}.part"
    client.register_schema(part, Schema(ORDER, "AVRO"))
    cart = json.dumps(
        {
            "type": "record",
            "name": "Cart",
            "fields": [{"name": "orders", "type": {"type": "array", "items": "Order"}}],
        }
    )
    schema = Schema(cart, "AVRO", [SchemaReference("Order", part, 1)])
    data = AvroSerializer(client, schema)({"orders": [VALUE]}, context(topic))
    assert AvroDeserializer(client)(data, context(topic)) == {"orders": [VALUE]}
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_version(part, 1)
    assert refused.value.error_code == 42206


def test_every_method_of_the_client(client: SchemaRegistryClient, subject: str) -> None:
    schema = Schema(ORDER, "AVRO")
    schema_id = client.register_schema(subject, schema)
    assert client.register_schema_full_response(subject, schema).schema_id == schema_id
    found = client.lookup_schema(subject, schema)
    assert (found.schema_id, found.version, found.subject) == (schema_id, 1, subject)
    assert subject in client.get_subjects()
    assert client.get_versions(subject) == [1]
    assert client.get_version(subject, 1).schema_id == schema_id
    assert found.guid is not None
    assert json.loads(str(client.get_schema_by_guid(found.guid).schema_str)) == json.loads(ORDER)
    assert subject in client.get_subjects_by_schema_id(schema_id)
    assert "AVRO" in client.get_schema_types()
    assert client.test_compatibility(subject, Schema(NEWER, "AVRO"))
    assert not client.test_compatibility(subject, Schema('"int"', "AVRO"))
    client.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
    assert client.get_compatibility(subject) == "FULL"
    client.delete_config(subject)
    client.update_mode(subject, "READONLY")
    assert client.get_mode(subject) == "READONLY"
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema(NEWER, "AVRO"))
    assert refused.value.error_code == 42205
    client.delete_mode(subject)
    assert client.delete_subject(subject) == [1]
    assert client.delete_subject(subject, permanent=True) == [1]


async def test_the_asynchronous_client(url: str, subject: str) -> None:
    async with AsyncSchemaRegistryClient({"url": url}) as client:
        schema_id = await client.register_schema(subject, Schema(ORDER, "AVRO"))
        assert json.loads(str((await client.get_schema(schema_id)).schema_str)) == json.loads(ORDER)
        assert (await client.get_latest_version(subject)).version == 1
