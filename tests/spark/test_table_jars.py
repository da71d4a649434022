"""Spark with the jars of Iceberg and Delta reads the tables of pipelines, and writes the same ones.

The jars are behind PySpark, so this has an environment of its own in the cache of the benchmarks.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")
pytest.importorskip("deltalake", reason="needs the extra `delta`")

from benchmarks.jars import CACHE, Unavailable, resolve

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.errors import ForeignTable
from alpacamq_spark.session import find_java

from . import test_delta_tables as delta
from . import test_pipeline_tables as iceberg
from .environments import INSTALL_S, python_with
from .pipeline_files import Sent, Workshop, send
from .test_pipeline_tables import numbered, send_changes
from .topics import make_topic

SPARK = "4.1"
JARS = (
    ("io.delta", f"delta-spark_{SPARK}_2.13", "4.4.0"),
    ("org.apache.iceberg", f"iceberg-spark-runtime-{SPARK}_2.13", "1.12.0"),
    ("org.xerial", "sqlite-jdbc", "3.50.3.0"),
)
COMPACT = '[[steps]]\ndo = "compact"\n'
HOME = CACHE / f"spark-{SPARK}-tables"


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python of an environment with PySpark of an earlier version, and get the jars."""
    try:
        for group, artifact, version in JARS:
            if not (place := HOME / "jars" / f"{artifact}-{version}").exists():
                resolve(place, group, artifact, version)
    except Unavailable as reason:
        pytest.skip(str(reason))
    return python_with(HOME.name, f"pyspark=={SPARK}.*")


@pytest.mark.heavy
def test_spark_with_the_jars_reads_the_tables_and_writes_them_as_well(
    python: Path, workshop: Workshop, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(workshop.broker, topic, numbered(0, 20))
    orders, changed = f"{topic}-orders", f"{topic}-changed"
    make_topic(cluster, orders)
    make_topic(cluster, changed)
    sql = "SELECT _key AS id, customer, amount, _offset, _tombstone FROM orders"
    prices = delta.TRANSFORM.format(topic=orders, sql=sql, sink='mode = "upsert"\nkey = "id"')
    values = [("1", "ann", 1.0), ("2", "bob", 2.0), ("3", "cid", 3.0)]
    send_changes(
        workshop,
        orders,
        [Sent(value=json.dumps({"customer": who, "amount": what}), key=key) for key, who, what in values],
    )
    send_changes(workshop, changed, [Sent(value=f'{{"id": {n}}}', key=f"k{n % 3}") for n in range(9)])
    for text, read in (
        (iceberg.ARCHIVE.format(topic=topic, most=9), "ie"),
        (iceberg.UPSERT.format(topic=changed), "iu"),
        (delta.ARCHIVE.format(topic=topic, most=9), "events"),
        (prices, "prices"),
    ):
        pipeline = workshop.pipeline(text, f"{read}.toml")
        workshop.run(pipeline)
    lake = workshop.directory / "lake"
    ran = subprocess.run(
        [
            *(str(python), str(Path(__file__).with_name("jar_process.py")), str(HOME / "jars")),
            *(str(workshop.directory / "warehouse"), str(lake / "orders"), str(lake / "events")),
        ],
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")},
            "JAVA_HOME": str(find_java().home),
        },
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    events, latest, written, copied = (json.loads(line) for line in ran.stdout.splitlines())
    assert [len(events), len(copied)] == [20, 20]
    assert events == copied
    assert {row[0]: json.loads(row[1])["id"] for row in latest} == {"k0": 6, "k1": 7, "k2": 8}
    assert written == [[key, who, str(what)] for key, who, what in values]
    # The pipeline goes on with what Spark has written.
    send_changes(workshop, orders, [Sent(value="", key="2"), Sent(value='{"amount": 8}', key="3")])
    workshop.run(pipeline)
    rows = query_sink(pipeline, "SELECT * FROM orders ORDER BY id", spark=workshop.spark).data["rows"]
    assert rows == [
        {"id": "1", "customer": "ann", "amount": 2.0},
        {"id": "3", "customer": None, "amount": 8.0},
        {"id": "9", "customer": "eve", "amount": 9.0},
    ]
    # Rows that are marked as deleted are left out, and the archive goes on.
    send(workshop.broker, topic, numbered(20, 23))
    archive = workshop.pipeline(delta.ARCHIVE.format(topic=topic, most=9), "events.toml")
    workshop.run(archive)
    sql = "SELECT count(*) AS n, min(data.id) AS first FROM events"
    assert query_sink(archive, sql, spark=workshop.spark).data["rows"] == [{"n": 19, "first": 4}]
    with pytest.raises(ForeignTable, match="has rows deleted by another engine"):
        workshop.run(workshop.pipeline(delta.ARCHIVE.format(topic=topic, most=9) + COMPACT, "events.toml"))
