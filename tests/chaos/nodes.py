"""Three nodes as processes, on networks and disks that can fail."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import randrange

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from alpacamq.log.data_directory import RUNNING
from tests.integration.nodes import GRPC_ON_ANY_PORT, REGISTRY_ON_ANY_PORT, Node, Nodes, free_ports
from tests.powercut.disk import MountOptions, PowerCutDisk
from tests.waiting import eventually

from .disk_errors import DiskErrors, build_library
from .network import Network

SECRET = "the secret of the nodes of a chaos run"  # noqa: S105
RECOVER_S = 90.0
STOP_S = 30.0
DISK_MIB = 768
FILLER = "filler"


@dataclass(frozen=True, slots=True)
class Version:
    """A program that nodes run: a module, and a command that starts it."""

    name: str
    module: str = "alpacamq.node.main"
    launcher: Sequence[str] = ()
    options: Sequence[str] = (*REGISTRY_ON_ANY_PORT, *GRPC_ON_ANY_PORT)


CURRENT = Version("current")


class ChaosNodes(Nodes):
    """The nodes of a run, and what they run on."""

    def __init__(
        self,
        root: Path,
        network: Network | None,
        disks: dict[int, PowerCutDisk],
        count: int = 3,
        version: Version = CURRENT,
        settings: str = "",
        library: Path | None = None,
    ) -> None:
        """`settings` are further sections of their configuration.

        `library` is what lets calls of a node fail; see disk_errors.
        """
        self._root = root
        # Of the topics that loads create.
        self.replication_factor = 3
        self.network = network
        self.disks = disks
        self.errors = {
            number: DiskErrors(library, root / f"node-{number}.errors", self._data(number))
            for number in range(1, count + 1)
            if library is not None
        }
        secret = root / "secret"
        secret.write_text(SECRET)
        # Addresses in network namespaces are not those of loopback.
        opened = "" if network is None else "[security]\nallow_anonymous = true\n"
        self._settings = f'secret_file = "{secret}"\n\n{opened}[sqs]\nallow_anonymous = true\n{settings}'
        ports = free_ports(4 * count)
        self._ports = {number: ports[4 * number - 4 : 4 * number] for number in range(1, count + 1)}
        self.listed = ",".join(
            f"{number}@{self._host(number)}:{each[3]}" for number, each in self._ports.items()
        )
        self.by_id = {number: self._node(number, version) for number in self._ports}
        self._admin: AdminClient | None = None

    def _host(self, number: int) -> str:
        return self.network.address(number) if self.network else "127.0.0.1"

    def _data(self, number: int) -> Path:
        disk = self.disks.get(number)
        return self._root / f"node-{number}" if disk is None else disk.path / "data"

    def _node(self, number: int, version: Version, *, is_alone: bool = False) -> Node:
        return Node(
            self._root,
            number,
            self._ports[number],
            "" if is_alone else self.listed,
            host=self._host(number),
            settings=self._settings,
            data=self._data(number),
            launcher=(
                *(self.network.launcher(number) if self.network else ()),
                *(self.errors[number].launcher if self.errors else ()),
                *version.launcher,
            ),
            module=version.module,
            options=version.options,
        )

    def install(self, number: int, version: Version, *, is_alone: bool = False) -> None:
        """Let a node that does not run have this version from its next start on, with the others or alone."""
        assert not self.by_id[number].is_running
        self.by_id[number] = self._node(number, version, is_alone=is_alone)

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.kafka, "log_level": 0})
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
        admins = [AdminClient({"bootstrap.servers": node.kafka, "log_level": 0}) for node in running]

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

    def reboot(self, node_id: int) -> None:
        """Mount the disk of a node whose power was cut, as after a boot."""
        disk = self.disks[node_id]
        disk.unmount()
        disk.mount()
        if (running := self.by_id[node_id].data / RUNNING).exists():
            running.write_text("an earlier boot\n")


@contextmanager
def chaos_nodes(
    root: Path,
    *,
    with_network: bool = False,
    with_disks: bool = False,
    with_errors: bool = False,
    count: int = 3,
    version: Version = CURRENT,
) -> Iterator[ChaosNodes]:
    """Yield running nodes; what they run on is removed afterwards."""
    root = root.resolve()
    with ExitStack() as stack:
        network = None
        if with_network:
            network = Network(count)
            stack.callback(network.remove)
            network.build()
        disks: dict[int, PowerCutDisk] = {}
        for number in range(1, count + 1) if with_disks else ():
            place = root / f"disk-{number}"
            place.mkdir()
            disks[number] = PowerCutDisk(place, MountOptions("synced", "commit=600"), size_mib=DISK_MIB)
            stack.callback(_remove, disks[number])
            disks[number].mount()
        library = build_library(root) if with_errors else None
        nodes = ChaosNodes(root, network, disks, count, version, library=library)
        stack.callback(_end, nodes)
        nodes.start()
        yield nodes


def _end(nodes: ChaosNodes) -> None:
    for node in nodes:
        node.end()


def _remove(disk: PowerCutDisk) -> None:
    with suppress(subprocess.CalledProcessError):
        disk.remove()
