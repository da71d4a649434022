"""Being a member of a group over HTTP, and looking after groups."""

from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, ShareConsumer

from tests.api.kafka.test_committed_offsets import commit
from tests.api.kafka.test_streams_groups import beat, joined
from tests.api.kafka.wire import wired
from tests.brokers import Broker
from tests.waiting import eventually

from .problems import refused, wrong_field


class Member:
    """A member that polls over HTTP and keeps its cursor."""

    def __init__(self, http: httpx.Client, group: str, topic: str, **options: object) -> None:
        self._http = http
        self.group = group
        answer = http.post(f"/groups/{group}/join", json={"topics": [topic], **options})
        answer.raise_for_status()
        self.joined = answer.json()
        self.id: str = self.joined["member_id"]
        self.cursor = ""

    def poll(self, **query: object) -> dict[str, Any]:
        parameters = {"member": self.id, "wait_ms": 0, "max": 1000, **query}
        if self.cursor:
            parameters["cursor"] = self.cursor
        answer = self._http.get(f"/groups/{self.group}/poll", params=parameters)  # type: ignore[arg-type]
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        self.cursor = found["cursor"]
        return found

    def values(self, **query: object) -> list[str]:
        return [each["value"] for each in self.poll(**query)["messages"]]

    def partitions(self) -> list[int]:
        answer = self._http.post(f"/groups/{self.group}/heartbeat", json={"member_id": self.id})
        answer.raise_for_status()
        return [index for indexes in answer.json()["assignment"].values() for index in indexes]

    def leave(self) -> None:
        self._http.post(f"/groups/{self.group}/leave", json={"member_id": self.id}).raise_for_status()


def publish(http: httpx.Client, topic: str, *values: str, partition: int = 0) -> None:
    batch = [{"value": value, "partition": partition} for value in values]
    http.post(f"/topics/{topic}/messages", json={"messages": batch}).raise_for_status()


def test_a_member_gets_all_partitions_and_reads_them(http: httpx.Client, made: str) -> None:
    publish(http, made, "a", "b")
    publish(http, made, "c", partition=1)
    member = Member(http, made, made)
    assert member.joined["assignment"] == {made: [0, 1]}
    assert sorted(member.values()) == ["a", "b", "c"]
    assert member.values() == []
    member.leave()


def test_a_lost_answer_costs_no_message(http: httpx.Client, made: str) -> None:
    publish(http, made, "a", "b")
    member = Member(http, made, made)
    assert member.values() == ["a", "b"]
    member.cursor = ""  # it never arrived
    assert member.values() == ["a", "b"]
    member.leave()


def test_the_next_member_starts_after_offsets_committed_by_a_poll(http: httpx.Client, made: str) -> None:
    publish(http, made, "a", "b")
    first = Member(http, made, made)
    first.poll()
    publish(http, made, "c")
    assert first.values(commit="true") == ["c"]
    first.leave()
    second = Member(http, made, made)
    assert second.values() == ["c"]
    second.leave()


def test_offsets_are_committed_by_request(http: httpx.Client, made: str) -> None:
    publish(http, made, "a", "b", "c")
    member = Member(http, made, made)
    offsets = [{"topic": made, "partition": 0, "offset": 2, "metadata": "note"}]
    body = {"offsets": offsets, "member_id": member.id, "member_epoch": member.joined["member_epoch"]}
    answer = http.post(f"/groups/{made}/offsets", json=body).json()
    assert answer == {"offsets": [{"topic": made, "partition": 0, "offset": 2}], "errors": 0}
    shown = http.get(f"/groups/{made}/offsets").json()
    assert shown["offsets"] == [
        {"topic": made, "partition": 0, "offset": 2, "metadata": "note", "end_offset": 3, "lag": 1}
    ]
    assert shown["total_lag"] == 1
    assert member.values() == ["c"]
    member.leave()


def test_two_members_share_the_partitions_and_one_takes_over(http: httpx.Client, made: str) -> None:
    first = Member(http, made, made)
    assert first.partitions() == [0, 1]
    second = Member(http, made, made)
    eventually(lambda: len(first.partitions()) == len(second.partitions()) == 1)
    assert sorted(first.partitions() + second.partitions()) == [0, 1]
    first.leave()
    eventually(lambda: second.partitions() == [0, 1])
    second.leave()


def test_a_waiting_poll_gets_partitions_revoked_from_another_member(http: httpx.Client, made: str) -> None:
    publish(http, made, "a")
    publish(http, made, "b", partition=1)
    first = Member(http, made, made)
    assert sorted(first.values()) == ["a", "b"]
    second = Member(http, made, made)
    eventually(lambda: len(first.poll()["assignment"][made]) == 1)
    first.poll()  # the next request confirms the revocation
    assert second.values(wait_ms=20_000) in (["a"], ["b"])
    first.leave()
    second.leave()


def test_a_kafka_client_and_an_http_member_share_a_group(
    broker: Broker, http: httpx.Client, made: str
) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": made, "group.protocol": "consumer"})
    consumer.subscribe([made])
    member = Member(http, made, made)

    def shared() -> bool:
        consumer.poll(0)
        return len(consumer.assignment()) == len(member.partitions()) == 1

    eventually(shared)
    member.leave()
    consumer.close()


@pytest.mark.parametrize(
    ("kind", "consumer", "settings"),
    [
        ("classic", Consumer, {"group.protocol": "classic"}),
        ("consumer", Consumer, {"group.protocol": "consumer"}),
        ("share", ShareConsumer, {}),
    ],
)
def test_groups_of_kafka_clients_are_shown(
    broker: Broker, http: httpx.Client, made: str, kind: str, consumer: Any, settings: dict[str, str]
) -> None:
    client = consumer({"bootstrap.servers": broker.address, "group.id": made, "client.id": "it", **settings})
    client.subscribe([made])

    def member() -> Any:
        client.poll(0.1)
        answer = http.get(f"/groups/{made}")
        members = answer.json()["members"] if answer.status_code == 200 else []
        return members[0] if members and members[0].get("assignment") != {} else None

    shown = eventually(member)
    assert shown["client_id"] == "it"
    assert shown["assignment"] == {made: [0, 1]}
    assert http.get(f"/groups/{made}").json()["type"] == kind
    client.close()


def test_a_member_that_is_none_is_refused(http: httpx.Client, made: str) -> None:
    member = Member(http, made, made)
    member.leave()
    query: dict[str, str | int] = {"member": member.id, "wait_ms": 0}
    refused(http.get(f"/groups/{made}/poll", params=query), 404, "unknown-member")
    body = {"member_id": member.id}
    refused(http.post(f"/groups/{made}/heartbeat", json=body), 404, "unknown-member")
    refused(http.post(f"/groups/{made}/leave", json=body), 404, "unknown-member")


def test_a_stale_member_epoch_is_refused(http: httpx.Client, made: str) -> None:
    member = Member(http, made, made)
    body = {"member_id": member.id, "member_epoch": member.joined["member_epoch"] + 1}
    refused(http.post(f"/groups/{made}/heartbeat", json=body), 409, "stale-member-epoch")
    member.leave()


def test_a_group_is_described_listed_and_deleted(http: httpx.Client, made: str) -> None:
    member = Member(http, made, made, client_id="tester")
    group = http.get(f"/groups/{made}").json()
    assert {"group": made, "type": "consumer", "state": "Stable", "queues": []}.items() <= group.items()
    (shown,) = group["members"]
    assert (shown["member_id"], shown["client_id"], shown["client_host"]) == (
        member.id,
        "tester",
        "127.0.0.1",
    )
    assert shown["assignment"] == shown["target"] == {made: [0, 1]}
    listed = [each for each in http.get("/groups").json()["groups"] if each["group"] == made]
    assert listed == [{"group": made, "type": "consumer", "state": "Stable"}]
    refused(http.delete(f"/groups/{made}"), 409, "non-empty-group")
    member.leave()
    assert http.delete(f"/groups/{made}").status_code == 204
    refused(http.get(f"/groups/{made}"), 404, "group-id-not-found")


def test_groups_are_listed_page_by_page(http: httpx.Client, made: str) -> None:
    names = [f"{made}-{letter}" for letter in "abc"]
    for name in names:
        body = {"offsets": [{"topic": made, "partition": 0, "offset": 0}]}
        http.post(f"/groups/{name}/offsets", json=body).raise_for_status()
    first = http.get("/groups", params={"prefix": f"{made}-", "limit": 2}).json()
    assert [each["group"] for each in first["groups"]] == names[:2]
    rest = http.get("/groups", params={"prefix": f"{made}-", "after": first["next"]}).json()
    assert [each["group"] for each in rest["groups"]] == names[2:]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("reset", "expected"),
    [
        ({"to": "earliest"}, {0: 0, 1: 0}),
        ({"to": "latest"}, {0: 3, 1: 1}),
        ({"offset": 2, "partition": 0}, {0: 2}),
        ({"timestamp": "2001-09-09T01:46:40.002Z"}, {0: 2, 1: 1}),
    ],
)
def test_a_group_without_members_is_moved_elsewhere(
    http: httpx.Client, made: str, reset: dict[str, object], expected: dict[int, int]
) -> None:
    second = 1_000_000_000_000
    batch = [{"value": "x", "partition": 0, "timestamp": second + number} for number in range(3)]
    batch.append({"value": "x", "partition": 1, "timestamp": second})
    http.post(f"/topics/{made}/messages", json={"messages": batch}).raise_for_status()
    path, body = f"/groups/{made}/offsets", {"reset": [{"topic": made, **reset}]}
    tried = http.post(path, json={**body, "dry_run": True}).json()
    assert {each["partition"]: each["offset"] for each in tried["offsets"]} == expected
    refused(http.get(path), 404, "group-id-not-found")
    done = http.post(path, json=body).json()
    assert done == tried
    shown = http.get(path).json()["offsets"]
    assert {each["partition"]: each["offset"] for each in shown} == expected


def test_a_group_with_members_is_not_moved(http: httpx.Client, made: str) -> None:
    member = Member(http, made, made)
    body = {"reset": [{"topic": made, "to": "earliest"}]}
    refused(http.post(f"/groups/{made}/offsets", json=body), 409, "non-empty-group")
    member.leave()


def test_a_negative_offset_of_a_kafka_client_counts_as_none(
    http: httpx.Client, broker: Broker, made: str
) -> None:
    http.post(f"/groups/{made}/offsets", json={"offsets": [{"topic": made, "partition": 0, "offset": 0}]})
    with wired(broker.host_and_port) as wire:
        assert commit(wire, made, made, -1) == 0

    shown = http.get(f"/groups/{made}/offsets").json()

    assert (shown["offsets"], shown["total_lag"]) == ([], 0)
    assert f'alpacamq_group_lag{{group="{made}"' not in http.get("/metrics").text


def test_some_offsets_fail_without_the_others(http: httpx.Client, made: str) -> None:
    offsets = [{"topic": made, "partition": index, "offset": 0} for index in (0, 9)]
    answer = http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).json()
    assert answer["errors"] == 1
    assert "error" not in answer["offsets"][0]
    assert answer["offsets"][1]["error"]["status"] == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "/offsets"),
        ({"offsets": [{"topic": "t", "partition": 0}]}, "/offsets/0/offset"),
        ({"offsets": [{"topic": "t", "partition": 0, "offset": 0}], "reset": []}, "/reset"),
        ({"reset": [{"topic": "t"}]}, "/reset/0"),
        ({"reset": [{"topic": "t", "to": "earliest", "offset": 1}]}, "/reset/0"),
        ({"offsets": [{"topic": "t", "partition": 0, "offset": 0}], "member_id": "m"}, "/member_epoch"),
    ],
)
def test_bad_offsets_are_refused_with_their_place(http: httpx.Client, body: object, field: str) -> None:
    assert wrong_field(http.post("/groups/g/offsets", json=body)) == field


@pytest.mark.parametrize(
    "query", [{}, {"topic": "t", "member": "m"}, {"member": "m", "cursor": "t:0@1:0@2"}, {"cursor": "t"}]
)
def test_a_poll_that_makes_no_sense_is_refused(http: httpx.Client, query: dict[str, str]) -> None:
    assert wrong_field(http.get("/groups/g/poll", params=query))


def test_head_does_not_poll(http: httpx.Client, made: str) -> None:
    assert http.head(f"/groups/{made}/poll", params={"topic": made}).status_code == 405


@pytest.mark.parametrize("group", ["a/b", "ä ö", "%", "x" * 255])
def test_a_group_may_have_any_name(http: httpx.Client, made: str, group: str) -> None:
    path = "/groups/" + "".join(f"%{byte:02X}" for byte in group.encode())
    body = {"offsets": [{"topic": made, "partition": 0, "offset": 0}]}
    http.post(f"{path}/offsets", json=body).raise_for_status()
    assert http.get(f"{path}/offsets").json()["group"] == group
    assert http.delete(path).status_code == 204


def test_rebalances_of_a_group_are_listed_with_time_cause_and_generation(
    http: httpx.Client, made: str
) -> None:
    first = Member(http, made, made)
    second = Member(http, made, made)
    eventually(lambda: len(first.partitions()) == len(second.partitions()) == 1)
    first.leave()
    eventually(lambda: len(second.partitions()) == 2)
    listed = http.get(f"/groups/{made}/rebalances").json()
    assert listed["group"] == made
    assert [each["cause"] for each in listed["rebalances"]] == [
        "member-left",
        "member-joined",
        "member-joined",
    ]
    left = listed["rebalances"][0]
    assert left["members"] == [first.id]
    assert (left["state"], left["member_count"]) == ("completed", 1)
    assert left["duration_ms"] == left["ended"] - left["started"] >= 0
    assert left["generation"] > listed["rebalances"][1]["generation"]
    second.leave()
    refused(http.get(f"/groups/{made}-not/rebalances"), 404, "group-id-not-found")


def test_rebalances_of_kafka_consumers_are_listed(http: httpx.Client, broker: Broker, made: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": made, "client.id": "app"})
    consumer.subscribe([made])

    def rebalances() -> Any:
        consumer.poll(0.2)
        answer = http.get(f"/groups/{made}/rebalances")
        return answer.json()["rebalances"] if answer.status_code == 200 else []

    eventually(lambda: [each["state"] for each in rebalances()] == ["completed"])
    (joined,) = rebalances()
    assert (joined["cause"], joined["generation"], joined["member_count"]) == ("member-joined", 1, 1)
    assert joined["members"][0].startswith("app-")
    consumer.close()
    ended = http.get(f"/groups/{made}/rebalances").json()["rebalances"][0]
    assert (ended["cause"], ended["state"], ended["member_count"]) == ("member-left", "completed", 0)


def test_a_streams_group_is_described_with_its_tasks(http: httpx.Client, broker: Broker, made: str) -> None:
    with wired(broker.host_and_port) as wire:
        joined(wire, made)
        shown = http.get(f"/groups/{made}").json()
        assert (shown["type"], shown["state"]) == ("streams", "Stable")
        (member,) = shown["members"]
        assert member["process_id"] == "process of m1"
        assert member["active_tasks"] == {"0": [0, 1], "1": [0, 1]}
        assert member["standby_tasks"] == {}
        beat(wire, made, epoch=-1)
    assert http.delete(f"/groups/{made}").status_code == 204
