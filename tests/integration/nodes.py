"""A cluster of real processes on this machine."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from tests.waiting import eventually

from .processes import Program

START_S = 60.0


# Earlier versions have no schema registry, or no gRPC API.
REGISTRY_ON_ANY_PORT = ("--registry", "127.0.0.1:0")
GRPC_ON_ANY_PORT = ("--grpc", "127.0.0.1:0")


class Node(Program):
    """One node of a cluster, with its addresses."""

    def __init__(
        self,
        root: Path,
        node_id: int,
        ports: list[int],
        nodes: str,
        *,
        host: str = "127.0.0.1",
        settings: str = "",
        data: Path | None = None,
        launcher: Sequence[str] = (),
        module: str = "alpacamq.node.main",
        options: Sequence[str] = (*REGISTRY_ON_ANY_PORT, *GRPC_ON_ANY_PORT),
    ) -> None:
        """`settings` are further lines of [cluster] and sections; `launcher` runs `module`."""
        kafka, http, sqs, cluster = (f"{host}:{port}" for port in ports)
        self.id = node_id
        self.kafka = kafka
        self.http = http
        self.sqs = sqs
        self.cluster = cluster
        self.data = data or root / f"node-{node_id}"
        config = root / f"node-{node_id}.toml"
        config.write_text(f'[logging]\nformat = "json"\n\n[cluster]\nrack = "rack-{node_id}"\n{settings}\n')
        super().__init__(
            module,
            *("serve", "--config", str(config), "--node-id", str(node_id), "--data-dir", str(self.data)),
            *("--kafka", kafka, "--http", http, "--sqs", sqs, *options),
            *(("--cluster", cluster, "--cluster-nodes", nodes) if nodes else ()),
            log=root / f"node-{node_id}.log",
            launcher=launcher,
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log events of this name."""
        # The last line may be half written.
        lines = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if event["event"] == name]

    @property
    def grpc(self) -> str:
        """The address of its gRPC API since its last start."""
        return str(self.events("ready")[-1]["grpc"])

    def wait_until_ready(self, starts: int = 1) -> None:
        """Wait until the node has served that many times."""
        eventually(lambda: len(self.events("ready")) >= starts or not self.is_running, within_s=START_S)
        assert self.is_running, self.last_output()


class Nodes:
    """The nodes of a cluster by id."""

    def __init__(self, root: Path, count: int, settings: str = "") -> None:
        ports = free_ports(4 * count)
        groups = [ports[4 * number : 4 * number + 4] for number in range(count)]
        self.listed = ",".join(f"{number}@127.0.0.1:{each[3]}" for number, each in enumerate(groups, 1))
        self.by_id = {
            number: Node(root, number, each, self.listed, settings=settings)
            for number, each in enumerate(groups, 1)
        }

    @property
    def kafka(self) -> str:
        """The addresses for Kafka clients."""
        return ",".join(node.kafka for node in self.by_id.values())

    def __iter__(self) -> Iterator[Node]:
        return iter(self.by_id.values())

    def start(self) -> None:
        """Start all nodes, and wait until they serve."""
        for node in self:
            node.start()
        for node in self:
            node.wait_until_ready()

    @property
    def controller(self) -> Node:
        """The node that became controller last."""
        started = [(event["timestamp"], node) for node in self for event in node.events("controller_started")]
        return max(started, key=lambda each: str(each[0]))[1]


@contextmanager
def running_nodes(root: Path, count: int = 3) -> Iterator[Nodes]:
    """Yield a running cluster."""
    nodes = Nodes(root, count)
    try:
        nodes.start()
        yield nodes
    finally:
        for node in nodes:
            node.end()
