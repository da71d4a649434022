"""Malformed values in a dead-letter table: each once, with the reason and where it was, and counted."""

from typing import Any

import httpx
import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")

from pyiceberg.catalog import load_catalog

from alpacamq.client.kafka.cluster import Cluster
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


def letters(workshop: Workshop) -> list[tuple[Any, ...]]:
    warehouse = workshop.directory / "lake"
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
