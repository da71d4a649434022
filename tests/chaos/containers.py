"""The nodes of deploy/compose in containers, for faults. Needs root, and docker or podman with compose.

A second compose file gives the containers fixed addresses on a network of the run, so that clients reach each
of them, and volumes on disks that can be filled. Wires are cut in the network namespaces of the containers.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from tests.certificates import Authority
from tests.powercut.disk import PowerCutDisk
from tests.waiting import eventually

from .network import Wires
from .nodes import CALL_S, NOTHING, Cluster, Needs, mounted_disks
from .system_calls import SystemCalls, build_library

FILE = Path(__file__).parent.parent.parent / "deploy" / "compose" / "compose.yaml"
IMAGE = os.environ.get("ALPACAMQ_IMAGE", "localhost/alpacamq:latest")
COUNT = 3
# The user of the image.
USER = 10001
COMMAND_S = 180.0
START_S = 180.0
STOP_S = 120
# Where the files of a run are in a container.
INSIDE = "/run/chaos"


def _engine() -> tuple[str, list[str]] | None:
    """Return the command for containers, and that for compose; None if there is none."""
    if chosen := os.environ.get("COMPOSE"):
        words = shlex.split(chosen)
        return ("docker" if words[0] == "docker" else "podman"), words
    if shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True).returncode:
        return "docker", ["docker", "compose"]
    if shutil.which("podman") and shutil.which("podman-compose"):
        # runc works without an init system.
        return "podman", ["podman-compose", "--podman-run-args=--runtime=runc"]
    return None


def missing_for_containers() -> str | None:
    """Why containers cannot be started here; None if they can."""
    if os.geteuid() != 0:
        return "needs root"
    found = _engine()
    if found is None:
        return "needs docker compose or podman-compose"
    if b"--profile" not in subprocess.run([*found[1], "--help"], capture_output=True).stdout:
        return f"needs a {found[1][0]} with profiles, as that of PyPI"
    if subprocess.run([found[0], "image", "inspect", IMAGE], capture_output=True).returncode:
        return f"needs the image {IMAGE}: make image"
    return None


_numbers = cycle(range(os.getpid() % 200, 250))


class _Engine:
    """The commands for containers of one run."""

    def __init__(self, root: Path, *, has_tls: bool) -> None:
        found = _engine()
        assert found is not None
        self._containers, self._compose = found
        self.project = f"amqchaos{os.getpid()}-{root.name}"
        # Another one for each scenario: what the engine remembers of the last one may be in the way.
        number = next(_numbers)
        self.subnet = f"10.210.{number}"
        self.file = root / "compose.json"
        self.has_tls = has_tls
        # Published ports are not used, and must not be in the way.
        self._environment = {**os.environ, "ALPACAMQ_BIND": f"127.78.{number}.1", "ALPACAMQ_IMAGE": IMAGE}

    def compose(self, *words: str) -> None:
        files = ("-f", str(FILE), "-f", str(self.file))
        command = [*self._compose, *files, "--project-name", self.project, "--profile", "cluster", *words]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_S, env=self._environment, cwd=FILE.parent
        )
        assert ran.returncode == 0, f"{shlex.join(command)}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}"

    def run(self, *words: str) -> str:
        ran = subprocess.run(
            [self._containers, *words], capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        assert ran.returncode == 0, f"{self._containers} {shlex.join(words)}: {ran.stderr[-2000:]}"
        return ran.stdout

    def logs(self, name: str) -> str:
        ran = subprocess.run(
            [self._containers, "logs", name], capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
        return ran.stdout + ran.stderr

    def state(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self.run("inspect", name))[0]["State"]
        return found


class ContainerNode:
    """One node as a container."""

    def __init__(self, engine: _Engine, node_id: int) -> None:
        self._engine = engine
        self.id = node_id
        self.service = f"alpaca-{node_id}"
        self.name = f"{engine.project}-{node_id}"
        self.address = f"{engine.subnet}.{10 + node_id}"
        self.kafka = f"{self.address}:19092"
        self.http = f"{self.address}:8080"
        self.sqs = f"{self.address}:9324"

    @property
    def pid(self) -> int:
        return int(self._engine.state(self.name)["Pid"])

    @property
    def is_running(self) -> bool:
        return self._engine.state(self.name)["Status"] in {"running", "paused"}

    def start(self) -> None:
        self._engine.run("start", self.name)

    def kill(self) -> None:
        self._engine.run("kill", "--signal", "KILL", self.name)
        self._engine.run("wait", self.name)

    def suspend(self) -> None:
        self._engine.run("pause", self.name)

    def resume(self) -> None:
        self._engine.run("unpause", self.name)

    def reload(self) -> None:
        self._engine.run("kill", "--signal", "HUP", self.name)

    def terminate(self) -> None:
        self._engine.run("kill", "--signal", "TERM", self.name)

    def stop(self) -> None:
        self._engine.run("stop", "--time", str(STOP_S), self.name)
        code = self._engine.state(self.name)["ExitCode"]
        assert code == 0, f"exit code {code}:\n{self._engine.logs(self.name)[-4000:]}"

    def end(self) -> None:
        if self.is_running:
            self.kill()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self._engine.logs(self.name).splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if event["event"] == name]

    def wait_until_ready(self, starts: int = 1) -> None:
        # By HTTP, not by its log: a command of the engine costs more than the broker.
        url = f"{'https' if self._engine.has_tls else 'http'}://{self.http}/readyz"
        with httpx.Client(verify=False, timeout=CALL_S) as client:  # noqa: S501 - only whether it is ready

            def is_ready() -> bool:
                try:
                    return client.get(url).status_code == 200
                except httpx.TransportError:
                    assert self.is_running, self._engine.logs(self.name)[-4000:]
                    return False

            eventually(is_ready, within_s=START_S, what=f"{self.name} is ready")


class _ContainerWires(Wires):
    """The interfaces of the containers."""

    def __init__(self, nodes: Mapping[int, ContainerNode]) -> None:
        super().__init__()
        self._nodes = nodes

    def address(self, node: int) -> str:
        return self._nodes[node].address

    def launcher(self, node: int) -> Sequence[str]:
        return ("nsenter", f"--net=/proc/{self._nodes[node].pid}/ns/net")


class ComposeNodes(Cluster):
    """The nodes as containers."""

    def __init__(
        self,
        root: Path,
        disks: Mapping[int, PowerCutDisk],
        library: Path | None,
        authority: Authority | None,
    ) -> None:
        self._root = root
        self._engine = _Engine(root, has_tls=authority is not None)
        self._disks = disks
        self.authority = authority
        self.by_id: dict[int, ContainerNode] = {
            number: ContainerNode(self._engine, number) for number in range(1, COUNT + 1)
        }
        self.network = _ContainerWires(self.by_id)
        self.calls = {
            number: SystemCalls(root / f"node-{number}.calls") for number in self.by_id if library is not None
        }
        self._engine.file.write_text(json.dumps(self._overrides(library)))
        for number in self.by_id:
            self.issue_certificate(number)

    @property
    def disks(self) -> Mapping[int, PowerCutDisk]:
        return self._disks

    def start(self) -> None:
        self._engine.compose("up", "--detach", *(node.service for node in self.by_id.values()))
        for node in self:
            node.wait_until_ready()

    def remove(self) -> None:
        """Remove containers, volumes and the network; the logs stay."""
        for node in self.by_id.values():
            (self._root / f"node-{node.id}.log").write_text(self._engine.logs(node.name))
        self._engine.compose("down", "--volumes", "--timeout", "10")

    def issue_certificate(self, node_id: int, valid_days: float = 90) -> None:
        if self.authority is not None:
            hosts = [self.by_id[node_id].address, self.by_id[node_id].service]
            os.chown(self.authority.server(f"node-{node_id}", hosts, valid_days).key, USER, USER)

    def _overrides(self, library: Path | None) -> dict[str, Any]:
        """Return the second compose file."""
        addresses = ",".join(node.address for node in self.by_id.values())
        volumes: dict[str, Any] = {}
        for number, disk in self.disks.items():
            data = disk.path / "volume"
            data.mkdir()
            os.chown(data, USER, USER)
            volumes[f"data-{number}"] = {"driver_opts": {"type": "none", "o": "bind", "device": str(data)}}
        return {
            "services": {
                "secret": {"networks": {"chaos": {"ipv4_address": f"{self._engine.subnet}.10"}}},
                **{
                    node.service: {
                        "container_name": node.name,
                        "restart": "no",
                        "networks": {"chaos": {"ipv4_address": node.address}},
                        "volumes": [f"{self._root}:{INSIDE}"],
                        "environment": {
                            "ALPACAMQ_LISTENERS_HOST_ADVERTISED": node.kafka,
                            "ALPACAMQ_HTTP_HOSTS": addresses,
                            "ALPACAMQ_SQS_HOSTS": addresses,
                            **self._tls(node),
                            **self._changed_calls(node, library),
                        },
                    }
                    for node in self.by_id.values()
                },
            },
            "networks": {"chaos": {"ipam": {"config": [{"subnet": f"{self._engine.subnet}.0/24"}]}}},
            "volumes": volumes,
        }

    def _changed_calls(self, node: ContainerNode, library: Path | None) -> Mapping[str, str]:
        if library is None:
            return {}
        control = f"{INSIDE}/{self.calls[node.id].path.name}"
        return SystemCalls.environment(f"{INSIDE}/{library.name}", control, "/var/lib/alpacamq")

    def _tls(self, node: ContainerNode) -> Mapping[str, str]:
        if self.authority is None:
            return {}
        files = f"{INSIDE}/{self.authority.directory.name}"
        return {
            "ALPACAMQ_TLS_CERTIFICATE": f"{files}/node-{node.id}.pem",
            "ALPACAMQ_TLS_KEY": f"{files}/node-{node.id}.key",
            "ALPACAMQ_TLS_CLIENT_CA": f"{files}/ca.pem",
            "ALPACAMQ_CLUSTER_TLS": "true",
            "ALPACAMQ_HTTP_TLS": "true",
            "ALPACAMQ_SQS_TLS": "true",
            "ALPACAMQ_LISTENERS_HOST_TLS": "true",
        }


@contextmanager
def compose_nodes(root: Path, needs: Needs = NOTHING) -> Iterator[ComposeNodes]:
    """Yield running nodes; the containers and what they run on are removed afterwards."""
    root = root.resolve()
    # Another user reads it.
    root.chmod(0o755)
    with ExitStack() as stack:
        nodes = ComposeNodes(
            root,
            mounted_disks(root, COUNT, stack) if needs.disks else {},
            build_library(root) if needs.calls else None,
            Authority(root / "certificates") if needs.tls else None,
        )
        stack.callback(nodes.remove)
        nodes.start()
        yield nodes
