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

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute
import pytest

from tests.ports import lasting_address

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")
pytest.importorskip("deltalake", reason="needs the extra `delta`")

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from alpacamq.client.kafka.cluster import Cluster
from tests.brokers import Broker, Output
from tests.conftest import NewBroker

from .pipeline_files import Sent, send
from .table_process import WORKER, steps
from .test_kills import KEYS, TOPIC, Traffic, make_topics
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
{sink}
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
SINKS = {
    "iceberg": 'format = "iceberg"\ntable = "shop.{mode}"',
    "delta": 'format = "delta"\npath = "lake/{mode}"',
}
RUN_S = 300
DRAIN_S = 3600
KILLS = 20
# Written before the first kill; some thousand more come meanwhile.
ROWS = int(os.environ.get("ROWS", "50000"))
MODES = ("append", "upsert")
EXECUTOR = "CoarseGrainedExecutorBackend"

each_format = pytest.mark.parametrize("form", SINKS)


def run(
    form: str, directory: Path, mode: str, broker: Broker, step: str, within_s: float = RUN_S
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(form, directory, mode, broker, step),
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
        start_new_session=True,
    )


def command(form: str, directory: Path, mode: str, broker: Broker, step: str) -> list[str]:
    file = str(directory / f"{mode}.toml")
    return [sys.executable, "-m", "tests.spark.table_process", form, file, broker.address, step]


def write_pipelines(
    form: str, directory: Path, topic: str, master: str, most: int, trigger: str = "available-now"
) -> None:
    for mode in MODES:
        text = PIPELINE.format(
            mode=mode,
            topic=topic,
            master=master,
            most=most,
            trigger=trigger,
            sink=SINKS[form].format(mode=mode),
        )
        (directory / f"{mode}.toml").write_text(text)


def read(form: str, directory: Path, mode: str) -> pa.Table:
    """Read keys and values; fail unless the files on disk are those that the table needs."""
    columns = ("key", "value")
    if form == "iceberg":
        warehouse = directory / "warehouse"
        properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": str(warehouse)}
        found = load_catalog("default", **properties).load_table(f"shop.{mode}")
        needed = set(found.inspect.all_files().column("file_path").to_pylist())
        place, rows = Path(found.location()), found.scan(selected_fields=columns).to_arrow()
    else:
        place = directory / "lake" / mode
        delta = DeltaTable(place)
        removed = delta.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
        needed = {*delta.file_uris(), *(str(place / path) for path in removed)}
        rows = delta.to_pyarrow_table(columns=list(columns))
    assert {str(path) for path in (place / "data").rglob("*.parquet")} == needed, mode
    return rows


def check(form: str, directory: Path, sent: list[tuple[str, str]]) -> None:
    """Compare both tables with the keys and values sent."""
    expected = {"append": Counter(sent), "upsert": Counter(dict(sent).items())}
    for mode in MODES:
        rows = read(form, directory, mode).to_pylist()
        assert Counter((row["key"].decode(), row["value"].decode()) for row in rows) == expected[mode], mode


def check_numbers(form: str, directory: Path, count: int) -> None:
    """Compare both tables with the numbers that `Traffic` has sent."""
    last = {number % KEYS: number for number in range(max(0, count - KEYS), count)}
    expected = {"append": np.arange(count), "upsert": np.array(sorted(last.values()))}
    for mode in MODES:
        rows = read(form, directory, mode)
        keys, numbers = (
            pa.compute.cast(pa.compute.cast(rows.column(name), pa.string()), pa.int64()).to_numpy()
            for name in ("key", "value")
        )
        assert np.array_equal(np.sort(numbers), expected[mode]), mode
        assert np.array_equal(numbers % KEYS, keys), mode


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
@each_format
def test_drivers_that_are_killed_at_any_step_write_every_record_once(
    form: str, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic)
    write_pipelines(form, tmp_path, topic, "local[1]", 100)
    random, sent = Random(7), list[tuple[str, str]]()
    for step in (*steps(form), "none"):
        more = writes(random, 60)
        send(broker, topic, more)
        sent += [(each.key or "", each.value) for each in more]
        for mode in MODES:
            ran = run(form, tmp_path, mode, broker, step)
            assert ran.returncode == (-9 if step in steps(form) else 0), (
                f"{mode}, {step}: {ran.stderr[-2000:]}"
            )
    check(form, tmp_path, sent)


@pytest.mark.heavy
@each_format
def test_workers_that_are_killed_while_they_write_write_every_record_once(
    form: str, broker: Broker, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    make_topic(cluster, topic)
    write_pipelines(form, tmp_path, topic, "local-cluster[1,1,600]", 100_000)
    random, sent = Random(9), list[tuple[str, str]]()
    for _ in range(2):
        more = writes(random, 30_000)
        send(broker, topic, more)
        sent += [(each.key or "", each.value) for each in more]
        for mode in MODES:
            ran = run(form, tmp_path, mode, broker, WORKER)
            assert ran.returncode == 0, f"{mode}: {ran.stdout} {ran.stderr[-2000:]}"
            assert "killed a worker" in ran.stdout, mode
    check(form, tmp_path, sent)


class Driver:
    """A driver that runs until it is killed."""

    def __init__(self, form: str, directory: Path, mode: str, broker: Broker) -> None:
        self._process = subprocess.Popen(
            command(form, directory, mode, broker, "none"),
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

    def kill_worker(self) -> bool:
        """Kill its executor; return whether it has had one."""
        for child in psutil.Process(self._process.pid).children(recursive=True):
            # Others may end meanwhile.
            with contextlib.suppress(psutil.Error):
                if any(EXECUTOR in word for word in child.cmdline()):
                    child.kill()
                    return True
        return False


@pytest.mark.heavy
@each_format
def test_random_kills_of_drivers_workers_and_broker_lose_and_duplicate_nothing(
    form: str, new_broker: NewBroker, tmp_path: Path
) -> None:
    random = Random()
    seed = random.randrange(2**32)
    random.seed(seed)
    print(f"seed {seed}")
    broker = new_broker(kafka=lasting_address())
    broker.start()
    make_topics(broker)
    write_pipelines(form, tmp_path, TOPIC, "local-cluster[1,1,600]", max(2000, ROWS // 30), trigger="100ms")
    drivers: dict[str, Driver] = {}
    killed = Counter[str]()
    try:
        with Traffic(broker, ROWS) as traffic:
            while killed.total() < KILLS:
                for mode in MODES:
                    if mode not in drivers or not drivers[mode].is_running:
                        drivers[mode] = Driver(form, tmp_path, mode, broker)
                waiting = drivers[random.choice(MODES)]
                victim = random.choice(("driver", "driver", "both drivers", "worker", "worker", "broker"))
                # After its first batch, or somewhere before or in it; before, it has no worker.
                if victim == "worker" or random.random() < 0.7:
                    waiting.output.has("^batch", within_s=RUN_S)
                waiting.output.has("^never", within_s=random.uniform(0, 3))
                if victim == "worker" and not (waiting.is_running and waiting.kill_worker()):
                    continue
                killed[victim] += 1
                match victim:
                    case "driver":
                        waiting.kill()
                    case "both drivers":
                        for driver in drivers.values():
                            driver.kill()
                    case "broker":
                        broker.kill()
                        broker.start()
    finally:
        for driver in drivers.values():
            driver.kill()
    write_pipelines(form, tmp_path, TOPIC, "local[2]", max(100_000, ROWS // 20))
    for mode in MODES:
        ran = run(form, tmp_path, mode, broker, "none", DRAIN_S)
        assert ran.returncode == 0, f"{mode}: {ran.stdout} {ran.stderr[-2000:]}"
    check_numbers(form, tmp_path, traffic.sent)
    print(f"{form}: {traffic.sent} records, killed {dict(killed)}")
