"""Three nodes with TLS between them, and two Kafka listeners with addresses of their own."""

import secrets
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from alpacamq.api.tls import MAX_HANDSHAKES
from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.api.kafka.wire import wired
from tests.certificates import Authority, client_context, tls_section
from tests.waiting import eventually

from .nodes import Nodes

DEADLINE_S = 60.0
NODES = 3
TOPIC = "orders"


class Cluster:
    """The nodes, and the authority of their certificates."""

    def __init__(self, root: Path) -> None:
        self.authority = Authority(root / "certificates")
        server = self.authority.server()
        secret = root / "secret"
        secret.write_text(secrets.token_hex(16))
        secret.chmod(0o600)
        settings = (
            f"tls = true\nsecret_file = '{secret}'\n"
            + tls_section(self.authority, server)
            + "[listeners.external]\nlisten = '127.0.0.1:0'\nadvertised = 'localhost:0'\ntls = true\n"
            "mechanisms = ['SCRAM-SHA-512']\n"
        )
        self.nodes = Nodes(root, NODES, settings)

    @property
    def external(self) -> Mapping[int, str]:
        """The addresses of the second listener, by node."""
        http = self.nodes.by_id[1].http
        nodes = httpx.get(f"http://{http}/cluster/status", timeout=DEADLINE_S).json()["nodes"]
        return {node["node_id"]: node["addresses"]["external"] for node in nodes}

    def librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": ",".join(self.external.values()),
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.ca),
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("tls-cluster"))
    try:
        cluster.nodes.start()
        admin = AdminClient(cluster.librdkafka())
        created = admin.create_topics([NewTopic(TOPIC, NODES, NODES)])
        created[TOPIC].result(DEADLINE_S)
        eventually(lambda: is_led(admin), within_s=DEADLINE_S)
        yield cluster
    finally:
        for node in cluster.nodes:
            node.end()


def is_led(admin: AdminClient) -> bool:
    partitions = admin.list_topics(TOPIC, timeout=DEADLINE_S).topics[TOPIC].partitions
    return len(partitions) == NODES and all(
        each.leader >= 0 and len(each.isrs) == NODES for each in partitions.values()
    )


def brokers(settings: dict[str, Any]) -> Mapping[int, str]:
    """Return the addresses that a client gets."""
    found = AdminClient(settings).list_topics(timeout=DEADLINE_S).brokers
    return {number: f"{each.host}:{each.port}" for number, each in found.items()}


def test_clients_get_the_addresses_of_the_listener_that_they_came_through(cluster: Cluster) -> None:
    external = cluster.external
    assert {address.rpartition(":")[0] for address in external.values()} == {"localhost"}
    assert brokers(cluster.librdkafka()) == external
    plain = {number: node.kafka for number, node in cluster.nodes.by_id.items()}
    assert brokers({"bootstrap.servers": cluster.nodes.kafka}) == plain
    admin = AdminClient(cluster.librdkafka())
    described = admin.describe_cluster().result(DEADLINE_S)
    assert {each.id: f"{each.host}:{each.port}" for each in described.nodes} == external


def test_messages_are_replicated_and_groups_find_their_coordinator(cluster: Cluster) -> None:
    settings = cluster.librdkafka()
    producer = Producer({**settings, "acks": "all"})
    for number in range(300):
        producer.produce(TOPIC, str(number).encode(), partition=number % NODES)
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({**settings, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    found: set[int] = set()

    def read() -> bool:
        for message in consumer.consume(300, 1.0):
            assert message.error() is None
            found.add(int(message.value()))
        return len(found) == 300

    eventually(read, within_s=DEADLINE_S)
    consumer.close()


def test_a_broker_that_does_not_lead_hints_at_the_address_of_the_same_listener(cluster: Cluster) -> None:
    external = cluster.external
    host, _, port = external[1].rpartition(":")
    with wired((host, int(port)), context=client_context(cluster.authority)) as wire:
        (topic,) = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])).topics
        other = next(each for each in topic.partitions if each.leader_id != 1)
        records = bytes(write_batch([Record(0, 0, None, b"tea")]))
        data = PartitionProduceData(index=other.partition_index, records=records)
        request = ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(topic_id=topic.topic_id, partition_data=[data])],
        )
        (hint,) = wire.ask(request).node_endpoints
    assert (hint.node_id, f"{hint.host}:{hint.port}") == (other.leader_id, external[other.leader_id])


def test_nodes_accept_only_certificates_of_their_authority(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.nodes.by_id[2]
    host, _, port = node.cluster.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as plain:
        plain.sendall(b"\0\0\0\1x")
        assert plain.recv(1) == b""
    stranger = Authority(tmp_path, "Another CA").client("node")
    context = client_context(cluster.authority, stranger)
    with (
        socket.create_connection((host, int(port)), timeout=DEADLINE_S) as plain,
        pytest.raises(ssl.SSLError, match="UNKNOWN_CA"),
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        encrypted.recv(1)
    reasons = [event["reason"] for event in node.events("handshake_failed")]
    assert "the client does not use TLS" in reasons


def test_a_flood_of_clients_does_not_take_the_handshakes_of_nodes(cluster: Cluster) -> None:
    node = cluster.nodes.by_id[1]
    (host, _, port), (kafka_host, _, kafka_port) = (
        address.rpartition(":") for address in (node.cluster, cluster.external[1])
    )
    context = client_context(cluster.authority, cluster.authority.client("node"))
    with ExitStack() as flood, socket.create_connection((host, int(port)), timeout=DEADLINE_S) as of_node:
        for _ in range(MAX_HANDSHAKES + 20):
            flood.enter_context(socket.create_connection((kafka_host, int(kafka_port)), timeout=DEADLINE_S))
        eventually(
            lambda: (
                "too many handshakes at the same time"
                in {event["reason"] for event in node.events("handshake_failed")}
            ),
            within_s=DEADLINE_S,
        )
        # It came first, and would have made room for them.
        context.wrap_socket(of_node, server_hostname=host).close()


def test_a_node_that_was_killed_joins_again_and_catches_up(cluster: Cluster) -> None:
    node = cluster.nodes.by_id[3]
    node.kill()
    producer = Producer({**cluster.librdkafka(), "acks": "all"})
    producer.produce(TOPIC, b"meanwhile", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    node.start()
    node.wait_until_ready(2)
    admin = AdminClient(cluster.librdkafka())
    eventually(lambda: is_led(admin), within_s=DEADLINE_S)


@pytest.mark.heavy
def test_tls_between_nodes_is_turned_on_while_the_cluster_serves(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    section = tls_section(authority, authority.server())
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(16))
    secret.chmod(0o600)
    nodes = Nodes(tmp_path, NODES, f"secret_file = '{secret}'\n{section}")
    try:
        nodes.start()
        admin = AdminClient({"bootstrap.servers": nodes.kafka})
        admin.create_topics([NewTopic(TOPIC, NODES, NODES)])[TOPIC].result(DEADLINE_S)
        producer = Producer({"bootstrap.servers": nodes.kafka, "acks": "all"})
        for starts, before, after in (
            (
                2,
                f"secret_file = '{secret}'\n",
                f"secret_file = '{secret}'\ntls = true\ntls_optional = true\n",
            ),
            (3, "tls_optional = true\n", ""),
        ):
            for node in nodes:
                eventually(lambda: is_led(admin), within_s=DEADLINE_S)
                config = tmp_path / f"node-{node.id}.toml"
                config.write_text(config.read_text().replace(before, after))
                node.stop()
                node.start()
                node.wait_until_ready(starts)
                producer.produce(TOPIC, b"tea", partition=0)
                assert producer.flush(DEADLINE_S) == 0
        eventually(lambda: is_led(admin), within_s=DEADLINE_S)
        host, _, port = nodes.by_id[1].cluster.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as plain:
            plain.sendall(b"\0\0\0\1x")
            assert plain.recv(1) == b""
        assert "the client does not use TLS" in str(nodes.by_id[1].events("handshake_failed"))
        assert nodes.by_id[1].events("node_connected_without_tls")  # while the others had no TLS
    finally:
        for node in nodes:
            node.end()
