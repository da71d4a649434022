"""Messages are found by their key, wherever they are."""

from typing import Any

import httpx

from alpacamq.api.rest.handlers import reading

from .problems import refused


def find(http: httpx.Client, topic: str, **wanted: Any) -> dict[str, Any]:
    found: dict[str, Any] = (
        http.get(f"/topics/{topic}/messages/find", params=wanted).raise_for_status().json()
    )
    return found


def test_messages_with_a_key_are_found_in_every_partition(http: httpx.Client, made: str) -> None:
    messages = [{"key": f"k{n % 3}", "value": n, "partition": n % 2} for n in range(12)]
    http.post(f"/topics/{made}/messages", json={"messages": messages}).raise_for_status()
    found = find(http, made, key="k1", values="json")
    assert sorted(each["value"] for each in found["messages"]) == [1, 4, 7, 10]
    assert found["next_offsets"] == found["end_offsets"] == {"0": 6, "1": 6}
    assert found["looked_at"] == 12


def test_a_key_of_bytes_is_found(http: httpx.Client, made: str) -> None:
    body = {"messages": [{"key_base64": "/wA=", "value": "a"}, {"value": "no key"}]}
    http.post(f"/topics/{made}/messages", json=body).raise_for_status()
    assert [each["value"] for each in find(http, made, key_base64="/wA=")["messages"]] == ["a"]


def test_search_results_are_paged(http: httpx.Client, made: str) -> None:
    messages = [{"key": "k", "value": n, "partition": n % 2} for n in range(10)]
    http.post(f"/topics/{made}/messages", json={"messages": messages}).raise_for_status()
    seen: list[int] = []
    offsets: dict[str, str] = {}
    while len(seen) < 10:
        found = find(http, made, key="k", limit=3, values="json", **offsets)
        assert 0 < len(found["messages"]) <= 3
        seen += [each["value"] for each in found["messages"]]
        offsets = {"offsets": ",".join(f"{part}:{at}" for part, at in found["next_offsets"].items())}
    assert sorted(seen) == list(range(10))


def test_a_search_is_bounded_and_returns_where_to_continue(http: httpx.Client, made: str) -> None:
    count = reading.MAX_SEARCHED_RECORDS + 3000
    for _ in range(count // 1000):
        body = {"messages": [{"key": "hay", "value": "", "partition": 0}] * 1000}
        http.post(f"/topics/{made}/messages", json=body).raise_for_status()
    http.post(f"/topics/{made}/messages", json={"key": "needle", "value": "", "partition": 0})
    first = find(http, made, key="needle")
    assert first["messages"] == []
    assert reading.MAX_SEARCHED_RECORDS <= first["looked_at"] < reading.MAX_SEARCHED_RECORDS + 2000
    rest = find(http, made, key="needle", offsets=f"0:{first['next_offsets']['0']}")
    assert [each["key"] for each in rest["messages"]] == ["needle"]


def test_large_messages_are_read_up_to_a_number_of_bytes(http: httpx.Client, made: str) -> None:
    value = "v" * 900_000
    count = reading.MAX_SEARCHED_BYTES // len(value) + 5
    for _ in range(count):
        body = {"key": "k", "value": value, "partition": 0}
        http.post(f"/topics/{made}/messages", json=body).raise_for_status()
    first = find(http, made, key="k", limit=1000)
    assert sum(len(each["value"]) for each in first["messages"]) <= reading.MAX_SEARCHED_BYTES + len(value)
    rest = find(http, made, key="k", limit=1000, offsets=f"0:{first['next_offsets']['0']}")
    assert len(first["messages"]) + len(rest["messages"]) == count


def test_a_key_must_be_given_once(http: httpx.Client, made: str) -> None:
    where = f"/topics/{made}/messages/find"
    refused(http.get(where), 422, "conflicting-input")
    refused(http.get(where, params={"key": "a", "key_base64": "YQ=="}), 422, "conflicting-input")
    refused(http.get("/topics/no-such-topic/messages/find", params={"key": "a"}), 404, "unknown-topic")


def test_messages_are_found_with_a_filter_page_by_page(http: httpx.Client, made: str) -> None:
    messages = [{"key": f"k{n % 2}", "value": {"n": n}, "partition": n % 2} for n in range(600)]
    http.post(f"/topics/{made}/messages", json={"messages": messages}).raise_for_status()
    seen: list[int] = []
    offsets: dict[str, str] = {}
    while True:
        found = find(http, made, filter="value.n >= 100 and value.n < 300", values="json", **offsets)
        seen += [each["value"]["n"] for each in found["messages"]]
        if found["next_offsets"] == found["end_offsets"]:
            break
        offsets = {"offsets": ",".join(f"{part}:{at}" for part, at in found["next_offsets"].items())}
    assert sorted(seen) == list(range(100, 300))
    both = find(http, made, key="k1", filter="value.n < 4", values="json")["messages"]
    assert [each["value"]["n"] for each in both] == [1, 3]


def test_an_invalid_filter_is_refused_with_its_place(http: httpx.Client, made: str) -> None:
    where = f"/topics/{made}/messages/find"
    problem = refused(http.get(where, params={"filter": "value.n >"}), 422, "conflicting-input")
    assert "character 10" in problem["detail"]
    refused(http.get(where, params={"filter": "x" * 2001}), 400, "invalid-input")
    refused(http.get(where), 422, "conflicting-input")
