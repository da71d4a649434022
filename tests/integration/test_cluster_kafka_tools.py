"""Operating a cluster of real processes with Kafka's own tools; skipped without a JDK and their jars."""

import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.kafka_tools import (
    kafka_cluster,
    kafka_features,
    kafka_leader_election,
    kafka_metadata_quorum,
    kafka_reassign_partitions,
    require_kafka_tools,
)
from tests.ports import free_ports
from tests.waiting import eventually

from .nodes import Node, Nodes, running_nodes
from .test_cluster import Load, create, read_all
from .test_cluster_operations import commands_for, nodes_of

pytestmark = pytest.mark.heavy


def output(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a tool printed that succeeded."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def voters(nodes: Nodes) -> dict[int, str]:
    """Return the directory ids of the voters."""
    status = output(kafka_metadata_quorum(nodes.kafka, "describe", "--status"))
    found = re.search(r"CurrentVoters:\s+(\[.*\])", status)
    assert found is not None, status
    return {each["id"]: each["directoryId"] for each in json.loads(found[1])}


def test_a_vote_is_given_and_removed_and_a_node_is_unregistered(tmp_path: Path) -> None:
    require_kafka_tools()
    with running_nodes(tmp_path) as nodes:
        # Nodes that should vote get a vote by themselves: this one is a broker only.
        node = Node(tmp_path, 4, free_ports(4), nodes.listed, settings='roles = ["broker"]')
        try:
            node.start()
            node.wait_until_ready()
            _vote_and_leave(nodes, node, tmp_path)
        finally:
            node.end()


def _vote_and_leave(nodes: Nodes, node: Node, directory: Path) -> None:
    ctl = commands_for(nodes)
    cluster_id = output(kafka_cluster(nodes.kafka, "cluster-id")).split()[-1]
    assert cluster_id == httpx.get(f"http://{node.http}/cluster").json()["cluster_id"]
    assert sorted(voters(nodes)) == [1, 2, 3]
    replication = output(kafka_metadata_quorum(nodes.kafka, "describe", "--replication"))
    rows = re.findall(r"^(\d+) +\t(\S+)\t.*\t(\w+) *\t$", replication, re.MULTILINE)
    states = {int(number): (directory_id, state) for number, directory_id, state in rows}
    assert sorted(state for _, state in states.values()) == ["Follower", "Follower", "Leader", "Observer"]
    directory_id, state = states[node.id]
    assert state == "Observer"

    # The tool reads what it needs to know of the node from a configuration and a data directory of Kafka.
    data = directory / "kafka"
    data.mkdir()
    (data / "meta.properties").write_text(
        f"version=1\ncluster.id={cluster_id}\nnode.id={node.id}\ndirectory.id={directory_id}\n"
    )
    properties = directory / "controller.properties"
    properties.write_text(
        f"process.roles=controller\nnode.id={node.id}\nlog.dirs={data}\n"
        "controller.listener.names=CONTROLLER\n"
        f"listeners=CONTROLLER://{node.cluster}\nadvertised.listeners=CONTROLLER://{node.cluster}\n"
    )
    output(kafka_metadata_quorum(nodes.kafka, "--command-config", str(properties), "add-controller"))
    assert voters(nodes)[node.id] == directory_id
    refused = kafka_cluster(nodes.kafka, "unregister", "--id", str(node.id))
    assert "node 4 is a voter of the metadata log" in refused.stdout + refused.stderr
    removal = ("--controller-id", str(node.id), "--controller-directory-id", directory_id)
    output(kafka_metadata_quorum(nodes.kafka, "remove-controller", *removal))
    assert sorted(voters(nodes)) == [1, 2, 3]
    again = kafka_metadata_quorum(nodes.kafka, "remove-controller", *removal)
    assert again.returncode == 1
    assert "no voter has id 4" in again.stdout + again.stderr

    refused = kafka_cluster(nodes.kafka, "unregister", "--id", str(node.id))
    assert refused.returncode == 1
    ctl.ok("cluster", "drain", str(node.id))
    node.stop()
    eventually(lambda: nodes_of(ctl)[node.id]["fenced"], within_s=30, what="the node has ended")
    unregistered = output(kafka_cluster(nodes.kafka, "unregister", "--id", str(node.id)))
    assert f"Broker {node.id} is no longer registered." in unregistered
    assert sorted(nodes_of(ctl)) == [1, 2, 3]


def test_moves_are_listed_and_cancelled_and_preferred_leaders_elected(tmp_path: Path) -> None:
    require_kafka_tools()
    with running_nodes(tmp_path) as nodes:
        ctl = commands_for(nodes)
        create(nodes, "orders", factor=1)
        load = Load(nodes, "orders")
        load.send(3000)
        load.finish()
        plan = tmp_path / "plan.json"
        moved = [{"topic": "orders", "partition": index, "replicas": [1, 2, 3]} for index in range(3)]
        plan.write_text(json.dumps({"version": 1, "partitions": moved}))
        options = ("--reassignment-json-file", str(plan))
        output(kafka_reassign_partitions(nodes.kafka, "--execute", *options, "--throttle", "1"))
        listed = output(kafka_reassign_partitions(nodes.kafka, "--list"))
        assert len(re.findall(r"orders-\d: replicas: .* adding: ", listed)) == 3, listed
        cancelled = output(kafka_reassign_partitions(nodes.kafka, "--cancel", *options))
        assert "Successfully cancelled partition reassignments" in cancelled
        assert "No partition reassignments found." in output(kafka_reassign_partitions(nodes.kafka, "--list"))
        partitions = ctl.json("cluster", "partitions", "--state", "all")
        assert [len(each["replicas"]) for each in partitions if each["topic"] == "orders"] == [1, 1, 1]

        output(kafka_reassign_partitions(nodes.kafka, "--execute", *options))
        eventually(lambda: not ctl.json("cluster", "reassign", "--status"), within_s=60)
        ctl.ok("cluster", "drain", "1", "--leaders-only")
        ctl.ok("cluster", "drain", "1", "--cancel")
        for index in range(3):
            # Leaders return to preferred replicas by themselves, too.
            place = ("--topic", "orders", "--partition", str(index))
            elected = output(kafka_leader_election(nodes.kafka, "--election-type", "preferred", *place))
            assert f"orders-{index}" in elected
            assert "Successfully completed" in elected or "Valid replica already elected" in elected
        leaders = ctl.json("cluster", "partitions", "--state", "all")
        assert [each["leader"] for each in leaders if each["topic"] == "orders"] == [1, 1, 1]
        for index in range(3):
            assert read_all(nodes, "orders", index) == load.acked[index]


def test_levels_are_described_and_checked(tmp_path: Path) -> None:
    require_kafka_tools()
    with running_nodes(tmp_path) as nodes:
        found = re.search(
            r"Feature: alpacamq.version\s+SupportedMinVersion: 1\s+SupportedMaxVersion: (\d)"
            r"\s+FinalizedVersionLevel: (\d)",
            output(kafka_features(nodes.kafka, "describe")),
        )
        assert found is not None
        assert found[1] == found[2]
        level = int(found[1])
        options = ("upgrade", "--feature", f"alpacamq.version={level}")
        assert "can be upgraded" in output(kafka_features(nodes.kafka, *options, "--dry-run"))
        beyond = kafka_features(nodes.kafka, "upgrade", "--feature", f"alpacamq.version={level + 1}")
        assert beyond.returncode == 1
        assert f"does not support alpacamq.version level {level + 1}" in beyond.stdout
