"""`alpacactl delayed`, and `alpacactl produce` with a delay."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.brokers import Broker

from .command import Command
from .queued import leased


@pytest.fixture
def made(ctl: Command, topic: str) -> str:
    """A topic of one partition."""
    ctl.ok("topics", "create", topic, "--partitions", "1")
    return topic


def test_delayed_lines_are_listed_and_cancelled(ctl: Command, broker: Broker, made: str) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    written = ctl.json("produce", made, "--deliver-at", due.isoformat(), stdin=b"a\nb\n")
    assert (written["written"], written["delayed"]) == (0, 2)
    (batch,) = written["batches"]
    assert batch["deliver_at"] == due.isoformat(timespec="milliseconds")
    listed = ctl.json("delayed", "list", made)
    assert [each["id"] for each in listed] == batch["ids"]
    assert [each["deliver_at"] for each in listed] == [batch["deliver_at"]] * 2
    first, second = batch["ids"]
    shown = ctl.json("delayed", "show", made, second)
    assert (shown["id"], shown["value"], shown["key"]) == (second, "b", None)
    assert ctl("delayed", "show", made, "0:999999").code == 4
    cancelled = ctl.json("delayed", "cancel", made, first, "--yes")
    assert [each["id"] for each in cancelled["cancelled"]] == [first]
    shown = ctl.ok("delayed", "list", made, "--partition", "0")
    assert first not in shown.split()
    assert second in shown.split()


def test_delayed_messages_of_all_topics_are_listed(ctl: Command, made: str) -> None:
    other = f"{made}-other"
    ctl.ok("topics", "create", other, "--partitions", "1")
    for name in (made, other):
        ctl.ok("produce", name, "--delay", "1h", stdin=b"later\n")
    listed = {each["topic"] for each in ctl.json("delayed", "list", "--max", "10000")}
    assert {made, other} <= listed
    assert other in ctl.ok("delayed", "list", "--max", "10000").split()
    assert ctl("delayed", "list", "--partition", "0").code == 2


def test_a_record_is_the_same_after_its_delay(ctl: Command, broker: Broker, made: str) -> None:
    how = ["--delay", "50ms", "--key-separator", ":", "--header", "unit=°C", "--priority", "high"]
    ran = ctl("produce", made, *how, "--partition", "0", stdin=b"k:\xff\x00\n")
    assert (ran.code, ran.raw) == (0, b"")
    assert f"delayed 1 record for {made}" in ran.errors
    (message,) = leased(broker, made, wait_ms=20_000)
    assert (message["key"], message["value_base64"], message["priority"]) == ("k", "/wA=", "high")
    assert message["headers"]["unit"] == "°C"


def test_a_message_that_is_already_due_is_written_immediately(
    ctl: Command, broker: Broker, made: str
) -> None:
    written = ctl.json("produce", made, "--deliver-at", "2001-01-01", stdin=b"a\n")
    assert written == {"topic": made, "written": 1, "delayed": 0, "batches": []}
    assert [each["value"] for each in leased(broker, made)] == ["a"]


def test_many_lines_are_delayed_and_a_truncated_list_is_noted(ctl: Command, made: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(2500))
    assert ctl.json("produce", made, "--delay", "1d", stdin=lines)["delayed"] == 2500
    assert len(ctl.json("delayed", "list", made, "--max", "5000")) == 2500
    ran = ctl("delayed", "list", made, "-o", "json")
    assert len(json.loads(ran.text)) == 100
    assert "more than 100" in ran.errors


def test_a_delay_that_is_too_long_is_rejected_with_the_brokers_message(ctl: Command, made: str) -> None:
    ran = ctl("produce", made, "--delay", "9999w", stdin=b"a\n")
    assert ran.code == 1
    assert "delays.max_delay_ms" in ran.errors


def test_records_before_a_rejected_one_are_delayed(ctl: Command, made: str) -> None:
    ctl.ok("topics", "alter", made, "--set", "max.message.bytes=1000")
    ran = ctl("produce", made, "--delay", "1h", stdin=b"small\n" + b"x" * 2000 + b"\n")
    assert ran.code == 1
    assert "1 of 2 records were rejected" in ran.errors
    assert f"delayed 1 record for {made}" in ran.errors
    assert len(ctl.json("delayed", "list", made)) == 1


def test_cancelling_needs_a_confirmation_and_an_existing_message(
    ctl: Command,
    broker: Broker,
    made: str,
) -> None:
    (batch,) = ctl.json("produce", made, "--delay", "1h", stdin=b"a\n")["batches"]
    ran = ctl("delayed", "cancel", made, *batch["ids"])
    assert ran.code == 2
    assert "--yes" in ran.errors
    assert len(ctl.json("delayed", "list", made)) == 1
    assert "0:999999" in ctl.fails(4, "delayed", "cancel", made, "0:999999", "--yes")
    assert f"'{made}-7'" in ctl.fails(4, "delayed", "cancel", made, "7:1", "--yes")
    assert f"did you mean '{made}'" in ctl.fails(4, "delayed", "list", f"{made}x")
    ctl.fails(4, "delayed", "list", made, "--partition", "7")


def test_delaying_to_an_unknown_topic_fails(ctl: Command, made: str) -> None:
    ran = ctl("produce", f"{made}x", "--delay", "1h", stdin=b"a\n")
    assert ran.code == 4
    assert f"did you mean '{made}'" in ran.errors
