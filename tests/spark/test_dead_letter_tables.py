"""Malformed values in a dead-letter table: each once, with the reason and where it was, and counted."""

from typing import Any

import httpx
import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")

from pyiceberg.catalog import load_catalog

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import alter_topic
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.errors import InvalidPipeline, PipelineFailed

from .pipeline_files import Sent, Workshop, json_of, send
from .registries import record, register, send_bytes
from .table_process import ending_at, steps
from .topics import make_topic, values

PIPELINE = """
kind = "transform"
name = "with-malformed-values"
sql = "SELECT id, amount FROM orders"
registry = "{registry}"

[sources.orders]
topic = "{topic}"
malformed = "dead-letter"
dead_letter_table = "shop.malformed"
{decoding}

[sink]
topic = "{topic}-good"

[catalog]
warehouse = "lake"
"""


def pipeline(workshop: Workshop, topic: str, decoding: str) -> Any:
    registry = f"http://{workshop.broker.http_address}/schemas"
    return workshop.pipeline(PIPELINE.format(topic=topic, decoding=decoding, registry=registry))


def letters(workshop: Workshop, lake: str = "lake") -> list[tuple[Any, ...]]:
    warehouse = workshop.directory / lake
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{warehouse}/catalog.db")
    rows = catalog.load_table("shop.malformed").scan().to_arrow().to_pylist()
    columns = ("reason", "topic", "partition", "offset", "key", "value")
    return sorted(tuple(row[name] for name in columns) for row in rows)


def test_malformed_values_go_to_a_table_once_and_are_counted(
    workshop: Workshop, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-good")
    good = [Sent(value=f'{{"id": {number}, "amount": 1.5}}') for number in range(3)]
    send(workshop.broker, topic, [good[0], Sent(value="nonsense", key="k"), good[1]])
    made = pipeline(workshop, topic, 'schema = "id BIGINT, amount DOUBLE"')
    # The driver dies when the files of the dead letters are there, and not yet in the table.
    step = steps("iceberg")["between files and commit"]

    def cut() -> None:
        raise RuntimeError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(step.owner, step.function, ending_at(step, cut))
        with pytest.raises(PipelineFailed):
            workshop.run(made)
    workshop.run(made)
    send(workshop.broker, topic, [Sent(value="[1]", partition=1), good[2]])
    later = json_of(workshop.run(made))
    reason = "malformed: the value is not JSON that fits its columns"
    assert letters(workshop) == [
        (reason, topic, 0, 1, b"k", b"nonsense"),
        (reason, topic, 1, 0, None, b"[1]"),
    ]
    assert len(values(cluster, f"{topic}-good")) == 3
    assert later["malformed"]["orders"] == {
        "count": 1,
        "handled": "sent to table shop.malformed",
        "first": {"topic": topic, "partition": 1, "offset": 0},
    }
    metrics = httpx.get(f"http://{workshop.broker.http_address}/metrics").raise_for_status().text
    assert 'alpacamq_pipeline_malformed_total{pipeline="with-malformed-values"} 1' in metrics


def test_values_that_the_registry_cannot_decode_go_to_a_table(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    make_topic(cluster, f"{topic}-good")
    url = f"http://{workshop.broker.http_address}/schemas"
    order = register(url, f"{topic}-value", record("Order", id="long", amount="double"))
    send_bytes(workshop.broker, topic, [order.avro({"id": 1, "amount": 2.5}), b"\x00\x00\x00\x00\x01", b"x"])
    workshop.run(pipeline(workshop, topic, 'decode = "registry"'))
    reason = "malformed: the value cannot be decoded by the schema registry"
    assert [row[:4] for row in letters(workshop)] == [(reason, topic, 0, 1), (reason, topic, 0, 2)]


def test_the_example_archives_all_records_and_copies_the_malformed(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    good = Sent(value='{"id": 1, "item": "pen", "amount": 2.5}')
    send(workshop.broker, topic, [good, Sent(value="pen", key="k"), good])
    example = workshop.example("malformed.toml", **{'topics = ["orders"]': f'topics = ["{topic}"]'})
    workshop.run(example)
    reason = "malformed: the value is not JSON that fits its columns"
    assert letters(workshop, "warehouse") == [(reason, topic, 0, 1, b"k", b"pen")]
    counted = query_sink(
        example, "SELECT count(*) AS n, count(data) AS good FROM orders", spark=workshop.spark
    )
    assert counted.data["rows"] == [{"n": 3, "good": 2}]


ARCHIVE = """
kind = "archive"
name = "archive-with-malformed-values"
registry = "{registry}"
dead_letter_table = "shop.malformed"
{decoding}
source = {{ topics = ["{topic}"], max_records = 2 }}
sink = {{ {sink} }}
catalog = {{ warehouse = "lake" }}
"""


@pytest.mark.parametrize(
    ("sink", "view"),
    [
        ('path = "files"', "archive"),
        ('format = "iceberg", table = "shop.events"', "events"),
        ('format = "delta", path = "lake/delta"', "delta"),
    ],
)
def test_an_archive_copies_malformed_values_to_a_table_once(
    workshop: Workshop, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, sink: str, view: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    send(workshop.broker, topic, [Sent(value=text) for text in ('{"id": 1}', "nonsense", '{"id": 2}', "[1]")])
    decoding = 'schema = "id BIGINT"'
    text = ARCHIVE.format(topic=topic, decoding=decoding, sink=sink, registry="http://localhost:1")
    made = workshop.pipeline(text)
    step = steps("iceberg")["between files and commit"]
    is_cut = False

    def cut() -> None:
        nonlocal is_cut
        if not is_cut:
            is_cut = True
            raise RuntimeError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(step.owner, step.function, ending_at(step, cut))
        with pytest.raises(PipelineFailed):
            workshop.run(made)
    workshop.run(made)
    send(workshop.broker, topic, [Sent(value="{", key="k"), Sent(value=" ")])
    later = json_of(workshop.run(made))
    reason = "malformed: the value is not JSON that fits its columns"
    assert letters(workshop) == [
        (reason, topic, 0, 1, None, b"nonsense"),
        (reason, topic, 0, 3, None, b"[1]"),
        (reason, topic, 0, 4, b"k", b"{"),
        (reason, topic, 0, 5, None, b" "),
    ]
    query = f"SELECT data.id FROM {view} ORDER BY offset"  # noqa: S608 - our own names
    found = query_sink(made, query, spark=workshop.spark)
    assert found.data["rows"] == [{"id": each} for each in (1, None, 2, None, None, None)]
    assert later["malformed"]["values"] == {
        "count": 2,
        "handled": "archived without their columns, and copied to table shop.malformed",
        "first": {"topic": topic, "partition": 0, "offset": 4},
    }


def test_an_archive_copies_what_the_registry_cannot_decode(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    url = f"http://{workshop.broker.http_address}/schemas"
    order = register(url, f"{topic}-value", record("Order", id="long"))
    key = register(url, f"{topic}-key", record("Key", id="long"))
    send_bytes(workshop.broker, topic, [order.avro({"id": 1}), b"x"], key=key.avro({"id": 1}))
    send_bytes(workshop.broker, topic, [order.avro({"id": 2})], key=b"k")
    decoding = 'decode = "registry"\ndecode_key = "registry"'
    made = workshop.pipeline(
        ARCHIVE.format(topic=topic, decoding=decoding, sink='path = "files"', registry=url)
    )
    workshop.run(made)
    said = "cannot be decoded by the schema registry"
    assert [row[:4] for row in letters(workshop)] == [
        (f"malformed: the key {said}", topic, 0, 2),
        (f"malformed: the value {said}", topic, 0, 1),
    ]
    # A later version of the schema: both queries go on with it.
    order = register(url, f"{topic}-value", record("Order", id="long", note=(["null", "string"], None)))
    send_bytes(workshop.broker, topic, [order.avro({"id": 3, "note": "n"}), b"y"], key=key.avro({"id": 1}))
    assert workshop.run(made).rows == 2
    assert [row[3] for row in letters(workshop)] == [2, 1, 4]


def test_the_tables_of_topics_copy_what_the_registry_cannot_decode(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    url = f"http://{workshop.broker.http_address}/schemas"
    topics = [f"{topic}-{number}" for number in range(2)]
    for each in topics:
        make_topic(cluster, each, partitions=1, table_enable="true", table_name=f"shop.{each[-1]}")
        order = register(url, f"{each}-value", record("Order", id="long"))
        send_bytes(workshop.broker, each, [order.avro({"id": 1}), b"x"])
    runner = workshop.pipeline(
        f'kind = "tables"\ntrigger = "available-now"\nregistry = "{url}"\n'
        'dead_letter_table = "shop.malformed"\ncatalog = { warehouse = "lake" }\n',
        "tables.toml",
    )
    try:
        found = json_of(workshop.run(runner))
        handled = [found["malformed"][f"{each} values"]["handled"] for each in topics]
        assert handled == ["kept in _value, and copied to table shop.malformed"] * 2
        send_bytes(workshop.broker, topics[1], [b"y"])
        workshop.run(runner)
        reason = "malformed: the value cannot be decoded by the schema registry"
        assert letters(workshop) == [
            (reason, topics[0], 0, 1, None, b"x"),
            (reason, topics[1], 0, 1, None, b"x"),
            (reason, topics[1], 0, 2, None, b"y"),
        ]
        alter_topic(cluster, topics[0], put={"table.name": "shop.malformed"}, drop=[])
        with pytest.raises(PipelineFailed, match=r"shop\.malformed is that of malformed values; set table"):
            workshop.run(runner)
    finally:
        for each in topics:
            alter_topic(cluster, each, put={}, drop=["table.enable"])


@pytest.mark.parametrize(
    ("decoding", "sink", "words"),
    [
        ("", 'path = "files"', "dead_letter_table needs schema, decode or decode_key"),
        ('schema = "id BIGINT"', 'format = "iceberg", table = "shop.malformed"', "is the table of the sink"),
    ],
)
def test_archives_that_make_no_sense_are_refused(
    workshop: Workshop, topic: str, decoding: str, sink: str, words: str
) -> None:
    with pytest.raises(InvalidPipeline, match=words):
        workshop.pipeline(ARCHIVE.format(topic=topic, decoding=decoding, sink=sink, registry="http://a:1"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('malformed = "dead-letter"', 'malformed = "drop"', "dead_letter_table is for malformed"),
        ('"shop.malformed"', '"malformed"', "is not a namespace and a name"),
        ('"shop.malformed"', '"a.b"\ndead_letters = "c"', "exclude each other"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    workshop: Workshop, topic: str, old: str, new: str, words: str
) -> None:
    text = PIPELINE.format(topic=topic, decoding="", registry="http://localhost:1/schemas")
    with pytest.raises(InvalidPipeline, match=words):
        workshop.pipeline(text.replace(old, new))
