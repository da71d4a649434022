"""Operating a cluster of real processes with `alpacactl`: status, reassigning, draining, removing."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.cli.command import Command
from tests.kafka_tools import kafka_configs, kafka_reassign_partitions, require_kafka_tools
from tests.waiting import eventually

from .nodes import Nodes, running_nodes
from .test_cluster import Load, create, read_all

COMMAND_S = 120


def controller_of(ctl: Command) -> int:
    found: int = ctl.json("cluster", "status")["controller"]["node_id"]
    return found


def nodes_of(ctl: Command) -> dict[int, dict[str, object]]:
    return {node["node_id"]: node for node in ctl.json("cluster", "status")["nodes"]}


def summed(nodes: Nodes, metric: str) -> float:
    """Return the sum of a metric over the nodes that run."""
    found = 0.0
    for node in nodes:
        if node.is_running:
            text = httpx.get(f"http://{node.http}/metrics", timeout=30).text
            found += sum(
                float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{metric} ")
            )
    return found


def commands_for(nodes: Nodes) -> Command:
    """Return `alpacactl` with the addresses of all nodes."""
    http = ",".join(node.http for node in nodes)
    return Command(nodes.kafka, http, patience_s=COMMAND_S)


def test_replicas_move_and_the_controller_is_removed_without_losing_a_record(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        load = Load(nodes, "orders")
        load.send(3000)
        ctl = commands_for(nodes)
        found = nodes_of(ctl)
        assert [found[number]["state"] for number in (1, 2, 3)] == ["running"] * 3
        assert [found[number]["replicas"] for number in (1, 2, 3)] == [3] * 3

        # Leaders move off a node for maintenance, and come back.
        ctl.ok("cluster", "drain", "2", "--leaders-only")
        assert (nodes_of(ctl)[2]["leaders"], nodes_of(ctl)[2]["in_sync"]) == (0, 3)
        ctl.ok("cluster", "drain", "2", "--cancel")
        ctl.ok("cluster", "elect")
        assert nodes_of(ctl)[2]["leaders"] == 1

        # The controller is removed: its replicas, its vote, itself.
        leaving = controller_of(ctl)
        staying = [number for number in (1, 2, 3) if number != leaving]
        to = ",".join(map(str, staying))
        load.send(3000)
        ctl.ok("cluster", "reassign", "--topic", "orders", "--to", to, "--factor", "2")
        assert nodes_of(ctl)[leaving]["replicas"] == 0
        other = Command(nodes.kafka, nodes.by_id[staying[0]].http, patience_s=COMMAND_S)

        def stop_when_its_vote_is_gone() -> None:
            eventually(lambda: not nodes_of(other)[leaving]["voter"], within_s=60)
            nodes.by_id[leaving].stop()

        stopping = threading.Thread(target=stop_when_its_vote_is_gone)
        stopping.start()
        ctl_of_others = Command(nodes.kafka, nodes.by_id[staying[0]].http, patience_s=COMMAND_S)
        ran = ctl_of_others("cluster", "remove", str(leaving), "--yes", "--timeout", "90s")
        stopping.join()
        assert ran.code == 0, ran.errors
        assert "stop its process now" in ran.errors
        assert sorted(nodes_of(other)) == staying
        status = other.json("cluster", "status")
        assert [voter["node_id"] for voter in status["voters"]] == staying
        assert status["controller"]["node_id"] in staying

        load.send(3000)
        load.finish()
        assert not load.failed
        for index in range(3):
            assert read_all(nodes, "orders", index) == load.acked[index]


def test_a_lost_node_is_shown_and_removed_by_force(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        lost = 3
        nodes.by_id[lost].kill()
        ctl = commands_for(nodes)
        eventually(lambda: nodes_of(ctl)[lost]["fenced"], within_s=30, what="the node is fenced")
        status = ctl.json("cluster", "status")
        assert status["partitions"]["under_replicated"] == 3
        assert status["partitions"]["offline"] == 0
        assert len(ctl.json("cluster", "partitions")) == 3
        for node in (nodes.by_id[1], nodes.by_id[2]):
            # What is wrong with another node is no reason to take this one out of service.
            assert httpx.get(f"http://{node.http}/readyz").json()["status"] == "ok"
            health = httpx.get(f"http://{node.http}/healthz")
            assert (health.status_code, health.json()["status"]) == (200, "degraded")
            assert "not in sync" in health.json()["checks"]["replicas"]["detail"]
        assert summed(nodes, "alpacamq_under_replicated_partitions") == 3
        assert summed(nodes, "alpacamq_isr_shrinks_total") >= 1
        assert summed(nodes, "alpacamq_active_controller") == 1
        assert summed(nodes, "alpacamq_offline_partitions") == 0
        assert summed(nodes, "alpacamq_leader_partitions") == 3
        assert summed(nodes, 'alpacamq_peer_links{state="connected"}') == 2
        assert "no other broker" in ctl("cluster", "remove", str(lost), "--yes").errors
        ctl.ok("cluster", "remove", str(lost), "--yes", "--force")
        status = ctl.json("cluster", "status")
        assert [node["node_id"] for node in status["nodes"]] == [1, 2]
        assert [voter["node_id"] for voter in status["voters"]] == [1, 2]
        # The vote of a lost node does not come back.
        create(nodes, "more", factor=2)
        assert [voter["node_id"] for voter in ctl.json("cluster", "status")["voters"]] == [1, 2]


@pytest.mark.heavy
def test_kafkas_tool_moves_replicas_with_a_throttle_and_removes_it(tmp_path: Path) -> None:
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
        begun = kafka_reassign_partitions(nodes.kafka, "--execute", *options, "--throttle", "1")
        assert begun.returncode == 0, begun.stderr
        assert "Successfully started partition reassignments" in begun.stdout, begun.stdout
        moving = ctl.json("cluster", "reassign", "--status")
        assert [each["throttle"] for each in moving] == [1, 1, 1]
        assert all(each["bytes_left"] > 0 for each in moving)
        # The rate is changed while they move.
        faster = kafka_reassign_partitions(
            nodes.kafka, "--execute", "--additional", *options, "--throttle", "100000000"
        )
        assert faster.returncode == 0, faster.stderr
        eventually(lambda: not ctl.json("cluster", "reassign", "--status"), within_s=60)
        ended = kafka_reassign_partitions(nodes.kafka, "--verify", *options)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.count("is completed") == 3, ended.stdout
        assert summed(nodes, "alpacamq_replication_throttled_sent_bytes_total") > 3000
        described = ctl.json("topics", "describe", "orders")
        assert "throttled.replicas" not in json.dumps(described.get("overrides", {}))
        for kind, name in (("brokers", "1"), ("topics", "orders")):
            left = kafka_configs(nodes.kafka, "--describe", "--entity-type", kind, "--entity-name", name)
            assert "throttled" not in left.stdout, left.stdout
        for index in range(3):
            assert read_all(nodes, "orders", index) == load.acked[index]


@pytest.mark.heavy
def test_a_node_without_a_majority_says_so_and_is_not_ready(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        left = nodes.by_id[1]
        nodes.by_id[2].kill()
        nodes.by_id[3].kill()

        def is_unready() -> bool:
            answer = httpx.get(f"http://{left.http}/readyz", timeout=30)
            detail = answer.json()["checks"]["cluster"].get("detail", "")
            return answer.status_code == 503 and "no answer from the controller" in detail

        eventually(is_unready, within_s=60, what="the node is not ready")
        status = Command(left.kafka, left.http).json("cluster", "status")
        assert status["controller"]["node_id"] is None
        assert sorted(voter["node_id"] for voter in status["voters"]) == [1, 2, 3]
        assert {link["node_id"]: link["state"] != "connected" for link in status["links"]} == {
            2: True,
            3: True,
        }
        # Started again, a node says what it waits for.
        left.kill()
        left.start()

        def waits() -> bool:
            try:
                return "a majority of the voters" in httpx.get(f"http://{left.http}/readyz").text
            except httpx.TransportError:
                return False

        eventually(waits, within_s=60, what="the node says what it waits for")


@pytest.mark.heavy
def test_a_cluster_that_lost_its_majority_is_recovered_from_the_last_node(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        create(nodes, "orders")
        load = Load(nodes, "orders")
        load.send(3000)
        load.finish()
        assert not load.failed
        left, *lost = nodes
        for node in nodes:
            node.kill()
        for node in lost:
            shutil.rmtree(node.data)
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "alpacamq.node.main", "format", "--sole-voter"),
                *("--data-dir", str(left.data), "--node-id", str(left.id)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert "node 1 is the only voter now, instead of 1, 2, 3" in ran.stdout

        # The others come back empty. That the last node has everything is for its operator to say.
        left.start()
        left.wait_until_ready(2)
        for node in lost:
            node.start()
        for node in lost:
            node.wait_until_ready(2)
        ctl = commands_for(nodes)
        eventually(lambda: len(ctl.json("cluster", "partitions", "--state", "offline")) == 3, within_s=60)
        elected = ctl.json("cluster", "elect", "--unclean", "--yes")
        assert [each["leader"] for each in elected] == [left.id] * 3
        eventually(
            lambda: ctl.json("cluster", "status")["partitions"]["under_replicated"] == 0,
            within_s=60,
            what="all replicas are in sync",
        )
        eventually(
            lambda: len(ctl.json("cluster", "status")["voters"]) == 3, within_s=60, what="all nodes vote"
        )
        for index in range(3):
            assert read_all(nodes, "orders", index) == load.acked[index]
