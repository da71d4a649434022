"""Drivers and workers that are killed while they write a table: each record is in it once."""

import contextlib
import json
import os
import signal
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
from tests.brokers import Broker, Output, lasting_address
from tests.conftest import NewBroker

from .pipeline_files import Sent, send
from .table_process import WORKER, steps
from .test_kills import TOPIC, Traffic, make_topics
from .topics import make_topic

PIPELINE = """
kind = "archive"
name = "{mode}"
trigger = "{trigger}"
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
KILLS = 20
MODES = ("append", "upsert")


def run(directory: Path, mode: str, broker: Broker, step: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(directory, mode, broker, step),
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
        start_new_session=True,
    )


def command(directory: Path, mode: str, broker: Broker, step: str) -> list[str]:
    file = str(directory / f"{mode}.toml")
    return [sys.executable, "-m", "tests.spark.table_process", "iceberg", file, broker.address, step]


def write_pipelines(
    directory: Path, topic: str, master: str, most: int, trigger: str = "available-now"
) -> None:
    for mode in MODES:
        text = PIPELINE.format(mode=mode, topic=topic, master=master, most=most, trigger=trigger)
        (directory / f"{mode}.toml").write_text(text)


def table(directory: Path, mode: str) -> Table:
    warehouse = directory / "warehouse"
    properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": str(warehouse)}
    return load_catalog("default", **properties).load_table(f"shop.{mode}")


def check(directory: Path, sent: list[tuple[str, str]]) -> None:
    """Compare both tables with the keys and values sent, and their files with those on disk."""
    expected = {"append": Counter(sent), "upsert": Counter(dict(sent).items())}
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
    random, sent = Random(7), list[tuple[str, str]]()
    for step in (*steps("iceberg"), "none"):
        more = writes(random, 60)
        send(broker, topic, more)
        sent += [(each.key or "", each.value) for each in more]
        for mode in MODES:
            ran = run(tmp_path, mode, broker, step)
            assert ran.returncode == (-9 if step in steps("iceberg") else 0), (
                f"{mode}, {step}: {ran.stderr[-2000:]}"
            )
    check(tmp_path, sent)


@pytest.mark.heavy
def test_workers_that_are_killed_while_they_write_write_every_record_once(
    broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic)
    write_pipelines(tmp_path, topic, "local-cluster[1,1,600]", 100_000)
    random, sent = Random(9), list[tuple[str, str]]()
    for _ in range(2):
        more = writes(random, 30_000)
        send(broker, topic, more)
        sent += [(each.key or "", each.value) for each in more]
        for mode in MODES:
            ran = run(tmp_path, mode, broker, WORKER)
            assert ran.returncode == 0, f"{mode}: {ran.stdout} {ran.stderr[-2000:]}"
            assert "killed a worker" in ran.stdout, mode
    check(tmp_path, sent)


class Driver:
    """A driver that runs until it is killed."""

    def __init__(self, directory: Path, mode: str, broker: Broker) -> None:
        self._process = subprocess.Popen(
            command(directory, mode, broker, "none"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.output = Output(self._process.stdout)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


@pytest.mark.heavy
def test_random_kills_of_drivers_and_broker_lose_and_duplicate_nothing(
    new_broker: NewBroker, tmp_path: Path
) -> None:
    random = Random()
    seed = random.randrange(2**32)
    random.seed(seed)
    print(f"seed {seed}")
    broker = new_broker(kafka=lasting_address(random))
    broker.start()
    make_topics(broker)
    write_pipelines(tmp_path, TOPIC, "local[1]", 2000, trigger="100ms")
    drivers: dict[str, Driver] = {}
    try:
        with Traffic(broker) as traffic:
            for kill in range(KILLS):
                for mode in MODES:
                    if mode not in drivers or not drivers[mode].is_running:
                        drivers[mode] = Driver(tmp_path, mode, broker)
                victims = random.choice((MODES[:1], MODES[1:], MODES, ("broker",)))
                waiting = drivers[victims[0]] if victims[0] in drivers else drivers[random.choice(MODES)]
                # After its first batch, or somewhere before or in it.
                if random.random() < 0.7:
                    waiting.output.has("^batch", within_s=RUN_S)
                waiting.output.has("^never", within_s=random.uniform(0, 3))
                print(f"kill {kill}: {victims}")
                for victim in victims:
                    if victim in drivers:
                        drivers[victim].kill()
                    else:
                        broker.kill()
                        broker.start()
    finally:
        for driver in drivers.values():
            driver.kill()
    write_pipelines(tmp_path, TOPIC, "local[2]", 100_000)
    for mode in MODES:
        ran = run(tmp_path, mode, broker, "none")
        assert ran.returncode == 0, f"{mode}: {ran.stdout} {ran.stderr[-2000:]}"
    check(tmp_path, [(f"{number % 50}", f"{number:09}") for number in range(traffic.sent)])
    print(f"{traffic.sent} records")
