"""Tables that are kept in step with topics, by the settings of the topics."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import httpx
import pytest

pytest.importorskip("pyiceberg", reason="needs the extra `tables`")

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from alpacamq.cli.main import main
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.topics import alter_topic, create_topic, delete_topic
from alpacamq_spark.pipelines import Pipeline
from alpacamq_spark.pipelines.archive.queries import query_sink
from alpacamq_spark.pipelines.errors import PipelineFailed
from alpacamq_spark.pipelines.run import Interruption, RunResult
from alpacamq_spark.pipelines.tables.iceberg import TablePlace, open_catalog
from tests.brokers import Broker
from tests.cli.command import InProcess
from tests.conftest import NewBroker
from tests.waiting import eventually

from .driving import HAS_ADMISSION_CONTROL
from .pipeline_files import RecordedProgress, Sent, Workshop, send
from .registries import record, register, send_bytes
from .topics import make_topic

TABLES = """
kind = "tables"
name = "{name}"
registry = "{registry}"
namespace = "lake"
trigger = "{trigger}"
"""
# A start of Spark's query and a batch, on a busy machine.
PATIENCE_S = 240


class Lake:
    """A runner's file, its warehouse, and the topics of a test."""

    def __init__(self, workshop: Workshop, name: str) -> None:
        self.workshop = workshop
        self.name = name
        self.command = InProcess(workshop.broker.address, workshop.broker.http_address)

    def pipeline(self, trigger: str = "available-now", more: str = "") -> Pipeline:
        registry = f"http://{self.workshop.broker.http_address}/schemas"
        text = TABLES.format(name=self.name, registry=registry, trigger=trigger)
        return self.workshop.pipeline(text + more, "tables.toml")

    def run_once(self) -> RunResult:
        return self.workshop.run(self.pipeline())

    def enable(self, *arguments: str) -> None:
        self.command.ok("pipeline", "tables", "enable", *arguments)

    def disable(self, topic: str) -> None:
        self.command.ok("pipeline", "tables", "disable", topic)

    def listed(self, topic: str) -> Any:
        file = str(self.workshop.directory / "tables.toml")
        rows = self.command.json("pipeline", "tables", "list", file)
        return next((row for row in rows if row["topic"] == topic), None)

    def report(self, topic: str) -> Any:
        """What the console shows."""
        url = f"http://{self.workshop.broker.http_address}/pipelines"
        rows = httpx.get(url).raise_for_status().json()["pipelines"]
        return next(row for row in rows if row["name"] == f"table-{topic}")

    def table(self, name: str) -> Table:
        warehouse = self.workshop.directory / "warehouse"
        properties = {"type": "sql", "uri": f"sqlite:///{warehouse}/catalog.db", "warehouse": str(warehouse)}
        place = TablePlace(table=name, catalog="default", properties=properties)
        return open_catalog(place).load_table(name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        if not (self.workshop.directory / "warehouse" / "catalog.db").exists():
            return []
        try:
            found = self.table(name).scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        return sorted(found, key=lambda row: (row["_partition"], row["_offset"]))

    def has_more(self, name: str, before: int) -> bool:
        return len(self.rows(name)) > before

    @contextmanager
    def running(self) -> Iterator["Future[RunResult]"]:
        """Run with an interval until the end of the block."""
        pipeline, interruption = self.pipeline("200ms"), Interruption()
        self.progress = RecordedProgress()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.workshop.run, pipeline, self.progress, interruption)
            try:
                yield running
            finally:
                interruption.request()
            running.result(PATIENCE_S)


@pytest.fixture
def lake(workshop: Workshop, topic: str, cluster: Cluster) -> Iterator[Lake]:
    made = Lake(workshop, f"tables-{topic}")
    yield made
    # Other tests have runners of their own.
    for row in made.command.json("pipeline", "tables", "list"):
        alter_topic(cluster, row["topic"], put={}, drop=["table.enable"])


def named(topic: str) -> str:
    return "lake." + "".join(each if each.isalnum() or each in "_-" else "_" for each in topic)


def until(what: Callable[[], Any]) -> Any:
    return eventually(what, within_s=PATIENCE_S)


def test_a_topic_without_a_schema_has_a_table_of_its_records(
    lake: Lake, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic)
    send(lake.workshop.broker, topic, [Sent(value="one", key="a", headers={"h": "x"})])
    send(lake.workshop.broker, topic, [Sent(value="two", partition=1)])
    lake.enable(topic)
    lake.pipeline()
    new = {"topic": topic, "table": named(topic), "mode": "append", "key": None, "state": "new", "lag": 2}
    assert lake.listed(topic).items() >= new.items()
    assert lake.run_once().rows == 2
    one, two = lake.rows(named(topic))
    assert (one["_key"], one["_value"], one["_headers"]) == (b"a", b"one", [{"key": "h", "value": b"x"}])
    assert (one["_partition"], one["_offset"], two["_partition"], two["_key"]) == (0, 0, 1, None)
    assert [str(each.transform) for each in lake.table(named(topic)).spec().fields] == ["day"]
    send(lake.workshop.broker, topic, [Sent(value="three")])
    assert lake.listed(topic)["lag"] == 1
    assert lake.run_once().rows == 1
    assert lake.listed(topic).items() >= {"state": "done", "lag": 0, "rows": 1, "error": None}.items()
    assert Counter(row["_value"] for row in lake.rows(named(topic))) == Counter((b"one", b"two", b"three"))


def metrics(broker: Broker) -> str:
    return httpx.get(f"http://{broker.http_address}/metrics").raise_for_status().text


def test_the_runner_follows_settings_and_one_topic_that_fails_leaves_the_others_alone(
    lake: Lake, cluster: Cluster, topic: str
) -> None:
    broken, other = f"{topic}-broken", f"{topic}-other"
    for each in (topic, broken, other):
        make_topic(cluster, each, partitions=1)
    broker = lake.workshop.broker
    send(broker, topic, [Sent(value="1")])
    send(broker, broken, [Sent(value="keyless")])
    send(broker, other, [Sent(value="a", key="k"), Sent(value="b", key="k")])
    lake.enable(topic)
    lake.enable(broken, "--mode", "upsert")
    with lake.running():
        until(lambda: lake.rows(named(topic)))
        failed = until(lambda: (row := lake.listed(broken))["state"] == "failed" and row)
        assert failed["error"] == (
            f"the record in partition 0 of {broken} at offset 0 has no key, which table.mode=upsert needs; "
            "use table.mode=append"
        )
        assert failed["lag"] == 1
        # Enabled while the runner runs.
        lake.enable(other, "--mode", "upsert", "--name", f"lake.{topic.replace('.', '_')}_latest")
        name = lake.listed(other)["table"]
        until(lambda: [row["_value"] for row in lake.rows(name)] == [b"b"])
        send(broker, topic, [Sent(value="2")])
        until(lambda: len(lake.rows(named(topic))) == 2)
        until(lambda: lake.listed(topic).items() >= {"state": "running", "lag": 0}.items())
        running = f'alpacamq_pipeline{{pipeline="table-{topic}",kind="table",state="running"}} 1'
        until(lambda: running in metrics(broker))
        assert f'alpacamq_pipeline_lag{{pipeline="table-{topic}"}} 0' in metrics(broker)
        # Repaired by its settings.
        alter_topic(cluster, broken, put={"table.mode": "append"}, drop=[])
        until(lambda: [row["_value"] for row in lake.rows(named(broken))] == [b"keyless"])
        # Disabled, and enabled again.
        lake.disable(topic)
        until(lambda: lake.report(topic)["state"] == "stopped")
        send(broker, topic, [Sent(value="3")])
        assert lake.listed(topic) is None
        lake.enable(topic)
        until(lambda: len(lake.rows(named(topic))) == 3)


ORDER = record("Order", id="long", item="string")
WIDER = record("Order", id="long", item="string", amount=(["null", "double"], None))


def test_columns_are_those_of_the_registry_and_follow_new_versions_while_the_runner_runs(
    lake: Lake, cluster: Cluster, topic: str
) -> None:
    make_topic(cluster, topic, partitions=1)
    broker = lake.workshop.broker
    url = f"http://{broker.http_address}/schemas"
    first = register(url, f"{topic}-value", ORDER)
    send_bytes(broker, topic, [first.avro({"id": 1, "item": "tea"}), b"nonsense", None], key=b"k")
    lake.enable(topic)
    with lake.running():
        until(lambda: len(lake.rows(named(topic))) == 3)
        second = register(url, f"{topic}-value", WIDER)
        send_bytes(
            broker,
            topic,
            [first.avro({"id": 2, "item": "cake"}), second.avro({"id": 3, "item": "jam", "amount": 2.5})],
        )
        until(lambda: len(lake.rows(named(topic))) == 5)
        assert lake.listed(topic)["malformed"] is not None
    rows = [(row["id"], row["item"], row["amount"], row["_value"]) for row in lake.rows(named(topic))]
    assert rows == [
        (1, "tea", None, None),
        (None, None, None, b"nonsense"),
        (None, None, None, None),
        (2, "cake", None, None),
        (3, "jam", 2.5, None),
    ]


def test_upserts_by_columns_of_the_value(lake: Lake, cluster: Cluster, topic: str) -> None:
    make_topic(cluster, topic, partitions=1)
    broker = lake.workshop.broker
    order = register(f"http://{broker.http_address}/schemas", f"{topic}-value", ORDER)
    values = [{"id": 1, "item": "tea"}, {"id": 2, "item": "jam"}, {"id": 1, "item": "cake"}]
    send_bytes(broker, topic, [order.avro(value) for value in values])
    lake.enable(topic, "--mode", "upsert", "--key-columns", "id")
    lake.run_once()
    assert [(row["id"], row["item"]) for row in lake.rows(named(topic))] == [(2, "jam"), (1, "cake")]
    sql = f"SELECT id, item FROM `{topic}` ORDER BY id"  # noqa: S608
    found = query_sink(lake.pipeline(), sql, spark=lake.workshop.spark)
    assert found.data["rows"] == [{"id": 1, "item": "cake"}, {"id": 2, "item": "jam"}]
    send_bytes(broker, topic, [None])
    with pytest.raises(PipelineFailed, match=r"offset 3 has no id, which table.key needs"):
        lake.run_once()
    alter_topic(cluster, topic, put={"table.key": "nr"}, drop=[])
    with pytest.raises(PipelineFailed, match="its values have no column 'nr', only id, item"):
        lake.run_once()


def test_a_table_belongs_to_one_topic(lake: Lake, cluster: Cluster, topic: str) -> None:
    other = f"{topic}-other"
    for each in (topic, other):
        make_topic(cluster, each, partitions=1)
        send(lake.workshop.broker, each, [Sent(value="1")])
    lake.enable(topic, "--name", "lake.one")
    lake.enable(other, "--name", "lake.one")
    with pytest.raises(
        PipelineFailed, match=f"{other}: table lake.one is that of topic {topic}; set table.name"
    ):
        lake.run_once()
    assert len(lake.rows("lake.one")) == 1
    lake.disable(topic)
    with pytest.raises(PipelineFailed, match=f"{other}: table lake.one has rows of others"):
        lake.run_once()
    # A topic that was deleted and made again is another one.
    lake.disable(other)
    lake.enable(topic)
    delete_topic(cluster, topic)
    eventually(lambda: _made_again(cluster, topic))
    send(lake.workshop.broker, topic, [Sent(value="2")])
    lake.enable(topic, "--name", "lake.one")
    with pytest.raises(PipelineFailed, match=r"was written by a pipeline .* with another checkpoint"):
        lake.run_once()
    assert len(lake.rows("lake.one")) == 1


def _made_again(cluster: Cluster, topic: str) -> bool:
    create_topic(cluster, topic, partitions=1, replicas=-1, settings={"retention.ms": "-1"})
    return True


KILLS = 4
# For a process that is killed soon.
QUICK = """
[spark.settings]
"spark.sql.shuffle.partitions" = 2
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""
START_S = 600


@pytest.mark.heavy
def test_kills_and_restarts_of_the_runner_lose_and_double_nothing(
    lake: Lake, cluster: Cluster, topic: str
) -> None:
    """With the real command, killed in a batch or between two, with its JVM."""
    other, random = f"{topic}-latest", Random(11)
    for each in (topic, other):
        make_topic(cluster, each)
    lake.enable(topic)
    lake.enable(other, "--mode", "upsert")
    lake.pipeline("100ms", QUICK)
    file = str(lake.workshop.directory / "tables.toml")
    command = [sys.executable, "-m", "alpacamq.cli.main", "--broker", lake.workshop.broker.address]
    command += ["pipeline", "tables", "run", file]
    sent, latest = 0, dict[str, str]()

    def send_more() -> None:
        nonlocal sent
        records = [
            Sent(value=f"{number}", key=f"k{number % 7}", partition=number % 7 % 2)
            for number in range(sent, sent + 40)
        ]
        sent += 40
        latest.update({each.key or "": each.value for each in records})
        for each in (topic, other):
            send(lake.workshop.broker, each, records)

    for _ in range(KILLS):
        before = len(lake.rows(named(topic)))
        send_more()
        runner = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            eventually(partial(lake.has_more, named(topic), before), within_s=START_S)
            for _ in range(random.randrange(1, 5)):
                send_more()
                # The kill comes anywhere in the batches of these.
                Event().wait(random.random() * 2)
            assert runner.poll() is None
        finally:
            os.killpg(runner.pid, signal.SIGKILL)
            runner.wait()
    for _ in range(1 if HAS_ADMISSION_CONTROL else 2):
        lake.run_once()
    numbers = Counter(int(row["_value"]) for row in lake.rows(named(topic)))
    assert numbers == Counter(range(sent))
    found = lake.rows(named(other))
    assert {row["_key"].decode(): row["_value"].decode() for row in found} == latest
    assert len(found) == len(latest)


GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "pipelines.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_example_of_the_guide_prints_what_the_guide_says(
    new_broker: NewBroker,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert spark is SparkSession.getActiveSession()  # the commands use the session there is
    broker = new_broker()
    broker.start()
    section = GUIDE.read_text().partition("## Topics as tables\n")[2].partition("\n## ")[0]
    blocks = [code for language, code in BLOCK.findall(section) if language in ("sh", "text", "py")]
    commands, listed, python, printed = blocks
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    write, *commands_left = commands.splitlines()
    write = write.replace("alpacactl", f"alpacactl --broker {broker.address}")
    subprocess.run(write, shell=True, check=True)  # noqa: S602 - our own page
    for command in commands_left:
        capfd.readouterr()
        target = ["--broker", broker.address, "--http", broker.http_address]
        # In this process, which has a session.
        assert main([*target, *shlex.split(command)[1:]]) == 0
    pattern = re.escape(" ".join(listed.split())).replace("…", ".*")
    assert re.fullmatch(pattern, " ".join(capfd.readouterr().out.split()))
    exec(python, {})  # noqa: S102 - our own page
    assert capfd.readouterr().out == printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--key-columns", "id"), "--key-columns is for --mode upsert"),
        (("--name", "nodot"), "table.name='nodot' contains 'nodot', which does not match"),
        (("--mode", "replace"), "invalid choice: 'replace'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    lake: Lake, cluster: Cluster, topic: str, arguments: tuple[str, ...], words: str
) -> None:
    make_topic(cluster, topic)
    ran = lake.command("pipeline", "tables", "enable", topic, *arguments)
    assert ran.code != 0
    assert words in ran.errors
    assert "no-such-topic" in lake.command("pipeline", "tables", "enable", "no-such-topic").errors
