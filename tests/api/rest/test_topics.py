"""Topics over HTTP: making, finding, changing, deleting."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from .problems import refused


def test_a_topic_is_made_described_listed_and_deleted(http: httpx.Client, topic: str) -> None:
    created = http.post("/topics", json={"name": topic, "partitions": 2, "settings": {"retention.ms": 1000}})
    assert created.status_code == 201
    assert created.json()["overrides"] == {"retention.ms": "1000"}

    described = http.get(f"/topics/{topic}").json()
    assert described == created.json()
    assert [each["partition"] for each in described["partitions"]] == [0, 1]
    assert described["settings"]["retention.ms"] == "1000"
    assert described["settings"]["cleanup.policy"] == "delete"

    listed = http.get("/topics", params={"prefix": topic}).json()
    assert [(each["name"], each["partitions"]) for each in listed["topics"]] == [(topic, 2)]

    assert http.delete(f"/topics/{topic}").status_code == 204
    assert refused(http.get(f"/topics/{topic}"), 404, "unknown-topic")


def test_a_topic_has_three_partitions_by_default(http: httpx.Client, topic: str) -> None:
    assert len(http.post("/topics", json={"name": topic}).json()["partitions"]) == 3


def test_topics_are_listed_page_by_page(http: httpx.Client, topic: str) -> None:
    names = [f"{topic}-{letter}" for letter in "abc"]
    for name in names:
        http.post("/topics", json={"name": name, "partitions": 1}).raise_for_status()
    first = http.get("/topics", params={"prefix": topic, "limit": 2}).json()
    assert [each["name"] for each in first["topics"]] == names[:2]
    rest = http.get("/topics", params={"prefix": topic, "limit": 2, "after": first["next"]}).json()
    assert [each["name"] for each in rest["topics"]] == names[2:]
    assert rest["next"] is None


def test_internal_topics_are_listed_only_on_request(http: httpx.Client) -> None:
    http.get("/groups").raise_for_status()  # makes one
    name = "__consumer_offsets"
    assert name not in {each["name"] for each in http.get("/topics").json()["topics"]}
    shown = http.get("/topics", params={"internal": "true"}).json()["topics"]
    assert {"name": name, "internal": True}.items() <= next(t for t in shown if t["name"] == name).items()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/topics/__consumer_offsets", None),
        ("PATCH", "/topics/__consumer_offsets/settings", {"settings": {"retention.ms": 1}}),
        ("POST", "/admin/topics/__consumer_offsets/partitions", {"partitions": 50}),
        ("POST", "/topics/__consumer_offsets/messages", {"value": "x"}),
    ],
)
def test_internal_topics_are_not_for_users_to_change(
    http: httpx.Client, method: str, path: str, body: object
) -> None:
    http.get("/groups").raise_for_status()
    response = http.request(method, path, json=body)
    assert response.status_code in (403, 422)


def test_internal_topics_can_be_read(http: httpx.Client) -> None:
    http.get("/groups").raise_for_status()
    assert http.get("/topics/__consumer_offsets/messages").status_code == 200


def test_settings_change_and_go_back(http: httpx.Client, made: str) -> None:
    path = f"/topics/{made}/settings"
    changed = http.patch(path, json={"settings": {"retention.ms": 5000, "message.delays": True}}).json()
    assert changed["overrides"] == {"retention.ms": "5000", "message.delays": "true"}
    back = http.patch(path, json={"settings": {"retention.ms": None}}).json()
    assert back["overrides"] == {"message.delays": "true"}


@pytest.mark.parametrize("value", [5, None])
def test_a_misspelt_setting_is_refused_with_the_nearest(http: httpx.Client, made: str, value: object) -> None:
    response = http.patch(f"/topics/{made}/settings", json={"settings": {"retention.m": value}})
    assert "did you mean retention.ms?" in refused(response, 422, "invalid-config")["detail"]


def test_partitions_are_added(http: httpx.Client, made: str) -> None:
    grown = http.post(f"/admin/topics/{made}/partitions", json={"partitions": 5})
    assert len(grown.json()["partitions"]) == 5
    fewer = http.post(f"/admin/topics/{made}/partitions", json={"partitions": 3})
    refused(fewer, 422, "invalid-partition-count")


def test_a_topic_that_exists_is_not_made_again(http: httpx.Client, made: str) -> None:
    refused(http.post("/topics", json={"name": made}), 409, "topic-exists")


def test_names_in_paths_are_percent_decoded(http: httpx.Client, made: str) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in made.encode())
    assert http.get(f"/topics/{encoded}").json()["name"] == made


@pytest.mark.parametrize("name", ["a%2Fb", "a%20b", "%C3%A4", "x" * 250])
def test_invalid_topic_names_are_refused(http: httpx.Client, name: str) -> None:
    problem = refused(http.get(f"/topics/{name}"), 400, "invalid-input")
    assert problem["field"] == "topic"


def test_a_path_that_is_not_utf_8_is_refused(http: httpx.Client) -> None:
    refused(http.get("/topics/%ff"), 400, "invalid-input")


def test_partitions_are_listed_with_leader_offsets_and_size(http: httpx.Client, topic: str) -> None:
    http.post("/topics", json={"name": topic, "partitions": 2}).raise_for_status()
    for value in "abc":
        http.post(f"/topics/{topic}/messages", json={"value": value, "partition": 1}).raise_for_status()
    listed = http.get(f"/topics/{topic}/partitions").json()
    assert (listed["topic"], len(listed["partitions"])) == (topic, 2)
    empty, filled = listed["partitions"]
    assert (empty["high_watermark"], empty["messages"], empty["size_bytes"]) == (0, 0, 0)
    assert filled["size_bytes"] > 0
    assert filled["replicas"] == filled["in_sync_replicas"] == [filled["leader"]]
    assert {
        "partition": 1,
        "start_offset": 0,
        "high_watermark": 3,
        "last_stable_offset": 3,
        "messages": 3,
    }.items() <= filled.items()
    refused(http.get(f"/topics/{topic}-not/partitions"), 404, "unknown-topic")


def test_a_topic_is_compacted_at_once(http: httpx.Client, topic: str) -> None:
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1}
    http.post("/topics", json={"name": topic, "partitions": 2, "settings": settings}).raise_for_status()
    for number in range(10):
        body = {"key": "k", "value": f"{number}" * 100, "partition": 0}
        http.post(f"/topics/{topic}/messages", json=body).raise_for_status()
    results = http.post(f"/admin/topics/{topic}/compact").json()
    assert [each["compacted"] for each in results["partitions"]] == [True, False]
    first = results["partitions"][0]
    assert first["size_bytes"] < first["size_before_bytes"] / 5
    found = http.get(f"/topics/{topic}/messages").json()["messages"]
    assert [(each["offset"], each["value"]) for each in found] == [(9, "9" * 100)]
    again = http.post(f"/admin/topics/{topic}/compact").json()["partitions"]
    assert [each["compacted"] for each in again] == [False, False]
    http.post(f"/topics/{topic}/messages", json={"key": "k", "value": "last", "partition": 0})
    results = http.post(f"/admin/topics/{topic}/compact").json()
    assert results["partitions"][0]["compacted"]
    found = http.get(f"/topics/{topic}/messages").json()["messages"]
    assert [(each["offset"], each["value"]) for each in found] == [(10, "last")]


def test_concurrent_compactions_of_a_topic_all_end(http: httpx.Client, topic: str) -> None:
    settings = {"cleanup.policy": "compact,delete"}
    http.post("/topics", json={"name": topic, "partitions": 1, "settings": settings}).raise_for_status()
    messages = [{"key": f"k{number % 7}", "value": "v" * 500} for number in range(1000)]
    http.post(f"/topics/{topic}/messages", json={"messages": messages}).raise_for_status()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: http.post(f"/admin/topics/{topic}/compact"), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(http.get(f"/topics/{topic}/messages").json()["messages"]) == 7


def test_only_topics_with_the_policy_are_compacted(http: httpx.Client, topic: str) -> None:
    http.post("/topics", json={"name": topic}).raise_for_status()
    problem = refused(http.post(f"/admin/topics/{topic}/compact"), 409, "not-compacted")
    assert "cleanup.policy=delete" in problem["detail"]
    refused(http.post(f"/admin/topics/{topic}-not/compact"), 404, "unknown-topic")
    refused(http.post("/admin/topics/__consumer_offsets/compact"), 403, "policy-violation")
