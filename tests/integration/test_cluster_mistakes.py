"""Nodes that are configured wrongly: each says what is wrong, and the cluster goes on."""

import shutil
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.waiting import eventually

from .nodes import Node, Nodes, running_nodes
from .test_cluster import create

ENDS_S = 60


def started(root: Path, node_id: int, nodes: Nodes, data: Path | None = None, settings: str = "") -> Node:
    """Start a further process with the list of nodes, on ports of its own."""
    root.mkdir()
    return Node(root, node_id, free_ports(4), nodes.listed, data=data, settings=settings).start()


def test_mistakes_are_named_and_the_cluster_goes_on(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        others: list[Node] = []
        try:
            double = started(tmp_path / "double", 2, nodes)
            others.append(double)
            eventually(lambda: double.events("waiting_for_cluster"), within_s=ENDS_S)
            [event] = double.events("waiting_for_cluster")
            address = nodes.by_id[2].cluster
            assert f"another node with the id 2 answers at {address}" in event["reason"]
            assert double.is_running  # it waits until that one has gone
            double.end()

            nodes.by_id[3].stop()
            foreign = started(tmp_path / "foreign", 2, nodes, nodes.by_id[3].data)
            others.append(foreign)
            eventually(lambda: not foreign.is_running, within_s=ENDS_S)
            assert foreign.exit_code == 1
            assert "belongs to node 3, but this node is configured as 2" in foreign.last_output()

            missing = started(
                tmp_path / "missing", 3, nodes, nodes.by_id[3].data, 'secret_file = "no-such-file"'
            )
            others.append(missing)
            eventually(lambda: not missing.is_running, within_s=ENDS_S)
            assert missing.exit_code == 1
            assert "cluster.secret_file no-such-file cannot be read" in missing.last_output()

            secret = tmp_path / "another-secret"
            secret.write_text("a secret that the others do not know")
            stranger = started(
                tmp_path / "stranger", 3, nodes, nodes.by_id[3].data, f'secret_file = "{secret}"'
            )
            others.append(stranger)
            eventually(lambda: stranger.events("broker_not_registered"), within_s=ENDS_S)
            reasons = [event["reason"] for event in stranger.events("peer_handshake_failed")]
            assert any("has another secret" in reason for reason in reasons)
            stranger.end()

            create(nodes.by_id[1], "the-cluster-goes-on", factor=2)
        finally:
            for node in others:
                node.end()


@pytest.mark.heavy
def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    alone = Node(tmp_path / "other", 3, free_ports(4), "")
    try:
        alone.start()
        alone.wait_until_ready()
        alone.stop()
    finally:
        alone.end()
    with running_nodes(tmp_path) as nodes:
        nodes.by_id[3].stop()
        shutil.rmtree(nodes.by_id[3].data)
        shutil.copytree(alone.data, nodes.by_id[3].data)
        wrong = nodes.by_id[3].start()
        eventually(lambda: not wrong.is_running, within_s=ENDS_S)
        assert wrong.exit_code == 1
        assert "belongs to another cluster than the nodes of cluster.nodes" in wrong.last_output()
        assert "start with an empty data directory" in wrong.last_output()
