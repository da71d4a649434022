"""Transformations: topics as tables, values in columns, results as records."""

import json
import shutil

import pyarrow.parquet
import pytest

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.model.batch import Codec
from alpacamq_spark.pipelines.errors import ForeignTable, InvalidPipeline, PipelineFailed

from .pipeline_files import NOON_MS, RecordedProgress, Sent, Workshop, json_of, send
from .registries import send_bytes
from .topics import codecs, deliveries, make_topic, values


def test_a_topic_is_a_table_whose_columns_are_inferred_once(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-big", partitions=1)
    first = [
        Sent(value='{"id": 1, "price": 2, "tags": ["a"]}', key="x", headers={"from": "web"}),
        Sent(value='{"id": 2, "price": 2.5, "tags": []}', key="y"),
        Sent(value="not json", key="z"),
    ]
    send(workshop.broker, topic, first)
    text = '''
kind = "transform"
sql = """
SELECT id, price * 2 AS double, tags, _headers['from'] AS origin, _offset AS at, _key
FROM dear
"""
[sources.items]
topic = "TOPIC"
malformed = "drop"
[[steps]]
name = "dear"
sql = "SELECT * FROM items WHERE price >= 2"
[sink]
topic = "TOPIC-big"
'''
    pipeline = workshop.pipeline(text.replace("TOPIC", topic))
    told = RecordedProgress()
    outcome = workshop.run(pipeline, told)
    assert outcome.rows == 3
    place = {"topic": topic, "partition": 0, "offset": 2}
    assert json_of(outcome)["malformed"] == {"items": {"count": 1, "handled": "dropped", "first": place}}
    assert list(outcome.report.notes) == [
        f"malformed values of items: 1, dropped; the first is in {topic}-0 at offset 2"
    ]
    assert [batch.malformed for batch in told.batches] == [1]
    assert f"columns of {topic}, by a sample of its values: id BIGINT, price DOUBLE, tags ARRAY<STRING>" in (
        told.sentences
    )
    # Another kind of value does not change the columns of a query that has begun.
    send(workshop.broker, topic, [Sent(value='{"id": "three", "price": 4, "new": 1}', key="w")])
    workshop.run(pipeline, told)
    assert len(told.sentences) == 1
    assert not workshop.spark.catalog.tableExists("items")
    found = {
        each.record.key: json.loads(each.record.value or b"") for each in deliveries(cluster, f"{topic}-big")
    }
    assert found == {
        b"x": {"id": 1, "double": 4.0, "tags": ["a"], "origin": "web", "at": 0},
        b"y": {"id": 2, "double": 5.0, "tags": [], "at": 1},
    }


MALFORMED = """
kind = "transform"
sql = "SELECT id, _partition AS part, _offset AS at FROM items"
[sources.items]
topic = "TOPIC"
schema = "id INT"
malformed = "HOW"
[sink]
path = "files"
"""


def test_malformed_values_are_counted_and_the_first_is_named(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    good = [Sent(value='{"id": 1}', partition=1), Sent(value='{"id": 2}')]
    bad = [Sent(value="no", partition=1), Sent(value='{"id": "x"}', partition=1)]
    send(workshop.broker, topic, [*good, *bad, Sent(value='{"id": 3}', partition=1)])
    pipeline = workshop.pipeline(MALFORMED.replace("TOPIC", topic).replace("HOW", "keep"))
    outcome = workshop.run(pipeline)
    place = {"topic": topic, "partition": 1, "offset": 1}
    assert json_of(outcome)["malformed"] == {
        "items": {"count": 2, "handled": "kept with nulls", "first": place}
    }
    rows = workshop.spark.read.parquet(str(workshop.directory / "files")).collect()
    assert sorted(map(tuple, rows), key=str) == sorted(
        [(1, 1, 0), (2, 0, 0), (None, 1, 1), (None, 1, 2), (3, 1, 3)], key=str
    )
    assert json_of(workshop.run(pipeline))["malformed"] == {}
    twice = MALFORMED.replace('FROM items"', 'FROM items UNION ALL SELECT id, 0, 0 FROM items"')
    twice = twice.replace("TOPIC", topic).replace("HOW", "drop").replace("files", "twice")
    outcome = workshop.run(workshop.pipeline(twice, "twice.toml"))
    assert json_of(outcome)["malformed"]["items"]["count"] == 2
    failing = MALFORMED.replace("TOPIC", topic).replace("HOW", "fail").replace("files", "more")
    with pytest.raises(
        PipelineFailed, match="the value of items at partition 1, offset 1 is not JSON that fits its columns"
    ):
        workshop.run(workshop.pipeline(failing, "failing.toml"))


def test_malformed_values_go_to_a_dead_letter_topic_exactly_once(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    before = [Sent(value="earlier"), Sent(value='{"id": 1}')]
    send(workshop.broker, topic, before)
    # Those that an earlier run has dropped stay dropped.
    workshop.run(workshop.pipeline(MALFORMED.replace("TOPIC", topic).replace("HOW", "drop")))
    pipeline = workshop.pipeline(MALFORMED.replace("TOPIC", topic).replace("HOW", "dead-letter"))
    for run in range(2):
        origin = {"alpacamq-origin-topic": "another"}
        bad = Sent(
            value=f"no {run}", key="k", partition=1, timestamp_ms=NOON_MS, headers={"h": "1", **origin}
        )
        send(workshop.broker, topic, [bad, Sent(value='{"id": 2}', partition=1)])
        outcome = workshop.run(pipeline)
        place = {"topic": topic, "partition": 1, "offset": 2 * run}
        assert json_of(outcome)["malformed"] == {
            "items": {"count": 1, "handled": f"sent to {topic}.dlq", "first": place}
        }
        assert outcome.rows == 2
    found = [each.record for each in deliveries(cluster, f"{topic}.dlq")]
    assert [(record.key, record.value) for record in found] == [(b"k", b"no 0"), (b"k", b"no 1")]
    named = [{name: (value or b"").decode() for name, value in record.headers} for record in found]
    assert all(headers.pop("alpacamq-dead-lettered-at").isdigit() for headers in named)
    assert named == [
        {
            "h": "1",
            "alpacamq-dead-letter-reason": "malformed: the value is not JSON that fits its columns",
            "alpacamq-origin-topic": topic,
            "alpacamq-origin-partition": "1",
            "alpacamq-origin-offset": str(2 * run),
            "alpacamq-origin-timestamp": str(NOON_MS),
            "alpacamq-origin-group": "pipeline-pipeline",
        }
        for run in range(2)
    ]
    rows = workshop.spark.read.parquet(str(workshop.directory / "files")).collect()
    assert sorted(map(tuple, rows)) == [(1, 0, 1), (2, 1, 1), (2, 1, 3)]
    # Their query begins where it first did, however far the pipeline is by then.
    shutil.rmtree(f"{pipeline.checkpoint_place}/dead-letters-items")
    workshop.run(pipeline)
    assert values(cluster, f"{topic}.dlq") == ["no 0", "no 0", "no 1", "no 1"]


def test_blank_values_are_malformed_and_tombstones_are_not(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send_bytes(workshop.broker, topic, [b"", b" \n", b"[]", None, b'{"id": 1}'])
    text = MALFORMED.replace("TOPIC", topic)
    outcome = workshop.run(workshop.pipeline(text.replace("HOW", "dead-letter")))
    place = {"topic": topic, "partition": 0, "offset": 0}
    assert json_of(outcome)["malformed"] == {
        "items": {"count": 3, "handled": f"sent to {topic}.dlq", "first": place}
    }
    assert values(cluster, f"{topic}.dlq") == ["", " \n", "[]"]
    rows = workshop.spark.read.parquet(str(workshop.directory / "files")).collect()
    assert sorted(map(tuple, rows), key=str) == [(1, 0, 4), (None, 0, 3)]
    failing = text.replace("HOW", "fail").replace("files", "more")
    with pytest.raises(PipelineFailed, match="the value of items at partition 0, offset 0 is not JSON"):
        workshop.run(workshop.pipeline(failing, "failing.toml"))


@pytest.mark.parametrize(
    ("line", "codec"),
    [("", "SNAPPY"), ('compression = "zstd"', "ZSTD"), ('compression = "none"', "UNCOMPRESSED")],
)
def test_files_have_the_compression_of_the_sink(
    workshop: Workshop, cluster: Cluster, topic: str, line: str, codec: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    send(workshop.broker, topic, [Sent(value='{"id": 1}')])
    text = MALFORMED.replace("TOPIC", topic).replace("HOW", "keep")
    workshop.run(workshop.pipeline(f"{text}{line}\n"))
    [file] = (workshop.directory / "files").glob("*.parquet")
    assert pyarrow.parquet.read_metadata(file).row_group(0).column(0).compression == codec


def test_records_have_the_compression_of_the_sink(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-small", partitions=1)
    value = json.dumps({"id": 1, "text": "a" * 5000}, separators=(",", ":"))
    send(workshop.broker, topic, [Sent(value=value)])
    text = """
kind = "transform"
sql = "SELECT id, text FROM items"
sources = { items = { topic = "TOPIC", schema = "id INT, text STRING" } }
[sink]
topic = "TOPIC-small"
compression = "gzip"
"""
    workshop.run(workshop.pipeline(text.replace("TOPIC", topic)))
    assert values(cluster, f"{topic}-small") == [value]
    assert codecs(cluster, f"{topic}-small") == {Codec.GZIP}


def test_windows_close_by_the_watermark_of_their_source(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    minutes = (0, 0, 1, 30)
    send(
        workshop.broker,
        topic,
        [
            Sent(value=json.dumps({"item": "tea", "amount": 2.0}), timestamp_ms=NOON_MS + minute * 60_000)
            for minute in minutes
        ],
    )
    names = {"[sources.orders]": f'[sources.orders]\ntopic = "{topic}"'}
    workshop.run(workshop.example("windows.toml", **names))
    rows = workshop.spark.read.parquet(str(workshop.directory / "revenue")).orderBy("minute").collect()
    assert [(row.item, row.orders, row.amount) for row in rows] == [("tea", 2, 4.0), ("tea", 1, 2.0)]


def test_files_belong_to_one_checkpoint_as_spark_would_leave_out_the_batches_of_another(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    send(workshop.broker, topic, [Sent(value="{}")])
    text = """
kind = "transform"
sql = "SELECT _offset FROM t"
sources = { t = { topic = "TOPIC", schema = "a INT" } }
[sink]
path = "files"
"""
    pipeline = workshop.pipeline(text.replace("TOPIC", topic))
    files = workshop.directory / "files"
    for offsets in ([0], [0, 1]):
        workshop.run(pipeline)
        rows = workshop.spark.read.parquet(str(files)).orderBy("_offset").collect()
        assert [row["_offset"] for row in rows] == offsets
        send(workshop.broker, topic, [Sent(value="{}")])
    shutil.rmtree(pipeline.checkpoint_place)
    with pytest.raises(ForeignTable, match="written with another checkpoint"):
        workshop.run(pipeline)
    # Nor by what Spark alone has left there.
    (files / "_alpacamq-checkpoint").unlink()
    with pytest.raises(ForeignTable, match="written with another checkpoint"):
        workshop.run(pipeline)
    shutil.rmtree(files)
    assert workshop.run(pipeline).rows == 3


def test_streams_are_joined(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    for name in ("orders", "payments", "paid"):
        make_topic(cluster, f"{topic}-{name}", partitions=1)
    order = {"id": 1, "customer": "ann", "item": "tea", "amount": 3.5}
    send(workshop.broker, f"{topic}-orders", [Sent(value=json.dumps(order)), Sent(value='{"id": 2}')])
    payments = [
        Sent(value='{"id": 1, "paid": 3.5}', timestamp_ms=NOON_MS + 60_000),
        Sent(value='{"id": 2, "paid": 1.0}', timestamp_ms=NOON_MS + 7_200_000),
    ]
    send(workshop.broker, f"{topic}-payments", payments)
    pipeline = workshop.example(
        "transform.yaml",
        **{
            "  orders:\n": f"  orders:\n    topic: {topic}-orders\n",
            "  payments:\n": f"  payments:\n    topic: {topic}-payments\n",
            "topic: paid-orders": f"topic: {topic}-paid",
        },
    )
    workshop.run(pipeline)
    [found] = deliveries(cluster, f"{topic}-paid")
    assert found.record.key == b"ann"
    assert json.loads(found.record.value or b"") == {"id": 1, "customer": "ann", "amount": 3.5, "paid": 3.5}


@pytest.mark.parametrize(
    ("sql", "sink", "message"),
    [
        pytest.param("SELECT no_such FROM t", 'topic = "x"', "no_such", id="an unknown column"),
        pytest.param("SELECT 1 AS one", 'topic = "x"', "none of the sources", id="no source"),
        pytest.param("SELECT a FROM t", 'topic = "x"\nkey = "b"', "no column 'b'", id="an unknown key"),
        pytest.param("SELECT a AS value, 1 AS more FROM t", 'topic = "x"', "more", id="more than a record"),
        pytest.param("SELECT a, count(*) FROM t GROUP BY a", 'topic = "x"', "watermark", id="no watermark"),
    ],
)
def test_a_query_that_cannot_run_says_why(
    workshop: Workshop, cluster: Cluster, topic: str, sql: str, sink: str, message: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    pipeline = workshop.pipeline(
        f'kind = "transform"\nsql = "{sql}"\nsources = {{ t = {{ topic = "{topic}", schema = "a INT" }} }}\n'
        f"[sink]\n{sink}\n"
    )
    with pytest.raises((InvalidPipeline, PipelineFailed), match=message):
        workshop.run(pipeline)


def test_columns_cannot_be_inferred_from_nothing(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic, partitions=1)
    send(workshop.broker, topic, [Sent(value="plain text")])
    text = 'kind = "transform"\nsql = "SELECT * FROM t"\n[sources.t]\ntopic = "TOPIC"\n[sink]\ntopic = "x"\n'
    pipeline = workshop.pipeline(text.replace("TOPIC", topic))
    with pytest.raises(InvalidPipeline, match="declare them with schema"):
        workshop.run(pipeline)
