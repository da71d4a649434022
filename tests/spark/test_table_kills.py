"""Drivers and workers that are killed while they write a table: each record is in it once."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from alpacamq.client.kafka.cluster import Cluster
from tests.brokers import Broker

from .pipeline_files import Sent, send
from .table_process import STEPS, WORKER
from .topics import make_topic

PIPELINE = """
kind = "archive"
name = "{mode}"
checkpoint = "checkpoints/{mode}"

[source]
topics = ["{topic}"]
max_records = {most}

[sink]
format = "iceberg"
table = "shop.{mode}"
mode = "{mode}"

[spark]
master = "{master}"
[spark.settings]
"spark.sql.shuffle.partitions" = 2
"spark.driver.memory" = "600m"
"spark.executor.memory" = "600m"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"spark.executor.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""
RUN_S = 300
MODES = ("append", "upsert")


def run(directory: Path, mode: str, broker: Broker, step: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.spark.table_process",
            str(directory / f"{mode}.toml"),
            broker.address,
            step,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
        start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )


def write_pipelines(directory: Path, topic: str, master: str, most: int) -> None:
    for mode in MODES:
        text = PIPELINE.format(mode=mode, topic=topic, master=master, most=most)
        (directory / f"{mode}.toml").write_text(text)


def table(directory: Path, mode: str) -> Table:
    warehouse = directory / "warehouse"
    properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": str(warehouse)}
    return load_catalog("default", **properties).load_table(f"shop.{mode}")


def check(directory: Path, sent: list[Sent]) -> None:
    """Compare both tables with what was sent, and their files with those on disk."""
    expected = {
        "append": Counter((each.key, each.value) for each in sent),
        "upsert": Counter({each.key: each.value for each in sent}.items()),
    }
    for mode in MODES:
        found = table(directory, mode)
        rows = found.scan(selected_fields=("key", "value")).to_arrow().to_pylist()
        assert Counter((row["key"].decode(), row["value"].decode()) for row in rows) == expected[mode], mode
        needed = set(found.inspect.all_files().column("file_path").to_pylist())
        assert {str(path) for path in Path(found.location(), "data").rglob("*.parquet")} == needed, mode


def writes(random: Random, count: int) -> list[Sent]:
    return [
        Sent(
            value=json.dumps(random.random()),
            key=f"k{(number := random.randrange(40))}",
            partition=number % 2,
        )
        for _ in range(count)
    ]


@pytest.mark.heavy
def test_drivers_that_are_killed_at_any_step_write_every_record_once(
    broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic)
    write_pipelines(tmp_path, topic, "local[1]", 100)
    random, sent = Random(7), list[Sent]()
    for step in (*STEPS, "none"):
        more = writes(random, 60)
        send(broker, topic, more)
        sent += more
        for mode in MODES:
            ran = run(tmp_path, mode, broker, step)
            assert ran.returncode == (-9 if step in STEPS else 0), f"{mode}, {step}: {ran.stderr[-2000:]}"
    check(tmp_path, sent)


@pytest.mark.heavy
def test_workers_that_are_killed_while_they_write_write_every_record_once(
    broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic)
    write_pipelines(tmp_path, topic, "local-cluster[1,1,600]", 100_000)
    random, sent = Random(9), list[Sent]()
    for _ in range(2):
        more = writes(random, 30_000)
        send(broker, topic, more)
        sent += more
        for mode in MODES:
            ran = run(tmp_path, mode, broker, WORKER)
            assert ran.returncode == 0, f"{mode}: {ran.stdout} {ran.stderr[-2000:]}"
            assert "killed a worker" in ran.stdout, mode
    check(tmp_path, sent)
