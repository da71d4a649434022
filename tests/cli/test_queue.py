"""`alpacactl queue`: receiving, settling and managing queues."""

import json
import os
import subprocess
import sys

import pytest

from tests.brokers import Broker
from tests.waiting import eventually

from .command import Command
from .queued import leased, receipts, sent, stats


def values(broker: Broker, topic: str) -> list[str]:
    return [each["value"] for each in leased(broker, topic)]


def test_a_message_is_printed_with_the_receipt_that_settles_it(
    ctl: Command, broker: Broker, topic: str
) -> None:
    sent(broker, topic, "tea", key="alice", headers={"table": "12"}, priority="high")
    (message,) = ctl.lines("queue", "receive", topic, "--max", "1", "--visibility", "5m")
    assert (message["topic"], message["partition"], message["offset"]) == (topic, 0, 0)
    assert (message["key"], message["value"], message["priority"]) == ("alice", "tea", "high")
    assert {"name": "table", "value": "12"} in message["headers"]
    assert message["delivery_count"] == 1
    assert 200_000 < message["deadline_ms"] - message["timestamp_ms"] < 400_000
    assert ctl.json("queue", "ack", message["receipt"]) == {"settled": 1, "failed": []}
    totals = stats(broker, topic)
    assert (totals["acked_total"], totals["in_flight"], totals["ready"]) == (1, 0, 0)


def test_ack_acknowledges_printed_messages_until_none_is_left(
    ctl: Command, broker: Broker, topic: str
) -> None:
    sent(broker, topic, *map(str, range(250)))
    printed = ctl.lines("queue", "receive", topic, "--ack", "--exit")
    assert [each["value"] for each in printed] == [str(number) for number in range(250)]
    assert stats(broker, topic)["acked_total"] == 250
    again = ctl("queue", "receive", topic, "--ack", "--exit")
    assert (again.code, again.raw) == (0, b"")
    assert "no messages available" in again.errors


def test_tables_show_text_and_base64_of_other_bytes(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "two\nlines")
    ctl.ok("produce", topic, stdin=b"\xff\x00")
    shown = ctl.ok("queue", "receive", topic, "--exit").splitlines()
    assert shown[0].split() == ["PARTITION", "OFFSET", "DELIVERY", "PRIORITY", "KEY", "VALUE", "RECEIPT"]
    assert r'"two\nlines"' in shown[1]
    assert "base64:/wA=" in shown[2]
    receipt = shown[2].split()[-1]
    assert ctl.json("queue", "extend", receipt, "--for", "0s")["settled"] == 1
    (again,) = ctl.lines("queue", "receive", topic, "--exit")
    assert (again["value_base64"], again["delivery_count"]) == ("/wA=", 2)


def test_receiving_waits_for_messages(broker: Broker, topic: str) -> None:
    sent(broker, topic, "first")
    command = [sys.executable, "-m", "alpacamq.cli.main", "--http", broker.http_address]
    receive = ["queue", "receive", topic, "--max", "2", "-o", "yaml"]
    with subprocess.Popen([*command, *receive], stdout=subprocess.PIPE, text=True) as receiver:
        eventually(lambda: stats(broker, topic)["waiting_receives"] == 1, within_s=60)
        sent(broker, topic, "second")
        shown, _ = receiver.communicate(timeout=60)
    assert [line for line in shown.splitlines() if line.startswith("value")] == [
        "value: first",
        "value: second",
    ]


def test_a_nacked_message_is_redelivered_after_a_backoff(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "tea", "cake")
    tea, cake = receipts(broker, topic)
    ctl.ok("queue", "nack", tea, "--delay", "1h", "--reason", "till is closed")
    ctl.ok("queue", "nack", cake, "--delay", "0s")
    (again,) = leased(broker, topic, wait_ms=20_000)
    assert (again["value"], again["delivery_count"]) == ("cake", 2)
    assert stats(broker, topic)["resting"] == 1


def test_receipts_are_read_from_standard_input_and_invalid_ones_listed(
    ctl: Command, broker: Broker, topic: str
) -> None:
    sent(broker, topic, "a", "b")
    one, two = receipts(broker, topic)
    ran = ctl("queue", "ack", "-", "-o", "json", stdin=f"{one}\nnonsense\n\n{two}\n".encode())
    assert ran.code == 1
    answer = json.loads(ran.text)
    assert answer["settled"] == 2
    assert [each["receipt"] for each in answer["failed"]] == ["nonsense"]
    assert "alpacactl: nonsense: the receipt handle" in ran.errors
    assert stats(broker, topic)["acked_total"] == 2


def test_a_receipt_of_an_expired_lease_is_rejected(
    ctl: Command,
    broker: Broker,
    topic: str,
) -> None:
    sent(broker, topic, "tea")
    (first,) = receipts(broker, topic, visibility_ms=0)
    (second,) = receipts(broker, topic, wait_ms=20_000)
    assert first in ctl.fails(1, "queue", "ack", first)
    ctl.ok("queue", "ack", second)


def test_peek_leases_nothing_and_omits_processed_messages(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "done", "leased", "ready")
    done, _ = receipts(broker, topic, max=2)
    ctl.ok("queue", "ack", done)
    assert [each["value"] for each in ctl.json("queue", "peek", topic)] == ["leased", "ready"]
    assert len(ctl.json("queue", "peek", topic, "--max", "1")) == 1
    assert "leased" in ctl.ok("queue", "peek", topic)
    assert values(broker, topic) == ["ready"]


def test_peek_shows_the_first_messages_of_a_topic_that_no_group_has_received_from(
    ctl: Command, broker: Broker, topic: str
) -> None:
    sent(broker, topic, "first", "second")
    ran = ctl("queue", "peek", topic, "--max", "1")
    assert ran.code == 0
    assert "first" in ran.text
    assert "no group has received" in ran.errors
    assert ctl("queue", "peek", f"{topic}-none").code == 4
    values(broker, topic)
    assert ctl("queue", "peek", topic, "--group", "misspelt").code == 4


def test_urgent_messages_are_received_first_and_lanes_have_stats(
    ctl: Command, broker: Broker, topic: str
) -> None:
    sent(broker, topic, "later")
    ctl.ok("produce", topic, "--priority", "critical", stdin=b"now\n")
    (first,) = ctl.lines("queue", "receive", topic, "--max", "1")
    assert (first["value"], first["priority"]) == ("now", "critical")
    described = ctl.json("queue", "describe", topic)
    assert (described["group"], described["totals"]["ready"]) == ("queue", 1)
    assert described["lanes"]["critical"]["in_flight"] == 1
    assert described["partitions"][0]["lanes"]["normal"]["ready"] == 1
    shown = ctl.ok("queue", "describe", topic)
    assert ["critical", "0", "1", "0"] in [line.split()[:4] for line in shown.splitlines()]


def test_a_purge_needs_a_confirmation(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "a", "b")
    receipts(broker, topic, max=1)
    ran = ctl("queue", "purge", topic)
    assert ran.code == 2
    assert "2 messages" in ran.errors
    assert "--yes" in ran.errors
    assert stats(broker, topic)["ready"] == 1
    assert ctl.json("queue", "purge", topic, "--yes")["purged"] == 2
    assert values(broker, topic) == []


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 0), ("n", 1, 1), ("", 1, 1)])
def test_a_purge_is_confirmed_on_a_terminal(
    broker: Broker, topic: str, answer: str, code: int, left: int
) -> None:
    sent(broker, topic, "a")
    receipts(broker, topic, visibility_ms=0)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "alpacamq.cli.main", "--http", broker.http_address]
    try:
        with subprocess.Popen([*command, "queue", "purge", topic], stdin=theirs, stderr=theirs) as purge:
            os.write(ours, f"{answer}\n".encode())
            assert purge.wait(60) == code
    finally:
        os.close(ours)
        os.close(theirs)
    assert stats(broker, topic)["ready"] == left


def test_a_queue_is_reset_with_execute_only(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "a", "b", "c")
    ctl.ok("queue", "ack", *receipts(broker, topic))
    shown = ctl.json("queue", "reset", topic, "--to", "1")
    assert shown["executed"] is False
    assert shown["partitions"] == [{"partition": 0, "before": 3, "after": 1}]
    assert values(broker, topic) == []
    ctl.ok("queue", "reset", topic, "--to", "1", "--execute")
    assert values(broker, topic) == ["b", "c"]
    ctl.ok("queue", "reset", topic, "--to", "1h", "--partition", "0", "--execute")
    assert values(broker, topic) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("where", "after"), [("earliest", 0), ("latest", 2), ("99", 2), ("2001-01-01", 0), ("2199-01-01", 2)]
)
def test_positions_are_the_same_as_in_other_commands(
    ctl: Command,
    broker: Broker,
    topic: str,
    where: str,
    after: int,
) -> None:
    sent(broker, topic, "a", "b")
    leased(broker, topic, max=1)
    shown = ctl.json("queue", "reset", topic, "--to", where)
    assert shown["partitions"] == [{"partition": 0, "before": 0, "after": after}]


def test_a_group_has_its_own_settings(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "a")
    ours = ["queue", "configure", topic, "--group", "ours"]
    changed = ctl.json(*ours, "--set", "queue.visibility.timeout.ms=90000")
    assert changed["settings"] == {"queue.visibility.timeout.ms": "90000"}
    assert "queue.visibility.timeout.ms  90000" in ctl.ok("queue", "describe", topic, "--group", "ours")
    assert ctl.json(*ours, "--unset", "queue.visibility.timeout.ms")["settings"] == {}
    wrong = ctl(*ours, "--set", "queue.visibilty.timeout.ms=1")
    assert wrong.code == 1
    assert "did you mean queue.visibility.timeout.ms?" in wrong.errors
    ctl.fails(2, *ours)


def test_queues_are_listed_with_message_counts(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "a", "b")
    leased(broker, topic, max=1)
    ctl.ok("queue", "receive", topic, "--group", "second", "--exit", "--ack")
    listed = ctl.json("queue", "list", "--topic", topic)
    assert listed == [
        {"group": "queue", "topic": topic, "ready": 1, "in_flight": 1, "resting": 0},
        {"group": "second", "topic": topic, "ready": 0, "in_flight": 0, "resting": 0},
    ]
    assert all(each["group"] == "second" for each in ctl.json("queue", "list", "--group", "second"))


def test_a_group_that_starts_at_the_end_receives_new_messages(
    ctl: Command, broker: Broker, topic: str
) -> None:
    sent(broker, topic, "old")
    late = ["queue", "receive", topic, "--group", "late", "--start", "latest", "--exit"]
    ctl.ok(*late)
    sent(broker, topic, "new")
    assert stats(broker, topic, "late")["ready"] == 1


NOT_THERE: list[list[str]] = [
    ["receive", "{topic}x"],
    ["peek", "{topic}x"],
    ["describe", "{topic}x"],
    ["configure", "{topic}x", "--unset", "queue.ttl.ms"],
    ["purge", "{topic}x", "--yes"],
    ["reset", "{topic}x", "--to", "earliest"],
]


def test_similar_names_are_suggested(
    ctl: Command,
    broker: Broker,
    topic: str,
) -> None:
    sent(broker, topic, "a")
    for verb in NOT_THERE:
        assert f"there is no topic '{topic}x'; did you mean '{topic}'" in ctl.fails(
            4, "queue", *[word.format(topic=topic) for word in verb]
        )
    leased(broker, topic)
    assert "of the group 'quue'; did you mean 'queue'?" in ctl.fails(
        4, "queue", "describe", topic, "--group", "quue"
    )
    assert f"there is no partition '{topic}-7'" in ctl.fails(
        4, "queue", "reset", topic, "--to", "earliest", "--partition", "7"
    )


def test_unusual_names_are_quoted_in_paths(ctl: Command, broker: Broker, topic: str) -> None:
    sent(broker, topic, "a")
    for group in ("a/b", "ä ö?&=#%", "100%25"):
        (message,) = ctl.lines("queue", "receive", topic, "--group", group, "--exit", "--ack")
        assert message["value"] == "a"
        ctl.ok("queue", "describe", topic, "--group", group)
    ctl.fails(2, "queue", "receive", topic, "--group", "")
