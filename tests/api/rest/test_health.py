"""Health, version, stats and metrics."""

import re

import httpx
import pytest

from alpacamq.model.version import VERSION

SAMPLE = re.compile(r'^([a-z_:]+)(\{([a-z_]+="(?:[^"\\\n]|\\.)*",?)*\})? ([0-9.e+-]+)$')


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/livez"])
def test_a_healthy_broker_reports_ok(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert {check["status"] for check in answer.json().get("checks", {}).values()} <= {"ok"}


def test_the_version_is_known(http: httpx.Client) -> None:
    assert http.get("/version").json()["version"] == VERSION


def test_head_answers_without_a_body(http: httpx.Client) -> None:
    answer = http.head("/version")
    assert answer.status_code == 200
    assert answer.content == b""


def test_a_method_that_is_not_served_is_answered_with_those_that_are(http: httpx.Client) -> None:
    answer = http.put("/version")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/nowhere", "/topics/", "/topics//messages", "/messages"])
def test_a_path_with_nothing_at_it_is_not_found(http: httpx.Client, path: str) -> None:
    assert http.get(path).json()["type"] == "urn:alpacamq:problem:unknown-path"


def test_stats_count_the_groups_that_are_listed(http: httpx.Client, made: str) -> None:
    http.get("/groups/only-a-queue/poll", params={"topic": made, "wait_ms": 0}).raise_for_status()
    groups = {each["group"] for each in http.get("/groups", params={"limit": 10_000}).json()["groups"]}
    assert "only-a-queue" in groups
    assert http.get("/stats").json()["groups"] == len(groups)


def test_stats_count_topics_and_messages(http: httpx.Client, made: str) -> None:
    before = http.get("/stats").json()
    http.post(f"/topics/{made}/messages", json={"value": "x"}).raise_for_status()
    after = http.get("/stats").json()
    assert after["messages"] > before["messages"]
    assert after["requests"] >= before["requests"] + 2
    assert after["topics"] >= 1


def metrics(http: httpx.Client) -> dict[str, float]:
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    for line in lines:
        assert SAMPLE.match(line), line
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics_are_in_prometheus_format_and_count(http: httpx.Client, made: str) -> None:
    http.post(f"/topics/{made}/messages", json={"messages": [{"value": "x"}] * 5}).raise_for_status()
    offsets = [{"topic": made, "partition": index, "offset": 0} for index in (0, 1)]
    http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).raise_for_status()
    found = metrics(http)
    assert found[f'alpacamq_topic_messages{{topic="{made}"}}'] == 5
    assert found[f'alpacamq_topic_messages_written_total{{topic="{made}"}}'] == 5
    assert found[f'alpacamq_topic_partitions{{topic="{made}"}}'] == 2
    assert found[f'alpacamq_group_lag{{group="{made}",topic="{made}"}}'] == 5
    assert found["process_resident_memory_bytes"] > 1 << 20
    served = 'alpacamq_http_requests_total{method="POST",path="/topics/{topic}/messages",status="200"}'
    assert found[served] >= 1


def test_names_that_users_choose_cannot_forge_a_metric(http: httpx.Client, made: str) -> None:
    group = 'evil"} 1\nforged 2\\'
    path = "/groups/" + "".join(f"%{byte:02X}" for byte in group.encode())
    body = {"offsets": [{"topic": made, "partition": 0, "offset": 0}]}
    http.post(f"{path}/offsets", json=body).raise_for_status()
    assert "forged" not in {name.partition("{")[0] for name in metrics(http)}
    http.delete(path).raise_for_status()
