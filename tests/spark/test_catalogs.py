"""Catalogs of Iceberg tables by real servers, and errors of those that cannot be used."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")

from alpacamq.client.kafka.cluster import Cluster
from alpacamq_spark.pipelines import Pipeline
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.errors import InvalidPipeline
from alpacamq_spark.pipelines.tables.iceberg import TablePlace, open_catalog

from . import catalog_servers
from .pipeline_files import Workshop, send
from .table_process import steps
from .test_pipeline_tables import cut_off, numbered, run_to_the_end
from .topics import make_topic

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
{catalog}
"""


@pytest.fixture(params=["postgresql", "glue", "hive", pytest.param("rest", marks=pytest.mark.heavy)])
def catalog(request: pytest.FixtureRequest, workshop: Workshop) -> Iterator[str]:
    """The table `[catalog]` of a pipeline's file, for a server of this test."""
    with getattr(catalog_servers, request.param)(workshop.directory) as settings:
        yield settings


def test_a_table_in_the_catalog_of_a_server_has_every_record_once(
    workshop: Workshop, cluster: Cluster, topic: str, catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(cluster, topic)
    pipeline = workshop.pipeline(ARCHIVE.format(topic=topic, catalog=catalog))
    send(workshop.broker, topic, numbered(0, 8))
    for name in ("before the commit", "after the commit"):
        cut_off(workshop, pipeline, monkeypatch, steps("iceberg")[name])
    send(workshop.broker, topic, numbered(8, 20))
    run_to_the_end(workshop, pipeline)
    found = query_sink(pipeline, "SELECT data.id AS id FROM events ORDER BY id", spark=workshop.spark)
    assert found.data["rows"] == [{"id": each} for each in range(20)]


def pipeline_with(workshop: Workshop, catalog: str) -> Pipeline:
    text = ARCHIVE.format(topic="orders", catalog=catalog)
    return workshop.pipeline(text)


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
