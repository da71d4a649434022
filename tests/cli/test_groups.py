"""`alpacactl groups`: members, lag and offset reset."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, ShareConsumer

from tests.api.kafka.test_streams_groups import beat, joined
from tests.api.kafka.wire import wired
from tests.brokers import Broker
from tests.waiting import eventually

from .command import Command
from .queued import sent

PROTOCOLS = ("classic", "consumer")


@contextmanager
def member(broker: Broker, group: str, topic: str, protocol: str = "classic") -> Iterator[Any]:
    """A consumer that has joined its group and was assigned partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": group,
            "client.id": "reader",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def read_and_commit(consumer: Any, count: int) -> None:
    taken = 0

    def take() -> bool:
        nonlocal taken
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            consumer.commit(message=message, asynchronous=False)
            taken += 1
        return taken == count

    eventually(take, within_s=60)


def prepared(alpacactl: Command, broker: Broker, topic: str, protocol: str = "classic") -> str:
    """A group without members that read two of the five records of its topic's only partition."""
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    alpacactl.ok("produce", topic, stdin=b"1\n2\n3\n4\n5\n")
    with member(broker, topic, topic, protocol) as consumer:
        read_and_commit(consumer, 2)
    return topic


def committed(alpacactl: Command, group: str) -> list[int]:
    return [each["committed"] for each in alpacactl.json("groups", "describe", group)["partitions"]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_describe_shows_members_and_lag(
    alpacactl: Command, broker: Broker, topic: str, protocol: str
) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    alpacactl.ok("produce", topic, stdin=b"1\n2\n3\n4\n5\n")
    with member(broker, topic, topic, protocol) as consumer:
        read_and_commit(consumer, 2)
        described = alpacactl.json("groups", "describe", topic)
        shown = alpacactl.ok("groups", "describe", topic)
    assert (described["protocol"], described["state"], described["lag"]) == (protocol, "Stable", 3)
    [only] = described["members"]
    assert (only["client"], only["host"]) == ("reader", "127.0.0.1")
    assert only["partitions"] == [{"topic": topic, "partition": 0}]
    [partition] = described["partitions"]
    assert (partition["committed"], partition["end"], partition["lag"]) == (2, 5, 3)
    assert partition["member"] == only["id"]
    assert any(line.split() == [topic, "0", "2", "5", "3", "reader"] for line in shown.splitlines())
    assert f"{topic}:0" in shown


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_groups_are_listed_with_their_state(
    alpacactl: Command, broker: Broker, topic: str, protocol: str
) -> None:
    group = prepared(alpacactl, broker, topic, protocol)
    listed = {each["name"]: each for each in alpacactl.json("groups", "list")}
    assert listed[group] == {"name": group, "protocol": protocol, "state": "Empty"}


def test_a_reset_without_execute_changes_nothing(alpacactl: Command, broker: Broker, topic: str) -> None:
    group = prepared(alpacactl, broker, topic)
    ran = alpacactl("groups", "reset", group, "--to", "latest")
    assert ran.code == 0
    assert any(line.split() == [topic, "0", "2", "→", "5"] for line in ran.text.splitlines())
    assert "use --execute" in ran.errors
    assert committed(alpacactl, group) == [2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_reset_with_execute_changes_the_offsets(
    alpacactl: Command, broker: Broker, topic: str, protocol: str
) -> None:
    group = prepared(alpacactl, broker, topic, protocol)
    moved = alpacactl.json("groups", "reset", group, "--to", "earliest", "--execute")
    assert moved == {
        "group": group,
        "executed": True,
        "offsets": [{"topic": topic, "partition": 0, "before": 2, "after": 0}],
    }
    assert committed(alpacactl, group) == [0]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        pytest.param("4", 4, id="an offset"),
        pytest.param("99", 5, id="an offset behind the end means the end"),
        pytest.param("1h", 0, id="a while ago, before all records"),
        pytest.param("2020-01-01T00:00:00Z", 0, id="a time before all records"),
        pytest.param("2199-01-01", 5, id="a time after all records means the end"),
    ],
)
def test_reset_positions(
    alpacactl: Command, broker: Broker, topic: str, position: str, expected: int
) -> None:
    group = prepared(alpacactl, broker, topic)
    [change] = alpacactl.json("groups", "reset", group, "--to", position)["offsets"]
    assert change["after"] == expected


def test_a_reset_of_selected_partitions_keeps_the_others(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    group = prepared(alpacactl, broker, topic)
    alpacactl.ok("topics", "add-partitions", topic, "--total", "3")
    alpacactl.ok("groups", "reset", group, "--to", "earliest", "--topic", f"{topic}:1,2", "--execute")
    assert committed(alpacactl, group) == [2, 0, 0]
    ran = alpacactl("groups", "reset", group, "--to", "earliest", "--topic", f"{topic}:7")
    assert ran.code == 4
    assert f"no partition '{topic}-7'" in ran.errors


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_with_members_is_not_reset(
    alpacactl: Command, broker: Broker, topic: str, protocol: str
) -> None:
    group = prepared(alpacactl, broker, topic, protocol)
    with member(broker, group, topic, protocol) as consumer:
        read_and_commit(consumer, 1)
        refused = alpacactl("groups", "reset", group, "--to", "earliest", "--execute")
        shown = alpacactl("groups", "reset", group, "--to", "earliest")
        assert committed(alpacactl, group) == [3]
    assert (refused.code, refused.text) == (1, "")
    assert "has active members (reader at 127.0.0.1); stop them first" in refused.errors
    assert shown.code == 0
    assert "stop them first" in shown.errors


def test_a_group_that_lost_its_topic_is_still_described(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    group = prepared(alpacactl, broker, topic)
    alpacactl.ok("topics", "delete", topic, "--yes")
    for partition in alpacactl.json("groups", "describe", group)["partitions"]:
        assert (partition["end"], partition["lag"]) == (None, None)


def test_a_deleted_group_is_not_found_and_similar_names_are_suggested(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    group = prepared(alpacactl, broker, topic)
    misspelt = alpacactl("groups", "describe", group[:-1])
    assert misspelt.code == 4
    assert f"'{group}'" in misspelt.errors
    assert alpacactl.json("groups", "delete", group, "--yes") == {"deleted": [group]}
    assert alpacactl("groups", "delete", group, "--yes").code == 4


def test_a_group_with_members_is_not_deleted(alpacactl: Command, broker: Broker, topic: str) -> None:
    group = prepared(alpacactl, broker, topic)
    with member(broker, group, topic) as consumer:
        read_and_commit(consumer, 1)
        ran = alpacactl("groups", "delete", group, "--yes")
    assert ran.code == 1
    assert "NON_EMPTY_GROUP" in ran.errors


@contextmanager
def share_member(broker: Broker, group: str, topic: str) -> Iterator[ShareConsumer]:
    """A share consumer that has fetched once."""
    consumer = ShareConsumer({"bootstrap.servers": broker.address, "group.id": group, "client.id": "sharer"})
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def test_a_share_group_is_listed_described_reset_and_deleted(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    with share_member(broker, topic, topic) as consumer:
        eventually(lambda: not consumer.poll(0.2) and _partitions(alpacactl, topic))
        alpacactl.ok("produce", topic, stdin=b"1\n2\n3\n")
        eventually(lambda: consumer.poll(0.5))
        shown = alpacactl.json("groups", "describe", topic)
        refused = alpacactl("groups", "reset", topic, "--to", "latest", "--execute")
    assert (shown["protocol"], shown["state"], shown["lag"]) == ("share", "Stable", 3)
    (partition,) = shown["partitions"]
    assert (partition["committed"], partition["end"], partition["client"]) == (0, 3, "sharer")
    assert "stop them first" in refused.errors
    listed = {each["name"]: each for each in alpacactl.json("groups", "list")}
    assert listed[topic] == {"name": topic, "protocol": "share", "state": "Empty"}
    alpacactl.ok("groups", "reset", topic, "--to", "2", "--execute")
    shown = alpacactl.json("groups", "describe", topic)
    assert (shown["lag"], shown["partitions"][0]["committed"]) == (1, 2)
    alpacactl.ok("groups", "delete", topic, "--yes")
    assert alpacactl("groups", "describe", topic).code == 4


def test_a_streams_group_is_listed_described_and_deleted(
    alpacactl: Command, broker: Broker, topic: str
) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    with wired(broker.host_and_port) as wire:
        joined(wire, topic)
        shown = alpacactl.json("groups", "describe", topic)
        beat(wire, topic, epoch=-1)
    assert (shown["protocol"], shown["state"]) == ("streams", "Stable")
    (only,) = shown["members"]
    assert only["partitions"] == [
        {"topic": topic, "partition": 0},
        {"topic": f"{topic}-words", "partition": 0},
    ]
    listed = {each["name"]: each for each in alpacactl.json("groups", "list")}
    assert listed[topic] == {"name": topic, "protocol": "streams", "state": "Empty"}
    alpacactl.ok("groups", "reset", topic, "--topic", topic, "--to", "earliest", "--execute")
    alpacactl.ok("groups", "delete", topic, "--yes")
    assert alpacactl("groups", "describe", topic).code == 4


def _partitions(alpacactl: Command, group: str) -> Any:
    """Where a group is; nothing before it is known."""
    ran = alpacactl("groups", "describe", group, "-o", "json")
    return ran.code == 0 and '"committed": 0' in ran.text


def test_lag_is_shown_by_group_and_topic(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "a", "b", "c")
    sent(broker, f"{topic}-2", "d")
    for name, offset in ((topic, 1), (f"{topic}-2", 1)):
        offsets = {"offsets": [{"topic": name, "partition": 0, "offset": offset}]}
        httpx.post(f"http://{broker.http_address}/groups/{topic}/offsets", json=offsets).raise_for_status()
    assert ctl.json("groups", "lag", topic) == [
        {"group": topic, "topic": topic, "state": "Empty", "members": 0, "lag": 2, "largest": 2},
        {"group": topic, "topic": f"{topic}-2", "state": "Empty", "members": 0, "lag": 0, "largest": 0},
    ]
    assert any(line.split()[:2] == [topic, topic] for line in ctl.ok("groups", "lag").splitlines())
    assert f"did you mean '{topic}'" in ctl.fails(4, "groups", "lag", f"{topic}x")


def test_the_lag_of_many_groups_takes_no_more_requests_than_that_of_one(
    ctl: Command, broker: Broker, topic: str, requests: list[str]
) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    ctl.ok("produce", topic, stdin=b"1\n2\n3\n")
    groups = [f"{topic}-{number}" for number in range(5)]
    with httpx.Client(base_url=f"http://{broker.http_address}") as http:
        for offset, group in enumerate(groups):
            offsets = [{"topic": topic, "partition": 0, "offset": min(offset, 3)}]
            http.post(f"/groups/{group}/offsets", json={"offsets": offsets}).raise_for_status()
    requests.clear()
    [one] = ctl.json("groups", "lag", groups[0])
    of_one = requests.copy()
    requests.clear()
    many = ctl.json("groups", "lag", *groups)
    assert requests == of_one
    assert (one["lag"], [each["lag"] for each in many]) == (3, [3, 2, 1, 0, 0])
    assert {each["group"] for each in ctl.json("groups", "lag")} >= set(groups)
    requests.clear()
    ctl.ok("groups", "delete", groups[0], "--yes")
    of_one = requests.copy()
    requests.clear()
    assert ctl.json("groups", "delete", *groups[1:], "--yes") == {"deleted": groups[1:]}
    assert requests == of_one


def test_the_lag_of_many_share_groups_takes_no_more_requests_than_that_of_one(
    ctl: Command, broker: Broker, topic: str, requests: list[str]
) -> None:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    groups = [f"{topic}-{number}" for number in range(2)]
    for group in groups:
        with share_member(broker, group, topic) as consumer:
            eventually(lambda: not consumer.poll(0.2) and _partitions(ctl, group))  # noqa: B023 - used at once
    ctl.ok("produce", topic, stdin=b"1\n2\n3\n")
    requests.clear()
    ctl.ok("groups", "lag", groups[0])
    of_one = requests.copy()
    requests.clear()
    assert [each["lag"] for each in ctl.json("groups", "lag", *groups)] == [3, 3]
    assert requests == of_one


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rebalances_are_shown(ctl: Command, broker: Broker, topic: str, protocol: str) -> None:
    sent(broker, topic, "a")
    with member(broker, topic, topic, protocol) as consumer:
        read_and_commit(consumer, 1)
    shown = eventually(lambda: ctl.json("groups", "rebalances", topic))
    assert shown[-1]["cause"] == "member-joined"
    assert "member-joined" in ctl.ok("groups", "rebalances", topic)
    assert ctl("groups", "rebalances", f"{topic}-not").code == 4
