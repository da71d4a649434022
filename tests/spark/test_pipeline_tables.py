"""Iceberg tables: each record once, or the last one for each key, wherever a run is cut off."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet
import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")

from confluent_kafka import Producer
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from alpacamq.cli.main import main
from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.doctor import examine_pipeline
from alpacamq_spark.pipelines import Pipeline
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.errors import ForeignTable, InvalidPipeline, PipelineFailed
from alpacamq_spark.pipelines.tables.iceberg import TablePlace, open_table
from tests.brokers import Broker
from tests.conftest import NewBroker

from .driving import HAS_ADMISSION_CONTROL
from .pipeline_files import HOUR_MS, NOON_MS, RecordedProgress, Sent, Workshop, json_of, send
from .table_process import Step, ending_at
from .topics import make_topic

ARCHIVE = """
kind = "archive"
schema = "id BIGINT, name STRING"

[source]
topics = ["{topic}"]
max_records = {most}

[sink]
format = "iceberg"
table = "shop.events"
"""


def archive(workshop: Workshop, topic: str, *, most: int = 1000, more: str = "") -> Pipeline:
    return workshop.pipeline(ARCHIVE.format(topic=topic, most=most) + more)


def table(workshop: Workshop, name: str = "events") -> Table:
    """Load a table as any user of PyIceberg does."""
    warehouse = workshop.directory / "warehouse"
    properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": str(warehouse)}
    return load_catalog("default", **properties).load_table(f"shop.{name}")


def numbered(first: int, last: int) -> list[Sent]:
    return [
        Sent(
            value=json.dumps({"id": number, "name": f"n{number}"}),
            key=f"k{number % 3}",
            partition=number % 2,
            timestamp_ms=NOON_MS + 24 * HOUR_MS * (number % 2),
        )
        for number in range(first, last)
    ]


def ids(found: Table) -> Counter[int]:
    """Count the occurrences of each record."""
    return Counter(row["id"] for row in found.scan().to_arrow().column("data").to_pylist())


def files_on_disk(found: Table) -> set[str]:
    return {str(path) for path in Path(found.location(), "data").rglob("*.parquet")}


def files_of(found: Table) -> set[str]:
    """Return the files that some snapshot needs."""
    return set(found.inspect.all_files().column("file_path").to_pylist())


def current_files(found: Table) -> set[str]:
    return set(found.inspect.files().column("file_path").to_pylist())


def files_of_february(found: Table) -> list[str]:
    """Return the files that a reader needs for the later of the two days."""
    later = found.scan(row_filter="timestamp >= '2026-02-01T00:00:00+00:00'")
    return [task.file.file_path for task in later.plan_files()]


def count(found: Table) -> int:
    return int(found.scan().to_arrow().num_rows)


def change(found: Table) -> None:
    """Commit something, as another writer does."""
    found.append(found.scan().to_arrow().slice(0, 0))


def delete_orphans(workshop: Workshop, name: str) -> None:
    """Clean up as some days later."""
    opened = open_table(_place(workshop, f"shop.{name}"), "pipeline")
    opened._delete_orphans(datetime.now(UTC) + timedelta(days=4))


def test_records_are_added_to_a_table_that_any_engine_can_read(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 10))
    pipeline = archive(workshop, topic)
    outcome = workshop.run(pipeline)
    assert outcome.rows == 10
    found = table(workshop)
    assert ids(found) == Counter(range(10))
    assert [(field.name, str(field.transform)) for field in found.spec().fields] == [
        ("topic", "identity"),
        ("timestamp_day", "day"),
    ]
    # The partitions are true: this reads one of the two files.
    assert len(files_of_february(found)) == 1
    later = found.scan(row_filter="timestamp >= '2026-02-01T00:00:00+00:00'")
    assert sorted(row["id"] for row in later.to_arrow().column("data").to_pylist()) == [1, 3, 5, 7, 9]
    assert json_of(outcome)["table"] == {
        "table": "shop.events",
        "location": str(workshop.directory / "warehouse" / "shop" / "events"),
        "rows": 10,
        "files": 2,
        "bytes": sum(Path(name).stat().st_size for name in files_on_disk(found)),
        "merged_files": 0,
        "expired_snapshots": 0,
    }
    send(workshop.broker, topic, numbered(10, 14))
    assert workshop.run(pipeline).rows == 4
    found = table(workshop)
    assert ids(found) == Counter(range(14))
    batches = [each.summary["alpacamq.batch"] for each in found.snapshots() if each.summary]
    assert batches == ["0", "1"]
    assert files_on_disk(found) == files_of(found)
    sql = "SELECT count(*) AS n, max(data.id) AS last FROM events"
    assert query_sink(pipeline, sql, spark=workshop.spark).data["rows"] == [{"n": 14, "last": 13}]


def run_to_the_end(workshop: Workshop, pipeline: Pipeline) -> None:
    # Before Spark 4.2 a run repeats only the batch that was cut off.
    for _ in range(1 if HAS_ADMISSION_CONTROL else 2):
        workshop.run(pipeline)


class Cut(Exception):
    """The driver ends here."""


def cut_off(workshop: Workshop, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    """Run a pipeline whose driver dies at a step of its next batch."""

    def cut() -> None:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(step.owner, step.function, ending_at(step, cut))
        with pytest.raises(PipelineFailed):
            workshop.run(pipeline)


UPSERT = """
kind = "archive"
schema = "id BIGINT, name STRING"

[source]
topics = ["{topic}"]
max_records = 40

[sink]
format = "iceberg"
table = "shop.latest"
mode = "upsert"
"""


def changes(random: Random, count: int, model: dict[str, str]) -> list[Sent]:
    """Return writes and deletions of random keys, and apply them to a model."""
    made = []
    for _ in range(count):
        number = random.randrange(30)
        key = f"k{number}"
        value = "" if random.random() < 0.25 else json.dumps({"id": random.randrange(10**6), "name": key})
        model.pop(key, None)
        if value:
            model[key] = value
        made.append(Sent(value=value, key=key, partition=number % 2))
    return made


def send_changes(workshop: Workshop, topic: str, records: list[Sent]) -> None:
    producer = Producer({"bootstrap.servers": workshop.broker.address})
    for record in records:
        producer.produce(topic, record.value or None, key=record.key, partition=record.partition)
    assert producer.flush(30) == 0


def state_of(found: Table) -> dict[str, str]:
    rows = found.scan().to_arrow().select(["key", "value"]).to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"].decode(): row["value"].decode() for row in rows}


def test_a_record_without_a_key_ends_an_upsert_and_is_named(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, [Sent(value="{}", key="a"), Sent(value="{}")])
    with pytest.raises(PipelineFailed, match=rf"key is null in a row \({topic}-0 at offset 1\)"):
        workshop.run(workshop.pipeline(UPSERT.format(topic=topic)))


TRANSFORM = """
kind = "transform"
sql = "{sql}"

[sources.orders]
topic = "{topic}"
schema = "id BIGINT, customer STRING, amount DOUBLE"

[sink]
format = "iceberg"
table = "shop.orders"
{sink}
"""


def test_a_query_keeps_a_table_by_key_and_tombstones_delete(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    sql = "SELECT _key AS id, customer, amount, _offset, _tombstone FROM orders"
    sink = 'mode = "upsert"\nkey = "id"\npartition_by = ["customer"]'
    pipeline = workshop.pipeline(TRANSFORM.format(topic=topic, sql=sql, sink=sink))
    amounts = [("1", "ann", 1.0), ("2", "bob", 2.0), ("3", "", 3.0), ("1", "bob", 4.0)]
    send_changes(
        workshop,
        topic,
        [Sent(value=json.dumps({"customer": who, "amount": what}), key=key) for key, who, what in amounts],
    )
    workshop.run(pipeline)
    send_changes(workshop, topic, [Sent(value="", key="2"), Sent(value='{"amount": 5}', key="4")])
    workshop.run(pipeline)
    rows = query_sink(pipeline, "SELECT * FROM orders ORDER BY id", spark=workshop.spark).data["rows"]
    assert rows == [
        {"id": "1", "customer": "bob", "amount": 4.0},
        {"id": "3", "customer": "", "amount": 3.0},
        {"id": "4", "customer": None, "amount": 5.0},
    ]


def test_rows_of_one_key_without_an_order_are_refused(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    sql = "SELECT _key AS id, amount FROM orders"
    pipeline = workshop.pipeline(TRANSFORM.format(topic=topic, sql=sql, sink='mode = "upsert"\nkey = "id"'))
    send(workshop.broker, topic, [Sent(value="{}", key="a"), Sent(value="{}", key="a")])
    with pytest.raises(PipelineFailed, match=r'several rows with the same id: \{"id":"a"\}; select _offset'):
        workshop.run(pipeline)


def test_new_columns_are_added_and_types_widen(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic)
    text = TRANSFORM.format(topic=topic, sql="SELECT CAST(id AS INT) id FROM orders", sink="")
    send(workshop.broker, topic, [Sent(value='{"id": 1}')])
    workshop.run(workshop.pipeline(text))
    send(workshop.broker, topic, [Sent(value='{"id": 5000000000, "amount": 2}')])
    told = RecordedProgress()
    later = workshop.pipeline(text.replace("CAST(id AS INT) id", "id, amount"))
    workshop.run(later, told)
    assert "added to table shop.orders: amount" in told.sentences
    rows = query_sink(later, "SELECT * FROM orders ORDER BY id", spark=workshop.spark).data["rows"]
    assert rows == [{"id": 1, "amount": None}, {"id": 5_000_000_000, "amount": 2.0}]
    assert table(workshop, "orders").scan().to_arrow().num_rows == 2
    # Without the column and with the narrow type again, rows are as the table wants them.
    send(workshop.broker, topic, [Sent(value='{"id": 3, "amount": 4}')])
    workshop.run(workshop.pipeline(text))
    rows = query_sink(later, "SELECT * FROM orders WHERE id = 3", spark=workshop.spark).data["rows"]
    assert rows == [{"id": 3, "amount": None}]
    assert sorted(table(workshop, "orders").scan().to_arrow().column("id").to_pylist())[:2] == [1, 3]
    with pytest.raises(ForeignTable, match=r"shop\.orders has other types.*string"):
        workshop.run(workshop.pipeline(text.replace("CAST(id AS INT) id", "CAST(id AS STRING) id")))


def test_rows_are_sorted_inside_files_and_the_table_says_so(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, [Sent(value=f'{{"id": {number % 7}}}') for number in range(40)])
    sink = 'sort_by = ["data.id desc", "offset"]\n'
    text = ARCHIVE.format(topic=topic, most=1000) + sink
    for _ in range(2):
        workshop.run(workshop.pipeline(text))
    found = table(workshop)
    order = found.sort_order()
    assert [found.schema().find_column_name(field.source_id) for field in order.fields] == [
        "data.id",
        "offset",
    ]
    assert [str(field.direction) for field in order.fields] == ["DESC", "ASC"]
    assert len(found.sort_orders()) == 2  # this one and that of the table when it was new
    [file] = files_of(found)
    rows = [(-row["data"]["id"], row["offset"]) for row in pyarrow.parquet.read_table(file).to_pylist()]
    assert len(rows) == 40
    assert rows == sorted(rows)


def test_old_snapshots_expire_and_files_that_nothing_needs_are_deleted(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    pipeline = workshop.pipeline(UPSERT.format(topic=topic) + 'keep_snapshots = "0s"\n')
    random, model = Random(5), dict[str, str]()
    for _ in range(3):
        send_changes(workshop, topic, changes(random, 20, model))
        workshop.run(pipeline)
    found = table(workshop, "latest")
    assert len(found.snapshots()) == 1
    assert state_of(found) == model
    assert files_on_disk(found) == files_of(found)
    # Metadata stays for some days: another writer may be about to commit it.
    opened = open_table(_place(workshop, "shop.latest"), "pipeline")
    before = set(Path(found.location(), "metadata").iterdir())
    assert opened.clean(timedelta(0), datetime.now(UTC) + timedelta(days=4)) == 0
    opened._delete_orphans(datetime.now(UTC) + timedelta(days=4))
    after = set(Path(found.location(), "metadata").iterdir())
    assert after < before
    assert state_of(table(workshop, "latest")) == model


def _place(workshop: Workshop, name: str) -> TablePlace:
    warehouse = workshop.directory / "warehouse"
    properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": str(warehouse)}
    return TablePlace(table=name, catalog="default", properties=properties)


def test_a_column_renamed_by_others_is_queried_under_its_new_name(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 4))
    pipeline = archive(workshop, topic)
    workshop.run(pipeline)
    with table(workshop).update_schema() as change:
        change.rename_column("offset", "place")
    rows = query_sink(pipeline, "SELECT count(*) AS n, sum(place) AS s FROM events", spark=workshop.spark)
    assert rows.data["rows"] == [{"n": 4, "s": 2}]


GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "pipelines.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def example_of_the_guide(title: str, extras: str, broker: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    """Follow a section of the guide in this directory, and compare what it prints."""
    section = GUIDE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    blocks = iter(BLOCK.findall(section))

    def following(language: str) -> str:
        code: str = next(code for found, code in blocks if found == language)
        return code

    install, file = following("sh"), following("toml")
    assert install == f"pip install '.[{extras}]'\n"
    write, run, query = following("sh").splitlines()
    Path(shlex.split(run)[-1]).write_text(file)
    write = write.replace("alpacactl", f"alpacactl --broker {broker.address}")
    subprocess.run(write, shell=True, check=True)  # noqa: S602 - our own page
    capfd.readouterr()
    for command in (run, query):
        arguments = shlex.split(command)[1:]
        capfd.readouterr()
        # In this process, which has a session.
        assert main(["--broker", broker.address, *arguments]) == 0
    assert capfd.readouterr().out == following("text")
    names: dict[str, Any] = {}
    for (language, code), (after, text) in pairwise(blocks):
        match language, after:
            case "py", "text":
                exec(code, names)  # noqa: S102 - our own page
                assert capfd.readouterr().out == text
            case "toml", "sh":
                Path(shlex.split(text)[-1]).write_text(code)
            case "sh", "text":
                assert main(["--broker", broker.address, *shlex.split(code)[1:]]) == 0
                assert capfd.readouterr().out == text
    assert {"duckdb", "polars"} <= names.keys()


@pytest.mark.parametrize(
    ("title", "extras"), [("Iceberg tables", "spark,tables"), ("Delta tables", "spark,delta")]
)
def test_the_examples_of_the_guide_print_what_the_guide_says(
    new_broker: NewBroker,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    title: str,
    extras: str,
) -> None:
    assert spark is SparkSession.getActiveSession()  # the commands use the session there is
    broker = new_broker()
    broker.start()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    example_of_the_guide(title, extras, broker, capfd)


def test_the_doctor_looks_at_the_table_and_its_catalog(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)

    def finding(pipeline: Pipeline) -> tuple[bool, str]:
        findings = examine_pipeline(pipeline, workshop.broker.address, start_spark=False)
        [found] = [each for each in findings if each.subject == "Table"]
        return found.is_well, found.detail + found.advice

    pipeline = archive(workshop, topic)
    assert finding(pipeline) == (True, "shop.events, which the first run creates")
    assert not (workshop.directory / "warehouse").exists()
    workshop.run(pipeline)
    assert finding(pipeline) == (True, "shop.events, with 9 columns")
    is_well, words = finding(archive(workshop, topic, more='[catalog]\ntype = "sql"\nuri = "nosuch://"\n'))
    assert not is_well
    assert "[catalog]: the catalog 'default' cannot be used" in words


def test_without_pyiceberg_one_sentence_says_how_to_install_it(
    workshop: Workshop, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, topic)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(
        InvalidPipeline, match=r"needs PyIceberg; install it with `pip install '\.\[tables\]'`"
    ):
        workshop.run(archive(workshop, topic))


def test_a_query_before_the_first_run_says_so(workshop: Workshop, topic: str) -> None:
    with pytest.raises(InvalidPipeline, match="the first run of the pipeline creates it"):
        query_sink(archive(workshop, topic), "SELECT 1", spark=workshop.spark)


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ('topic = "b"\nformat = "iceberg"\ntable = "a.b"', "needs either topic or path, or table"),
        ('format = "iceberg"\ntable = "a.b"\nmode = "upsert"', "mode = 'upsert' and key belong together"),
        ('format = "iceberg"\ntable = "a.b"\nkey = "id"', "mode = 'upsert' and key belong together"),
        (
            'format = "iceberg"\ntable = "a.b"\nmode = "update"\nkey = "id"',
            "mode = 'upsert' instead of 'update'",
        ),
        ('topic = "b"\nkey = ["a", "b"]', "a record has one key column"),
        ('topic = "b"\nmode = "upsert"', "mode = 'upsert' needs format = 'iceberg'"),
        ('topic = "b"\nmode = "update"', "only appended to a topic, so mode = 'update' is not possible"),
    ],
)
def test_sinks_of_queries_that_make_no_sense_are_refused(workshop: Workshop, sink: str, words: str) -> None:
    with pytest.raises(InvalidPipeline, match=words):
        workshop.pipeline(f'kind = "transform"\nsql = "SELECT 1"\n[sources.a]\n[sink]\n{sink}\n')
