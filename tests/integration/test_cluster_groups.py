"""Groups over HTTP through any node of a cluster of real processes."""

import http.client
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest

from .nodes import Node, Nodes, running_nodes
from .test_cluster import create
from .test_cluster_reading import ask

GROUPS = 8
HEARTBEATS = 100


def coordinators(nodes: Nodes, groups: list[str]) -> dict[int, list[str]]:
    """Return the groups by the node that has their metrics, which are those of its own groups."""
    found: dict[int, list[str]] = {}
    for node in nodes:
        text = metrics(node)
        found[node.id] = [each for each in groups if f'alpacamq_group_members{{group="{each}"}}' in text]
    return found


def metrics(node: Node) -> str:
    connection = http.client.HTTPConnection(node.http, timeout=60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("fail", [Node.kill, pytest.param(Node.suspend, marks=pytest.mark.heavy)])
def test_members_heartbeat_without_an_error_while_their_coordinator_fails(
    tmp_path: Path, fail: Callable[[Node], None]
) -> None:
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        groups = [f"group-{number}" for number in range(GROUPS)]
        via = cycle(nodes)
        members = {
            group: ask(next(via), f"/groups/{group}/join", {"topics": ["orders"]})["member_id"]
            for group in groups
        }
        by_node = coordinators(nodes, groups)
        assert sorted(name for some in by_node.values() for name in some) == groups
        victim = nodes.by_id[max(by_node, key=lambda node_id: len(by_node[node_id]))]
        others = cycle([node for node in nodes if node is not victim])
        targets = [(next(others), group) for group in groups]

        def beat(node: Node, group: str) -> None:
            for number in range(HEARTBEATS):
                answer = ask(node, f"/groups/{group}/heartbeat", {"member_id": members[group]})
                assert answer["member_epoch"] >= 1
                if group == by_node[victim.id][0] and number == HEARTBEATS // 3:
                    fail(victim)

        with ThreadPoolExecutor(GROUPS) as threads:
            for each in [threads.submit(beat, *target) for target in targets]:
                each.result()
        for node, group in targets:
            described = ask(node, f"/groups/{group}")
            assert [member["member_id"] for member in described["members"]] == [members[group]]
        listed = ask(targets[0][0], "/groups")["groups"]
        assert [each["group"] for each in listed] == groups
