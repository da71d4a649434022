"""Pipelines over topics whose values name their schema in the registry, through evolutions of the schemas."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.model.errors import AlpacaError
from alpacamq_spark.pipelines import read_archive
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.archive.table import ArchiveTable
from alpacamq_spark.pipelines.errors import InvalidPipeline, PipelineFailed
from alpacamq_spark.pipelines.run import Interruption
from tests.brokers import Broker
from tests.waiting import eventually

from .pipeline_files import RecordedProgress, Workshop, json_of
from .registries import Registered, allow_any_change, record, register, send_bytes
from .topics import deliveries, make_topic

ARCHIVE = """
kind = "archive"
registry = "{registry}"
decode = "registry"

[source]
topics = ["{topic}"]
max_records = 1000

[sink]
path = "archive"

[[steps]]
do = "compact"
fan_in = 2
"""


# A start of Spark's query and a batch, on a busy machine.
PATIENCE_S = 240


@pytest.fixture
def registry(broker: Broker) -> str:
    """The address of the broker's schema registry."""
    return f"http://{broker.http_address}/schemas"


def rows(spark: SparkSession, workshop: Workshop) -> list[Any]:
    """The decoded values of an archive, in order."""
    found = read_archive(spark, str(workshop.directory / "archive")).orderBy("partition", "offset").collect()
    return [row.data and plain(row.data) for row in found]


def plain(row: Row) -> dict[str, Any]:
    return dict(row.asDict(recursive=True))


def test_an_archive_of_avro_values_goes_on_with_new_fields_and_wider_types(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    inner = record("Line", item="string", count="int")
    first = register(
        registry,
        f"{topic}-value",
        record("Order", id="int", price="float", old="string", lines={"type": "array", "items": inner}),
    )
    order = {"id": 1, "price": 1.5, "old": "x", "lines": [{"item": "tea", "count": 2}]}
    unknown = b"\x00\x00\x0f\xff\xff" + first.avro(order)[5:]
    bad = [b"no prefix", unknown, first.avro(order)[:-1], None]
    send_bytes(workshop.broker, topic, [first.avro(order), *bad])
    pipeline = workshop.pipeline(ARCHIVE.format(topic=topic, registry=registry))
    told = RecordedProgress()
    assert workshop.run(pipeline, told).rows == 5
    assert told.sentences == [f"{topic} is read as version 1 of subject {topic}-value"]
    assert rows(spark, workshop) == [order, None, None, None, None]
    # Fields come and go, types become wider, and old records still arrive.
    inner = record("Line", item="string", count="long", note=("string", "none"))
    second = register(
        registry,
        f"{topic}-value",
        record(
            "Order",
            id="long",
            price="double",
            lines={"type": "array", "items": inner},
            extra=(["null", "int"], None),
        ),
    )
    new = {"id": 2**40, "price": 0.1, "lines": [{"item": "cake", "count": 2**33, "note": "n"}], "extra": 7}
    by_guid = second.avro(new)[5:]
    send_bytes(workshop.broker, topic, [first.avro(order), second.avro(new)])
    send_bytes(
        workshop.broker, topic, [by_guid], headers=[("__value_schema_id", b"\x01" + second.guid.bytes)]
    )
    assert workshop.run(pipeline).rows == 3
    new_as_archived = {"id": 2**40, "price": 0.1, "old": None, "lines": new["lines"], "extra": 7}
    lines = [{"item": "tea", "count": 2, "note": None}]
    expected = [
        {"id": 1, "price": 1.5, "old": "x", "lines": lines, "extra": None},
        *[None] * 4,
        # Fields that a writer did not know have the default of the reader's schema.
        {"id": 1, "price": 1.5, "old": None, "lines": [{**lines[0], "note": "none"}], "extra": None},
        new_as_archived,
        new_as_archived,
    ]
    assert rows(spark, workshop) == expected


@pytest.mark.parametrize("sink", ['path = "archive"', 'format = "iceberg"\ntable = "shop.orders"'])
def test_a_field_that_is_added_while_an_archive_runs_is_in_the_rows_that_have_it(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession, registry: str, sink: str
) -> None:
    if "iceberg" in sink:
        pytest.importorskip("pyiceberg", reason="needs the extra `tables`")
    make_topic(cluster, topic, partitions=1)
    broker = workshop.broker
    first = register(registry, f"{topic}-value", record("Order", id="long"))
    text = ARCHIVE.format(registry=registry, topic=topic).replace('path = "archive"', sink)
    pipeline = workshop.pipeline('trigger = "200ms"' + text)
    table = "orders" if "iceberg" in sink else "archive"

    def found() -> list[tuple[int, float | None]]:
        try:
            sql = f"SELECT data.* FROM {table} ORDER BY offset"  # noqa: S608
            rows: Any = query_sink(pipeline, sql, spark=spark).data["rows"]
        except (AlpacaError, PySparkException):
            return []  # there is no table yet
        return [(row["id"], row.get("amount")) for row in rows]

    send_bytes(broker, topic, [first.avro({"id": 1})])
    interruption, told = Interruption(), RecordedProgress()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(workshop.run, pipeline, told, interruption)
        try:
            eventually(lambda: told.batches or running.done(), within_s=PATIENCE_S)
            fields = {"id": "long", "amount": (["null", "double"], None)}
            second = register(registry, f"{topic}-value", record("Order", **fields))
            # Both kinds in one batch, with the producer of the first version still there.
            send_bytes(broker, topic, [first.avro({"id": 2}), second.avro({"id": 3, "amount": 2.5})])
            send_bytes(broker, topic, [first.avro({"id": 4})])
            eventually(lambda: len(found()) == 4 or running.done(), within_s=PATIENCE_S)
        finally:
            interruption.request()
        assert running.result(PATIENCE_S).rows >= 4
    assert found() == [(1, None), (2, None), (3, 2.5), (4, None)]
    assert f"records were written as version 2 of subject {topic}-value" in " ".join(told.sentences)


def test_files_are_merged_with_others_of_the_same_types_only(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    text = ARCHIVE.replace("max_records = 1000", "max_records = 1")
    pipeline = workshop.pipeline(text.format(topic=topic, registry=registry))
    for kind, numbers in (("int", [1, 2]), ("double", [3.5, 4.5, 5.5])):
        schema = register(registry, f"{topic}-value", record("Number", number=kind))
        send_bytes(workshop.broker, topic, [schema.avro({"number": number}) for number in numbers])
        workshop.run(pipeline)
    # The last batch is never merged.
    table = ArchiveTable(str(workshop.directory / "archive"), spark)
    assert [(each.first, each.last) for each in table.segments()[0]] == [(0, 1), (2, 3), (4, 4)]
    query = "SELECT sum(number) AS total FROM `TOPIC`".replace("TOPIC", topic)
    assert query_sink(pipeline, query, spark=spark).data["rows"] == [{"total": 16.5}]


def test_an_archive_of_json_values_goes_on_when_integers_become_numbers(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    properties: dict[str, Any] = {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}
    allow_any_change(registry, f"{topic}-value")
    first = register(registry, f"{topic}-value", {"type": "object", "properties": properties}, "JSON")
    send_bytes(
        workshop.broker, topic, [first.json({"id": 1, "at": "2026-01-31T12:00:00Z"}), first.json({"id": "x"})]
    )
    pipeline = workshop.pipeline(ARCHIVE.format(topic=topic, registry=registry))
    workshop.run(pipeline)
    properties = {
        **properties,
        "id": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    }
    second = register(registry, f"{topic}-value", {"type": "object", "properties": properties}, "JSON")
    send_bytes(workshop.broker, topic, [second.json({"id": 2.5, "tags": ["a"]})])
    workshop.run(pipeline)
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    found = rows(spark, workshop)
    assert found[0]["at"].astimezone(UTC) == noon
    assert [each and (each["id"], each["tags"]) for each in found] == [(1.0, None), None, (2.5, ["a"])]


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Line {{ string item = 1; {count} count = 2; }}
message Order {{
  int32 id = 1;
  google.protobuf.Timestamp at = 2;
  repeated Line lines = 3;
  map<string, int64> stock = 4;
  optional string note = 5;
  Kind kind = 6;
  {more}
}}
enum Kind {{ NONE = 0; RUSH = 1; }}
"""


def test_an_archive_of_protobuf_values_goes_on_with_new_fields_and_wider_types(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    first = register(registry, f"{topic}-value", PROTO.format(count="int32", more=""), "PROTOBUF")
    order = {
        "id": 1,
        "at": "2026-01-31T12:00:00Z",
        "lines": [{"item": "tea", "count": 2}],
        "stock": {"tea": "5"},
        "kind": "RUSH",
    }
    sent = first.protobuf(registry, order, "Order")
    send_bytes(workshop.broker, topic, [sent, first.protobuf(registry, {"item": "tea"}, "Line"), sent[:-1]])
    text = ARCHIVE.replace('decode = "registry"', 'decode = "registry"\nmessage = "Order"')
    pipeline = workshop.pipeline(text.format(topic=topic, registry=registry))
    workshop.run(pipeline)
    more = "oneof paid { string card = 7; uint64 cash = 8; }"
    second = register(registry, f"{topic}-value", PROTO.format(count="int64", more=more), "PROTOBUF")
    changed = {**order, "lines": [{"item": "cake", "count": str(2**40)}], "note": "n", "cash": str(2**64 - 1)}
    send_bytes(workshop.broker, topic, [sent, second.protobuf(registry, changed, "Order")])
    workshop.run(pipeline)
    decoded = {
        "id": 1,
        "lines": [{"item": "tea", "count": 2}],
        "stock": {"tea": 5},
        "note": None,
        "kind": "RUSH",
        "card": None,
        "cash": None,
    }
    found = rows(spark, workshop)
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert [each and each.pop("at").astimezone(UTC) for each in found] == [noon, None, None, noon, noon]
    new = {"lines": [{"item": "cake", "count": 2**40}], "note": "n", "cash": Decimal(2**64 - 1)}
    assert found == [decoded, None, None, decoded, {**decoded, **new}]


def test_a_type_that_does_not_go_with_the_archived_one_is_refused(
    workshop: Workshop, cluster: Cluster, topic: str, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    pipeline = workshop.pipeline(ARCHIVE.format(topic=topic, registry=registry))
    with pytest.raises(InvalidPipeline, match=f"has no schema for '{topic}-value'"):
        workshop.run(pipeline)
    register(registry, f"{topic}-value", record("A", id="int"))
    workshop.run(pipeline)
    allow_any_change(registry, f"{topic}-value")
    register(registry, f"{topic}-value", record("A", id="string"))
    with pytest.raises(InvalidPipeline, match="id is string, and was int before"):
        workshop.run(pipeline)
    pinned = ARCHIVE.replace('decode = "registry"', 'decode = "registry"\nversion = 1')
    workshop.run(workshop.pipeline(pinned.format(topic=topic, registry=registry)))


TRANSFORM = '''
kind = "transform"
registry = "{registry}"
sql = """
SELECT id, amount * 2 AS double, date_format(at, 'HH:mm') AS at, _key.region AS region, _offset
FROM orders
"""
[sources.orders]
topic = "{topic}"
decode = "registry"
decode_key = "registry"
malformed = "{malformed}"
[sink]
topic = "{topic}-out"
key = "region"
'''


def test_sql_uses_typed_columns_of_values_and_keys(
    workshop: Workshop, cluster: Cluster, topic: str, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-out", partitions=1)
    at = {"type": "long", "logicalType": "timestamp-millis"}
    amount = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    value = register(registry, f"{topic}-value", record("Order", id="long", at=at, amount=amount))
    key = register(registry, f"{topic}-key", record("Key", region="string"))
    order = {"id": 1, "at": datetime(2026, 1, 31, 12, 30, tzinfo=UTC), "amount": Decimal("1.25")}
    keyed = key.avro({"region": "eu"})
    send_bytes(workshop.broker, topic, [value.avro(order), b"bad"], key=keyed)
    pipeline = workshop.pipeline(TRANSFORM.format(topic=topic, registry=registry, malformed="drop"))
    workshop.run(pipeline)
    # A field that the query does not use is added, and another one gets a wider type.
    value = register(
        registry, f"{topic}-value", record("Order", id="double", at=at, amount=amount, more=("int", 1))
    )
    send_bytes(workshop.broker, topic, [value.avro({**order, "id": 2.5, "more": 2})], key=keyed)
    workshop.run(pipeline)
    found = [
        (each.record.key, json.loads(each.record.value or b""))
        for each in deliveries(cluster, f"{topic}-out")
    ]
    assert found == [
        (b"eu", {"id": 1, "double": 2.5, "at": "12:30", "region": "eu"}),
        (b"eu", {"id": 2.5, "double": 2.5, "at": "12:30", "region": "eu"}),
    ]
    failing = workshop.pipeline(
        TRANSFORM.format(topic=topic, registry=registry, malformed="fail"), "failing.toml"
    )
    with pytest.raises(PipelineFailed, match="at partition 0, offset 1 cannot be decoded"):
        workshop.run(failing)


SUM = """
kind = "transform"
registry = "{registry}"
sql = "SELECT id, size(tags) AS tags, id * 2 AS double, _offset FROM orders"
[sources.orders]
topic = "{topic}"
decode = "registry"
malformed = "drop"
[sink]
topic = "{topic}-out"
key = "id"
"""


@pytest.mark.parametrize("language", ["JSON", "PROTOBUF"])
def test_sql_goes_on_when_json_and_protobuf_schemas_evolve(
    workshop: Workshop, cluster: Cluster, topic: str, registry: str, language: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-out", partitions=1)
    subject = f"{topic}-value"
    tags = {"type": "array", "items": {"type": "string"}}

    def evolved(kind: str, **more: Any) -> Registered:
        if language == "JSON":
            properties = {"id": {"type": kind}, "tags": tags, **more}
            return register(registry, subject, {"type": "object", "properties": properties}, language)
        fields = "string note = 3;" if more else ""
        kind = "int64" if more else "int32"
        text = f'syntax = "proto3"; message Order {{ {kind} id = 1; repeated string tags = 2; {fields} }}'
        return register(registry, subject, text, language)

    def value(schema: Registered, order: dict[str, Any]) -> bytes:
        return schema.json(order) if language == "JSON" else schema.protobuf(registry, order, "Order")

    allow_any_change(registry, subject)
    first = evolved("integer")
    send_bytes(workshop.broker, topic, [value(first, {"id": 1, "tags": ["a", "b"]}), b"bad"])
    pipeline = workshop.pipeline(SUM.format(topic=topic, registry=registry))
    workshop.run(pipeline)
    second = evolved("number", note={"type": "string"})
    send_bytes(workshop.broker, topic, [value(second, {"id": 3, "tags": ["c"], "note": "n"})])
    workshop.run(pipeline)
    found = [json.loads(each.record.value or b"") for each in deliveries(cluster, f"{topic}-out")]
    assert found == [{"id": 1, "tags": 2, "double": 2}, {"id": 3, "tags": 1, "double": 6}]


def test_the_example_of_the_guide_reads_typed_columns(
    workshop: Workshop, cluster: Cluster, topic: str, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-large", partitions=1)
    ordered_at = {"type": "long", "logicalType": "timestamp-millis"}
    schema = record("Order", id="long", item="string", amount="double", ordered_at=ordered_at)
    value = register(registry, f"{topic}-value", schema)
    order = {"id": 1, "item": "tea", "amount": 250.0, "ordered_at": datetime(2026, 1, 31, tzinfo=UTC)}
    send_bytes(workshop.broker, topic, [value.avro({**order, "amount": 1.0}), value.avro(order)])
    replaced = {
        "[sources.orders]": f'[sources.orders]\ntopic = "{topic}"',
        "large-orders": f"{topic}-large",
        'kind = "transform"': f'kind = "transform"\nregistry = "{registry}"',
    }
    workshop.run(workshop.example("registry.toml", **replaced))
    [found] = deliveries(cluster, f"{topic}-large")
    assert found.record.key == b"1"
    assert json.loads(found.record.value or b"") == {
        "id": 1,
        "item": "tea",
        "amount": 250.0,
        "day": "2026-01-31",
    }


def test_the_example_of_the_guide_writes_typed_values(
    workshop: Workshop, cluster: Cluster, topic: str, registry: str, spark: SparkSession
) -> None:
    make_topic(cluster, topic, partitions=1)
    large = make_topic(cluster, f"{topic}-large", partitions=1, schema_validation="full")
    ordered_at = {"type": "long", "logicalType": "timestamp-millis"}
    fields = {"id": "long", "item": "string", "amount": "double", "ordered_at": ordered_at}
    value = register(registry, f"{topic}-value", record("Order", **fields))
    order = {"id": 1, "item": "tea", "amount": 250.0, "ordered_at": datetime(2026, 1, 31, 12, tzinfo=UTC)}
    send_bytes(workshop.broker, topic, [value.avro({**order, "amount": 1.0}), value.avro(order)])
    replaced = {
        "[sources.orders]": f'[sources.orders]\ntopic = "{topic}"',
        "large-orders": large,
        'kind = "transform"': f'kind = "transform"\nregistry = "{registry}"',
    }
    workshop.run(workshop.example("typed.toml", **replaced))
    reader = spark.read.format("alpacamq").option("kafka.bootstrap.servers", workshop.broker.address)
    options = {"subscribe": large, "decode": "key,value", "registry": registry}

    def found() -> list[Any]:
        rows = reader.options(**options).load().orderBy("offset").collect()
        return [(row.key_data, plain(row.data)) for row in rows]

    large_order = {"id": 1, "item": "tea", "amount": 250.0, "day": date(2026, 1, 31)}
    assert found() == [(1, large_order)]
    # A column more, which the subject of the sink does not have yet.
    replaced["SELECT id,"] = "SELECT item AS name, id,"
    changed = workshop.example("typed.toml", **replaced)
    send_bytes(workshop.broker, topic, [value.avro({**order, "id": 2})])
    message = f"version 1 of subject {large}-value: the schema has no field for column value.name"
    with pytest.raises(PipelineFailed, match=message):
        workshop.run(changed)
    replaced['encode = "registry"'] = 'encode = "registry"\nderive = "always"'
    workshop.run(workshop.example("typed.toml", **replaced))
    assert found() == [
        (1, {**large_order, "name": None}),
        (2, {**large_order, "id": 2, "name": "tea"}),
    ]


def test_keys_to_encode_are_named(workshop: Workshop, cluster: Cluster, topic: str, registry: str) -> None:
    make_topic(cluster, topic, partitions=1)
    text = SUM.format(topic=topic, registry=registry).replace('key = "id"', 'encode_key = "registry"')
    register(registry, f"{topic}-value", record("Order", id="long", tags={"type": "array", "items": "int"}))
    with pytest.raises(InvalidPipeline, match=r"sink\.encode_key: the query has no key"):
        workshop.run(workshop.pipeline(text))


def test_the_connector_decodes_for_any_spark_job(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    value = register(registry, f"{topic}-value", record("Order", id="long", note=["null", "string"]))
    key = register(registry, f"{topic}-key", {"type": "string"})
    send_bytes(workshop.broker, topic, [value.avro({"id": 1, "note": "a"}), b"bad"], key=key.avro("k"))
    reader = spark.read.format("alpacamq").options(
        **{"kafka.bootstrap.servers": workshop.broker.address, "subscribe": topic}
    )
    reader = reader.option("decode", "key,value").option("registry", registry)
    found = reader.load().select("key_data", "data.*", "offset").orderBy("offset").collect()
    assert [tuple(row) for row in found] == [("k", 1, "a", 0), ("k", None, None, 1)]
    narrow = reader.schema("data STRUCT<note: STRING>").load()
    assert [row.data and plain(row.data) for row in narrow.collect()] == [{"note": "a"}, None]


KEYS = """
kind = "transform"
registry = "{registry}"
sql = "{sql}"

[sources.orders]
topic = "{topic}"
schema = "id BIGINT"
decode_key = "registry"
malformed = "{malformed}"

[sink]
path = "{malformed}"
"""


def test_keys_that_cannot_be_decoded_are_malformed(
    workshop: Workshop, cluster: Cluster, topic: str, spark: SparkSession, registry: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    key = register(registry, f"{topic}-key", record("Key", id="long"))
    sent = [(key.avro({"id": 7}), b'{"id": 1}'), (b"k", b'{"id": 2}'), (b"k", b"no"), (None, b'{"id": 4}')]
    for each, value in sent:
        send_bytes(workshop.broker, topic, [value], key=each)

    def run(malformed: str, sql: str = "SELECT _key.id AS key, id FROM orders") -> Any:
        text = KEYS.format(registry=registry, topic=topic, malformed=malformed, sql=sql)
        return json_of(workshop.run(workshop.pipeline(text, f"{malformed}.toml")))["malformed"]

    def rows(malformed: str) -> list[tuple[Any, ...]]:
        found = spark.read.parquet(str(workshop.directory / malformed)).collect()
        return sorted(map(tuple, found), key=str)

    def found(count: int, offset: int, handled: str) -> dict[str, Any]:
        first = {"topic": topic, "partition": 0, "offset": offset}
        return {"count": count, "handled": handled, "first": first}

    assert run("keep") == {
        "orders": found(1, 2, "kept with nulls"),
        "orders keys": found(2, 1, "kept with nulls"),
    }
    assert rows("keep") == [(7, 1), (None, 2), (None, 4), (None, None)]
    said = f"sent to {topic}.dlq"
    assert run("dead-letter") == {"orders": found(1, 2, said), "orders keys": found(1, 1, said)}
    assert rows("dead-letter") == [(7, 1), (None, 4)]
    letters = [each.record for each in deliveries(cluster, f"{topic}.dlq")]
    assert [(letter.value, dict(letter.headers)["alpacamq-dead-letter-reason"]) for letter in letters] == [
        (b'{"id": 2}', b"malformed: the key cannot be decoded by the schema registry"),
        (b"no", b"malformed: the value is not JSON that fits its columns"),
    ]
    with pytest.raises(PipelineFailed, match="the key of orders at partition 0, offset 1 cannot be decoded"):
        run("fail", "SELECT _offset FROM orders WHERE _offset = 1")
