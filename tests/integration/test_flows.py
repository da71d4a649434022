"""Runs each main flow under a tracer and compares its modules with the table in ARCHITECTURE.md."""

import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from confluent_kafka import Producer

from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.fetch import PartitionFetcher
from alpacamq.client.kafka.offsets import Isolation
from alpacamq.model.address import Address
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.version import is_compiled
from tests.flows import Flow, TracedBroker
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(is_compiled(), reason="compiled functions cannot be traced")
ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
TOPICS = ("produced", "fetched", "queued", "delayed", "streamed")
# Vocabulary: every module uses these packages.
LEFT_OUT = ("model", "telemetry", "wire")
# Until the work that a flow leaves behind, such as a delayed flush, has ended.
QUIET_S = 0.3
RUNS = 3
# For how long background work is looked for that a busy machine has put into every run.
BACKGROUND_S = 60.0
# Long enough that the message is not due, and so appended at once, before a busy machine has scheduled it.
DELAY_MS = 1000


class Clients:
    """Clients of one broker, each created on first use."""

    def __init__(self, broker: TracedBroker) -> None:
        self.broker = broker
        self.http = httpx.Client(base_url=f"http://{broker.addresses['http']}")
        for topic in TOPICS:
            self.http.post("/topics", json={"name": topic, "partitions": 1}).raise_for_status()
        self._kafka = {"bootstrap.servers": broker.addresses["kafka"]}
        self.fired = 0

    @cached_property
    def producer(self) -> Producer:
        return Producer(self._kafka)

    @cached_property
    def fetcher(self) -> PartitionFetcher:
        cluster = Cluster(Address.parse(self.broker.addresses["kafka"]))
        return PartitionFetcher(cluster, TopicPartition(TopicName("fetched"), 0), Isolation.COMMITTED)

    @cached_property
    def sqs(self) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=f"http://{self.broker.addresses['sqs']}",
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",  # noqa: S106 - not checked
        )

    @cached_property
    def queue(self) -> Any:
        return self.sqs.create_queue(QueueName="flow-sqs")["QueueUrl"]

    def close(self) -> None:
        self.http.close()

    def nothing(self) -> None:
        """Prepare nothing."""

    def produce(self, topic: str = "produced") -> None:
        self.producer.produce(topic, b"value")
        self.producer.flush()

    def produce_fetched(self) -> None:
        self.produce("fetched")

    def produce_queued(self) -> None:
        self.produce("queued")

    def fetch(self) -> None:
        assert [*self.fetcher.fetch(0).batches]

    def receive_and_ack(self) -> None:
        answer = self.http.get("/groups/workers/poll", params={"topic": "queued", "max": 10}).json()
        receipts = [message["receipt"] for message in answer["messages"]]
        self.http.post("/messages/ack", json={"receipts": receipts}).raise_for_status()

    def delay(self) -> None:
        self.fired += 1
        body = {"value": "later", "delay_ms": DELAY_MS}
        self.http.post("/topics/delayed/messages", json=body).raise_for_status()
        eventually(lambda: self.broker.delivered_messages() >= self.fired)

    def send(self) -> None:
        self.sqs.send_message(QueueUrl=self.queue, MessageBody="hello")

    def receive_and_delete(self) -> None:
        (message,) = self.sqs.receive_message(QueueUrl=self.queue)["Messages"]
        self.sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])


FLOWS: dict[str, tuple[Callable[[Clients], None], Callable[[Clients], None]]] = {
    "produce": (Clients.nothing, Clients.produce),
    "fetch": (Clients.produce_fetched, Clients.fetch),
    "queue receive and ack": (Clients.produce_queued, Clients.receive_and_ack),
    "delayed message": (Clients.nothing, Clients.delay),
    "SQS receive and delete": (Clients.send, Clients.receive_and_delete),
}


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    broker = TracedBroker(tmp_path / "data")
    broker.start()
    clients = Clients(broker)
    yield clients
    clients.close()
    broker.stop()


@pytest.mark.parametrize("name", FLOWS)
def test_the_architecture_lists_the_modules_of_each_flow(
    clients: Clients, name: str, pytestconfig: pytest.Config
) -> None:
    prepare, run = FLOWS[name]
    for _ in range(2):
        prepare(clients)
        run(clients)
    runs: list[list[str]] = []
    longest_s = 0.0
    for _ in range(RUNS):
        prepare(clients)
        time.sleep(QUIET_S)
        began_at = time.monotonic()
        with clients.broker.traced() as flow:
            run(clients)
            time.sleep(QUIET_S)
        longest_s = max(longest_s, time.monotonic() - began_at)
        runs.append(shown(flow))
    # Modules that are not in every run belong to background work. On a busy machine a run may be long enough
    # for some of it to be in every one: then it is found without a run, too.
    modules = [module for module in runs[0] if all(module in each for each in runs)]
    background: set[str] = set()
    until = time.monotonic() + BACKGROUND_S
    while True:
        with clients.broker.traced() as idle:
            time.sleep(longest_s)
        background.update(shown(idle))
        if background.issuperset(modules_beside(name, modules)) or time.monotonic() > until:
            break
    check(name, modules, pytestconfig, background=background)


def test_the_architecture_lists_the_modules_of_a_spark_micro_batch(
    clients: Clients, pytestconfig: pytest.Config
) -> None:
    from alpacamq_spark.source import AlpacaSource

    clients.produce("streamed")
    options = {"kafka.bootstrap.servers": clients.broker.addresses["kafka"], "subscribe": "streamed"}
    source = AlpacaSource({**options, "startingOffsets": "earliest"})
    reader: Any = source.streamReader(source.schema())
    # Once before it is traced: what is cached then depends on the tests that ran before.
    start = micro_batch(reader, reader.initialOffset())
    clients.produce("streamed")
    flow = Flow()
    sys.setprofile(flow)
    threading.setprofile(flow)
    try:
        micro_batch(reader, start)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    reader.stop()
    check("Spark micro-batch", shown(flow), pytestconfig)


def micro_batch(reader: Any, start: Any) -> Any:
    """Read a micro-batch as Spark does; return where the next one starts."""
    if hasattr(reader, "reportLatestOffset"):
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
    else:
        end = reader.latestOffset()
    for partition in reader.partitions(start, end):
        assert [*reader.read(partition)]
    reader.commit(end)
    return end


def shown(flow: Flow) -> list[str]:
    modules = [name.removeprefix("alpacamq.") for name in flow.modules]
    return [name for name in modules if name.partition(".")[0] not in LEFT_OUT]


def row_of(name: str) -> re.Pattern[str]:
    """Return the pattern of a flow's row in the table."""
    return re.compile(rf"^\| {re.escape(name)} \| (\d+) \| (.*) \|$", re.MULTILINE)


def listed_modules(name: str) -> list[str]:
    found = row_of(name).search(ARCHITECTURE.read_text())
    assert found is not None, f"ARCHITECTURE.md has no row for {name}"
    return found[2].replace("`", "").split(" → ")


def modules_beside(name: str, modules: Iterable[str]) -> set[str]:
    """Return the modules that the table does not list for a flow."""
    return set(modules).difference(listed_modules(name))


def check(name: str, modules: list[str], config: pytest.Config, background: Collection[str] = ()) -> None:
    """Compare with the table row of the flow, or write it."""
    text = ARCHITECTURE.read_text()
    row = row_of(name)
    listed = " → ".join(f"`{module}`" for module in modules)
    if config.getoption("--rewrite-transcripts"):
        ARCHITECTURE.write_text(row.sub(lambda _: f"| {name} | {len(modules)} | {listed} |", text))
        return
    expected = listed_modules(name)
    assert set(expected) == {each for each in modules if each in expected or each not in background}
