"""Catalogs of Iceberg tables: PostgreSQL, by a real server; and errors of those that cannot be used."""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier

import pytest

from tests.ports import lasting_address

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")

from pyiceberg.catalog import load_catalog

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines import Pipeline
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.errors import InvalidPipeline
from alpacamq_spark.pipelines.tables.iceberg import TablePlace, open_catalog

from .pipeline_files import Workshop, send
from .table_process import steps
from .test_pipeline_tables import cut_off, ids, numbered, run_to_the_end
from .topics import make_topic

# Drivers of SQLAlchemy for PostgreSQL, by the module that each needs.
DRIVERS = ("psycopg2", "psycopg", "pg8000")
ARCHIVE = """
kind = "archive"
schema = "id BIGINT, name STRING"

[source]
topics = ["{topic}"]
max_records = 8

[sink]
format = "iceberg"
table = "shop.events"

[catalog]
type = "sql"
uri = "{uri}"
warehouse = "lake"
"""


@pytest.fixture
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL server of this test, for SQLAlchemy."""
    driver = next((each for each in DRIVERS if find_spec(each)), None)
    if driver is None:
        pytest.skip(f"needs a driver for PostgreSQL: {', '.join(DRIVERS)}")
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl")
    # Not below pytest's own directories, which only their owner may enter: the server refuses to run as root.
    with TemporaryDirectory(prefix="postgresql-") as directory:
        yield from served(Path(directory), driver)


def served(directory: Path, driver: str) -> Iterator[str]:
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if user:
        shutil.chown(directory, "postgres")
    address, data = lasting_address(), directory / "data"
    port = address.rpartition(":")[2]
    options = f"-p {port} -k {directory} -c listen_addresses=127.0.0.1"
    pg_ctl = [*user, "pg_ctl", "-D", str(data), "-w", "-l", str(directory / "log")]
    initialise = [*user, "initdb", "-D", str(data), "-A", "trust", "-U", "lake"]
    subprocess.run(initialise, check=True, capture_output=True, cwd=directory)
    subprocess.run([*pg_ctl, "-o", options, "start"], check=True, stdout=subprocess.DEVNULL, cwd=directory)
    try:
        yield f"postgresql+{driver}://lake:secret@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*pg_ctl, "-m", "immediate", "stop"], check=True, capture_output=True, cwd=directory)


def test_a_table_in_a_catalog_in_postgresql_has_every_record_once(
    workshop: Workshop, cluster: Cluster, topic: str, postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, topic)
    pipeline = workshop.pipeline(ARCHIVE.format(topic=topic, uri=postgresql))
    send(workshop.broker, topic, numbered(0, 8))
    for name in ("before the commit", "after the commit"):
        cut_off(workshop, pipeline, monkeypatch, steps("iceberg")[name])
    send(workshop.broker, topic, numbered(8, 20))
    run_to_the_end(workshop, pipeline)
    warehouse = str(workshop.directory / "lake")
    catalog = load_catalog("default", type="sql", uri=postgresql, warehouse=warehouse)
    assert ids(catalog.load_table("shop.events")) == Counter(range(20))
    counted = query_sink(pipeline, "SELECT count(*) AS n FROM events", spark=workshop.spark)
    assert counted.data["rows"] == [{"n": 20}]


def pipeline_with(workshop: Workshop, catalog: str) -> Pipeline:
    text = ARCHIVE.partition("[catalog]")[0].format(topic="orders")
    return workshop.pipeline(f"{text}[catalog]\n{catalog}\n")


@pytest.mark.parametrize(
    ("kind", "uri", "words"),
    [
        ("rest", "http://127.0.0.1:1", "Connection refused"),
        ("rest", "", "URI missing"),
        ("sql", "postgresql+pg8000://lake:secret@127.0.0.1:1/x", r"127\.0\.0\.1|pip install"),
        ("sql", "postgresql+none://lake:secret@127.0.0.1:1/x", r"postgresql\.none"),
    ],
    ids=["no REST catalog", "REST without an address", "no PostgreSQL", "no such driver"],
)
def test_a_catalog_that_cannot_be_used_is_named_with_the_reason_and_without_its_password(
    kind: str, uri: str, words: str
) -> None:
    properties = {"type": kind, "uri": uri} if uri else {"type": kind}
    expected = rf"\[catalog\]: the catalog 'lake' cannot be used: .*({words})"
    with pytest.raises(InvalidPipeline, match=expected) as found:
        open_catalog(TablePlace(table="shop.events", catalog="lake", properties=properties))
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("catalog", "words"),
    [
        ('type = "postgresql"', "catalog.type = 'postgresql' is not one of sql, rest, glue, hive"),
        ('url = "x"', r"unknown key catalog\.url; did you mean uri\?"),
    ],
)
def test_settings_of_a_catalog_that_make_no_sense_are_refused(
    workshop: Workshop, catalog: str, words: str
) -> None:
    with pytest.raises(InvalidPipeline, match=words):
        pipeline_with(workshop, catalog)


def test_a_new_catalog_may_be_loaded_by_several_at_once(tmp_path: Path) -> None:
    for number in range(10):
        properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/{number}.db", "warehouse": str(tmp_path)}
        place = TablePlace(table="shop.events", catalog="default", properties=properties)
        together = Barrier(4)

        def load(place: TablePlace = place, together: Barrier = together) -> list[str]:
            together.wait()
            return [str(each) for each in open_catalog(place, create=True).list_namespaces()]

        with ThreadPoolExecutor(4) as threads:
            assert [each.result() for each in [threads.submit(load) for _ in range(4)]] == [[]] * 4
