"""The runbook: every alert is in it, and its commands work."""

import re
import shlex
from argparse import Namespace
from pathlib import Path

import httpx
import pytest

from alpacamq.cli.main import parse
from tests.cli.command import InProcess
from tests.integration.nodes import running_nodes
from tests.test_docs import GRPC, HTTP, KAFKA, REGISTRY, SQS, blocks, run_examples_at

from .files import ROOT, alerts

RUNBOOK = ROOT / "docs" / "guide" / "runbook.md"
INLINE = re.compile(r"`(alpacactl [^`]+)`")
# Verbs that are named without their arguments.
NAMED = {
    "alpacactl cluster reassign",
    "alpacactl queue extend",
    "alpacactl token expire",
    "alpacactl topics delete",
    "alpacactl transactions abort",
}


def commands() -> list[str]:
    """Return the commands in the text."""
    return sorted(set(INLINE.findall(RUNBOOK.read_text())))


def test_every_alert_has_a_row_with_meaning_look_do_and_verify() -> None:
    rows = {
        cells[1].strip(): cells[2:-1]
        for line in RUNBOOK.read_text().splitlines()
        if line.startswith("| `AlpacaMQ") and (cells := line.split("|"))
    }
    assert rows.keys() == {f"`{alert.name}`" for alert in alerts()}
    for alert, cells in rows.items():
        assert len(cells) == 4, alert
        assert all(cell.strip() for cell in cells), alert


@pytest.mark.parametrize("command", commands())
def test_commands_in_the_text_are_valid(command: str) -> None:
    arguments = shlex.split(command)[1:]
    if command in NAMED:
        with pytest.raises(SystemExit) as ended:
            parse([*arguments, "--help"])
        assert ended.value.code == 0
        return
    assert isinstance(parse(arguments), Namespace)


def test_the_commands_of_the_runbook_work(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    with running_nodes(tmp_path / "nodes") as nodes:
        first = nodes.by_id[1]
        ctl = InProcess(nodes.kafka, first.http)
        ctl.ok("topics", "create", "orders", "--partitions", "1")
        ctl.ok("produce", "orders", stdin=b"one\ntwo\n")
        offsets = {"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]}
        httpx.post(f"http://{first.http}/groups/readers/offsets", json=offsets).raise_for_status()
        ctl.ok("queue", "receive", "orders", "--group", "workers", "--max", "1")
        addresses = {KAFKA: nodes.kafka, HTTP: first.http, SQS: "unused", REGISTRY: "unused", GRPC: "unused"}
        assert any("alpacactl" in code for _, language, code in blocks(RUNBOOK) if language == "sh")
        run_examples_at(RUNBOOK, {"alpacactl", "curl"}, addresses, tmp_path, may_print=True)
