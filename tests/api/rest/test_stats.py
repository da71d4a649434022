"""Counters of topics and groups."""

import httpx

from tests.brokers import Broker


def stats(http: httpx.Client, path: str, **query: str | int) -> dict[str, dict[str, int]]:
    answer = http.get(f"/stats/{path}s", params=query).raise_for_status().json()
    return {each[path]: each for each in answer[f"{path}s"]}


def test_written_and_fetched_messages_are_counted_by_topic(
    http: httpx.Client, broker: Broker, made: str
) -> None:
    http.post(f"/topics/{made}/messages", json={"messages": [{"value": "x"}] * 7}).raise_for_status()
    found = stats(http, "topic", prefix=made)[made]
    assert (found["partitions"], found["messages"], found["written_total"]) == (2, 7, 7)
    assert found["size_bytes"] >= found["written_bytes_total"] > 0
    assert found["fetched_total"] == 0


def test_lag_is_the_distance_to_the_end_of_the_topic(http: httpx.Client, made: str) -> None:
    messages = [{"value": "x", "partition": 0}] * 5
    http.post(f"/topics/{made}/messages", json={"messages": messages}).raise_for_status()
    offsets = {"offsets": [{"topic": made, "partition": 0, "offset": 2}]}
    http.post(f"/groups/{made}/offsets", json=offsets).raise_for_status()
    found = stats(http, "group", prefix=made)[made]
    assert (found["lag"], found["committed_total"]) == (3, 2)


def test_the_limit_bounds_the_returned_topics(http: httpx.Client, made: str) -> None:
    http.post("/topics", json={"name": f"{made}-2"}).raise_for_status()
    answer = http.get("/stats/topics", params={"prefix": made, "limit": 1}).json()
    assert (len(answer["topics"]), answer["total"]) == (1, 2)
