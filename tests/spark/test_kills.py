"""Whatever is killed and whenever, files and sink topic hold every record exactly once."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Self

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from alpacamq.client.connect import parse_addresses
from alpacamq.client.kafka.cluster import Cluster
from tests.broker_cluster import BrokerCluster
from tests.brokers import Broker, Output
from tests.conftest import NewBroker
from tests.ports import lasting_address
from tests.waiting import eventually

from .driving import HAS_ADMISSION_CONTROL
from .query_process import start
from .topics import make_topic, values

TOPIC = "numbers"
SINK = f"{TOPIC}-sink"
KILLS = 30
KEYS = 50
START_S = 180.0
DRAIN_S = 600.0


class Driver:
    """The process with the queries and everything it starts."""

    def __init__(self, broker: Broker, directory: Path, mode: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.query_process", broker.address, TOPIC, str(directory), mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.output = Output(self._process.stdout)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, line: str, within_s: float) -> None:
        """Until it has printed a line; that it failed meanwhile is no error, as brokers are killed too."""
        self.output.has(rf"^({line}|failed)", within_s=within_s)

    def kill(self) -> None:
        """kill -9 of Python and Java at once; workers are left to find out by themselves."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def end(self, within_s: float) -> None:
        assert self._process.wait(within_s) == 0, self.output.text()


class Traffic:
    """Write numbers to the source while it is entered, some at once, across restarts of the broker."""

    def __init__(self, broker: Broker, at_once: int = 0) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "enable.idempotence": True,
                "delivery.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 20,
                "log_level": 0,
            }
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._at_once = at_once
        self.sent = 0

    def __enter__(self) -> Self:
        while self.sent < self._at_once:
            self._send()
        assert self._producer.flush(600) == 0
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert self._producer.flush(120) == 0

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            for _ in range(40):
                self._send()
            self._producer.poll(0)

    def _send(self) -> None:
        try:
            self._producer.produce(TOPIC, f"{self.sent:09}", f"{self.sent % KEYS}")
            self.sent += 1
        except BufferError:
            self._producer.poll(0.05)


@pytest.fixture
def broker(new_broker: NewBroker) -> Broker:
    broker = new_broker(kafka=lasting_address())
    broker.start()
    make_topics(broker)
    return broker


def make_topics(broker: Broker) -> None:
    with Cluster(*parse_addresses(broker.address)) as cluster:
        for name in (TOPIC, SINK):
            make_topic(cluster, name, partitions=3)


def check(spark: SparkSession, broker: Broker, directory: Path) -> int:
    """Fail unless files and sink hold what the source holds, each once; how many that are."""
    with Cluster(*parse_addresses(broker.address)) as cluster:
        expected = values(cluster, TOPIC)
        assert len(set(expected)) == len(expected)
        sink = values(cluster, SINK)
    files = sorted(row.value for row in spark.read.parquet(str(directory / "files")).collect())
    for found in (sink, files):
        extra, missing = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
        assert not extra, f"{len(extra)} too many, for instance {min(extra)}"
        assert not missing, f"{len(missing)} too few, for instance {min(missing)}"
    return len(expected)


@pytest.mark.heavy
def test_random_kills_of_driver_and_broker_lose_and_duplicate_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    random = Random()
    seed = random.randrange(2**32)
    random.seed(seed)
    print(f"seed {seed}")
    driver: Driver | None = None
    try:
        with Traffic(broker):
            for kill in range(KILLS):
                if driver is None or not driver.is_running:
                    driver = Driver(broker, tmp_path, "on-and-on")
                # At any time in the first batch, a repetition of the last one, or in a later one.
                driver.wait_for(random.choice(("started", "batch", "batch")), START_S)
                driver.output.has("^never", within_s=random.uniform(0, 5))
                victim = random.choice(("driver", "broker", "both"))
                print(f"kill {kill}: {victim} after {len(driver.output.lines)} lines")
                if victim in ("driver", "both"):
                    driver.kill()
                if victim in ("broker", "both"):
                    broker.kill()
                    broker.start()
        if driver is not None:
            driver.kill()
        driver = Driver(broker, tmp_path, "to-the-end")
        driver.end(DRAIN_S)
    finally:
        if driver is not None:
            driver.kill()
    print(f"{check(spark, broker, tmp_path)} records")


def test_kills_of_the_broker_lose_and_double_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """A smaller variant, without a new Java process for every kill."""
    queries: list[StreamingQuery] = []
    with Traffic(broker):
        for _ in range(3):
            if not all(query.isActive for query in queries) or not queries:
                stop(queries)
                queries = start(spark, broker.address, TOPIC, tmp_path, to_the_end=False)
            wait_for_batches(queries)
            broker.kill()
            broker.start()
    stop(queries)
    # Before Spark 4.2 such a query repeats only the batch in which it was stopped.
    for _ in range(1 if HAS_ADMISSION_CONTROL else 2):
        for query in start(spark, broker.address, TOPIC, tmp_path, to_the_end=True):
            assert query.awaitTermination(120)
    assert check(spark, broker, tmp_path) > 0


@pytest.mark.heavy
def test_queries_continue_while_the_nodes_that_lead_their_topics_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A query does not even fail: it waits for the next leader. Each node is killed in turn or twice."""
    broker = BrokerCluster(tmp_path / "cluster", nodes=3)
    try:
        broker.start()
        make_topics(broker)
        with Traffic(broker):
            queries = started(spark, broker, tmp_path)
            for topic, partition in ((TOPIC, 0), (SINK, 0), (TOPIC, 1), (SINK, 2)):
                leader = broker.leader_of(topic, partition)
                broker.kill_node(leader)
                wait_for_batches(queries)
                assert [query.exception() for query in queries] == [None, None]
                assert broker.leader_of(topic, partition) != leader
                broker.start_node(leader)
        stop(queries)
        for query in start(spark, broker.address, TOPIC, tmp_path, to_the_end=True):
            assert query.awaitTermination(120)
        print(f"{check(spark, broker, tmp_path)} records")
    finally:
        broker.end()


def started(spark: SparkSession, broker: Broker, directory: Path) -> list[StreamingQuery]:
    """Return the queries once each has completed a batch."""
    for _ in range(5):
        queries = start(spark, broker.address, TOPIC, directory, to_the_end=False)
        wait_for_batches(queries)
        failed = [error for query in queries if (error := query.exception()) is not None]
        if not failed:
            return queries
        stop(queries)
        # On a busy machine: Spark waits 10 s for the process of a source, which imports it first.
        assert all("Python worker failed to connect back" in str(error) for error in failed), failed
    raise AssertionError("the processes of the sources did not start in time")


def wait_for_batches(queries: list[StreamingQuery]) -> None:
    """Until each query has completed one more batch, or has failed."""
    seen = [query.lastProgress for query in queries]
    eventually(
        lambda: all(
            query.lastProgress != before or not query.isActive
            for query, before in zip(queries, seen, strict=True)
        ),
        within_s=120,
    )


def stop(queries: list[StreamingQuery]) -> None:
    for query in queries:
        query.stop()
