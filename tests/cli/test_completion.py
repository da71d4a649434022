"""Shell completion, in real shells."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from alpacamq.cli.completion import SCRIPTS, complete
from alpacamq.cli.nouns import NOUNS
from tests.brokers import Broker

from .queued import leased, sent
from .terminals import Terminal


@pytest.fixture
def shell(tmp_path: Path, broker: Broker) -> dict[str, str]:
    """An environment in which `alpacactl` is a command and knows the broker."""
    command = tmp_path / "alpacactl"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m alpacamq.cli.main "$@"\n')
    command.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ALPACACTL_")}
    return {
        **environment,
        "PATH": f"{tmp_path}:{environment['PATH']}",
        "HOME": str(tmp_path),
        "ALPACAMQ_ADDRESS": broker.http_address,
        "ALPACACTL_CONFIG": str(tmp_path / "alpacactl.toml"),
        "PS1": "$ ",
    }


def candidates(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert complete(words) == 0
    return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(["top"], ["topics", "top"], id="nouns"),
        pytest.param(["topics", "de"], ["describe", "delete"], id="verbs"),
        pytest.param(["topics", "create", "x", "--par"], ["--partitions"], id="options"),
        pytest.param(["topics", "list", "-o", ""], ["table", "json", "yaml"], id="values"),
        pytest.param(["topics", "list", "--color=a"], ["--color=auto", "--color=always"], id="in one word"),
        pytest.param(["-o", "json", "cons"], ["consume"], id="behind options"),
        pytest.param(["produce", "x", "--priority", "h"], ["high"], id="choices of a noun that is a verb"),
        pytest.param(["topic", "cr"], ["create"], id="other names of nouns"),
        pytest.param(["nonsense", "x"], [], id="nothing behind what there is not"),
    ],
)
def test_words_of_the_command_line_are_completed(
    words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(candidates(capsys, *words)) == sorted(expected)


def test_an_empty_line_completes_to_all_nouns(capsys: pytest.CaptureFixture[str]) -> None:
    assert candidates(capsys) == list(NOUNS)


def test_names_come_from_the_broker(
    broker: Broker, topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(broker, topic, "a")
    leased(broker, topic)
    monkeypatch.setenv("ALPACACTL_HTTP", broker.http_address)
    assert candidates(capsys, "topics", "describe", topic[:-3]) == [topic]
    assert candidates(capsys, "queue", "peek", topic, "--group", "qu") == ["queue"]
    assert candidates(capsys, "topics", "delete", topic, topic[:-3]) == [topic]
    monkeypatch.delenv("ALPACACTL_HTTP")
    assert candidates(capsys, "--broker", broker.address, "consume", topic[:-3]) == [topic]
    assert candidates(capsys, "groups", "describe", "--http", broker.http_address, "que") == ["queue"]


@pytest.mark.parametrize("name", ["$(id)", "a;id", "a b", "a\nb", "a\x1b[2J", "--yes"])
def test_names_with_shell_metacharacters_are_not_offered(
    broker: Broker, topic: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sent(broker, topic, "a")
    for group in (f"{name}{topic}", f"plain{topic}"):
        url = f"http://{broker.http_address}/groups/{quote(group, safe='')}/poll"
        httpx.get(url, params={"topic": topic, "wait_ms": 0}, timeout=60).raise_for_status()
    offered = candidates(capsys, "--http", broker.http_address, "queue", "peek", topic, "--group", "")
    assert f"plain{topic}" in offered
    assert [each for each in offered if topic in each] == [f"plain{topic}"]


def test_an_unreachable_broker_yields_no_completions(capfd: pytest.CaptureFixture[str]) -> None:
    assert complete(["--http", "127.0.0.1:1", "topics", "describe", "x"]) == 0
    assert complete(["--http", "nonsense:x", "topics", "describe", "x"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("alpacactl topics cr", ["create"]),
        ("alpacactl topics de", ["describe", "delete"]),
        ("alpacactl consume 'x y' --isolation 'com", ["committed"]),
        ('alpacactl consume "x y" --isolation "com', ["committed"]),
    ],
)
def test_a_line_is_split_like_a_shell_does(
    line: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert candidates(capsys, "--line", line) == expected


def test_a_real_bash_completes(shell: dict[str, str], broker: Broker, topic: str) -> None:
    sent(broker, topic, "a")
    with Terminal(["bash", "--norc", "--noprofile", "-i"], shell, columns=400) as bash:
        bash.press("source <(alpacactl completion bash); echo re''ady\n")
        bash.wait_for(r"[\r\n]ready")
        bash.press(
            f"alpacactl top\ti\t desc\t {topic[:-2]}\t --http {broker.http_address} -o y\t --color=al\t\n"
        )
        bash.wait_for(f"topics +describe +{topic} +--http {broker.http_address} -o yaml +--color=always")
        bash.wait_for(r"settings: \{\}\s+\$ ")
        # Behind a pipe the line begins with another command.
        bash.press("true | alpacactl produce --pri\t")
        bash.wait_for("produce --priority")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_a_real_zsh_completes(shell: dict[str, str], broker: Broker, topic: str) -> None:
    sent(broker, topic, "a")
    with Terminal(["zsh", "-f", "-i"], shell, columns=400) as zsh:
        zsh.press("autoload -U compinit; compinit -u -D; source <(alpacactl completion zsh); echo re''ady\n")
        zsh.wait_for(r"[\r\n]ready")
        zsh.press(f"alpacactl topi\t desc\t {topic[:-2]}\t -o y\t\n")
        zsh.wait_for(f"name: {topic}")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_a_real_fish_completes(shell: dict[str, str], broker: Broker, topic: str) -> None:
    sent(broker, topic, "a")
    script = (
        "alpacactl completion fish | source; "
        f"complete -C 'alpacactl topics desc'; complete -C 'alpacactl topics describe {topic[:-2]}'"
    )
    ran = subprocess.run(["fish", "-N", "-c", script], env=shell, capture_output=True, text=True, check=True)
    assert ran.stdout == f"describe\tshow a topic's partitions and settings\n{topic}\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_well_formed(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    subprocess.run([name, "-n"], input=SCRIPTS[name], text=True, check=True)


def test_subjects_are_completed(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALPACACTL_HTTP", broker.http_address)
    for subject in ("completed-key", "completed-value"):
        url = f"http://{broker.http_address}/schemas/subjects/{subject}/versions"
        httpx.post(url, json={"schema": '"int"'}).raise_for_status()
    assert candidates(capsys, "schema", "get", "completed") == ["completed-key", "completed-value"]
    assert candidates(capsys, "produce", "x", "--schema", "completed-v") == ["completed-value"]
