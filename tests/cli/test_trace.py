"""`alpacactl trace`: the trace of a message as text and as JSON."""

import re

import pytest

from alpacamq.cli.trace import span

from .command import Command


@pytest.fixture
def made(ctl: Command, topic: str) -> str:
    ctl.ok("topics", "create", topic, "--partitions", "1")
    return topic


def traced(ctl: Command, topic: str, *options: str) -> str:
    """A message that is traced; the id of its trace."""
    (trace_id,) = ctl.json("produce", topic, "--trace", *options, stdin=b"tea\n")["traces"]
    return str(trace_id)


def test_a_trace_is_printed_step_by_step(ctl: Command, made: str) -> None:
    trace_id = traced(ctl, made)
    ctl.ok("queue", "receive", made, "--ack", "--exit")
    head, _, *lines = ctl.ok("trace", trace_id).splitlines()
    assert re.fullmatch(rf"trace {trace_id}: acked, 5 steps in \d.*", head)
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    names = [re.search(r"[a-z]+\.[a-z]+(?=  )", line) for line in lines]
    assert [name and name[0] for name in names] == [
        "publish.received", "publish.partitioned", "publish.persisted", "consume.fetched", "consume.acked",
    ]  # fmt: skip
    assert all(re.search(r"\+[0-9.]+ (ms|s|min)", line) for line in lines[1:])
    assert "█" in "".join(lines)
    assert "group queue" in lines[3]
    place = re.search(rf"{made}/\d+/\d+", lines[3])
    assert place is not None
    assert ctl.ok("trace", place[0]).splitlines()[0].startswith(f"trace {trace_id}: acked")


def test_json_contains_all_fields_of_a_trace(ctl: Command, made: str) -> None:
    trace_id = traced(ctl, made)
    shown = ctl.json("trace", trace_id)
    assert (shown["trace_id"], shown["status"]) == (trace_id, "published")
    assert shown["events"][0]["name"] == "publish.received"
    assert f"trace_id: {trace_id}" in ctl.ok("trace", trace_id, "-o", "yaml").replace('"', "")


def test_traces_are_listed(ctl: Command, made: str) -> None:
    first, second = traced(ctl, made), traced(ctl, made, "--delay", "1h")
    assert [each["trace_id"] for each in ctl.json("trace", "list", "--topic", made)] == [second, first]
    assert [each["trace_id"] for each in ctl.json("trace", "list", "--topic", made, "--max", "1")] == [second]
    (delayed,) = ctl.json("trace", "list", "--topic", made, "--status", "delayed", "--since", "1h")
    assert delayed["trace_id"] == second
    head, line, _ = ctl.ok("trace", "list", "--topic", made).splitlines()
    assert head.split() == ["TRACE", "MESSAGE", "BEGAN", "TOOK", "STEPS", "STATUS"]
    assert line.split()[0] == second


def test_every_record_has_its_own_trace(ctl: Command, made: str) -> None:
    ran = ctl("produce", made, "--trace", stdin=b"a\nb\nc\nd\ne\nf\n")
    printed = re.findall(r"alpacactl trace ([0-9a-f]{32})", ran.errors)
    assert len(set(printed)) == 5
    assert "1 more" in ran.errors
    assert ctl.ok("trace", printed[4]).startswith(f"trace {printed[4]}: published")


def test_an_untraced_message_is_reported_with_a_hint(ctl: Command, made: str) -> None:
    ctl.ok("produce", made, stdin=b"tea\n")
    assert f"topics alter {made} --set trace.sample=1" in ctl.fails(4, "trace", f"{made}/0/0")
    assert "there is no trace" in ctl.fails(4, "trace", "f" * 32)
    assert "did you mean" in ctl.fails(4, "trace", f"{made[:-1]}/0/0")


@pytest.mark.parametrize(
    "arguments", [["tea"], ["a/b/c"], ["a/0"], ["f" * 32, "--topic", "x"], ["list", "--follow"]], ids=" ".join
)
def test_an_invalid_message_position_is_a_usage_error(ctl: Command, arguments: list[str]) -> None:
    ctl.fails(2, "trace", *arguments)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 ms"), (0.0123, "12.3 ms"), (0.5, "500 ms"), (1.005, "1.00 s"), (119, "119.00 s"),
        (600, "10.0 min"), (90_000, "25.0 h"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert span(seconds) == text
