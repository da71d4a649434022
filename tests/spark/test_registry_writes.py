"""Columns written as values of a schema registry: read by Confluent's deserializers, and by the connector."""

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from alpacamq.client.http.schemas import SchemaCodec
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.registry.framing import unframe
from alpacamq.registry.protobuf import ProtobufSchema
from alpacamq_spark.decoding.registry import RegistryAccess
from tests.brokers import Broker

from .registries import record, register
from .topics import deliveries, make_topic

ORDERS = """
SELECT named_struct(
    'id', id, 'item', if(id = 0, 'tea', NULL), 'price', CAST(id + 0.5 AS DOUBLE),
    'at', TIMESTAMP '2026-01-31 12:00:00.000001Z', 'paid', id = 1,
    'lines', array(named_struct('name', 'a', 'count', CAST(id AS INT))), 'notes', map('k', 'v')) AS value
FROM range(2) UNION ALL SELECT NULL
"""
EXPECTED = [
    {
        "id": number,
        "item": "tea" if number == 0 else None,
        "price": number + 0.5,
        "at": datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC),
        "paid": number == 1,
        "lines": [{"name": "a", "count": number}],
        "notes": {"k": "v"},
    }
    for number in range(2)
]


@pytest.fixture
def url(broker: Broker) -> str:
    return f"http://{broker.http_address}/schemas"


def write(frame: DataFrame, broker: Broker, topic: str, url: str, **options: str) -> None:
    options = {"encode": "value", "registry": url, **options}
    writer = frame.coalesce(1).write.format("alpacamq").mode("append")
    writer.options(**{"kafka.bootstrap.servers": broker.address, "topic": topic, **options}).save()


def read(spark: SparkSession, broker: Broker, topic: str, url: str, parts: str = "value") -> DataFrame:
    reader = spark.read.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    return reader.options(subscribe=topic, decode=parts, registry=url).load()


def refusal(frame: DataFrame, broker: Broker, topic: str, url: str, **options: str) -> str:
    """Return the last line of the error of a write."""
    with pytest.raises(PySparkException) as raised:
        write(frame, broker, topic, url, **options)
    return str(raised.value)


def versions(url: str, subject: str) -> list[Mapping[str, Any]]:
    """Return the versions of a subject, with their schemas."""
    numbers = httpx.get(f"{url}/subjects/{subject}/versions").json()
    return [httpx.get(f"{url}/subjects/{subject}/versions/{number}").json() for number in numbers]


def deserialized(cluster: Cluster, topic: str, url: str, language: str) -> list[Any]:
    """Read the values of a topic with Confluent's deserializers."""
    client = SchemaRegistryClient({"url": url})
    context = SerializationContext(topic, MessageField.VALUE)
    data = [each.record.value for each in deliveries(cluster, topic)]
    if language == "avro":
        return [AvroDeserializer(client)(each, context) for each in data]
    if language == "json":
        return [JSONDeserializer(None, schema_registry_client=client)(each, context) for each in data]
    framed = unframe(data[0] or b"")
    assert framed is not None
    with RegistryAccess(url=url).client() as registry:
        schema = SchemaCodec(registry).of(framed.schema)
    assert isinstance(schema, ProtobufSchema)
    read = ProtobufDeserializer(schema.message_class(), {"use.deprecated.format": False}, client)
    found = [read(each, context) for each in data]
    shown = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    return [each and MessageToDict(each, **shown) for each in found]


def as_json(value: Mapping[str, Any], *, long: type) -> dict[str, Any]:
    """Return what JSON has for a row: no nulls, and in Protobuf 64 bits as text."""
    found = {**value, "id": long(value["id"]), "at": "2026-01-31T12:00:00.000001Z"}
    return {name: each for name, each in found.items() if each is not None}


@pytest.mark.parametrize("language", ["avro", "json", "protobuf"])
def test_rows_without_a_subject_are_written_with_a_schema_of_their_columns(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, url: str, language: str
) -> None:
    make_topic(cluster, topic, partitions=1, schema_validation="full")
    rows = spark.sql(ORDERS)
    for _ in range(2):
        write(rows, broker, topic, url, schemaType=language)
    assert len(versions(url, f"{topic}-value")) == 1
    found = read(spark, broker, topic, url)
    values = [row.data and row.data.asDict(recursive=True) for row in found.orderBy("offset").collect()]
    wanted = [{**each, "at": each["at"].astimezone().replace(tzinfo=None)} for each in EXPECTED]
    assert values == [*wanted, None] * 2
    by_others = deserialized(cluster, topic, url, language)
    if language == "avro":
        assert by_others == [*EXPECTED, None] * 2
    else:
        long = str if language == "protobuf" else int
        assert by_others == [*(as_json(each, long=long) for each in EXPECTED), None] * 2
