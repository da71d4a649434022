"""Connections of the asyncio clients: pipelining, deadlines, faults of brokers, and what an import loads."""

import asyncio
import subprocess
import sys
from struct import pack

import pytest
import uvloop

from alpacamq.client.aio.cluster import Cluster
from alpacamq.client.aio.connection import MAX_IN_FLIGHT, connect
from alpacamq.client.aio.consumer import Consumer
from alpacamq.client.aio.producer import Producer
from alpacamq.client.connect import parse_address
from alpacamq.client.errors import Closed, Refused, Unreachable
from alpacamq.client.framing import MAX_RESPONSE_BYTES
from alpacamq.model.address import Address
from alpacamq.protocol.errors import ProtocolError
from alpacamq.protocol.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.brokers import Broker
from tests.client.peers import frame, handshake, peer

UNUSED = Address("127.0.0.1", 9)


async def test_requests_are_pipelined_and_answered_in_order(broker: Broker) -> None:
    connection = await connect(parse_address(broker.address))
    try:
        waiting = [
            connection.start(MetadataRequest(topics=[]), MetadataResponse, timeout_s=30)
            if number % 2
            else connection.start(DescribeClusterRequest(), DescribeClusterResponse, timeout_s=30)
            for number in range(50)
        ]
        assert connection.in_flight == 50
        answers = await asyncio.gather(*waiting)
        kinds = [type(answer) for answer in answers]
        assert kinds == [DescribeClusterResponse, MetadataResponse] * 25
    finally:
        await connection.close()


async def test_no_more_requests_than_a_limit_are_in_flight(broker: Broker) -> None:
    connection = await connect(parse_address(broker.address))
    try:
        calls = [
            asyncio.ensure_future(
                connection.call(DescribeClusterRequest(), DescribeClusterResponse, timeout_s=30)
            )
            for _ in range(3 * MAX_IN_FLIGHT)
        ]
        await asyncio.sleep(0)
        assert connection.in_flight == MAX_IN_FLIGHT
        calls[-1].cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, DescribeClusterResponse) for each in done) == 3 * MAX_IN_FLIGHT - 1
    finally:
        await connection.close()


async def test_a_cancelled_call_leaves_the_connection_in_order(broker: Broker) -> None:
    async with Cluster([parse_address(broker.address)]) as cluster:
        await cluster.topic_names()
        call = asyncio.ensure_future(cluster.call_any(DescribeClusterRequest(), DescribeClusterResponse))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        assert (await cluster.call_any(MetadataRequest(topics=[]), MetadataResponse)).brokers


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        pytest.param(pack(">i", MAX_RESPONSE_BYTES + 1), ProtocolError, "bytes", id="a size beyond reason"),
        pytest.param(pack(">i", 3), ProtocolError, "3 bytes", id="a size below a header"),
        pytest.param(pack(">ii", 4, 77), ProtocolError, "correlation id 77", id="another correlation id"),
        pytest.param(frame(b""), ProtocolError, "header", id="no header"),
        pytest.param(frame(b"\0\0"), ProtocolError, "DescribeClusterResponse", id="half a response"),
        pytest.param(pack(">i", 100), Unreachable, "closed the connection during Describe", id="cut off"),
        pytest.param(b"", Unreachable, "closed the connection during Describe", id="no response"),
    ],
)
async def test_a_fault_of_the_broker_closes_the_connection(
    answer: bytes, error: type[Exception], text: str
) -> None:
    with peer(handshake(), answer) as address:
        connection = await connect(address)
        with pytest.raises(error, match=text):
            await connection.call(DescribeClusterRequest(), DescribeClusterResponse, timeout_s=30)
        assert not connection.is_open
        with pytest.raises(error):
            await connection.call(DescribeClusterRequest(), DescribeClusterResponse, timeout_s=30)
        await connection.close()


async def test_a_request_that_is_not_answered_in_time_closes_the_connection() -> None:
    server = await asyncio.start_server(_answer_versions_only, "127.0.0.1", 0)
    async with server:
        connection = await connect(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        with pytest.raises(Unreachable, match=r"does not answer DescribeCluster within 0.05 s"):
            await connection.call(DescribeClusterRequest(), DescribeClusterResponse, timeout_s=0.05)
        assert not connection.is_open
        await connection.close()


async def _answer_versions_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    size = int.from_bytes(await reader.readexactly(4), "big")
    request = await reader.readexactly(size)
    writer.write(handshake().replace(b"ECHO", request[4:8], 1))
    await reader.read()
    writer.close()


async def test_an_address_without_a_broker_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"no broker answers at 127\.0\.0\.1:9") as failed:
        await connect(UNUSED)
    assert failed.value.retriable


async def test_any_of_the_addresses_will_do(broker: Broker) -> None:
    async with Cluster([UNUSED, parse_address(broker.address)]) as cluster:
        await cluster.topic_names()


async def test_an_api_that_the_broker_does_not_have_is_named() -> None:
    with peer(handshake([])) as address:
        connection = await connect(address)
        with pytest.raises(Refused, match="UNSUPPORTED_VERSION"):
            await connection.call(DescribeClusterRequest(), DescribeClusterResponse, timeout_s=30)
        await connection.close()


async def test_a_closed_cluster_says_so(broker: Broker) -> None:
    async with Cluster([parse_address(broker.address)]) as cluster:
        await cluster.topic_names()
    with pytest.raises(Closed):
        await cluster.topic_names()


def test_the_clients_run_on_uvloop(broker: Broker) -> None:
    async def round_trip() -> list[bytes | None]:
        async with Cluster([parse_address(broker.address)]) as cluster:
            async with Producer(cluster) as producer:
                for number in range(1000):
                    await producer.put("uvloop", b"%d" % number + bytes(1000), partition=0)
            async with Consumer(cluster, "uvloop", topics=["uvloop"]) as consumer:
                return [(await anext(consumer)).value for _ in range(1000)]

    assert uvloop.run(round_trip()) == [b"%d" % number + bytes(1000) for number in range(1000)]


def test_importing_the_clients_loads_nothing_of_the_broker() -> None:
    code = (
        "import sys\n"
        "import alpacamq.client.aio.transactions, alpacamq.client.aio.reader\n"
        "print(*{name.split('.')[1] for name in sys.modules if name.startswith('alpacamq.')})\n"
        "print('cryptography' in sys.modules, 'structlog' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    packages, others = output.splitlines()
    assert set(packages.split()) == {"client", "model", "protocol", "security"}
    assert others == "False False"
