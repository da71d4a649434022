"""Several nodes in place of the broker that the compat tests share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient

from tests.brokers import Broker
from tests.integration.nodes import Nodes


class BrokerCluster(Broker):
    """A cluster that tests use like one broker: Kafka clients get all addresses, others that of one node.

    HTTP and SQS clients use different nodes.
    """

    def __init__(self, root: Path, *, nodes: int, config: str = "") -> None:
        super().__init__(root / "node-1", config=config)
        root.mkdir()
        self._nodes = Nodes(root, nodes, config)
        self.kafka = self._nodes.kafka
        self.http_address = self._nodes.by_id[nodes].http
        self.sqs_address = self._nodes.by_id[max(nodes - 1, 1)].sqs

    @property
    def by_id(self) -> Mapping[int, str]:
        return {number: node.kafka for number, node in self._nodes.by_id.items()}

    def directory_of(self, topic: str) -> Path:
        admin = AdminClient({"bootstrap.servers": self.kafka, "log_level": 3})
        leader = admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader
        return self._nodes.by_id[leader].data

    @property
    def directories(self) -> Sequence[Path]:
        return [node.data for node in self._nodes]

    def start(self) -> Self:
        """Start the nodes and wait until they accept connections."""
        self._nodes.start()
        return self

    def end(self) -> None:
        """Kill the nodes."""
        for node in self._nodes:
            node.end()
