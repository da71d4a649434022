"""The systemd unit, and what the broker reports to a service manager."""

import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from alpacamq.cli.main import parse
from alpacamq.node.supervisor import Supervisor
from tests.conftest import NewBroker
from tests.service_manager import PATIENCE_S, Manager

from .files import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path / "notify") as manager:
        yield manager


def test_a_broker_reports_its_start_its_readiness_and_its_stop(
    new_broker: NewBroker, manager: Manager
) -> None:
    broker = new_broker(environment={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "300000"})
    broker.spawn()
    starting = manager.receive()
    assert int(starting["EXTEND_TIMEOUT_USEC"]) > 0
    assert starting["STATUS"]
    assert manager.wait_for("READY")["READY"] == "1"
    broker.wait_until_ready()
    # `systemctl reload`: without certificates there is nothing to load again.
    broker.process.send_signal(signal.SIGHUP)
    for _ in range(3):
        assert manager.receive() == {"WATCHDOG": "1"}
    assert broker.signal(signal.SIGTERM) == 0
    assert manager.wait_for("STOPPING")["STOPPING"] == "1"


def test_a_broker_that_is_stuck_does_not_report_that_it_is_alive(
    new_broker: NewBroker, manager: Manager
) -> None:
    broker = new_broker(environment={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "30000"}).start()
    manager.wait_for("READY")
    broker.process.send_signal(signal.SIGSTOP)
    manager.drain()
    broker.process.send_signal(signal.SIGCONT)
    assert manager.receive() == {"WATCHDOG": "1"}


def test_an_abstract_socket_is_used(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"alpacamq-test-{tmp_path.name}"
        listening.bind(f"\0{name}")
        listening.settimeout(PATIENCE_S)
        Supervisor.of({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert listening.recv(100) == b"READY=1\nSTATUS=serving"


def test_a_service_manager_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    Supervisor.of({"NOTIFY_SOCKET": str(tmp_path / "absent")}).ready()
    Supervisor.of({}).stopping()


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    ours = Supervisor.of({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000"})
    assert ours._interval == 1
    parents = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}
    assert Supervisor.of(parents)._interval > 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    unit = tmp_path / path.name.replace("@", "@archive")
    # It has to exist for the check.
    text = re.sub(r"ExecStart=/opt/alpacamq/bin/\w+", f"ExecStart={shutil.which('true')}", path.read_text())
    unit.write_text(text.replace("User=alpacamq\nGroup=alpacamq", "User=daemon\nGroup=daemon"))
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_the_units_are_hardened(path: Path) -> None:
    """systemd rates the exposure of a unit: 10 is everything, 0 nothing."""
    ran = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_unit_of_pipelines_runs_a_command_that_exists() -> None:
    text = next(path for path in UNITS if "pipeline" in path.name).read_text()
    command = next(line for line in text.splitlines() if line.startswith("ExecStart=")).partition("=")[2]
    assert Path(command.split()[0]).name == "alpacactl"
    parsed = parse(command.replace("%i", "archive").split()[1:])
    assert parsed.foreground
    assert parsed.files == [Path("/etc/alpacamq/pipelines/archive.toml")]
