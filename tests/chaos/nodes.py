"""Three nodes that faults are injected into: what clients and faults see of them, and as processes."""

import http.client
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import randrange
from typing import Any, Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from alpacamq.log.data_directory import RUNNING
from tests.certificates import Authority
from tests.integration.nodes import GRPC_ON_ANY_PORT, REGISTRY_ON_ANY_PORT, Node
from tests.ports import free_ports
from tests.powercut.disk import MountOptions, PowerCutDisk
from tests.waiting import eventually

from .network import Network, Wires
from .system_calls import SystemCalls, build_library

SECRET = "the secret of the nodes of a chaos run"  # noqa: S105
RECOVER_S = 90.0
STOP_S = 30.0
DISK_MIB = 768
FILLER = "filler"
CALL_S = 8.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What faults need of the nodes."""

    network: bool = False
    disks: bool = False
    calls: bool = False
    tls: bool = False

    def __or__(self, other: "Needs") -> "Needs":
        return Needs(
            network=self.network or other.network,
            disks=self.disks or other.disks,
            calls=self.calls or other.calls,
            tls=self.tls or other.tls,
        )


NOTHING = Needs()


@dataclass(frozen=True, slots=True)
class Version:
    """A program that nodes run: a module, and a command that starts it."""

    name: str
    module: str = "alpacamq.node.main"
    launcher: Sequence[str] = ()
    options: Sequence[str] = (*REGISTRY_ON_ANY_PORT, *GRPC_ON_ANY_PORT)


CURRENT = Version("current")


class RunningNode(Protocol):
    """A node, whatever it runs in."""

    @property
    def id(self) -> int: ...
    @property
    def kafka(self) -> str: ...
    @property
    def http(self) -> str: ...
    @property
    def sqs(self) -> str: ...
    @property
    def is_running(self) -> bool: ...

    def start(self) -> object: ...
    def kill(self) -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def reload(self) -> None:
        """Let it load its certificates again."""
        ...

    def terminate(self) -> None: ...
    def stop(self) -> None:
        """Stop it cleanly, and wait until it has ended."""
        ...

    def end(self) -> None: ...
    def events(self, name: str) -> list[dict[str, Any]]: ...
    def wait_until_ready(self, starts: int = 1) -> None: ...


class Cluster:
    """The nodes of a run, and what they run on, as loads and faults see them."""

    by_id: Mapping[int, RunningNode]
    # Of the topics that loads create.
    replication_factor = 3
    network: Wires | None = None
    calls: Mapping[int, SystemCalls]
    # Of all certificates; None without TLS.
    authority: Authority | None = None
    _admin: AdminClient | None = None

    def __iter__(self) -> Iterator[RunningNode]:
        return iter(self.by_id.values())

    @property
    def kafka(self) -> str:
        """The addresses for Kafka clients."""
        return ",".join(node.kafka for node in self)

    @property
    def kafka_settings(self) -> dict[str, Any]:
        """Return what every Kafka client needs."""
        return self.settings_for(self.kafka)

    def settings_for(self, addresses: str) -> dict[str, Any]:
        """Return what a Kafka client of these nodes needs."""
        found = {"bootstrap.servers": addresses, "log_level": 0}
        if self.authority is not None:
            found |= {"security.protocol": "SSL", "ssl.ca.location": str(self.authority.ca)}
        return found

    def connect(self, address: str, timeout_s: float = CALL_S) -> http.client.HTTPConnection:
        """Return a connection to an HTTP API."""
        if self.authority is None:
            return http.client.HTTPConnection(address, timeout=timeout_s)
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        return http.client.HTTPSConnection(address, timeout=timeout_s, context=context)

    def issue_certificate(self, node_id: int, valid_days: float = 90) -> None:
        """Replace the certificate of a node; it is used once the node loads it."""
        raise NotImplementedError

    def start(self) -> None:
        """Start all nodes, and wait until they serve."""
        for node in self:
            node.start()
        for node in self:
            node.wait_until_ready()

    @property
    def controller(self) -> RunningNode:
        """The node that became controller last."""
        started = [(event["timestamp"], node) for node in self for event in node.events("controller_started")]
        return max(started, key=lambda each: str(each[0]))[1]

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self.kafka_settings)
        return self._admin

    def create(self, topic: str, partitions: int, config: dict[str, str] | None = None) -> None:
        """Create a topic, and wait until all its replicas are in sync."""
        new = NewTopic(topic, partitions, self.replication_factor, config=config or {})
        self.admin.create_topics([new])[topic].result(30)
        self.wait_until_in_sync(topic)

    def change_metadata(self, topic: str) -> None:
        """Begin to change a setting of a topic; it may not succeed."""
        entry = ConfigEntry(
            "retention.ms",
            str(1_000_000_000 + randrange(1000)),
            incremental_operation=AlterConfigOpType.SET,
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition, as one of the nodes sees it; empty if none answers."""
        try:
            found = self.admin.list_topics(topic, timeout=5).topics[topic]
        except KafkaException:
            return {}
        return {index: each.leader for index, each in found.partitions.items()}

    def wait_until_in_sync(self, topic: str) -> float:
        """Wait until all replicas of a topic are in sync; return how long that took."""
        begun = time.monotonic()

        # A node that was cut off may have an old view: all have to agree.
        running = [node for node in self if node.is_running]
        admins = [AdminClient(self.settings_for(node.kafka)) for node in running]

        def in_sync(admin: AdminClient) -> bool:
            try:
                partitions = admin.list_topics(topic, timeout=5).topics[topic].partitions.values()
            except KafkaException:
                return False
            return bool(partitions) and all(
                each.leader > 0 and sorted(each.isrs) == sorted(each.replicas) for each in partitions
            )

        eventually(lambda: all(map(in_sync, admins)), within_s=RECOVER_S, what=f"{topic} in sync")
        return time.monotonic() - begun

    def stop(self, node_id: int) -> None:
        """End a node that may have ended by itself, and may not be able to stop cleanly."""
        node = self.by_id[node_id]
        if node.is_running:
            node.terminate()
            with suppress(AssertionError):
                eventually(lambda: not node.is_running, within_s=STOP_S)
        node.end()

    def restart(self, *node_ids: int) -> None:
        """Start nodes that have ended, and wait until they serve."""
        starts = {number: len(self.by_id[number].events("ready")) for number in node_ids}
        for number in node_ids:
            self.by_id[number].start()
        for number in node_ids:
            self.by_id[number].wait_until_ready(starts[number] + 1)

    def fill_disk(self, node_id: int) -> None:
        """Leave no room on a node's disk."""
        filler = self.disks[node_id].path / FILLER
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        # The rest, in small pieces.
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))

    def empty_disk(self, node_id: int) -> None:
        (self.disks[node_id].path / FILLER).unlink(missing_ok=True)

    @property
    def disks(self) -> Mapping[int, PowerCutDisk]:
        raise NotImplementedError


class ChaosNodes(Cluster):
    """The nodes as processes of this machine."""

    def __init__(
        self,
        root: Path,
        network: Network | None,
        disks: dict[int, PowerCutDisk],
        count: int = 3,
        version: Version = CURRENT,
        settings: str = "",
        library: Path | None = None,
        authority: Authority | None = None,
    ) -> None:
        """`settings` are further sections of their configuration.

        `library` is what changes the system calls of a node; see system_calls.
        """
        self._root = root
        self.network: Network | None = network
        self._disks = disks
        self._library = library
        self.calls = {
            number: SystemCalls(root / f"node-{number}.calls")
            for number in range(1, count + 1)
            if library is not None
        }
        secret = root / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self.authority = authority
        # Addresses in network namespaces are not those of loopback.
        opened = "" if network is None else "[security]\nallow_anonymous = true\n"
        tls = "tls = true\n" if authority else ""
        self._settings = (
            f'secret_file = "{secret}"\n{tls}\n{opened}[sqs]\nallow_anonymous = true\n{tls}{settings}'
        )
        ports = free_ports(4 * count)
        self._ports = {number: ports[4 * number - 4 : 4 * number] for number in range(1, count + 1)}
        self.listed = ",".join(
            f"{number}@{self._host(number)}:{each[3]}" for number, each in self._ports.items()
        )
        for number in self._ports:
            self.issue_certificate(number)
        self.by_id: dict[int, Node] = {number: self._node(number, version) for number in self._ports}

    @property
    def disks(self) -> Mapping[int, PowerCutDisk]:
        return self._disks

    def __iter__(self) -> Iterator[Node]:
        return iter(self.by_id.values())

    def _host(self, number: int) -> str:
        return self.network.address(number) if self.network else "127.0.0.1"

    def _data(self, number: int) -> Path:
        disk = self.disks.get(number)
        return self._root / f"node-{number}" if disk is None else disk.path / "data"

    def issue_certificate(self, node_id: int, valid_days: float = 90) -> None:
        if self.authority is not None:
            self.authority.server(f"node-{node_id}", [self._host(node_id)], valid_days)

    def _tls(self, number: int) -> str:
        """Return the sections of a node's configuration that turn on TLS."""
        if self.authority is None:
            return ""
        files = self.authority.directory / f"node-{number}"
        return (
            f"[tls]\ncertificate = '{files}.pem'\nkey = '{files}.key'\nclient_ca = '{self.authority.ca}'\n"
            "[kafka]\ntls = true\n[http]\ntls = true\n"
        )

    def _node(self, number: int, version: Version, *, is_alone: bool = False) -> Node:
        changed = (
            SystemCalls.environment(self._library, self.calls[number].path, self._data(number))
            if self._library
            else {}
        )
        return Node(
            self._root,
            number,
            self._ports[number],
            "" if is_alone else self.listed,
            host=self._host(number),
            settings=self._settings + self._tls(number),
            data=self._data(number),
            launcher=(
                *(self.network.launcher(number) if self.network else ()),
                *(("env", *(f"{name}={value}" for name, value in changed.items())) if changed else ()),
                *version.launcher,
            ),
            module=version.module,
            options=version.options,
        )

    def install(self, number: int, version: Version, *, is_alone: bool = False) -> None:
        """Let a node that does not run have this version from its next start on, with the others or alone."""
        assert not self.by_id[number].is_running
        self.by_id[number] = self._node(number, version, is_alone=is_alone)

    def reboot(self, node_id: int) -> None:
        """Mount the disk of a node whose power was cut, as after a boot."""
        disk = self.disks[node_id]
        disk.unmount()
        disk.mount()
        if (running := self.by_id[node_id].data / RUNNING).exists():
            running.write_text("an earlier boot\n")


@contextmanager
def chaos_nodes(
    root: Path, needs: Needs = NOTHING, *, count: int = 3, version: Version = CURRENT
) -> Iterator[ChaosNodes]:
    """Yield running nodes; what they run on is removed afterwards."""
    root = root.resolve()
    with ExitStack() as stack:
        network = None
        if needs.network:
            network = Network(count)
            stack.callback(network.remove)
            network.build()
        disks = mounted_disks(root, count, stack) if needs.disks else {}
        nodes = ChaosNodes(
            root,
            network,
            disks,
            count,
            version,
            library=build_library(root) if needs.calls else None,
            authority=Authority(root / "certificates") if needs.tls else None,
        )
        stack.callback(_end, nodes)
        nodes.start()
        yield nodes


def mounted_disks(root: Path, count: int, stack: ExitStack) -> dict[int, PowerCutDisk]:
    """Return a disk for each node, removed by the stack."""
    disks: dict[int, PowerCutDisk] = {}
    for number in range(1, count + 1):
        place = root / f"disk-{number}"
        place.mkdir()
        disks[number] = PowerCutDisk(place, MountOptions("synced", "commit=600"), size_mib=DISK_MIB)
        stack.callback(_remove, disks[number])
        disks[number].mount()
    return disks


def _end(nodes: ChaosNodes) -> None:
    for node in nodes:
        node.end()


def _remove(disk: PowerCutDisk) -> None:
    with suppress(subprocess.CalledProcessError):
        disk.remove()
