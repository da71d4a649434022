"""Several nodes in place of the broker that the compat tests share."""

from pathlib import Path
from typing import Self

from tests.brokers import Broker
from tests.integration.nodes import Nodes


class BrokerCluster(Broker):
    """A cluster that tests use like one broker: Kafka clients get all addresses, others that of one node.

    HTTP and SQS clients use different nodes. Each node has a replica of every partition, so tests that look
    at stored batches look at those of the first.
    """

    def __init__(self, root: Path, *, nodes: int, config: str = "") -> None:
        super().__init__(root / "node-1", config=config)
        root.mkdir()
        self._nodes = Nodes(root, nodes, config)
        self.kafka = self._nodes.kafka
        self.http_address = self._nodes.by_id[nodes].http
        self.sqs_address = self._nodes.by_id[max(nodes - 1, 1)].sqs

    def start(self) -> Self:
        """Start the nodes and wait until they accept connections."""
        self._nodes.start()
        return self

    def end(self) -> None:
        """Kill the nodes."""
        for node in self._nodes:
            node.end()
