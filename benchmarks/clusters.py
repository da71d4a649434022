"""Clusters of three nodes on this machine: ours, and Apache Kafka in combined mode."""

import base64
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import wire
from .apache_kafka import JVM, ApacheKafka
from .jars import free_port
from .machine import REPOSITORY
from .report import OURS
from .servers import START_S, Contender, Server

NODES = 3


class ClusterServer(Server):
    """Three processes that are measured as one server."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        processes: Sequence["subprocess.Popen[bytes]"],
        took_s: float,
        http: Sequence[str] = (),
    ) -> None:
        super().__init__(name, ",".join(addresses), processes[0], took_s)
        self._processes = processes
        # Addresses of the nodes, by id.
        self.kafka = dict(enumerate(addresses, start=1))
        self.http = dict(enumerate(http, start=1))

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def kill_node(self, node_id: int) -> None:
        """Kill one node with kill -9."""
        self._processes[node_id - 1].kill()
        self._processes[node_id - 1].wait(START_S)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(START_S)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait(START_S)


def started(
    name: str,
    addresses: Sequence[str],
    processes: Sequence["subprocess.Popen[bytes]"],
    began_at: float,
    http: Sequence[str] = (),
) -> ClusterServer:
    """Return the cluster once every node answers."""
    cluster = ClusterServer(name, addresses, processes, 0.0, http)
    try:
        for address in addresses:
            wire.wait_until_answering(address, START_S)
    except TimeoutError:
        cluster.kill()
        raise
    cluster.started_in_s = time.monotonic() - began_at
    return cluster


class AlpacaCluster:
    """Three brokers of this repository, with their default configuration except for `settings`.

    Each is in a rack of its own, as on three machines.
    """

    def __init__(self, name: str = OURS, settings: Mapping[str, str] | None = None) -> None:
        self.name = name
        # By names of environment variables.
        self._settings = {**(settings or {}), "PYTHONPATH": str(REPOSITORY / "src")}

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        clients, peers, http = ([f"127.0.0.1:{free_port()}" for _ in range(NODES)] for _ in range(3))
        listed = ",".join(f"{number}@{peer}" for number, peer in enumerate(peers, start=1))
        began_at = time.monotonic()
        processes = []
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True), start=1):
            command = [sys.executable, "-m", "alpacamq.node.main", "serve", "--node-id", str(number)]
            command += ["--data-dir", str(directory / f"node-{number}"), "--kafka", client]
            command += ["--http", http[number - 1], "--sqs", "127.0.0.1:0"]
            command += ["--registry", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
            command += ["--cluster", peer, "--cluster-nodes", listed]
            environment = {**os.environ, **self._settings, "ALPACAMQ_CLUSTER_RACK": f"rack-{number}"}
            with (directory / f"node-{number}.log").open("ab") as log:
                processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                    )
                )
        return started(self.name, clients, processes, began_at, http)


# Settings that a cluster needs; all others have Kafka's defaults.
_PROPERTIES = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{client},CONTROLLER://{controller}
default.replication.factor=3
min.insync.replicas=2
log.dirs={data}
"""


class KafkaCluster:
    """Three nodes of Apache Kafka, each broker and controller."""

    def __init__(self, kafka: ApacheKafka, name: str = "", extra: str = "") -> None:
        """`extra` are further lines of its properties."""
        self.name = name or kafka.name
        self._kafka = kafka
        self._extra = extra

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        clients, controllers = ([f"127.0.0.1:{free_port()}" for _ in range(NODES)] for _ in range(2))
        voters = ",".join(f"{number}@{each}" for number, each in enumerate(controllers, start=1))
        cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        files = []
        for number, (client, controller) in enumerate(zip(clients, controllers, strict=True), start=1):
            file = directory / f"node-{number}.properties"
            data = directory / f"node-{number}"
            content = _PROPERTIES.format(
                number=number, voters=voters, client=client, controller=controller, data=data
            )
            file.write_text(content + self._extra)
            files.append(file)
            with (directory / f"node-{number}.log").open("ab") as log:
                arguments = ("format", "-t", cluster_id, "-c", str(file))
                self._kafka.java("kafka.tools.StorageTool", *arguments, log=log.fileno()).wait(START_S)
        began_at = time.monotonic()
        processes = []
        for file in files:
            with file.with_suffix(".log").open("ab") as log:
                processes.append(self._kafka.java("kafka.Kafka", str(file), log=log.fileno(), options=JVM))
        return started(self.name, clients, processes, began_at)


def contenders(of_session: Sequence[Contender]) -> list[Contender]:
    """Return our cluster, and those of the peer if the session has it.

    Ours flushes before it acknowledges. Kafka's does not by default, so it is measured with both.
    """
    found: list[Contender] = [AlpacaCluster()]
    for contender in of_session:
        if isinstance(contender, ApacheKafka):
            found.append(KafkaCluster(contender))
            each = "log.flush.interval.messages=1\n"
            found.append(KafkaCluster(contender, f"{contender.name}, flush.messages=1", each))
    return found
