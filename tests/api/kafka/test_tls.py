"""Kafka's protocol over TLS: large responses, slow clients, and bytes of another protocol."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest
from confluent_kafka import Producer
from cryptography import x509

from alpacamq.client.connect import parse_address
from alpacamq.client.kafka.access import EntityPart, set_quotas
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login
from alpacamq.protocol.messages.cluster import ApiVersionsRequest
from alpacamq.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.protocol.messages.sasl import SaslHandshakeRequest
from tests.brokers import KEPT, Broker
from tests.certificates import Authority, client_context, tls_section
from tests.ports import free_ports
from tests.stored import split
from tests.waiting import eventually

from .wire import Wire, wired

DEADLINE_S = 30.0
VALUE = bytes(range(256)) * 3600
VALUES = 128
# Far less than the responses, and more than what the allocator keeps.
GROWTH_BYTES = 48 << 20
READERS = 3


class Listeners:
    """A broker with a plain listener and one with TLS."""

    # Of the HTTP API with TLS, if there is one.
    web = ""

    def __init__(self, root: Path, settings: str = "mechanisms = ['SCRAM-SHA-512']\n") -> None:
        self.authority = Authority(root / "certificates")
        (port,) = free_ports(1)
        self.tls = ("127.0.0.1", port)
        self.broker = Broker(
            root / "data",
            config=KEPT
            + tls_section(self.authority, self.authority.server())
            + f"[listeners.secure]\nlisten = '127.0.0.1:{port}'\ntls = true\n"
            + settings
            # A response has records of one segment.
            + "[topics.defaults]\n'segment.bytes' = 268435456\n",
        )

    def connect(self) -> Wire:
        return Wire(self.tls, context=client_context(self.authority))


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    listeners = Listeners(tmp_path_factory.mktemp("tls"))
    try:
        listeners.broker.start()
        yield listeners
    finally:
        listeners.broker.end()


def everything_of(wire: Wire, topic: str) -> FetchRequest:
    """Return a request for a whole partition in one response."""
    (found,) = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
    size = 2 * VALUES * len(VALUE)
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size)
    topics = [FetchTopic(topic_id=found.topic_id, partitions=[wanted])]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=size, topics=topics)


def test_clients_that_do_not_read_large_responses_cost_little_memory(
    listeners: Listeners, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": listeners.broker.address, "linger.ms": 0})
    for _ in range(VALUES):
        producer.produce(topic, VALUE, partition=0)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    process = psutil.Process(listeners.broker.process.pid)
    readers = [listeners.connect() for _ in range(READERS)]
    request = everything_of(readers[0], topic)
    before = process.memory_info().rss
    for reader in readers:
        reader.send(request)
    for reader in readers:
        assert reader.has_bytes
    # Others are served meanwhile.
    with wired(listeners.tls, context=client_context(listeners.authority)) as other:
        assert other.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    assert process.memory_info().rss - before < GROWTH_BYTES
    for reader in readers:
        (answered,) = reader.receive(FetchRequest).responses
        (partition,) = answered.partitions
        batches = list(split(bytes(partition.records), Path()))
        assert sum(batch.header.record_count for batch in batches) == VALUES
        assert all(record.value == VALUE for record in batches[-1].records())
        reader.close()
    assert process.memory_info().rss - before < GROWTH_BYTES


def test_many_requests_of_one_connection_are_answered_in_order(listeners: Listeners, topic: str) -> None:
    with wired(listeners.tls, context=client_context(listeners.authority)) as wire:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        for _ in range(500):
            wire.send(request)
        for _ in range(500):
            assert wire.receive(MetadataRequest).topics[0].name == topic


def test_a_listener_offers_only_its_mechanisms(listeners: Listeners) -> None:
    with wired(listeners.tls, context=client_context(listeners.authority)) as wire:
        refused = wire.ask(SaslHandshakeRequest(mechanism="PLAIN"))
        assert (refused.error_code, list(refused.mechanisms)) == (33, ["SCRAM-SHA-512"])
    with wired(listeners.broker.host_and_port) as wire:
        assert "PLAIN" in wire.ask(SaslHandshakeRequest(mechanism="PLAIN")).mechanisms


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[Listeners]:
    """A broker whose clients have certificates on the second listener, and an administrator."""
    users = tmp_path / "users"
    users.write_text("admin:of-admin\n")
    users.chmod(0o600)
    security = f"authentication = true\nacls = true\nsuper_users = ['User:admin']\nusers_file = '{users}'\n"
    (port,) = free_ports(1)
    web = f"[listeners.web]\napi = 'http'\nlisten = '127.0.0.1:{port}'\ntls = true\n"
    required = "client_certificates = 'required'\n"
    listeners = Listeners(tmp_path, f"{required}{web}{required}[security]\n{security}")
    listeners.web = f"https://localhost:{port}"
    try:
        listeners.broker.start()
        yield listeners
    finally:
        listeners.broker.end()


def test_the_limits_of_a_tenant_hold_for_clients_with_certificates(certified: Listeners) -> None:
    context = client_context(certified.authority, certified.authority.client("alice"))

    def is_served(wire: Wire) -> bool:
        try:
            return bool(wire.ask(MetadataRequest(topics=[])).error_code == 0)
        except OSError:
            return False

    with (
        httpx.Client(base_url=f"http://{certified.broker.http_address}", auth=("admin", "of-admin")) as http,
        ExitStack() as wires,
    ):

        def connected() -> Wire:
            return wires.enter_context(wired(certified.tls, context=context))

        made = http.post("/admin/tenants", json={"id": "acme", "limits": {"connections": 2}})
        assert made.status_code == 201, made.text
        http.put("/admin/tenants/acme/principals/User:CN=alice", json={}).raise_for_status()
        first, second = connected(), connected()
        assert is_served(first)
        assert is_served(second)
        assert not is_served(connected())
        certified.broker.errors.wait_for(
            "too many connections: the limit of the tenant is 2", within_s=DEADLINE_S
        )
        first.close()
        eventually(lambda: is_served(connected()))
        second.close()
        http.post("/admin/tenants/acme/disable", json={"reason": "ended"}).raise_for_status()
        assert not is_served(connected())
        certified.broker.errors.wait_for("the tenant is disabled: ended", within_s=DEADLINE_S)


def test_a_client_with_a_certificate_creates_keys_that_end_with_it(certified: Listeners) -> None:
    day_ms = 24 * 3600 * 1000
    alice = certified.authority.client("alice", valid_days=30)
    certificate = x509.load_pem_x509_certificate(alice.certificate.read_bytes())
    expires_ms = int(certificate.not_valid_after_utc.timestamp() * 1000)
    with httpx.Client(base_url=certified.web, verify=client_context(certified.authority, alice)) as http:
        created = http.post("/keys", json={}).json()
        assert abs(created["expires"] - expires_ms) < 10
        assert http.post("/keys", json={"expires_in_ms": day_ms}).status_code == 201
        assert http.post("/keys", json={"expires_in_ms": 31 * day_ms}).status_code == 403
        # A key that is replaced has a new end.
        assert http.post(f"/keys/{created['id']}/rotate", json={}).status_code == 403


def test_a_flood_of_an_address_beyond_its_quota_costs_no_handshakes(certified: Listeners) -> None:
    elsewhere = "127.0.0.9"
    context = client_context(certified.authority, certified.authority.client("alice"))
    with (
        httpx.Client(base_url=f"http://{certified.broker.http_address}", auth=("admin", "of-admin")) as http,
        ExitStack() as wires,
    ):

        def failed_handshakes() -> str:
            lines = http.get("/metrics").text.splitlines()
            (line,) = [
                each for each in lines if each.startswith('alpacamq_tls_failed_handshakes_total{door="kafka"')
            ]
            return line

        login = Login(user="admin", password="of-admin")  # noqa: S106 - of the test
        with Cluster(parse_address(certified.broker.address), login=login) as cluster:
            set_quotas(cluster, (EntityPart("ip", elsewhere),), {"connection_count": 2})
        for _ in range(2):
            wire = wires.enter_context(wired(certified.tls, elsewhere, context=context))
            assert wire.ask(ApiVersionsRequest()).error_code == 0
        before = failed_handshakes()
        for _ in range(20):
            with (
                socket.create_connection(certified.tls, DEADLINE_S, (elsewhere, 0)) as flood,
                pytest.raises(OSError),  # noqa: PT011 - closed with or without a reset
                context.wrap_socket(flood, server_hostname="localhost"),
            ):
                pass
        assert failed_handshakes() == before
        other = wires.enter_context(wired(certified.tls, context=context))
        assert other.ask(ApiVersionsRequest()).error_code == 0


def test_clients_of_another_protocol_are_closed_with_a_reason_in_the_log(listeners: Listeners) -> None:
    address = listeners.broker.host_and_port
    with (
        socket.create_connection(address, timeout=DEADLINE_S) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        client_context(listeners.authority).wrap_socket(plain, server_hostname="localhost")
    listeners.broker.errors.wait_for("sends TLS to a plain Kafka listener", within_s=DEADLINE_S)
    for target, reason in ((address, "sends HTTP to a plain"), (listeners.tls, "does not use TLS")):
        with socket.create_connection(target, timeout=DEADLINE_S) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert plain.recv(1) == b""
        listeners.broker.errors.wait_for(reason, within_s=DEADLINE_S)
