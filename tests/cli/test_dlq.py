"""`alpacactl dlq`: dead letters and redrives."""

import json

from tests.brokers import Broker
from tests.waiting import eventually

from .command import Command
from .queued import leased, receipts, sent, settled, stats


def dead(broker: Broker, topic: str, *values: str, reason: str = "no such product") -> str:
    """The dead-letter topic of the topic, where these values are now."""
    sent(broker, topic, *values, key="alice", headers={"table": "12"})
    handles: list[str] = []
    while len(handles) < len(values):
        handles += receipts(broker, topic)
    settled(broker, "reject", *handles, reason=reason)
    eventually(lambda: stats(broker, topic)["dead_lettering"] == 0)
    return f"{topic}.dlq"


def test_a_dead_letter_shows_origin_and_reason(ctl: Command, broker: Broker, topic: str) -> None:
    dead_letters = dead(broker, topic, "tea")
    (letter,) = ctl.json("dlq", "show", topic)
    assert (letter["topic"], letter["key"], letter["value"]) == (dead_letters, "alice", "tea")
    assert letter["headers"] == [{"name": "table", "value": "12"}]
    origin = letter["origin"]
    assert (origin["topic"], origin["partition"], origin["offset"], origin["group"]) == (topic, 0, 0, "queue")
    assert (letter["delivery_count"], letter["reason"]) == (1, "no such product")
    shown = ctl.ok("dlq", "show", dead_letters)
    assert shown.startswith(f"{dead_letters}:\n")
    assert f"{topic}-0@0" in shown
    assert "no such product" in shown


def test_dead_letter_topics_are_listed_with_message_counts(ctl: Command, broker: Broker, topic: str) -> None:
    dead_letters = dead(broker, topic, "tea", "cake")
    chosen = f"{topic}-set-aside"
    ctl.ok("topics", "create", chosen, "--partitions", "1")
    ctl.ok("topics", "create", f"{topic}-2", "--set", f"queue.dead.letter.topic={chosen}")
    listed = {each["topic"]: each for each in ctl.json("dlq", "list")}
    assert listed[dead_letters] == {"topic": dead_letters, "of": [topic], "waiting": 2}
    assert listed[chosen] == {"topic": chosen, "of": [f"{topic}-2"], "waiting": 0}
    assert topic not in listed
    sent(broker, f"{topic}-2", "pie")
    settled(broker, "reject", *receipts(broker, f"{topic}-2"))
    eventually(lambda: ctl("dlq", "show", chosen).code == 0)
    for name in (chosen, f"{topic}-2"):
        (letter,) = ctl.json("dlq", "show", name)
        assert (letter["topic"], letter["value"]) == (chosen, "pie")


def test_the_override_of_a_group_decides_where_its_dead_letters_are(
    ctl: Command, broker: Broker, topic: str
) -> None:
    chosen = f"{topic}-of-group"
    sent(broker, topic, "tea")
    ctl.ok("queue", "configure", topic, "--set", f"queue.dead.letter.topic={chosen}")
    settled(broker, "reject", *receipts(broker, topic))
    eventually(lambda: stats(broker, topic)["dead_lettering"] == 0)
    assert {"topic": chosen, "of": [topic], "waiting": 1} in ctl.json("dlq", "list")
    (letter,) = ctl.json("dlq", "show", topic)
    assert (letter["topic"], letter["value"]) == (chosen, "tea")


def test_a_redrive_returns_dead_letters_to_their_original_topics(
    ctl: Command, broker: Broker, topic: str
) -> None:
    dead_letters = dead(broker, topic, "tea", "cake", "pie")
    ran = ctl("dlq", "redrive", topic)
    assert (ran.code, ran.raw) == (0, b"")
    assert f"of {dead_letters}: completed, 3 of 3 moved" in ran.errors
    assert [each["value"] for each in leased(broker, topic)] == ["tea", "cake", "pie"]
    assert ctl.json("dlq", "show", dead_letters) == []
    assert ctl.ok("dlq", "show", dead_letters) == f"{dead_letters}: none\n"
    (task,) = ctl.json("dlq", "redrives", "--topic", dead_letters)
    assert (task["state"], task["moved"], task["failure"]) == ("completed", 3, None)
    assert task["id"] in ctl.ok("dlq", "redrives")


def test_a_redrive_moves_some_dead_letters_to_another_topic(
    ctl: Command,
    broker: Broker,
    topic: str,
) -> None:
    dead_letters = dead(broker, topic, "tea", "cake", "pie")
    ctl.ok("topics", "create", f"{topic}-by-hand", "--partitions", "1")
    elsewhere = ["dlq", "redrive", dead_letters, "--to", f"{topic}-by-hand", "--max", "2", "-o", "json"]
    task = json.loads(ctl.ok(*elsewhere))
    assert (task["target"], task["state"], task["moved"]) == (f"{topic}-by-hand", "completed", 2)
    assert [each["value"] for each in leased(broker, f"{topic}-by-hand")] == ["tea", "cake"]
    assert [each["value"] for each in ctl.json("dlq", "show", topic)] == ["pie"]
    assert f"did you mean '{topic}-by-hand'" in ctl.fails(
        4, "dlq", "redrive", topic, "--to", f"{topic}-by-hnd"
    )


def test_a_redrive_continues_in_the_broker_until_it_is_cancelled(
    ctl: Command, broker: Broker, topic: str
) -> None:
    dead(broker, topic, *map(str, range(50)))
    task = ctl.json("dlq", "redrive", topic, "--rate", "1", "--no-wait")
    assert (task["state"], task["messages_per_second"]) == ("running", 1)
    ctl.ok("dlq", "cancel", task["id"])

    def ended() -> bool:
        (found,) = ctl.json("dlq", "redrives", "--topic", f"{topic}.dlq")
        return bool(found["state"] == "cancelled")

    eventually(ended)
    assert len(ctl.json("dlq", "show", topic, "--max", "100")) > 40


def test_a_failed_redrive_is_reported(ctl: Command, broker: Broker, topic: str) -> None:
    dead_letters = dead(broker, topic, "tea")
    ctl.ok("topics", "delete", topic, "--yes")
    ran = ctl("dlq", "redrive", dead_letters, "-o", "json")
    assert ran.code == 1
    assert json.loads(ran.text)["moved"] == 0
    assert f"topic '{topic}', which they came from, does not exist" in ran.errors
    assert len(ctl.json("dlq", "show", dead_letters)) == 1


def test_redriving_a_topic_without_dead_letters_fails(
    ctl: Command,
    broker: Broker,
    topic: str,
) -> None:
    sent(broker, topic, "alive")
    for verb in (["show"], ["redrive"], ["redrive", "--to", f"{topic}-2"]):
        assert f"there is no dead letter of topic '{topic}'" in ctl.fails(4, "dlq", verb[0], topic, *verb[1:])
    assert f"did you mean '{topic}'" in ctl.fails(4, "dlq", "show", f"{topic}x")
    ctl.fails(4, "dlq", "cancel", "nothing")
    assert [each["value"] for each in leased(broker, topic)] == ["alive"]


def test_a_dead_letter_is_shown_with_all_fields(ctl: Command, broker: Broker, topic: str) -> None:
    dead(broker, topic, "two\nlines", "cake")
    letter = ctl.json("dlq", "show", topic, "0:0")
    assert (letter["value"], letter["reason"]) == ("two\nlines", "no such product")
    shown = ctl.ok("dlq", "show", topic, "0:0").splitlines()
    assert shown[-2:] == ["two", "lines"]
    assert any(line.split() == ["table", "12"] for line in shown)
    assert any(line.split() == ["from", f"{topic}-0@0"] for line in shown)
    assert "cake" not in shown
    # Also when it is done with.
    ctl.ok("dlq", "redrive", topic)
    assert ctl.json("dlq", "show", topic, "0:1")["value"] == "cake"


def test_an_unknown_dead_letter_is_not_found(ctl: Command, broker: Broker, topic: str) -> None:
    dead(broker, topic, "tea")
    for wrong in ("0:1", "0:999", "7:0"):
        assert "there is no" in ctl.fails(4, "dlq", "show", topic, wrong)
    ctl.fails(2, "dlq", "show", topic, "first")
