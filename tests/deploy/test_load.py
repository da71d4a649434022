"""The load scripts of deploy/load run briefly against a real broker."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import NewBroker

from .files import ROOT

LOAD = ROOT / "deploy" / "load"
K6 = shutil.which("k6") or shutil.which("k6", path=str(ROOT / ".venv" / "gotools"))


@pytest.mark.parametrize(("p99_ms", "code"), [("60000", 0), ("0.000001", 1)], ids=["kept", "not kept"])
def test_thresholds_over_kafka_decide(new_broker: NewBroker, tmp_path: Path, p99_ms: str, code: int) -> None:
    broker = new_broker().start()
    alpacactl = tmp_path / "alpacactl"
    alpacactl.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m alpacamq.cli.main "$@"\n')
    alpacactl.chmod(0o755)
    ran = subprocess.run(
        [
            *(sys.executable, str(LOAD / "kafka.py"), "--alpacactl", str(alpacactl)),
            *("--rate", "20", "--duration", "1s", "--p99-ms", p99_ms),
            *("--broker", broker.address, "--http", broker.http_address),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    kept = "FAILED: only" not in ran.stdout
    assert ran.returncode == (code if kept else 1), ran.stdout + ran.stderr
    assert ("FAILED: publish: p99" in ran.stdout) == (code == 1)


@pytest.mark.skipif(K6 is None, reason="k6 is not installed; make loadtools")
@pytest.mark.parametrize("scenario", ["publish", "consume", "queue", "sqs"])
def test_the_scenarios_of_k6_send_what_the_broker_accepts(new_broker: NewBroker, scenario: str) -> None:
    broker = new_broker().start()
    assert K6 is not None
    environment = {
        "BASE": f"http://{broker.http_address}",
        "SQS": f"http://{broker.sqs_address}",
        "ONLY": scenario,
        "RATE": "5",
        "DURATION": "2s",
    }
    ran = subprocess.run(
        [K6, "run", "--no-usage-report", "--no-thresholds", "--quiet", str(LOAD / "http.js")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rate = next(line for line in ran.stdout.splitlines() if "checks_succeeded" in line)
    assert "100.00%" in rate, ran.stdout
