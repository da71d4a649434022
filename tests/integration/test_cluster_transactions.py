"""Transactions over three nodes as real processes: each is visible whole or not at all."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count, cycle
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from fastcrc.crc32 import iscsi as crc32c

from alpacamq.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.waiting import eventually

from .nodes import Node, Nodes, running_nodes
from .test_cluster import PARTITIONS, create, leaders

TOPIC = "ledger"
SOURCE = "source"
GROUP = "copier"
ID = "till-7"
KILLS = 3
# Every this many transactions, one is aborted by its producer.
ABORTED = 5


class Till:
    """Writes transactions of one record per partition and one offset, and notes how each ended."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._consumer = Consumer({"bootstrap.servers": nodes.kafka, "group.id": GROUP, "log_level": 2})
        self._producer = self._new_producer()
        self.committed: list[str] = []
        self.aborted: list[str] = []
        # Whether these were committed is not known.
        self.unknown: list[str] = []
        self.offset = 0
        self._names = count()

    def _new_producer(self) -> Producer:
        """Start a new instance, which ends what the former one left behind."""
        while True:
            producer = Producer(
                {
                    "bootstrap.servers": self._nodes.kafka,
                    "transactional.id": ID,
                    "transaction.timeout.ms": 30_000,
                    "linger.ms": 0,
                    "log_level": 2,
                }
            )
            try:
                producer.init_transactions(20)
            except KafkaException as error:
                self._note("init", error)
                continue
            return producer

    def transact(self) -> None:
        """Try one transaction."""
        name = f"t{next(self._names)}"
        is_committing = False
        try:
            self._producer.begin_transaction()
            for index in range(PARTITIONS):
                self._producer.produce(TOPIC, name.encode(), partition=index)
            self._producer.send_offsets_to_transaction(
                [TopicPartition(SOURCE, 0, self.offset + 1)], self._consumer.consumer_group_metadata(), 15
            )
            if int(name[1:]) % ABORTED == ABORTED - 1:
                self.aborted.append(name)
                # librdkafka drops messages that may have been written, and uses their sequences again.
                if self._producer.flush(20):
                    self._producer = self._new_producer()
                else:
                    self._producer.abort_transaction(20)
                return
            is_committing = True
            self._retry(lambda: self._producer.commit_transaction(20))
            self.committed.append(name)
            self.offset += 1
        except KafkaException as error:
            self._note(name, error)
            if name not in self.aborted:
                (self.unknown if is_committing else self.aborted).append(name)
            # Another instance, and not an abort, which would drop messages that may have been written.
            self._producer = self._new_producer()
            if is_committing:
                self.offset = max(self.offset, self.stored_offset())

    def _retry(self, step: Callable[[], None]) -> None:
        while True:
            try:
                step()
                return
            except KafkaException as error:
                self._note("retried", error)
                if not error.args[0].retriable():
                    raise

    def _note(self, what: str, error: KafkaException) -> None:
        """Print an error of the client; shown if the test fails."""
        print(f"{time.strftime('%H:%M:%S')} {what}: {error}")

    def stored_offset(self) -> int:
        """Return the offset that the group has committed."""

        def found() -> int | None:
            try:
                (place,) = self._consumer.committed([TopicPartition(SOURCE, 0)], timeout=10)
            except KafkaException:
                return None
            return max(place.offset, 0) + 1 if place.error is None else None

        return (eventually(found, within_s=30) or 1) - 1


def coordinator(nodes: Nodes, topic: str, key: str) -> int:
    """Return the node that coordinates a producer or a group, -1 for none."""
    led_by = leaders(nodes, topic)
    return led_by[crc32c(key.encode()) % len(led_by)]


def choose_victim(nodes: Nodes, dice: random.Random, *, coordinates: bool) -> Node:
    """Return the coordinator of the producer, or the leader of a partition.

    Never the coordinator of the group: librdkafka 2.16 waits for up to a minute for one that is not in the
    metadata any more.
    """
    of_group = coordinator(nodes, OFFSETS_TOPIC, GROUP)
    chosen = coordinator(nodes, TRANSACTIONS_TOPIC, ID)
    if not coordinates or chosen in (of_group, -1):
        others = [node_id for node_id in nodes.by_id if node_id != of_group]
        led_by = leaders(nodes, TOPIC)
        chosen = dice.choice([node_id for node_id in others if node_id in led_by] or others)
    return nodes.by_id[chosen]


def end_offset(nodes: Nodes, index: int) -> int:
    """Return the end of a partition, with records of open transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.kafka,
            "group.id": "unused",
            "isolation.level": "read_uncommitted",
            "log_level": 2,
        }
    )

    def end() -> int | None:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, index), timeout=10)[1]) + 1
        except KafkaException:  # leadership moves; the client learns of it
            consumer.list_topics(TOPIC, timeout=10)
            return None

    try:
        return (eventually(end) or 0) - 1
    finally:
        consumer.close()


def visible(nodes: Nodes, index: int) -> list[str]:
    """Read the committed records of a partition up to its end; fails if a transaction stays open."""
    end = end_offset(nodes, index)
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.kafka,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    values: list[str] = []

    def is_read() -> bool:
        reached = 0
        for message in consumer.consume(1000, 0.5):
            if (error := message.error()) is None:
                values.append((message.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                reached = message.offset() or 0
        return reached >= end

    try:
        consumer.assign([TopicPartition(TOPIC, index, 0)])
        eventually(is_read, within_s=30, what=f"everything in partition {index} to be decided")
        return values
    finally:
        consumer.close()


@pytest.mark.heavy
def test_transactions_survive_kills_of_coordinators_and_leaders(tmp_path: Path) -> None:
    dice = random.Random(20_013)
    with running_nodes(tmp_path) as nodes:
        create(nodes, TOPIC)
        create(nodes, SOURCE)
        till = Till(nodes)
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                till.transact()

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        starts = dict.fromkeys(nodes.by_id, 1)
        for number in range(KILLS):
            before = len(till.committed)
            eventually(lambda before=before: len(till.committed) > before + 5, within_s=40)  # type: ignore[misc]
            time.sleep(dice.random())
            victim = choose_victim(nodes, dice, coordinates=number % 2 == 0)
            print(f"{time.strftime('%H:%M:%S')} kill {victim.id}, {len(till.committed)} committed")
            victim.kill()
            time.sleep(dice.random())
            victim.start()
            starts[victim.id] += 1
            victim.wait_until_ready(starts[victim.id])
        is_over.set()
        worker.join(60)
        assert not worker.is_alive()
        shown = [visible(nodes, index) for index in range(PARTITIONS)]
        committed = set(till.committed)
        print(f"{len(committed)} committed, {len(till.aborted)} aborted, {len(till.unknown)} unknown")
        # Each once, in the same order everywhere.
        assert shown[0] == shown[1] == shown[2]
        assert len(shown[0]) == len(set(shown[0]))
        assert committed <= set(shown[0]) <= committed | set(till.unknown)
        assert [name for name in shown[0] if name in committed] == till.committed
        decided = len(set(shown[0]))
        assert till.stored_offset() == decided


def test_a_transaction_over_http_may_use_another_node_for_every_step(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes, ExitStack() as stack:
        create(nodes, TOPIC)
        create(nodes, SOURCE)
        clients = cycle(
            [stack.enter_context(httpx.Client(base_url=f"http://{node.http}", timeout=30)) for node in nodes]
        )
        identity: dict[str, Any] = {"transactional_id": ID}

        def post(path: str, **fields: object) -> Any:
            answer = next(clients).post(path, json={**identity, **fields})
            assert answer.is_success, answer.text
            return answer.json()

        def seen() -> list[str]:
            pages = [
                next(clients).get(f"/topics/{TOPIC}/partitions/{index}/messages").json()
                for index in range(PARTITIONS)
            ]
            return [message["value"] for page in pages for message in page["messages"]]

        identity = post("/producers/init")
        expected: list[str] = []
        for number, verb in enumerate(["commit", "abort", "commit"]):
            post("/transactions/begin")
            for index in range(PARTITIONS):
                message = {"value": f"{verb}-{number}", "partition": index}
                published = post("/transactions/publish", topic=TOPIC, messages=[message])
                assert published["results"][0]["partition"] == index
            offsets = [{"topic": SOURCE, "partition": 0, "offset": number + 1}]
            post("/transactions/offsets", group=GROUP, offsets=offsets)
            assert sorted(seen()) == sorted(expected)
            identity = post(f"/transactions/{verb}")
            if verb == "commit":
                expected += [f"{verb}-{number}"] * PARTITIONS
            for _ in nodes:
                assert sorted(seen()) == sorted(expected)
        for _ in nodes:
            (listed,) = next(clients).get("/transactions").json()["transactions"]
            assert (listed["transactional_id"], listed["state"]) == (ID, "complete-commit")
            (offset,) = next(clients).get(f"/groups/{GROUP}/offsets").json()["offsets"]
            assert offset["offset"] == 3
