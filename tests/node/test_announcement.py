"""The banner that the broker prints when it is ready; its commands work."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import httpx

from tests.conftest import NewBroker


def advice(lines: list[str]) -> list[str]:
    """The commands it says to try."""
    start = lines.index("Try:") + 1
    end = next(at for at, line in enumerate(lines) if line.startswith("or any Kafka client"))
    return [line.strip() for line in lines[start:end]]


def test_the_suggested_commands_work_as_printed(new_broker: NewBroker, tmp_path: Path) -> None:
    broker = new_broker().start()
    alpacactl = tmp_path / "alpacactl"
    alpacactl.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m alpacamq.cli.main "$@"\n')
    alpacactl.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ALPACACTL_")}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    printed = {}
    for command in advice(broker.output.lines):
        ran = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, check=False, env=environment, timeout=60
        )
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        (verb,) = {"produce", "consume", "topics", "queue"} & set(command.split())
        printed[verb] = ran.stdout
    assert printed.keys() == {"produce", "consume", "topics", "queue"}
    assert printed["consume"] == "hello\n"
    assert "hello" in printed["queue"].split()
    assert "greetings" in printed["topics"]


def test_the_console_is_at_the_printed_address(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    (page,) = [line.split()[1] for line in broker.output.lines if line.split()[:1] == ["console"]]
    assert "<title>AlpacaMQ" in httpx.get(page, timeout=60).raise_for_status().text


def test_disabled_apis_are_not_suggested(new_broker: NewBroker) -> None:
    broker = new_broker(config="[http]\nenabled = false\n").start()
    assert not any("console" in line for line in broker.output.lines)
    assert not any("queue" in command for command in advice(broker.output.lines))
