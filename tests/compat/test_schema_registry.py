"""The schema registry with confluent-kafka's own clients and serializers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.json_schema import (
    AsyncJSONDeserializer,
    AsyncJSONSerializer,
    JSONDeserializer,
    JSONSerializer,
)
from confluent_kafka.schema_registry.protobuf import (
    AsyncProtobufDeserializer,
    AsyncProtobufSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
)
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.brokers import Broker
from tests.conftest import NewBroker

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


def order_type() -> Any:
    """Return the class that protoc would generate for an order that imports its item from another file."""
    part = descriptor_pb2.FileDescriptorProto(name="shop/item.proto", package="shop", syntax="proto3")
    add_field(part.message_type.add(name="Item"), "name")
    file = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto", package="shop", syntax="proto3", dependency=[part.name]
    )
    add_field(file.message_type.add(name="Order"), "item", ".shop.Item")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(part)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def add_field(message: Any, name: str, kind: str = "") -> None:
    field = message.field.add(name=name, number=1, json_name=name)
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    if kind:
        field.type, field.type_name = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE, kind
    else:
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING


IN_HEADERS = {"schema.id.serializer": header_schema_id_serializer}
LATEST_ONLY = {"auto.register.schemas": False, "use.latest.version": True}


@pytest.mark.parametrize("conf", [{}, IN_HEADERS], ids=["prefix", "header"])
def test_protobuf_registers_the_files_that_it_imports(
    client: SchemaRegistryClient, url: str, topic: str, subject: str, conf: dict[str, Any]
) -> None:
    order = order_type()
    headers: list[tuple[str, bytes]] = []
    sent = context(topic, headers)
    data = ProtobufSerializer(order, client, conf)(order(item={"name": "fresh hay"}), sent)
    assert bool(headers) == bool(conf)
    other = SchemaRegistryClient({"url": url})
    (reference,) = other.get_latest_version(subject).schema.references or []
    assert (reference.name, reference.version) == ("shop/item.proto", 1)
    assert other.get_referenced_by(str(reference.subject), 1) == [other.get_latest_version(subject).schema_id]
    read = ProtobufDeserializer(order, {}, other)(data, sent)
    assert read.item.name == "fresh hay"
    # A client that has read the text of the latest version takes it for the descriptor later.
    another = SchemaRegistryClient({"url": url})
    latest = ProtobufSerializer(order, another, LATEST_ONLY)(order(item={"name": "straw"}), context(topic))
    assert latest is not None
    assert int.from_bytes(latest[1:5], "big") == other.get_latest_version(subject).schema_id


def test_json_refers_to_others_and_uses_the_latest_version(
    client: SchemaRegistryClient, topic: str, subject: str
) -> None:
    part = f"{subject}.part"
    client.register_schema(part, Schema(JSON_ORDER, "JSON"))
    cart = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Cart",
        "type": "object",
        "properties": {"first": {"$ref": "order.json"}},
    }
    schema = Schema(json.dumps(cart), "JSON", [SchemaReference("order.json", part, 1)])
    data = JSONSerializer(schema, client)({"first": VALUE}, context(topic))
    reader: Any = JSONDeserializer(None, schema_registry_client=client)
    assert reader(data, context(topic)) == {"first": VALUE}
    assert JSONSerializer(schema, client, conf=LATEST_ONLY)({"first": VALUE}, context(topic)) == data


@pytest.mark.parametrize("conf", [{}, IN_HEADERS], ids=["prefix", "header"])
@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
async def test_asynchronous_serializers(url: str, topic: str, kind: str, conf: dict[str, Any]) -> None:
    sent = context(topic, [])
    async with AsyncSchemaRegistryClient({"url": url}) as client:
        if kind == "AVRO":
            data = await (await AsyncAvroSerializer(client, ORDER, conf=conf))(VALUE, sent)
            read = await (await AsyncAvroDeserializer(client))(data, sent)
        elif kind == "JSON":
            data = await (await AsyncJSONSerializer(JSON_ORDER, client, conf=conf))(VALUE, sent)
            reader: Any = await AsyncJSONDeserializer(None, schema_registry_client=client)
            read = await reader(data, sent)
        else:
            order = order_type()
            value = order(item={"name": VALUE["item"]})
            data = await (await AsyncProtobufSerializer(order, client, conf))(value, sent)
            decoded: Any = await (await AsyncProtobufDeserializer(order, {}, client))(data, sent)
            read = {"item": decoded.item.name}
        assert bool(sent.headers) == bool(conf)
        assert read == VALUE


def test_contexts_have_ids_of_their_own(client: SchemaRegistryClient, topic: str, subject: str) -> None:
    context_name = f".{topic}"
    in_context = f":{context_name}:{subject}"
    assert client.register_schema(in_context, Schema(ORDER, "AVRO")) == 1
    assert context_name in client.get_contexts()
    assert client.get_subjects(subject_prefix=f":{context_name}:") == [in_context]
    assert (
        client.get_schema(1, in_context).schema_str == client.get_latest_version(in_context).schema.schema_str
    )
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_latest_version(f"{subject}-other")
    assert refused.value.error_code == 40401


def test_normalization_finds_a_schema_that_is_written_otherwise(
    client: SchemaRegistryClient, subject: str
) -> None:
    written = json.dumps(
        {
            "fields": [{"type": {"type": "string"}, "name": "item"}],
            "type": "record",
            "doc": "",
            "name": "Order",
        }
    )
    schema_id = client.register_schema(subject, Schema(ORDER, "AVRO"), normalize_schemas=True)
    assert client.register_schema(subject, Schema(written, "AVRO"), normalize_schemas=True) == schema_id
    assert client.lookup_schema(subject, Schema(written, "AVRO"), normalize_schemas=True).version == 1


def test_versions_are_deleted_and_found_by_metadata(client: SchemaRegistryClient, subject: str) -> None:
    stable, barn = (Metadata(None, MetadataProperties({"owner": each}), None) for each in ("stable", "barn"))
    first = client.register_schema(subject, Schema(ORDER, "AVRO", metadata=stable))
    second = client.register_schema(subject, Schema(NEWER, "AVRO", metadata=barn))
    found = client.get_latest_with_metadata(subject, {"owner": "stable"})
    assert (found.schema_id, found.version) == (first, 1)
    assert [(each.subject, each.version) for each in client.get_schema_versions(second)] == [(subject, 2)]
    assert client.test_compatibility_all_versions(subject, Schema(NEWER, "AVRO"))
    assert client.delete_version(subject, 1) == 1
    assert client.get_versions(subject) == [2]
    assert client.get_version(subject, 1, deleted=True).schema_id == first
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_version(subject, 2, permanent=True)
    assert refused.value.error_code == 40407
    assert client.delete_version(subject, 1, permanent=True) == 1
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_version(subject, 1, deleted=True)
    assert refused.value.error_code == 40402
    client.delete_subject(subject)
    assert subject not in client.get_subjects()
    assert client.get_subjects(subject_prefix=subject, deleted=True) == [subject]
    assert client.get_global_mode() == "READWRITE"
    assert client.get_config(None).compatibility_level == "BACKWARD"


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


def test_the_global_configuration_and_mode(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    with SchemaRegistryClient({"url": f"http://{broker.registry_address}"}) as client:
        assert client.get_compatibility() == "BACKWARD"
        client.set_config(None, ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
        assert client.get_config().compatibility_level == "FULL"
        client.delete_config()
        assert client.get_compatibility() == "BACKWARD"
        assert client.update_global_mode("READONLY") == client.get_global_mode() == "READONLY"
        with pytest.raises(SchemaRegistryError) as refused:
            client.register_schema("orders-value", Schema(ORDER, "AVRO"))
        assert refused.value.error_code == 42205
        client.update_global_mode("READWRITE")
        assert client.register_schema("orders-value", Schema(ORDER, "AVRO")) == 1
