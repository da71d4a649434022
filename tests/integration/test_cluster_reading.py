"""Topics read and described over HTTP through any node of a cluster of real processes."""

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer

from tests.waiting import eventually

from .nodes import Node, running_nodes
from .test_cluster import Load, create
from .test_cluster_publishing import publish

PARTITIONS = 6


def ask(node: Node, path: str, body: object = None) -> Any:
    """Send a request, and return the answer of a successful one."""
    connection = http.client.HTTPConnection(node.http, timeout=90)
    try:
        connection.request(
            "GET" if body is None else "POST", path, None if body is None else json.dumps(body).encode()
        )
        response = connection.getresponse()
        text = response.read()
        assert response.status < 300, (path, response.status, text)
        return json.loads(text)
    finally:
        connection.close()


def values(answer: Any) -> list[str]:
    return [message["value"] for message in answer["messages"]]


def leaders(node: Node, topic: str) -> list[int]:
    return [part["leader"] for part in ask(node, f"/topics/{topic}/partitions")["partitions"]]


def is_read_through_all(nodes: Sequence[Node], topic: str, expected: Sequence[Sequence[str]]) -> None:
    """Check that every node shows every partition, one by one and together."""
    for node in nodes:
        for index, wanted in enumerate(expected):
            assert values(ask(node, f"/topics/{topic}/partitions/{index}/messages")) == list(wanted)
        whole = ask(node, f"/topics/{topic}/messages?limit=1000")
        assert sorted(values(whole)) == sorted(value for part in expected for value in part)
        described = ask(node, f"/topics/{topic}")
        assert [part["end_offset"] for part in described["partitions"]] == [len(part) for part in expected]
        listed = {each["name"]: each for each in ask(node, "/topics")["topics"]}
        assert listed[topic]["messages"] == sum(map(len, expected))


@pytest.mark.parametrize("factor", [1, 3])
def test_each_node_reads_the_partitions_of_all(tmp_path: Path, factor: int) -> None:
    with running_nodes(tmp_path) as nodes:
        first, second, third = nodes
        ask(first, "/topics", {"name": "orders", "partitions": PARTITIONS, "replication_factor": factor})
        for node in nodes:
            eventually(lambda: len(set(leaders(node, "orders"))) == 3, what="three leaders")  # noqa: B023
        for index in range(PARTITIONS):
            publish(first, "orders", index, f"a{index}")
        is_read_through_all([*nodes], "orders", [[f"a{index}"] for index in range(PARTITIONS)])
        with ThreadPoolExecutor(PARTITIONS) as threads:
            waiting = [
                threads.submit(
                    ask, second, f"/topics/orders/partitions/{index}/messages?offset=1&wait_ms=30000"
                )
                for index in range(PARTITIONS)
            ]
            for index in range(PARTITIONS):
                publish(third, "orders", index, f"b{index}")
            assert [values(each.result()) for each in waiting] == [
                [f"b{index}"] for index in range(PARTITIONS)
            ]


def test_long_polls_and_reads_go_on_when_a_leader_is_killed(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        ask(
            nodes.by_id[1],
            "/topics",
            {"name": "orders", "partitions": PARTITIONS, "replication_factor": 3},
        )
        victim = nodes.by_id[leaders(nodes.by_id[1], "orders")[0]]
        others = [node for node in nodes if node is not victim]
        for index in range(PARTITIONS):
            publish(others[0], "orders", index, f"a{index}")
        with ThreadPoolExecutor(2) as threads:
            one = threads.submit(
                ask, others[0], "/topics/orders/partitions/0/messages?offset=1&wait_ms=30000"
            )
            every = threads.submit(ask, others[1], "/topics/orders/messages?start=latest&wait_ms=30000")
            # The requests are on their way; whether they wait yet does not matter for the outcome of `one`.
            victim.kill()
            assert sorted(values(ask(others[0], "/topics/orders/messages"))) == [
                f"a{index}" for index in range(PARTITIONS)
            ]
            publish(others[1], "orders", 0, "b0")
            assert values(one.result()) == ["b0"]
            while not every.done():
                publish(others[0], "orders", 1, "b1")
            assert {"b0", "b1"}.issuperset(values(every.result()))


def fetched(node: Node, topic: str) -> int:
    """Return how many messages of a topic a node has sent to consumers."""
    label = f'alpacamq_topic_messages_fetched_total{{topic="{topic}"}} '
    lines = httpx.get(f"http://{node.http}/metrics", timeout=30).text.splitlines()
    return sum(int(float(line.removeprefix(label))) for line in lines if line.startswith(label))


def test_a_consumer_reads_from_the_replica_in_its_rack_and_from_the_leader_without_it(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        load = Load(nodes, "orders")
        load.send(3000)
        load.finish()
        near = nodes.by_id[2]
        consumer = Consumer(
            {
                "bootstrap.servers": nodes.kafka,
                "group.id": "near",
                "client.rack": f"rack-{near.id}",
                "auto.offset.reset": "earliest",
                "log_level": 2,
            }
        )
        read: list[int] = []

        def has_read(count: int) -> bool:
            messages = consumer.consume(1000, 0.5)
            read.extend(int(each.value() or b"") for each in messages if each.error() is None)
            return len(read) >= count

        try:
            consumer.subscribe(["orders"])
            eventually(lambda: has_read(3000), within_s=60)
            # A leader answers with the replica in the rack, and sends no records.
            assert [fetched(node, "orders") for node in nodes] == [0, 3000, 0]
            near.kill()
            load.send(3000)
            load.finish()
            eventually(lambda: has_read(6000), within_s=60)
        finally:
            consumer.close()
        assert sorted(read) == list(range(6000))
        assert not load.failed
