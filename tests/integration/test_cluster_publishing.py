"""Messages published over HTTP through any node of a cluster of real processes."""

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .nodes import Node, running_nodes
from .test_cluster import PARTITIONS, create, leaders, read_all


def publish(node: Node, topic: str, partition: int, value: str) -> None:
    """Publish one message; the node answers once it is replicated."""
    body = json.dumps({"messages": [{"value": value, "partition": partition}]}).encode()
    connection = http.client.HTTPConnection(node.http, timeout=60)
    connection.request("POST", f"/topics/{topic}/messages", body)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    assert "offset" in answer["results"][0], answer


def test_each_node_publishes_to_the_partitions_of_all(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        create(nodes, "spread", factor=1)
        assert set(leaders(nodes, "spread")) == {1, 2, 3}
        for node in nodes:
            for index in range(PARTITIONS):
                publish(node, "spread", index, str(node.id))
        for index in range(PARTITIONS):
            assert read_all(nodes, "spread", index) == [1, 2, 3]


def test_a_message_is_published_once_though_its_leader_is_killed(tmp_path: Path) -> None:
    """The node repeats its call at the next leader, which recognises what it has already."""
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        victim = nodes.by_id[leaders(nodes, "orders")[0]]
        others = [node for node in nodes if node is not victim]

        def work(number: int) -> None:
            publish(others[number % 2], "orders", 0, str(number))

        with ThreadPoolExecutor(8) as threads:
            working = [threads.submit(work, number) for number in range(1000)]
            working[200].result()
            victim.kill()
            for each in working:
                each.result()
        assert sorted(read_all(nodes, "orders", 0)) == list(range(1000))
