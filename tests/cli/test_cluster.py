"""`alpacactl cluster` against one broker, and lists of addresses."""

import json
from collections import Counter
from pathlib import Path

import httpx
import pytest

from alpacamq.cli.cluster_changes import bar, byte_rate, read_plan, spread
from alpacamq.cli.parsing import UsageError
from alpacamq.cluster.image import CURRENT_LEVEL
from alpacamq.wire.cluster import ClusterPartition
from tests.brokers import Broker

from .command import Command, InProcess
from .queued import sent

# Nothing listens there.
DEAD = "127.0.0.1:1"


def partition(index: int, replicas: list[int], adding: list[int] | None = None) -> ClusterPartition:
    return ClusterPartition(
        topic="t",
        partition=index,
        leader=replicas[0],
        leader_epoch=0,
        replicas=replicas,
        in_sync=replicas,
        eligible=[],
        adding=adding or [],
        removing=[],
        states=[],
    )


def test_status_shows_the_cluster_and_the_broker(ctl: Command, broker: Broker) -> None:
    status = ctl.json("cluster", "status")
    (node,) = status["nodes"]
    assert status["controller"]["node_id"] == status["node"] == node["node_id"]
    assert status["partitions"]["under_replicated"] == 0
    text = ctl.ok("cluster", "status")
    assert "UNDER-REPLICATED" in text
    assert broker.http_address in text


def test_status_counts_the_groups_that_are_listed(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "a")
    ctl.ok("queue", "receive", topic, "--group", f"{topic}-queue", "--ack", "--exit")
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]}
    http = f"http://{broker.http_address}"
    for group in (f"{topic}-consumer", f"{topic}-queue"):  # the latter as a queue, too
        httpx.post(f"{http}/groups/{group}/offsets", json=offsets).raise_for_status()
    listed = {each["name"] for each in ctl.json("groups", "list")}
    assert listed >= {f"{topic}-consumer", f"{topic}-queue"}
    assert ctl.json("cluster", "status")["holds"]["groups"] == len(listed)


def test_partitions_are_shown_by_state(ctl: Command, topic: str) -> None:
    ctl.ok("topics", "create", topic)
    assert ctl.ok("cluster", "partitions") == "under-replicated partitions: none\n"
    assert topic in ctl.ok("cluster", "partitions", "--state", "all")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["drain", "77"], 4, "node"),
        (["remove", "77", "--yes"], 4, "node"),
        (["drain", "1"], 1, "no other broker"),
        (["remove", "1", "--yes"], 2, "itself"),
        (["drain", "one"], 2, "integer"),
        (["reassign"], 2, "--file"),
        (["reassign", "--topic", "no-such", "--to", "1"], 4, "no-such"),
        (["reassign", "--topic", "no-such", "--to", "1,1"], 2, "different"),
        (["reassign", "--file", "/no/such/file"], 2, "cannot read"),
        (["elect", "--topic", "no-such"], 4, "no-such"),
    ],
)
def test_what_is_refused_says_why(ctl: Command, arguments: list[str], code: int, words: str) -> None:
    assert words in ctl.fails(code, "cluster", *arguments)


def test_a_plan_is_carried_out_for_each_partition(ctl: Command, topic: str, tmp_path: Path) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    node = ctl.json("cluster", "status")["node"]
    plan = tmp_path / "plan.json"
    partitions = [{"topic": topic, "partition": 0, "replicas": [node], "log_dirs": ["any"]}]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    (moved,) = ctl.json("cluster", "reassign", "--file", str(plan))
    assert (moved["replicas"], moved["error"]) == ([node], None)
    partitions[0]["replicas"] = [77]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    ran = ctl("cluster", "reassign", "--file", str(plan))
    assert ran.code == 1
    assert "1 of 1 partitions did not change: no broker is registered with id 77" in ran.errors
    assert ctl.ok("cluster", "reassign", "--status") == "reassignments: none\n"
    assert ctl.ok("cluster", "reassign", "--cancel") == "partitions: none\n"


def test_preferred_leaders_are_elected_where_another_leads(ctl: Command, topic: str) -> None:
    ctl.ok("topics", "create", topic)
    assert ctl.json("cluster", "elect") == []
    assert ctl.json("cluster", "elect", "--topic", topic) == []


def test_the_level_of_a_new_cluster_is_the_highest(ctl: Command) -> None:
    expected = {"before": CURRENT_LEVEL, "level": CURRENT_LEVEL, "supported": CURRENT_LEVEL}
    assert ctl.json("cluster", "upgrade", "--dry-run") == expected
    assert ctl.json("cluster", "upgrade") == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"partitions": [{}]}', '{"partitions": [{"topic": "t", "partition": "x"}]}']
)
def test_a_plan_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a plan"):
        read_plan(path)


def test_replicas_are_spread_with_the_leaders_in_turn() -> None:
    partitions = [partition(0, [1, 2]), partition(1, [2, 1]), partition(2, [3, 1, 2], adding=[3])]
    racks = {4: "", 5: "", 6: ""}
    assert spread(partitions, racks, None) == [("t", 0, [4, 5]), ("t", 1, [6, 4]), ("t", 2, [5, 6])]
    assert spread(partitions[:1], racks, 3) == [("t", 0, [4, 5, 6])]
    with pytest.raises(UsageError, match="--factor"):
        spread(partitions, {4: ""}, None)


@pytest.mark.parametrize(
    "racks",
    [
        {1: "a", 2: "a", 3: "b", 4: "b"},
        {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"},
        {1: "a", 2: "b", 3: "b", 4: ""},
    ],
)
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_replicas_are_spread_over_racks_and_evenly(racks: dict[int, str], factor: int) -> None:
    wanted = spread([partition(number, [9]) for number in range(12)], racks, factor)
    chosen = [replicas for _, _, replicas in wanted if replicas is not None]
    names = {node: rack or str(node) for node, rack in racks.items()}
    for replicas in chosen:
        assert len({names[node] for node in replicas}) == min(factor, len(set(names.values())))
    leaders = Counter(replicas[0] for replicas in chosen)
    assert set(leaders) == set(racks)
    sizes = Counter(names.values())
    if len(set(sizes.values())) == 1:  # with racks of one size every node gets as much
        replicas_on = Counter(node for replicas in chosen for node in replicas)
        assert max(replicas_on.values()) - min(replicas_on.values()) <= 1


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1000", 1000),
        ("50MB", 50_000_000),
        ("1.5MiB/s", 3 << 19),
        ("2 kb", 2000),
        ("1g", 10**9),
        ("none", -1),
    ],
)
def test_a_rate_has_units(text: str, rate: int) -> None:
    assert byte_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "1e9", "50MBps"])
def test_what_is_no_rate_is_refused(ctl: Command, text: str) -> None:
    assert "rate" in ctl.fails(2, "cluster", "reassign", f"--throttle={text}")


def test_the_limit_of_reassignments_is_set_shown_and_removed(ctl: Command) -> None:
    ctl.ok("cluster", "reassign", "--throttle", "50MB")
    assert ctl.json("cluster", "status")["throttle"] == 50_000_000
    assert "a limit of 47.7 MiB/s" in ctl("cluster", "reassign", "--status").errors
    ctl.ok("cluster", "reassign", "--throttle", "none")
    assert ctl("cluster", "reassign", "--status").errors == ""
    assert ctl.json("cluster", "status")["throttle"] is None
    assert "--throttle" in ctl.fails(2, "cluster", "reassign", "--cancel", "--throttle", "1MB")


def test_a_limit_is_set_back_when_the_moves_are_done(ctl: Command, topic: str) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    node = str(ctl.json("cluster", "status")["node"])
    ctl.ok("cluster", "reassign", "--throttle", "3MB")
    ctl.ok("cluster", "reassign", "--topic", topic, "--to", node, "--throttle", "1MB")
    assert ctl.json("cluster", "status")["throttle"] == 3_000_000
    ctl.ok("cluster", "reassign", "--throttle", "none")


def test_progress_is_a_bar() -> None:
    assert bar(0.0) == "[....................]   0%"
    assert bar(0.5) == "[##########..........]  50%"
    assert bar(1.0) == "[####################] 100%"


@pytest.mark.parametrize("arguments", [["cluster", "status"], ["cluster", "describe"], ["topics", "list"]])
def test_the_next_broker_of_a_list_is_used_if_the_first_is_dead(broker: Broker, arguments: list[str]) -> None:
    listed = InProcess(f"{DEAD},{broker.address}", f"{DEAD}, http://{broker.http_address}/")
    listed.ok(*arguments)


def test_a_list_of_dead_brokers_is_unreachable() -> None:
    assert DEAD in InProcess(f"{DEAD},{DEAD}").fails(3, "cluster", "status")


def test_a_context_keeps_a_list(ctl: Command, broker: Broker) -> None:
    http, kafka = f"{DEAD},{broker.http_address}", f"{DEAD},{broker.address}"
    stored = InProcess(kafka, http).json("config", "set", "three")
    assert (stored["http"], stored["broker"]) == (http, kafka)
