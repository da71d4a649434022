"""confluent-kafka's Protobuf serializers against a broker, with generated classes of OpenTelemetry."""

import base64
from itertools import count
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from google.type.interval_pb2 import Interval
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tests.brokers import Broker

SETTINGS = {"use.deprecated.format": False}

_numbers = count()


@pytest.fixture
def client(broker: Broker) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": f"http://{broker.registry_address}"})


@pytest.fixture
def context(worker_id: str) -> SerializationContext:
    return SerializationContext(f"spans-{worker_id}-{next(_numbers)}", MessageField.VALUE)


def spans() -> ResourceSpans:
    found = ResourceSpans(schema_url="https://example.com")
    span = found.scope_spans.add().spans.add(name="receive", trace_id=b"1" * 16)
    span.attributes.add(key="queue").value.string_value = "parcels"
    return found


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(ExportTraceServiceRequest(resource_spans=[spans()]), id="with references of references"),
        pytest.param(spans(), id="one of several messages"),
        pytest.param(Span.Event(name="retry", dropped_attributes_count=2), id="nested message"),
    ],
)
def test_a_message_of_generated_code_survives(
    client: SchemaRegistryClient, context: SerializationContext, message: Any
) -> None:
    kind = type(message)
    data = ProtobufSerializer(kind, client, SETTINGS)(message, context)
    assert ProtobufDeserializer(kind, SETTINGS, client)(data, context) == message
    # A second producer finds the schema instead of adding a version.
    again = ProtobufSerializer(kind, client, {**SETTINGS, "auto.register.schemas": False})
    assert again(message, context) == data
    assert client.get_versions(f"{context.topic}-value") == [1]


def test_common_types_need_no_reference(client: SchemaRegistryClient, context: SerializationContext) -> None:
    period = Interval(start_time=Timestamp(seconds=7))
    data = ProtobufSerializer(Interval, client, SETTINGS)(period, context)
    assert ProtobufDeserializer(Interval, SETTINGS, client)(data, context) == period
    text = 'syntax = "proto3"; import "google/type/money.proto"; message Bill { google.type.Money sum = 1; }'
    client.register_schema(f"{context.topic}-bill", Schema(text, "PROTOBUF"))


def test_the_text_and_the_descriptor_of_a_schema_can_be_read(
    client: SchemaRegistryClient, context: SerializationContext
) -> None:
    text = (
        'syntax = "proto3";\npackage post;\n\nmessage Parcel {\n  string city = 1;\n  Parcel inner = 2;\n}\n'
    )
    schema_id = client.register_schema(f"{context.topic}-value", Schema(f"// new\n{text}", "PROTOBUF"))
    client.clear_caches()
    assert client.get_schema(schema_id).schema_str == text
    # The client's cache does not tell forms apart.
    client.clear_caches()
    serialized = client.get_schema(schema_id, fmt="serialized").schema_str
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized or ""))
    assert [field.type_name for field in file.message_type[0].field] == ["", ".post.Parcel"]


def test_an_invalid_schema_has_a_coded_error_with_its_place(
    client: SchemaRegistryClient, context: SerializationContext
) -> None:
    with pytest.raises(SchemaRegistryError, match="line 1, column 9") as raised:
        client.register_schema(f"{context.topic}-value", Schema("message {", "PROTOBUF"))
    assert raised.value.error_code == 42201
