"""Columns written as values of a schema registry: read by Confluent's deserializers, and by the connector."""

import json
import pickle
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.json_format import MessageToDict
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType

from alpacamq.client.http.connection import HttpApi
from alpacamq.client.http.schemas import SchemaCodec
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.registry.framing import Part, framed, unframe
from alpacamq.registry.protobuf import ProtobufSchema
from alpacamq_spark.decoding.registry import RegistryAccess
from alpacamq_spark.encoding.planning import plan_encoding
from alpacamq_spark.encoding.values import RowEncoder
from alpacamq_spark.options import write_options
from tests.brokers import Broker
from tests.waiting import eventually

from .registries import record, register
from .topics import deliveries, make_topic, produce

ORDERS = """
SELECT named_struct(
    'id', id, 'item', if(id = 0, 'tea', NULL), 'price', CAST(id + 0.5 AS DOUBLE),
    'at', TIMESTAMP '2026-01-31 12:00:00.000001Z', 'paid', id = 1,
    'lines', array(named_struct('name', 'a', 'count', CAST(id AS INT))), 'notes', map('k', 'v')) AS value
FROM range(2) UNION ALL SELECT NULL
"""
EXPECTED: list[dict[str, Any]] = [
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


def values(spark: SparkSession, broker: Broker, topic: str, url: str) -> list[Any]:
    """Read the decoded values of a topic in their order."""
    rows = read(spark, broker, topic, url).orderBy("partition", "offset").collect()
    return [row.data and row.data.asDict(recursive=True) for row in rows]


def test_the_latest_version_of_a_subject_counts(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, url: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    subject = f"{topic}-value"
    register(url, subject, record("Order", id="long"))
    money = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fields = {"id": "long", "price": (["null", money], None), "state": ("string", "new")}
    latest = register(url, subject, record("Order", **fields))
    price = "CAST(1.5 AS DECIMAL(4,1))"
    write(spark.sql(f"SELECT struct(5 AS id, {price} AS price) value"), broker, topic, url)
    assert deliveries(cluster, topic)[0].record.value == latest.avro(
        {"id": 5, "price": Decimal("1.50"), "state": "new"}
    )
    # A stricter use of the registry: a version, or no derived schema.
    write(spark.sql("SELECT struct(6 AS id) value"), broker, topic, url, version="1", derive="never")
    assert values(spark, broker, topic, url) == [
        {"id": 5, "price": Decimal("1.50"), "state": "new"},
        {"id": 6, "price": None, "state": "new"},
    ]
    unknown = spark.sql("SELECT struct(7 AS id, 'x' AS stat) value")
    assert (
        f"version 2 of subject {subject}: the schema has no field for column value.stat; did you mean state?"
    ) in refusal(unknown, broker, topic, url)
    text = spark.sql("SELECT struct('a' AS id) value")
    assert "column value.id is string, which cannot be written as long" in refusal(text, broker, topic, url)
    none = spark.sql("SELECT struct(nullif(1, 1) AS id) value")
    assert "column value.id is null in a row" in refusal(none, broker, topic, url)
    assert "has the type avro, not json" in refusal(none, broker, topic, url, schemaType="json")
    assert f"no version 3 of subject {subject}" in refusal(none, broker, topic, url, version="3")
    assert "no subject other" in refusal(none, broker, topic, url, subject="other", derive="never")
    assert len(versions(url, subject)) == 2
    assert len(deliveries(cluster, topic)) == 2


@pytest.mark.parametrize("language", ["avro", "json", "protobuf"])
def test_new_columns_become_a_new_version(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, url: str, language: str
) -> None:
    make_topic(cluster, topic, partitions=1, schema_validation="full")
    subject = f"{topic}-value"
    first = spark.sql("SELECT struct(id, struct('a' AS name) AS line) value FROM range(1)")
    second = spark.sql(
        "SELECT struct(struct(1D AS sum, 'b' AS name) AS line, id, 'x' AS note) value FROM range(1)"
    )
    options = {"schemaType": language, "derive": "always"}
    write(first, broker, topic, url, **options)
    assert "no field for column value." in refusal(second, broker, topic, url)
    for frame in (second, second, first):
        write(frame, broker, topic, url, **options)
    assert [each["version"] for each in versions(url, subject)] == [1, 2]
    old = {"id": 0, "line": {"name": "a", "sum": None}, "note": None}
    new = {"id": 0, "line": {"name": "b", "sum": 1.0}, "note": "x"}
    assert values(spark, broker, topic, url) == [old, new, new, old]
    incompatible = spark.sql("SELECT struct('text' AS id) value")
    said = refusal(incompatible, broker, topic, url, **options)
    assert f"does not register the schema of the columns for subject {subject}: " in said
    assert {"avro": "TYPE_MISMATCH", "json": "TYPE_CHANGED", "protobuf": "FIELD_SCALAR_KIND_CHANGED"}[
        language
    ] in said
    assert len(versions(url, subject)) == 2


def test_keys_have_a_subject_of_their_own(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, url: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    frame = spark.sql("SELECT struct(id AS customer) key, struct('tea' AS item) value FROM range(1)")
    write(frame, broker, topic, url, encode="key,value", subject=f"{topic}-orders")
    assert [len(versions(url, f"{topic}-{part}")) for part in ("key", "orders")] == [1, 1]
    [read_record] = deliveries(cluster, topic)
    client = SchemaRegistryClient({"url": url})
    context = SerializationContext(topic, MessageField.KEY)
    assert AvroDeserializer(client)(read_record.record.key, context) == {"customer": 0}
    assert AvroDeserializer(client)(read_record.record.value, context) == {"item": "tea"}
    plain = spark.sql("SELECT 'a' AS key, 'b' AS value")
    text = make_topic(cluster, f"{topic}-text", partitions=1)
    write(plain, broker, text, url, encode="key")
    [found] = deliveries(cluster, text)
    assert (found.record.value, AvroDeserializer(client)(found.record.key, context)) == (b"b", "a")
    no_key = spark.sql("SELECT struct(1 AS a) value")
    assert "column 'key' is missing, which encode=key needs" in refusal(
        no_key, broker, topic, url, encode="key"
    )


def test_a_stream_writes_every_row_once_and_follows_new_versions(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, url: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic, partitions=2)
    sink = make_topic(cluster, f"{topic}-sink", partitions=2, schema_validation="full")
    source = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    rows = source.options(subscribe=topic, startingOffsets="earliest", decode="value", registry=url)
    options = {"kafka.bootstrap.servers": broker.address, "topic": sink, "encode": "value", "registry": url}

    def run() -> None:
        frame = rows.load().selectExpr("key", "data AS value")
        writer = frame.writeStream.format("alpacamq").options(**options)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def give(start: int) -> None:
        ids = spark.range(start, start + 50)
        frame = ids.selectExpr("CAST(id AS STRING) key", "struct(id, id * 2 AS twice) value")
        write(frame, broker, topic, url)

    give(0)
    run()
    # The batch is repeated: its decision is known, so nothing is written again.
    for name in ("commits/0", "commits/.0.crc"):
        (tmp_path / name).unlink()
    run()
    optional = (["null", "long"], None)
    schema = record(record_name(url, f"{sink}-value"), id=optional, twice=optional, state=("string", "new"))
    latest = register(url, f"{sink}-value", schema)
    give(50)
    run()
    found = values(spark, broker, sink, url)
    assert sorted(row["id"] for row in found) == list(range(100))
    assert all((row["twice"], row["state"]) == (2 * row["id"], "new") for row in found)
    ids = [unframe(each.record.value or b"") for each in deliveries(cluster, sink)]
    assert sum(each is not None and each.schema == latest.id for each in ids) == 50


def record_name(url: str, subject: str) -> str:
    """Return the name of the record of the only version of a subject."""
    [only] = versions(url, subject)
    return str(json.loads(only["schema"])["name"])


def test_tasks_need_no_registry(
    broker: Broker, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver registers the schema once and passes it on."""
    given = {"topic": topic, "encode": "value", "registry": url, "schemaType": "protobuf"}
    options = write_options({"kafka.bootstrap.servers": broker.address, **given}).encode
    assert options is not None
    columns = StructType().add("value", StructType().add("id", LongType()))
    plan = plan_encoding(options, topic, columns, timeout_s=5)
    assert plan_encoding(options, topic, columns, timeout_s=5) == plan
    passed_on = pickle.loads(pickle.dumps(plan))  # noqa: S301 - our own

    def refuse(*_: object) -> None:
        raise AssertionError("a task asks the registry")

    monkeypatch.setattr(HttpApi, "get", refuse)
    monkeypatch.setattr(HttpApi, "send", refuse)
    rows = pa.RecordBatch.from_pylist(
        [{"key": b"k", "value": {"id": 1}}, {"key": None, "value": None}],
        pa.schema([("key", pa.binary()), ("value", pa.struct([("id", pa.int64())]))]),
    )
    prefix = framed(plan[Part.VALUE].schema_id, b"\0")
    assert RowEncoder(passed_on).encoded(rows).to_pylist() == [
        {"key": b"k", "value": prefix + b"\x08\x01"},
        {"key": None, "value": None},
    ]


def test_a_running_stream_uses_a_new_version_in_its_next_micro_batch(
    spark: SparkSession, broker: Broker, cluster: Cluster, topic: str, url: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic, partitions=1)
    sink = make_topic(cluster, f"{topic}-sink", partitions=1)
    first = register(url, f"{sink}-value", record("Text", text=(["null", "string"], None)))
    source = spark.readStream.format("alpacamq").option("kafka.bootstrap.servers", broker.address)
    rows = source.options(subscribe=topic, startingOffsets="earliest").load()
    frame = rows.selectExpr("struct(CAST(value AS STRING) AS text) AS value")
    options = {"kafka.bootstrap.servers": broker.address, "topic": sink, "encode": "value", "registry": url}
    writer = frame.writeStream.format("alpacamq").options(**options)
    query = (
        writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="200 milliseconds").start()
    )
    try:
        produce(broker, topic, ["a"])
        eventually(lambda: query.exception() or len(deliveries(cluster, sink)) == 1, within_s=120)
        second = register(
            url, f"{sink}-value", record("Text", text=(["null", "string"], None), more=("int", 7))
        )
        produce(broker, topic, ["b"])
        eventually(lambda: query.exception() or len(deliveries(cluster, sink)) == 2, within_s=120)
    finally:
        query.stop()
    assert [each.record.value for each in deliveries(cluster, sink)] == [
        first.avro({"text": "a"}),
        second.avro({"text": "b", "more": 7}),
    ]
