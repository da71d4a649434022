"""Replays of tables: the records they were, once and in order per key, by time, key or SQL."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")
pytest.importorskip("deltalake", reason="needs the extra `delta`")

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from alpacamq.client.http.schemas import SchemaCodec
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import alter_topic
from alpacamq_spark.decoding.registry import RegistryAccess
from alpacamq_spark.pipelines import Pipeline
from alpacamq_spark.pipelines.errors import InvalidPipeline, PipelineFailed
from alpacamq_spark.pipelines.replay.pipeline import REPLAY_OFFSET, REPLAY_PARTITION, REPLAY_TOPIC
from alpacamq_spark.pipelines.run import Interruption

from .pipeline_files import NOON_MS, Sent, Workshop, send
from .registries import record, register, send_bytes
from .topics import deliveries, make_topic

ARCHIVE = """
kind = "archive"
[source]
topics = ["{topic}"]
max_records = 10
[sink]
{sink}
"""
SINKS = {
    "iceberg": 'format = "iceberg"\ntable = "shop.events"',
    "delta": 'format = "delta"\npath = "lake/events"',
}
SOURCES = {"iceberg": 'table = "shop.events"', "delta": 'delta = "lake/events"'}
FORMS = pytest.mark.parametrize("form", list(SINKS))
REPLAY = """
kind = "replay"
batch = {batch}
checkpoint = "checkpoints/{name}"

[source]
{table}
{source}

[sink]
topic = "{topic}-again"
{sink}
"""
ORIGINAL = 'timestamp = "original"\npartition = "original"'


def replay(
    workshop: Workshop,
    topic: str,
    source: str = "",
    *,
    sink: str = "",
    table: str = SOURCES["iceberg"],
    batch: int = 1000,
    name: str = "replay",
) -> Pipeline:
    text = REPLAY.format(topic=topic, source=source, sink=sink, table=table, batch=batch, name=name)
    return workshop.pipeline(text, f"{name}.toml")


def archive(workshop: Workshop, topic: str, form: str) -> None:
    workshop.run(workshop.pipeline(ARCHIVE.format(topic=topic, sink=SINKS[form]), "archive.toml"))


def fill(workshop: Workshop, cluster: Cluster, topic: str, form: str = "iceberg") -> None:
    """Archive thirty records of five keys, and have a topic for their replay."""
    make_topic(cluster, topic)
    make_topic(cluster, f"{topic}-again")
    records = [
        Sent(
            value=json.dumps({"n": number}),
            key=f"k{number % 5}",
            partition=number % 5 % 2,
            timestamp_ms=NOON_MS + number,
            headers={"h": f"{number}"},
        )
        for number in range(30)
    ]
    send(workshop.broker, topic, records)
    archive(workshop, topic, form)


def cut_off(workshop: Workshop, pipeline: Pipeline) -> None:
    """Run as if it had died after writing a batch and before recording that."""
    interruption = Interruption()
    interruption.request()
    assert workshop.run(pipeline, interruption=interruption).is_stopped
    (Path(pipeline.checkpoint_place) / "replay-progress.json").unlink()


def replayed(cluster: Cluster, topic: str) -> dict[str, list[int]]:
    """Return the numbers of the records by key, in their order."""
    found: dict[str, list[int]] = {}
    for each in deliveries(cluster, f"{topic}-again"):
        number = json.loads(each.record.value or b"")["n"]
        found.setdefault((each.record.key or b"").decode(), []).append(number)
    return found


def by_key(numbers: Iterable[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number in numbers:
        found.setdefault(f"k{number % 5}", []).append(number)
    return found


@FORMS
def test_an_archived_table_is_replayed_as_it_was_wherever_the_replay_is_cut_off(
    workshop: Workshop, cluster: Cluster, topic: str, form: str
) -> None:
    fill(workshop, cluster, topic, form)
    pipeline = replay(workshop, topic, sink=ORIGINAL, batch=11, table=SOURCES[form])
    cut_off(workshop, pipeline)
    # The table goes on meanwhile.
    send(workshop.broker, topic, [Sent(value=json.dumps({"n": 30}), key="k0")])
    archive(workshop, topic, form)
    assert workshop.run(pipeline).report.data["rows_in_all"] == 30
    assert replayed(cluster, topic) == by_key(range(30))
    originals = {
        (each.partition.partition, each.record.key, each.record.value, each.record.timestamp_ms)
        for each in deliveries(cluster, topic)
    }
    for each in deliveries(cluster, f"{topic}-again"):
        copy = each.record
        assert (each.partition.partition, copy.key, copy.value, copy.timestamp_ms) in originals
        headers = {header.key: header.value for header in copy.headers}
        assert headers["h"] == str(json.loads(copy.value or b"")["n"]).encode()
        assert headers[REPLAY_TOPIC] == topic.encode()
        assert headers[REPLAY_PARTITION] == str(each.partition.partition).encode()
        assert REPLAY_OFFSET in headers


SQL = """
sql = '''
SELECT key, value, timestamp, offset FROM events WHERE get_json_object(CAST(value AS STRING), '$.n') >= 20
'''
"""
# Rows without a column `value` are written as JSON.
SQL_AS_JSON = """
sql = '''
SELECT CAST(key AS STRING) AS _key, CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT) AS n
FROM events
'''
order = ["n"]
"""


@FORMS
def test_time_keys_and_sql_choose_from_a_table(
    workshop: Workshop, cluster: Cluster, topic: str, form: str
) -> None:
    fill(workshop, cluster, topic, form)
    begin, end = "2026-01-31T12:00:00.010Z", "2026-01-31T12:00:00.020Z"
    chosen: list[tuple[str, list[int]]] = [
        (f'from = "{begin}"\nto = "{end}"', list(range(10, 20))),
        ('keys = ["k1", "k3"]', [number for number in range(30) if number % 5 in (1, 3)]),
        (SQL, list(range(20, 30))),
        (SQL_AS_JSON, list(range(30))),
    ]
    so_far: dict[str, list[int]] = {}
    for number, (source, numbers) in enumerate(chosen):
        pipeline = replay(workshop, topic, source, batch=4, name=f"replay-{number}", table=SOURCES[form])
        cut_off(workshop, pipeline)
        assert workshop.run(pipeline).report.data["rows_in_all"] == len(numbers)
        for key, those in by_key(numbers).items():
            so_far.setdefault(key, []).extend(those)
        assert replayed(cluster, topic) == so_far, source


def test_the_rows_of_a_query_are_replayed_as_values_of_the_registry(
    workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    fill(workshop, cluster, topic)
    url = f"http://{workshop.broker.http_address}/schemas"
    register(url, f"{topic}-again-value", record("N", n="int", state=("string", "again")))
    sink = 'encode = "registry"\nencode_key = "registry"'
    values = {"source": SQL_AS_JSON, "sink": sink, "table": SOURCES["iceberg"], "batch": 7, "name": "typed"}
    pipeline = workshop.pipeline(f'registry = "{url}"\n' + REPLAY.format(topic=topic, **values))
    cut_off(workshop, pipeline)
    assert workshop.run(pipeline).report.data["rows_in_all"] == 30
    codec = SchemaCodec(RegistryAccess(url=url).client())
    found: dict[object, list[object]] = {}
    for each in deliveries(cluster, f"{topic}-again"):
        key, value = (codec.decode(data or b"") for data in (each.record.key, each.record.value))
        found.setdefault(key, []).append(value)
    rows = by_key(range(30)).items()
    assert found == {key: [{"n": n, "state": "again"} for n in those] for key, those in rows}


def test_the_table_of_a_topic_is_replayed(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    url = f"http://{workshop.broker.http_address}/schemas"
    make_topic(cluster, topic, partitions=1, table_enable="true", table_name="shop.typed")
    make_topic(cluster, f"{topic}-again", partitions=1)
    number = register(url, f"{topic}-value", record("N", n=["null", "long"]))
    send_bytes(workshop.broker, topic, [number.avro({"n": 1}), b"raw", None, number.avro({"n": 2})], key=b"k")
    tables = f'kind = "tables"\ntrigger = "available-now"\nregistry = "{url}"\n'
    workshop.run(workshop.pipeline(tables, "tables.toml"))
    alter_topic(cluster, topic, put={}, drop=["table.enable"])
    workshop.run(replay(workshop, topic, table='table = "shop.typed"'))
    found = [each.record.value for each in deliveries(cluster, f"{topic}-again")]
    assert found == [b'{"n":1}', b"raw", None, b'{"n":2}']


def expire_iceberg(workshop: Workshop, _: str) -> None:
    warehouse = workshop.directory / "warehouse"
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{warehouse}/catalog.db")
    table = catalog.load_table("shop.events")
    latest = table.current_snapshot()
    assert latest is not None
    older = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != latest.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(older).commit()


def expire_delta(workshop: Workshop, _: str) -> None:
    """As after its retention: the log begins with a checkpoint of the last version."""
    place = workshop.directory / "lake" / "events"
    DeltaTable(place).create_checkpoint()
    for entry in (place / "_delta_log").glob("*.json"):
        entry.unlink()


def replace_delta(workshop: Workshop, topic: str) -> None:
    """Another table at the same place has the same versions."""
    shutil.rmtree(workshop.directory / "lake")
    shutil.rmtree(workshop.directory / ".checkpoints")
    archive(workshop, topic, "delta")


def delete_delta_files(workshop: Workshop, _: str) -> None:
    """As a vacuum without retention does: files that the last version does not have are gone."""
    place = workshop.directory / "lake" / "events"
    table = DeltaTable(place)
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.parametrize(
    ("form", "expire"),
    [
        ("iceberg", expire_iceberg),
        ("delta", expire_delta),
        ("delta", replace_delta),
        ("delta", delete_delta_files),
    ],
)
def test_a_replay_ends_if_its_snapshot_has_expired(
    workshop: Workshop, cluster: Cluster, topic: str, form: str, expire: Callable[[Workshop, str], None]
) -> None:
    fill(workshop, cluster, topic, form)
    pipeline = replay(workshop, topic, batch=10, table=SOURCES[form])
    cut_off(workshop, pipeline)
    send(workshop.broker, topic, [Sent(value=json.dumps({"n": 30}), key="k0")])
    archive(workshop, topic, form)
    expire(workshop, topic)
    with pytest.raises(PipelineFailed, match=r"no longer has the snapshot \d+.*, which the replay"):
        workshop.run(pipeline)


@pytest.mark.parametrize(
    ("source", "sink", "words"),
    [
        ('archive = "a"', "", "archive and table exclude each other"),
        ('delta = "a"', "", "table and delta exclude each other"),
        ("storage_options = { AWS_REGION = 'x' }", "", r"storage_options needs source\.delta"),
        ('sql = "SELECT 1"\nkeys = ["a"]', "", "from, to, keys and topics exclude sql"),
        ('order = ["n"]', "", "order is for sql"),
        ('sql = "SELECT 1"', ORIGINAL, r"exclude source\.sql"),
    ],
)
def test_sources_that_make_no_sense_are_refused(
    workshop: Workshop, topic: str, source: str, sink: str, words: str
) -> None:
    with pytest.raises(InvalidPipeline, match=words):
        replay(workshop, topic, source, sink=sink)


def test_queries_that_make_no_sense_are_refused(workshop: Workshop, cluster: Cluster, topic: str) -> None:
    fill(workshop, cluster, topic)
    for name, source, words in (
        ("a", "sql = 'SELECT key, value FROM events'", r"source\.order: name the columns"),
        ("b", "sql = 'SELECT nothing FROM events'", r"source\.sql: "),
        ("c", "sql = 'SELECT key, value FROM events'\norder = ['n']", "no column 'n', only key, value"),
    ):
        with pytest.raises(InvalidPipeline, match=words):
            workshop.run(replay(workshop, topic, source, name=name))
