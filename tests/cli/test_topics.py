"""`alpacactl topics` and `alpacactl cluster`."""

import os
import sys

import pytest

from tests.brokers import Broker

from .command import Command
from .terminals import Terminal


def test_a_created_topic_is_listed(alpacactl: Command, topic: str) -> None:
    ran = alpacactl("topics", "create", topic, "--partitions", "3")
    assert (ran.code, ran.text) == (0, "")
    assert ran.errors == f"created topic {topic}, partitions: 3\n"
    listed = {each["name"]: each for each in alpacactl.json("topics", "list")}
    assert listed[topic] == {
        "name": topic,
        "partitions": 3,
        "replicas": 1,
        "messages": 0,
        "size_bytes": 0,
        "internal": False,
    }
    lines = alpacactl.ok("topics", "list").splitlines()
    assert [topic, "3", "1", "0", "0", "B", "no"] in [line.split() for line in lines]


def test_internal_topics_are_listed_with_internal(alpacactl: Command) -> None:
    # Listing groups and transactions creates the topics that store them.
    alpacactl.ok("groups", "list")
    alpacactl.ok("transactions", "list")
    assert not any(each["internal"] for each in alpacactl.json("topics", "list"))
    shown = {each["name"] for each in alpacactl.json("topics", "list", "--internal") if each["internal"]}
    assert shown >= {"__consumer_offsets", "__transaction_state"}


def test_describe_shows_partitions_offsets_and_own_settings(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "2", "--set", "retention.ms=3600000")
    alpacactl.ok("produce", topic, "--partition", "1", stdin=b"a\nb\nc\n")
    described = alpacactl.json("topics", "describe", topic)
    assert [(each["partition"], each["start"], each["end"]) for each in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 3),
    ]
    assert described["settings"] == {"retention.ms": "3600000"}
    everything = alpacactl.json("topics", "describe", topic, "--all")["settings"]
    assert everything["cleanup.policy"] == "delete"
    assert "retention.ms  3600000" in alpacactl.ok("topics", "describe", topic)


def test_settings_are_changed_and_reset(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--set", "retention.ms=3600000")
    alpacactl.ok(
        "topics", "alter", topic, "--set", "cleanup.policy=compact", "--set", "segment.bytes=2097152",
        "--unset", "retention.ms",
    )  # fmt: skip
    settings = alpacactl.json("topics", "describe", topic)["settings"]
    assert settings == {"cleanup.policy": "compact", "segment.bytes": "2097152"}


def test_an_invalid_setting_is_rejected_with_the_brokers_message(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    ran = alpacactl("topics", "alter", topic, "--set", "retention.ms=soon")
    assert (ran.code, ran.text) == (1, "")
    assert "INVALID_CONFIG" in ran.errors
    assert "'soon' is not a valid long" in ran.errors


def test_altering_nothing_is_a_usage_error(alpacactl: Command) -> None:
    ran = alpacactl("topics", "alter", "any")
    assert ran.code == 2
    assert "--set NAME=VALUE" in ran.errors


def test_partitions_are_added_but_not_removed(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "2")
    alpacactl.ok("topics", "add-partitions", topic, "--total", "5")
    assert len(alpacactl.json("topics", "describe", topic)["partitions"]) == 5
    ran = alpacactl("topics", "add-partitions", topic, "--total", "3")
    assert ran.code == 1
    assert "INVALID_PARTITIONS" in ran.errors


def test_a_deleted_topic_is_not_listed(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    assert alpacactl.json("topics", "delete", topic, "--yes") == {"deleted": [topic]}
    assert alpacactl("topics", "describe", topic).code == 4


def test_a_misspelt_name_among_several_deletes_none(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    ran = alpacactl("topics", "delete", topic, topic + "x", "--yes")
    assert ran.code == 4
    assert f"did you mean '{topic}'" in ran.errors
    assert alpacactl("topics", "describe", topic).code == 0


def test_many_topics_take_no_more_requests_than_one(
    ctl: Command, broker: Broker, topic: str, requests: list[str]
) -> None:
    names = [f"{topic}-{number}" for number in range(5)]

    def sent(*arguments: str) -> list[str]:
        requests.clear()
        ctl.ok(*arguments)
        return requests.copy()

    assert sent("topics", "create", topic) == sent("topics", "create", *names)
    of_few = sent("topics", "list")
    assert len(of_few) == 6  # versions, topics with their leaders, starts and ends, brokers, sizes
    assert sent("topics", "delete", topic, "--yes") == sent("topics", "delete", *names[1:], "--yes")
    assert sent("topics", "list") == of_few
    left = [each["name"] for each in ctl.json("topics", "list")]
    assert [name for name in left if name.startswith(topic)] == names[:1]


def test_a_refused_topic_among_several_does_not_prevent_the_others(ctl: Command, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    ctl.ok("topics", "create", names[1])
    ran = ctl("topics", "create", *names, "a b")
    assert (ran.code, ran.text) == (1, "")
    assert f"creating topic {names[1]!r}: TOPIC_ALREADY_EXISTS" in ran.errors
    assert "creating topic 'a b': INVALID_TOPIC_EXCEPTION" in ran.errors
    assert f"created {names[0]}, {names[2]}\n" in ran.errors
    listed = {each["name"] for each in ctl.json("topics", "list")}
    assert listed >= set(names)


def test_creating_a_topic_twice_fails(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    ran = alpacactl("topics", "create", topic)
    assert ran.code == 1
    assert "TOPIC_ALREADY_EXISTS" in ran.errors


def test_describing_a_topic_does_not_create_it(alpacactl: Command, topic: str) -> None:
    for command in (
        ["topics", "describe"],
        ["produce"],
        ["consume", "--exit"],
        ["topics", "delete", "--yes"],
    ):
        ran = alpacactl(*command, topic, stdin=b"x\n")
        assert (ran.code, ran.text) == (4, "")
        assert f"there is no topic '{topic}'" in ran.errors


def test_the_cluster_shows_its_broker(alpacactl: Command, broker: Broker) -> None:
    described = alpacactl.json("cluster", "describe")
    assert [each["address"] for each in described["brokers"]] == [broker.address]
    assert described["controller"] == described["brokers"][0]["id"]
    assert broker.address in alpacactl.ok("cluster", "describe")


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_deleting_a_topic_is_confirmed_on_a_terminal(
    alpacactl: Command, broker: Broker, topic: str, answer: str, code: int
) -> None:
    alpacactl.ok("topics", "create", topic)
    command = [
        sys.executable,
        "-m",
        "alpacamq.cli.main",
        "--broker",
        broker.address,
        "topics",
        "delete",
        topic,
    ]
    with Terminal(command, os.environ) as delete:
        delete.wait_for("Continue")
        delete.press(f"{answer}\n")
        assert delete.ended() == code
    assert alpacactl("topics", "describe", topic).code == (4 if code == 0 else 0)


def test_deleting_without_a_terminal_needs_yes(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    ran = alpacactl("topics", "delete", topic)
    assert ran.code == 2
    assert "--yes" in ran.errors
    assert alpacactl("topics", "describe", topic).code == 0


def test_cluster_status_shows_health_and_api_addresses(alpacactl: Command, broker: Broker) -> None:
    status = alpacactl.json("cluster", "status")
    assert (status["status"], status["trouble"]) == ("ok", None)
    assert status["doors"] == {
        "kafka": broker.address,
        "http": broker.http_address,
        "sqs": broker.sqs_address,
        "registry": broker.registry_address,
        "grpc": broker.grpc_address,
    }
    assert status["holds"]["topics"] >= 0
    assert broker.sqs_address in alpacactl.ok("cluster", "status")


def test_tables_are_coloured_on_a_terminal(alpacactl: Command, broker: Broker, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    command = [sys.executable, "-m", "alpacamq.cli.main", "--broker", broker.address, "topics", "list"]
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    for options, is_coloured in (([], True), (["--color", "never"], False)):
        with Terminal([*command, *options], environment, columns=200) as listing:
            assert listing.ended() == 0
            assert (b"\x1b[1mTOPIC" in listing.raw) is is_coloured
    assert "\x1b" in alpacactl.ok("topics", "list", "--color=always")
    assert "\x1b" not in alpacactl.ok("topics", "list", "--color=always", "-o", "json")


def test_partitions_are_shown(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "2")
    shown = alpacactl.json("topics", "partitions", topic)
    assert [(each["partition"], each["high_watermark"]) for each in shown] == [(0, 0), (1, 0)]
    assert "HIGH WATERMARK" in alpacactl.ok("topics", "partitions", topic)
    assert alpacactl("topics", "partitions", f"{topic}-not").code == 4


def test_a_topic_is_compacted(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    refused = alpacactl("topics", "compact", topic)
    assert refused.code == 1
    assert "cleanup.policy=delete" in refused.errors
    alpacactl.ok("topics", "alter", topic, "--set", "cleanup.policy=compact")
    assert alpacactl.json("topics", "compact", topic)[0]["compacted"] is False
