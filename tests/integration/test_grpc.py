"""Streams of the gRPC API when something dies, in a cluster, over TLS, and when a broker stops."""

from tests.ports import lasting_address
import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx
import pytest
from grpclib.health.v1 import health_pb2

from alpacamq.v1 import cluster_pb2
from tests.api.grpc.client import TIMEOUT_S, Client, connected, publish
from tests.brokers import Broker
from tests.certificates import Authority, Pair, client_context, tls_section
from tests.waiting import eventually

from .nodes import Nodes

# Leases that end only because something was noticed.
LONG_MS = 600_000
# Takes messages and settles none of them.
CONSUMER = """
import asyncio, sys
from tests.api.grpc.client import connected

async def main():
    async with connected(sys.argv[1]) as client:
        work = await client.work(sys.argv[2], visibility_ms=600_000)
        await work.messages(3)
        print("taken", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    random = Random()
    broker = Broker(tmp_path / "data", grpc=lasting_address(), http=lasting_address())
    try:
        yield broker.start()
    finally:
        broker.end()


async def test_leases_of_a_killed_client_are_returned_at_once(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, ["a", "b", "c"])
    command = [sys.executable, "-c", CONSUMER, broker.grpc_address, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"taken\n"
        async with connected(broker.grpc_address) as client:
            other = await client.work(topic)
            process.send_signal(signal.SIGKILL)
            assert [each.delivery_count for each in await other.messages(3)] == [2, 2, 2]


async def test_a_stream_ends_with_unavailable_when_the_broker_stops(broker: Broker, topic: str) -> None:
    """Its leases are returned before: after the restart, the messages are there at once."""
    publish(broker.http_address, topic, ["a", "b", "c"])
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic, visibility_ms=LONG_MS)
        first, *_ = await work.messages(3)
        stopping = asyncio.create_task(asyncio.to_thread(broker.stop))
        # It still takes settlements for a short time.
        await work.send(ack=[first.delivery_id])
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await work.messages(1)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        await stopping
    broker.start()
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic)
        left = await work.messages(2)
        assert [each.delivery_count for each in left] == [2, 2]


async def test_a_confirmed_acknowledgement_survives_a_kill(broker: Broker, topic: str) -> None:
    publish(broker.http_address, topic, [str(number) for number in range(200)])
    confirmed: set[bytes] = set()
    for _ in range(3):
        async with connected(broker.grpc_address) as client:
            work = await client.work(topic, credit=20, visibility_ms=100)
            values: dict[int, bytes] = {}
            before = len(confirmed)
            while len(confirmed) < before + 40:
                response = await work.response()
                values |= {each.delivery_id: each.record.value for each in response.messages}
                again = [value for value in values.values() if value in confirmed]
                assert not [each for each in response.messages if each.record.value in confirmed], again
                confirmed.update(values[number] for number in response.settled)
                if response.messages:
                    await work.send(ack=[each.delivery_id for each in response.messages])
            broker.restart(kill=True)
    async with connected(broker.grpc_address) as client:
        work = await client.work(topic, credit=200)
        while len(confirmed) < 200:
            response = await work.response()
            found = {each.record.value for each in response.messages}
            assert not found & confirmed
            confirmed |= found
            await work.send(ack=[each.delivery_id for each in response.messages])


async def test_a_watch_of_health_says_that_the_broker_stops(broker: Broker) -> None:
    async with connected(broker.grpc_address) as client:
        watch = client.watch_health(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        first = await watch.read()
        assert first.status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(asyncio.to_thread(broker.stop))
        second = await watch.read()
        assert second.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await stopping


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    root = tmp_path_factory.mktemp("nodes")
    nodes = Nodes(root, 3, "replication_factor = 3\n")
    try:
        nodes.start()
        yield nodes
    finally:
        for node in nodes:
            node.end()


async def test_every_node_knows_the_addresses_of_all(nodes: Nodes) -> None:
    found = []
    for node in nodes:
        async with connected(node.grpc) as client:
            reply = await client.endpoints(cluster_pb2.EndpointsRequest(), timeout=TIMEOUT_S)
        assert reply.node_id == node.id
        found.append((reply.cluster_id, [(each.node_id, each.grpc, each.kafka) for each in reply.nodes]))
    assert found[0] == found[1] == found[2]
    expected = [(node.id, node.grpc, node.kafka) for node in nodes]
    assert found[0][1] == expected


async def test_a_queue_is_consumed_through_every_node(nodes: Nodes, topic: str) -> None:
    publish(nodes.by_id[1].http, topic, [str(number) for number in range(300)], partitions=3)
    values: list[bytes] = []

    async def consume(address: str) -> None:
        async with connected(address) as client:
            work = await client.work(topic, credit=10, visibility_ms=LONG_MS)
            while len(values) < 300:
                response = await work.response()
                assert not response.errors
                values.extend(each.record.value for each in response.messages)
                if response.messages:
                    await work.send(ack=[each.delivery_id for each in response.messages])

    consumers = [asyncio.create_task(consume(node.grpc)) for node in nodes]
    done, _ = await asyncio.wait(consumers, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT_S)
    for task in consumers:
        task.cancel()
    for task in done:
        await task
    assert sorted(values) == sorted(str(number).encode() for number in range(300))


async def test_leases_of_a_stream_are_returned_through_every_node(nodes: Nodes, topic: str) -> None:
    publish(nodes.by_id[1].http, topic, ["a", "b"], partitions=1)
    for number, node in enumerate(nodes, 1):
        async with connected(node.grpc) as client:
            work = await client.work(topic, visibility_ms=LONG_MS)
            counts = [each.delivery_count for each in await work.messages(2)]
            work.stream.cancel()
        assert counts == [number, number]


async def test_another_node_serves_when_one_is_killed(nodes: Nodes, topic: str) -> None:
    """Last: the cluster has two nodes afterwards. A lease of the killed node's stream ends by itself."""
    publish(nodes.by_id[1].http, topic, ["a", "b", "c"], partitions=1)
    victim, *others = nodes
    async with connected(victim.grpc) as client:
        work = await client.work(topic, visibility_ms=5000)
        await work.messages(3)
        await asyncio.to_thread(victim.kill)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await work.response()
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    async with connected(others[0].grpc) as client:
        work = await client.work(topic)
        assert sorted(each.record.value for each in await work.messages(3)) == [b"a", b"b", b"c"]


class TlsBroker:
    """A broker whose gRPC API uses TLS, and what clients need for it."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "certificates")
        config = (
            tls_section(self.authority, self.authority.server())
            + "principal_rules = 'RULE:^CN=(.*)$/$1/L'\n"
            + "[grpc]\ntls = true\nclient_certificates = 'requested'\n"
            + "[http]\ntls = true\n"
            + "[security]\nauthentication = true\nacls = true\nsuper_users = ['User:alice']\n"
        )
        self.broker = Broker(directory / "data", config=config)

    @asynccontextmanager
    async def client(self, pair: Pair | None = None) -> AsyncIterator[Client]:
        credentials = grpc.ssl_channel_credentials(
            self.authority.ca.read_bytes(),
            None if pair is None else pair.key.read_bytes(),
            None if pair is None else pair.certificate.read_bytes(),
        )
        async with grpc.aio.secure_channel(self.broker.grpc_address, credentials) as channel:
            yield Client(channel)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    secured = TlsBroker(tmp_path_factory.mktemp("tls"))
    try:
        secured.broker.start()
        yield secured
    finally:
        secured.broker.end()


async def code_of(call: Any) -> Any:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_a_certificate_authenticates_over_tls(secured: TlsBroker) -> None:
    request = cluster_pb2.EndpointsRequest()
    async with secured.client(secured.authority.client("alice")) as alice:
        assert await code_of(alice.endpoints(request, timeout=TIMEOUT_S)) is grpc.StatusCode.OK
    async with secured.client() as nobody:
        assert await code_of(nobody.endpoints(request, timeout=TIMEOUT_S)) is grpc.StatusCode.UNAUTHENTICATED


async def test_alpn_is_offered_by_the_grpc_api_only(secured: TlsBroker) -> None:
    for address, offered, expected in (
        (secured.broker.grpc_address, ["h2", "http/1.1"], "h2"),
        (secured.broker.http_address, ["h2", "http/1.1"], None),
    ):
        context = client_context(secured.authority)
        context.set_alpn_protocols(offered)
        host, _, port = address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == expected
        writer.close()


async def test_a_client_without_alpn_is_closed(secured: TlsBroker) -> None:
    host, _, port = secured.broker.grpc_address.rpartition(":")
    context = client_context(secured.authority)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="localhost")
    while await asyncio.wait_for(reader.read(1000), TIMEOUT_S):
        pass
    writer.close()
    await asyncio.to_thread(eventually, lambda: "does not offer h2" in secured.broker.errors.text())


def test_a_listener_for_other_machines_needs_authentication(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", grpc="0.0.0.0:0")
    broker.spawn()
    assert broker.exit_code() == 1
    assert "grpc.listen (0.0.0.0:0) is reachable from other machines" in broker.errors.text()


def test_the_api_can_be_disabled(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", config="[grpc]\nenabled = false\n").start()
    try:
        assert "grpc" not in broker.output.text()
        listed = httpx.get(f"http://{broker.http_address}/cluster", timeout=TIMEOUT_S).text
        assert '"grpc"' not in listed
    finally:
        broker.end()
