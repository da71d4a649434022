"""`alpacamq serve --processes`: a cluster of several processes that are started and stopped together."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from alpacamq.node.processes import PORT_STEP
from tests.ports import free_ports
from tests.service_manager import Manager
from tests.waiting import eventually

from .processes import Program

COUNT = 3
LISTENERS = ("--kafka", "--http", "--sqs", "--registry", "--grpc", "--cluster")
START_S = 60.0


class Machine(Program):
    """The command, and what it prints."""

    def __init__(self, root: Path) -> None:
        # Those of the other processes, counted from these, are probably free as well.
        ports = free_ports(len(LISTENERS), steps=[PORT_STEP * number for number in range(COUNT)])
        self.http = [f"127.0.0.1:{ports[1] + PORT_STEP * number}" for number in range(COUNT)]
        options = [f"{listener}=127.0.0.1:{port}" for listener, port in zip(LISTENERS, ports, strict=True)]
        super().__init__(
            "alpacamq.node.main",
            *("serve", "--processes", str(COUNT), "--data-dir", str(root / "data"), *options),
            log=root / "machine.log",
        )

    def printed(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.log.read_text(), re.MULTILINE)

    def is_ready(self, number: int) -> bool:
        try:
            return httpx.get(f"http://{self.http[number]}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALPACAMQ_CLUSTER_REPLICATION_FACTOR", "3")
        machine = Machine(tmp_path_factory.mktemp("machine"))
        machine.start()
    try:
        eventually(lambda: machine.printed("^Ctrl-C stops all"), within_s=START_S, what=machine.last_output())
        yield machine
    finally:
        if machine.is_running:
            machine.stop()


def run(command: str) -> str:
    """Run a command as it is printed; return its output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={**os.environ, "PATH": path},
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_the_commands_that_it_prints_work(machine: Machine) -> None:
    produce, consume, status = machine.printed("^  (.*alpacactl .*)$")
    run(produce)
    assert run(consume) == "hello\n"
    assert run(status).count("running") == COUNT


def test_nodes_on_one_machine_are_no_reason_to_warn_if_topics_get_several_replicas(machine: Machine) -> None:
    assert httpx.get(f"http://{machine.http[0]}/cluster/status").json()["warnings"] == []
    assert not machine.printed("cluster_warning")


def test_a_process_that_is_killed_starts_again_while_the_others_serve(machine: Machine) -> None:
    (killed,) = machine.printed(r"^  kill -9 (\d+)")
    os.kill(int(killed), signal.SIGKILL)
    (said,) = eventually(lambda: machine.printed("^Node 1 has ended.*$"), what=machine.last_output())
    assert said == "Node 1 has ended with exit code -9; it starts again in 10 s."
    assert machine.is_ready(1)
    eventually(lambda: machine.is_ready(0), within_s=START_S, what="node 1 serves again")


def test_a_process_that_is_asked_to_stop_stays_down(machine: Machine) -> None:
    (stopped,) = machine.printed(r"^  3 .* (\d+)$")
    os.kill(int(stopped), signal.SIGTERM)
    (said,) = eventually(lambda: machine.printed("^Node 3 has ended.*$"), what=machine.last_output())
    assert said == "Node 3 has ended with exit code 0."


def test_all_of_them_stop_together(machine: Machine) -> None:
    machine.stop()
    assert not any(machine.is_ready(number) for number in range(COUNT))
    # The last one does not wait for a controller that cannot be elected.
    assert not machine.printed("no answer in time")


def test_a_process_that_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "node-1").write_text("not a directory")
    machine.start()
    (said,) = eventually(lambda: machine.printed("^Node 1 has ended.*$"), what=machine.last_output())
    assert said == "Node 1 has ended with exit code 1."
    machine.stop()


def test_all_of_them_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.start()
    eventually(lambda: machine.printed("^Ctrl-C stops all"), within_s=START_S, what=machine.last_output())
    children = [int(pid) for pid in machine.printed(r"^  [123]  .* (\d+)$")]
    assert len(children) == COUNT
    machine.kill()
    eventually(lambda: not any(map(is_running, children)), within_s=START_S, what="the end of all")
    # Their data is not in use, and was closed.
    machine.start()
    eventually(lambda: len(machine.printed("^Ctrl-C stops all")) == 2, within_s=START_S)
    machine.stop()


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_service_manager_hears_when_all_of_them_are_ready(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, Manager(tmp_path / "notify") as manager:
        patch.setenv("NOTIFY_SOCKET", manager.address)
        machine = Machine(tmp_path)
        machine.start()
        assert manager.receive()["STATUS"] == f"0 of {COUNT} nodes are ready"
        assert manager.wait_for("READY")["READY"] == "1"
        assert all(map(machine.is_ready, range(COUNT)))
        # `systemctl reload`: without certificates there is nothing to load again.
        machine.reload()
        manager.drain()
        assert all(map(machine.is_ready, range(COUNT)))
        machine.terminate()
        assert manager.wait_for("STOPPING")["STOPPING"] == "1"
        machine.wait()
