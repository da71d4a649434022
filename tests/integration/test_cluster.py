"""Three nodes as real processes: founding, failover, growing, and what they refuse."""

from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.ports import free_ports
from tests.waiting import eventually

from .nodes import Node, Nodes, running_nodes

PARTITIONS = 3


def create(nodes: Nodes | Node, topic: str, factor: int = 3) -> None:
    """Create a topic, and wait until all its partitions have leaders."""
    admin = AdminClient({"bootstrap.servers": nodes.kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS, factor)])[topic].result(30)
    eventually(lambda: all(leader > 0 for leader in leaders(nodes, topic)), what="leaders")


def leaders(nodes: Nodes | Node, topic: str) -> list[int]:
    """Return the leader of each partition, -1 for none."""
    admin = AdminClient({"bootstrap.servers": nodes.kafka})
    found = admin.list_topics(topic, timeout=10).topics[topic]
    return [found.partitions[index].leader for index in sorted(found.partitions)] or [-1]


class Load:
    """An idempotent producer with acks=all, and what was acknowledged."""

    def __init__(self, nodes: Nodes, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": nodes.kafka, "enable.idempotence": True, "linger.ms": 2, "log_level": 2}
        )
        self.acked: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
        self.failed: list[str] = []
        self._next = 0

    def send(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            self._producer.produce(
                self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)
        self._next += count

    def finish(self) -> None:
        assert self._producer.flush(60) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            partition, value = message.partition(), message.value()
            assert partition is not None
            assert value is not None
            self.acked[partition].append(int(value))


def read_all(nodes: Nodes, topic: str, index: int) -> list[int]:
    """Read a partition from the start to its end."""
    consumer = Consumer({"bootstrap.servers": nodes.kafka, "group.id": "unused", "log_level": 2})

    def end() -> int | None:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=10)[1]) + 1
        except KafkaException:  # leadership moves; the client learns of it
            consumer.list_topics(topic, timeout=10)
            return None

    try:
        count = (eventually(end) or 0) - 1
        consumer.assign([TopicPartition(topic, index, 0)])
        values: list[int] = []

        def is_read() -> bool:
            for message in consumer.consume(1000, 1.0):
                if message.error() is None:
                    values.append(int(message.value() or b""))
            return len(values) >= count

        eventually(is_read, within_s=60)
        return values
    finally:
        consumer.close()


def test_records_acknowledged_by_all_replicas_survive_kills_of_their_leaders(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        load = Load(nodes, "orders")
        starts = dict.fromkeys(nodes.by_id, 1)
        for _ in range(2):
            load.send(3000)
            victim = nodes.by_id[leaders(nodes, "orders")[0]]
            victim.kill()
            load.send(3000)
            load.finish()
            victim.start()
            starts[victim.id] += 1
            victim.wait_until_ready(starts[victim.id])
        assert not load.failed
        for index in range(PARTITIONS):
            # In order, each once, and nothing else.
            assert read_all(nodes, "orders", index) == load.acked[index]


def test_another_node_becomes_controller_when_one_is_killed(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        former = nodes.controller
        former.kill()
        eventually(lambda: nodes.controller is not former, what="another controller")
        remaining = next(node for node in nodes if node is not former)
        create(remaining, "made-without-it", factor=2)
        assert former.id not in leaders(remaining, "made-without-it")


def test_a_controller_that_is_paused_is_replaced_and_acknowledges_nothing_when_it_goes_on(
    tmp_path: Path,
) -> None:
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        load = Load(nodes, "orders")
        load.send(3000)
        former = nodes.controller
        former.suspend()
        load.send(3000)
        eventually(lambda: nodes.controller is not former, what="another controller")
        other = next(node for node in nodes if node is not former)
        eventually(lambda: former.id not in leaders(other, "orders"), within_s=60, what="other leaders")
        former.resume()
        load.finish()
        assert not load.failed
        for index in range(PARTITIONS):
            assert read_all(nodes, "orders", index) == load.acked[index]

        def in_sync() -> bool:
            query = {"state": "under-replicated"}
            found = httpx.get(f"http://{other.http}/cluster/partitions", params=query).json()
            return bool(found["total"] == 0)

        eventually(in_sync, within_s=60, what="its replicas are complete again")
        assert nodes.controller is not former


def test_no_cluster_is_founded_while_a_listed_node_is_missing(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    first, second, third = nodes
    try:
        first.start()
        second.start()
        for node in (first, second):
            eventually(lambda node=node: node.events("waiting_for_cluster"), within_s=60)  # type: ignore[misc]
        assert any("node 3" in event["reason"] for event in first.events("waiting_for_cluster"))
        assert not first.events("ready")
        waiting = httpx.get(f"http://{first.http}/readyz")
        assert waiting.status_code == 503
        assert "node 3" in waiting.json()["checks"]["cluster"]["detail"]
        third.start()
        for node in nodes:
            node.wait_until_ready()
        founded = {event["cluster"] for node in nodes for event in node.events("cluster_founded")}
        assert len(founded) == 1
    finally:
        for node in nodes:
            node.end()


def test_a_single_node_grows_into_a_cluster_and_keeps_its_data(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    first, second, third = nodes
    alone = Node(tmp_path, 1, free_ports(4), "")
    try:
        alone.start()
        alone.wait_until_ready()
        create(alone, "before", factor=1)
        producer = Producer({"bootstrap.servers": alone.kafka})
        producer.produce("before", b"7", partition=0)
        assert producer.flush(30) == 0
        alone.stop()
        for node in nodes:
            node.start()
        first.wait_until_ready(2)  # the same log file
        second.wait_until_ready()
        third.wait_until_ready()
        eventually(lambda: len(first.events("voters_changed")) >= 2, within_s=60, what="three voters")
        create(nodes, "after", factor=3)
        assert read_all(nodes, "before", 0) == [7]
        first.stop()  # the two others are a majority
        create(second, "without-the-first", factor=2)
    finally:
        for node in (alone, *nodes):
            node.end()


def test_a_node_of_a_cluster_does_not_start_without_the_list_of_nodes(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        first = nodes.by_id[1]
        first.stop()
        alone = Node(tmp_path, 1, free_ports(4), "")
        alone.start()
        eventually(lambda: not alone.is_running, within_s=60)
        assert alone.exit_code == 1
        assert "belongs to a cluster of several nodes (1, 2, 3)" in alone.last_output()


@pytest.mark.heavy
def test_a_node_that_comes_back_after_long_catches_up(tmp_path: Path) -> None:
    """Records were deleted that it lacks, a topic is gone that it has, and another is new."""
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        create(nodes, "gone")
        load = Load(nodes, "orders")
        load.send(3000)
        load.finish()
        absent = nodes.by_id[3]
        absent.stop()
        load.send(6000)
        load.finish()
        admin = AdminClient({"bootstrap.servers": nodes.by_id[1].kafka})
        firsts = {index: len(load.acked[index]) - 500 for index in range(PARTITIONS)}
        places = [TopicPartition("orders", index, first) for index, first in firsts.items()]
        for deleted in admin.delete_records(places).values():
            deleted.result(30)
        admin.delete_topics(["gone"])["gone"].result(30)
        create(nodes.by_id[1], "new", factor=2)
        absent.start()
        absent.wait_until_ready(2)
        eventually(lambda: all(len(each) == 3 for each in in_sync(nodes, "orders")), within_s=60)
        assert "gone" not in AdminClient({"bootstrap.servers": absent.kafka}).list_topics(timeout=10).topics
        for node in (nodes.by_id[1], nodes.by_id[2]):
            node.kill()  # what is left is what it has
        consumer = Consumer({"bootstrap.servers": absent.kafka, "group.id": "unused", "log_level": 2})
        assert set(consumer.list_topics(timeout=10).topics) >= {"orders", "new"}
        consumer.close()
        for index in range(PARTITIONS):
            [directory] = (absent.data / "partitions").glob(f"orders-{index}.*")
            stored = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
            assert b"%d" % load.acked[index][-1] in stored


def in_sync(nodes: Nodes | Node, topic: str) -> list[list[int]]:
    """Return the replicas in sync of each partition."""
    admin = AdminClient({"bootstrap.servers": nodes.kafka})
    found = admin.list_topics(topic, timeout=10).topics[topic].partitions
    return [found[index].isrs for index in sorted(found)]
