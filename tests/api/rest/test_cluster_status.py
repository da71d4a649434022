"""Status and operations of a cluster, on a cluster of one node."""

import httpx
import pytest


def test_a_single_node_is_a_cluster_with_one_voter(http: httpx.Client, made: str) -> None:
    status = http.get("/cluster/status").json()
    assert status["cluster_id"] == http.get("/version").json()["cluster_id"]
    assert status["controller"]["node_id"] == status["node_id"]
    (node,) = status["nodes"]
    assert (node["state"], node["controller"], node["voter"], node["error"]) == ("running", True, True, None)
    assert node["leaders"] == node["replicas"] == node["in_sync"] == status["partitions"]["partitions"]
    assert node["under_replicated"] == node["below_min_isr"] == node["offline"] == 0
    (voter,) = status["voters"]
    assert (voter["node_id"], voter["lag"]) == (status["node_id"], 0)
    assert status["links"] == status["reassignments"] == status["warnings"] == []
    assert made


def test_partitions_are_listed_by_topic_and_state(http: httpx.Client, made: str) -> None:
    found = http.get("/cluster/partitions", params={"topic": made}).json()
    assert found["total"] == 2
    assert [each["partition"] for each in found["partitions"]] == [0, 1]
    first = found["partitions"][0]
    assert first["replicas"] == first["in_sync"] == [first["leader"]]
    assert first["states"] == []
    assert http.get("/cluster/partitions", params={"topic": made, "limit": 1}).json()["total"] == 2
    assert not http.get("/cluster/partitions", params={"state": "offline"}).json()["total"]
    assert not http.get("/cluster/partitions", params={"topic": made, "node": 77}).json()["total"]
    assert http.get("/cluster/partitions", params={"topic": "no-such"}).status_code == 404


def test_the_limit_of_reassignments_is_set_and_removed(http: httpx.Client) -> None:
    assert http.get("/cluster/status").json()["throttle"] is None
    limited = http.put("/cluster/throttle", json={"bytes_per_second": 1000})
    assert (limited.status_code, limited.json()) == (200, {"bytes_per_second": 1000})
    assert http.get("/cluster/status").json()["throttle"] == 1000
    assert http.put("/cluster/throttle", json={"bytes_per_second": -1}).status_code == 400
    assert http.put("/cluster/throttle", json={"bytes_per_second": None}).status_code == 200
    assert http.get("/cluster/status").json()["throttle"] is None


def test_the_only_node_cannot_be_drained_or_removed(http: httpx.Client) -> None:
    node = http.get("/cluster/status").json()["node_id"]
    refused = http.post(f"/cluster/nodes/{node}/drain", json={})
    assert refused.status_code == 422
    assert "no other broker" in refused.json()["detail"]
    assert http.delete(f"/cluster/nodes/{node}/drain").json()["draining"] is False
    removed = http.delete(f"/cluster/nodes/{node}", params={"force": "true"})
    assert removed.status_code == 422
    assert "is running" in removed.json()["detail"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/drain"), ("DELETE", "/drain"), ("DELETE", "")])
def test_an_unknown_node_is_not_found(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, f"/cluster/nodes/77{path}", json={} if method == "POST" else None)
    assert answer.status_code == 404


def test_reassignments_and_elections_have_a_result_for_each_partition(http: httpx.Client, made: str) -> None:
    wanted = [
        {"topic": made, "partition": 0, "replicas": [77]},
        {"topic": made, "partition": 1, "replicas": None},
        {"topic": "no-such", "partition": 0, "replicas": [1]},
    ]
    answer = http.post("/cluster/reassignments", json={"partitions": wanted}).json()
    errors = [each["error"] for each in answer["partitions"]]
    for error, words in zip(errors, ("registered", "not being reassigned", "no topic"), strict=True):
        assert words in error
    elected = http.post("/cluster/elections", json={"partitions": [{"topic": made, "partition": 0}]}).json()
    assert "already" in elected["partitions"][0]["error"]
    assert http.post("/cluster/elections", json={}).json() == {"partitions": []}
