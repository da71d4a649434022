"""Several nodes in place of the broker of a test."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient

from .brokers import Broker, Output
from .integration.nodes import Nodes
from .waiting import eventually


class Logs(Output):
    """The logs of all nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def find(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        return re.search(pattern, self.text())

    def wait_for(self, pattern: str | re.Pattern[str], *, within_s: float) -> re.Match[str]:
        found = eventually(lambda: self.find(pattern), within_s=within_s, what=str(pattern))
        assert found is not None
        return found

    def text(self) -> str:
        return "\n".join(node.log.read_text() for node in self._nodes if node.log.exists())


class BrokerCluster(Broker):
    """A cluster that tests use like one broker: Kafka clients get all addresses, others that of one node.

    HTTP and SQS clients use different nodes. To stop, kill or start it is to do so with all nodes.
    """

    def __init__(self, root: Path, *, nodes: int, config: str = "") -> None:
        super().__init__(root / "node-1", config=config)
        root.mkdir(parents=True)
        self._nodes = Nodes(root, nodes, config)
        # How often each node was ready before its last start.
        self._ready: dict[int, int] = {}
        self.kafka = self._nodes.kafka
        self.http_address = self._nodes.by_id[nodes].http
        self.sqs_address = self._nodes.by_id[max(nodes - 1, 1)].sqs

    @property
    def errors(self) -> Output:
        return Logs(self._nodes)

    @property
    def by_id(self) -> Mapping[int, str]:
        return {number: node.kafka for number, node in self._nodes.by_id.items()}

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the id of the node that leads a partition."""
        admin = AdminClient({"bootstrap.servers": self.kafka, "log_level": 3})
        return int(admin.list_topics(topic, timeout=30).topics[topic].partitions[partition].leader)

    def directory_of(self, topic: str) -> Path:
        return self._nodes.by_id[self.leader_of(topic)].data

    @property
    def directories(self) -> Sequence[Path]:
        return [node.data for node in self._nodes]

    @property
    def is_running(self) -> bool:
        return any(node.is_running for node in self._nodes)

    def spawn(self) -> None:
        self._ready = {node.id: len(node.events("ready")) for node in self._nodes}
        for node in self._nodes:
            node.start()

    def wait_until_ready(self) -> None:
        for node in self._nodes:
            node.wait_until_ready(self._ready[node.id] + 1)
        self._find_addresses()

    def _find_addresses(self) -> None:
        """Note the addresses that the first node has since its last start."""
        ready = self._nodes.by_id[1].events("ready")[-1]
        self.registry_address, self.grpc_address = ready["registry"], ready["grpc"]

    def stop(self) -> None:
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait()

    def kill(self) -> None:
        for node in self._nodes:
            node.kill()

    def restart(self, *, kill: bool) -> None:
        """Kill each node in turn or shut it down cleanly, and start it again; the others serve meanwhile."""
        for number, node in self._nodes.by_id.items():
            if kill:
                node.kill()
            else:
                node.stop()
            self.start_node(number)

    def end(self) -> None:
        for node in self._nodes:
            node.end()

    def kill_node(self, number: int) -> None:
        self._nodes.by_id[number].kill()

    def start_node(self, number: int) -> None:
        """Start one node that was killed, and wait until it serves."""
        node = self._nodes.by_id[number]
        self._ready[number] = len(node.events("ready"))
        node.start()
        node.wait_until_ready(self._ready[number] + 1)
        self._find_addresses()


def make_broker(directory: Path, nodes: int, **options: str) -> Broker:
    """Return a broker, or a cluster of several nodes, which has addresses of its own that it keeps."""
    if nodes == 1:
        return Broker(directory, **options)  # type: ignore[arg-type]
    return BrokerCluster(directory, nodes=nodes, config=options.get("config", ""))
