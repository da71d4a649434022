"""Behaviour common to all commands: exit codes, streams, formats, width, unreachable brokers."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from alpacamq.cli.commands import compact
from alpacamq.cli.main import main
from alpacamq.cli.nouns import NOUNS
from tests.brokers import Broker

from .command import Command

OVER_KAFKA = [
    ["topics", "list"],
    ["topics", "describe", "x"],
    ["topics", "create", "x"],
    ["topics", "delete", "x", "--yes"],
    ["topics", "alter", "x", "--unset", "retention.ms"],
    ["topics", "add-partitions", "x", "--total", "2"],
    ["groups", "list"],
    ["groups", "describe", "x"],
    ["groups", "delete", "x", "--yes"],
    ["groups", "lag", "x"],
    ["groups", "reset", "x", "--to", "earliest"],
    ["transactions", "list"],
    ["transactions", "describe", "x"],
    ["produce", "x"],
    ["consume", "x"],
    ["cluster", "describe"],
]
OVER_HTTP = [
    ["queue", "receive", "x"],
    ["queue", "ack", "x"],
    ["queue", "nack", "x"],
    ["queue", "reject", "x"],
    ["queue", "extend", "x", "--for", "1m"],
    ["queue", "peek", "x"],
    ["queue", "list"],
    ["queue", "describe", "x"],
    ["queue", "configure", "x", "--unset", "queue.ttl.ms"],
    ["queue", "purge", "x", "--yes"],
    ["queue", "reset", "x", "--to", "earliest"],
    ["dlq", "list"],
    ["dlq", "show", "x"],
    ["dlq", "show", "x", "0:1"],
    ["cluster", "status"],
    ["dlq", "redrive", "x"],
    ["dlq", "redrives"],
    ["dlq", "cancel", "x"],
    ["topics", "partitions", "x"],
    ["topics", "compact", "x"],
    ["groups", "rebalances", "x"],
    ["delayed", "list", "x"],
    ["delayed", "show", "x", "0:1"],
    ["delayed", "cancel", "x", "0:1", "--yes"],
]
VERBS = [(verb, "--broker") for verb in OVER_KAFKA] + [(verb, "--http") for verb in OVER_HTTP]
each_verb = pytest.mark.parametrize(
    ("verb", "option"), VERBS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)


@pytest.fixture
def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def silent_port() -> Iterator[str]:
    """Something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@each_verb
def test_an_unreachable_broker_has_its_own_exit_code(
    verb: list[str], option: str, closed_port: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main([option, closed_port, *verb])
    out, errors = capfd.readouterr()
    assert (code, out) == (3, "")
    assert f"no broker answers at {closed_port}" in errors
    assert "alpacamq serve" in errors
    assert option in errors


@pytest.mark.parametrize("noun", ["topics", "queue"])
def test_a_server_that_never_answers_times_out(noun: str, silent_port: str) -> None:
    ran = Command(silent_port)(noun, "list")
    assert ran.code == 3
    assert "does not answer" in ran.errors


def test_a_host_that_does_not_exist_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--broker", "no-such-host.invalid:9092", "topics", "list"]) == 3
    assert "no-such-host.invalid" in capfd.readouterr().err


@pytest.mark.parametrize(("noun", "option"), [("topics", "--broker"), ("queue", "--http")])
@pytest.mark.parametrize("broker", ["localhost:port", ":9092", "::1:9092", "localhost:0"])
def test_an_invalid_address_is_a_usage_error(
    noun: str, option: str, broker: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([noun, "list", option, broker]) == 2
    assert option in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["tpoics"],
        ["topics"],
        ["topics", "create"],
        ["topics", "create", "x", "--partitions", "0"],
        ["topics", "create", "x", "--partitions", "99999999999"],
        ["topics", "create", "x", "--set", "retention.ms"],
        ["topics", "list", "-o", "xml"],
        ["groups", "reset", "x"],
        ["groups", "reset", "x", "--to", "whenever"],
        ["groups", "reset", "x", "--to", "earliest", "--topic", "t:a"],
        ["consume", "x", "--max", "-1"],
        ["produce", "x", "--priority", "urgent"],
        ["produce", "x", "--delay", "soon"],
        ["produce", "x", "--delay", "1m", "--deliver-at", "2030-01-01"],
        ["produce", "x", "--deliver-at", "tomorrow"],
        ["queue", "ack"],
        ["queue", "extend", "x"],
        ["queue", "receive", "x", "--visibility", "30"],
        ["queue", "reset", "x"],
        ["delayed", "cancel", "x", "17"],
    ],
    ids=" ".join,
)
def test_a_usage_error_has_its_own_exit_code(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, errors = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert "--help" in errors


@each_verb
def test_every_verb_has_the_common_options_and_help(
    verb: list[str], option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = verb[:1] if verb[0] in ("produce", "consume") else verb[:2]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    shown = capfd.readouterr().out
    assert option in shown
    assert "--output" in shown


def test_a_name_that_is_not_utf8_is_a_usage_error(alpacactl: Command) -> None:
    for words in (["topics", "describe"], ["queue", "describe"], ["queue", "ack"]):
        ran = alpacactl(*words, "caf\udce9")
        assert ran.code == 2
        assert "UTF-8" in ran.errors


def test_output_that_cannot_be_written_is_an_error(broker: Broker) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "alpacamq.cli.main", "--broker", broker.address, "cluster", "describe"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 1
    assert b"No space left on device" in ran.stderr
    assert b"Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "closed", "code", "said"),
    [
        pytest.param("queue ack -", "<&-", 1, "standard input", id="receipts from closed input"),
        pytest.param("produce {topic}", "<&-", 1, "standard input", id="lines from closed input"),
        pytest.param("topics list", ">&-", 1, "output is closed", id="a table"),
        pytest.param("topics list -o json", ">&-", 1, "output is closed", id="JSON"),
        pytest.param("consume {topic} --exit", ">&-", 0, "", id="nothing to write"),
        pytest.param("--help", ">&-", 0, "", id="help"),
        pytest.param("topics describe {topic}-none", "2>&-", 4, "", id="an error without a place for it"),
        pytest.param("topics delete {topic} --yes", "<&- >&- 2>&-", 0, "", id="all closed"),
    ],
)
def test_closed_standard_streams_are_an_error_only_where_they_are_needed(
    ctl: Command, broker: Broker, topic: str, arguments: str, closed: str, code: int, said: str
) -> None:
    ctl.ok("topics", "create", topic)
    command = f"{sys.executable} -m alpacamq.cli.main {arguments.format(topic=topic)} {closed}"
    environment = {**os.environ, "ALPACACTL_BROKER": broker.address, "ALPACACTL_HTTP": broker.http_address}
    ran = subprocess.run(["sh", "-c", command], capture_output=True, check=False, env=environment)
    assert (ran.returncode, ran.stdout) == (code, b"")
    assert said in ran.stderr.decode()
    assert b"Traceback" not in ran.stderr
    assert b"Exception" not in ran.stderr


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([7, 0, 1, 4], "0-1,4,7")],
    ids=["none", "one", "a run", "runs and single ones"],
)
def test_partition_numbers_are_shortened(numbers: list[int], expected: str) -> None:
    assert compact(numbers) == expected


def test_help_loads_neither_the_protocol_nor_any_noun() -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "alpacamq.cli.main", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(noun in ran.stdout for noun in NOUNS)
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "alpacamq.cli.output" in loaded
    for heavy in ("alpacamq.protocol", "alpacamq.client", "alpacamq.cli.topics", "msgspec", "asyncio"):
        assert heavy not in loaded


def test_common_options_may_precede_or_follow_the_verb(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic)
    before = json.loads(alpacactl.ok("-o", "json", "topics", "describe", topic))
    behind = json.loads(alpacactl.ok("topics", "describe", topic, "-o", "json"))
    assert before == behind


def test_yaml_output(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1", "--set", "retention.ms=60000")
    lines = alpacactl.ok("topics", "describe", topic, "-o", "yaml").splitlines()
    assert lines[0] == f"name: {topic}"
    assert lines[-2:] == ["settings:", '  retention.ms: "60000"']


def test_a_narrow_terminal_gets_one_field_per_line(alpacactl: Command, topic: str) -> None:
    name = topic[:40]
    alpacactl.ok("topics", "create", name, "--partitions", "1")
    ran = alpacactl("topics", "describe", name, columns=60)
    assert all(len(line) <= 60 for line in ran.text.splitlines())
    assert f"topic  {name}" in ran.text
    ran = alpacactl("--help", columns=60)
    assert all(len(line) <= 60 for line in ran.text.splitlines())


def test_output_is_the_same_whatever_the_locale(
    alpacactl: Command, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    alpacactl.ok("produce", topic, stdin="größe\n".encode())
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    shown = alpacactl.ok("consume", topic, "--exit", "-o", "json")
    assert json.loads(shown)["value"] == "größe"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["tpoics", "list"], "did you mean topics"),
        (["topics", "lst"], "did you mean list?"),
        (["topics", "create", "x", "--partition", "3"], "did you mean --partitions?"),
        (["groups", "reset", "x", "--too", "earliest"], "unknown option --too; did you mean --to"),
        (["topics", "list", "--colour=never"], "did you mean --color"),
        (["topics"], "choose from list, describe, partitions, create"),
        (["topics", "list", "more"], "unexpected arguments: more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistyped_words_get_suggestions(
    typed: list[str], meant: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed)
    assert ended.value.code == 2
    assert meant in capfd.readouterr().err


@pytest.mark.parametrize("word", ["--part", "--out"])
def test_options_cannot_be_abbreviated(word: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["topics", "create", "x", word, "3"])
    assert ended.value.code == 2


def test_names_cannot_control_the_terminal(alpacactl: Command, topic: str) -> None:
    alpacactl.ok("topics", "create", topic, "--partitions", "1")
    alpacactl.ok("queue", "receive", topic, "--group", "\x1b[2Jgone", "--exit")
    shown = alpacactl.ok("queue", "list", "--topic", topic)
    assert "\x1b" not in shown
    assert "gone" in shown
