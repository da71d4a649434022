"""Malicious or broken clients lose their connection; the broker loses nothing."""

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from struct import pack

import pytest

from tests.brokers import Broker
from tests.compat.client import Record
from tests.compat.confluent import Confluent
from tests.conftest import NewBroker
from tests.waiting import PAUSE_S, eventually

from .raw import (
    API_VERSIONS,
    CREATE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
    RawConnection,
    connected,
    fetch_request,
    frame,
    parse_api_versions,
    request,
    string,
)

MIB = 1 << 20
UNSUPPORTED_VERSION = 35
FRAME_TIMEOUT_MS = 600

CONFIG = f"""
[kafka]
frame_timeout_ms = {FRAME_TIMEOUT_MS}
max_request_bytes = {8 * MIB}
connection_in_flight_bytes = {4 * MIB}
in_flight_bytes = {32 * MIB}
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests: one attack must not affect the next."""
    broker = Broker(tmp_path_factory.mktemp("hostile") / "data", config=CONFIG)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(autouse=True)
def the_broker_still_serves(broker: Broker, topic: str) -> Iterator[None]:
    """After each attack, a normal client writes and reads as usual."""
    yield
    client = Confluent(broker.address)
    client.create_topic(f"{topic[:200]}-after")
    client.produce(f"{topic[:200]}-after", [Record(value=b"still here")])
    assert [record.value for record in client.read(f"{topic[:200]}-after", count=1)] == [b"still here"]
    assert broker.is_running


@pytest.mark.parametrize("seed", range(12))
def test_garbage_closes_the_connection(broker: Broker, seed: int) -> None:
    dice = random.Random(seed)
    with connected(broker.host_and_port) as connection:
        connection.send(dice.randbytes(dice.randrange(1, 5000)))

        assert connection.is_closed()


@pytest.mark.parametrize("seed", range(12))
def test_garbage_in_a_whole_frame_closes_the_connection(broker: Broker, seed: int) -> None:
    dice = random.Random(1000 + seed)
    api = dice.choice([PRODUCE, FETCH, METADATA, CREATE_TOPICS])
    with connected(broker.host_and_port) as connection:
        connection.send(request(api, dice.choice([4, 9]), dice.randbytes(dice.randrange(200, 3000))))

        assert connection.is_closed()


def test_an_http_request_closes_the_connection(broker: Broker) -> None:
    with connected(broker.host_and_port) as connection:
        connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert connection.is_closed()


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(2**31 - 1, id="2 GiB"),
        pytest.param(8 * MIB + 1, id="one byte over the limit"),
        pytest.param(-1, id="minus one"),
        pytest.param(-(2**31), id="minus 2 GiB"),
        pytest.param(0, id="nothing"),
    ],
)
def test_a_frame_of_an_impossible_size_is_refused_before_it_is_read(broker: Broker, size: int) -> None:
    before = broker.resident_bytes
    with connected(broker.host_and_port) as connection:
        connection.send(pack(">i", size))

        assert connection.is_closed()
    assert broker.resident_bytes < before + 16 * MIB


@pytest.mark.parametrize("kept", [1, 3, 4, 5, 11, 20])
def test_a_truncated_frame_is_no_request(broker: Broker, kept: int) -> None:
    whole = request(METADATA, 1, pack(">i", 1) + string("cut"))
    with connected(broker.host_and_port) as connection:
        connection.send(whole[:kept])
        connection.socket.shutdown(socket.SHUT_WR)

        assert connection.is_closed()
    assert "cut" not in Confluent(broker.address).topics()


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        pytest.param(METADATA, 1, pack(">i", 2**31 - 1), id="topics of Metadata"),
        pytest.param(METADATA, 1, pack(">i", -2), id="minus two topics of Metadata"),
        pytest.param(METADATA, 9, b"\x00" + b"\xff\xff\xff\xff\x0f", id="compact topics of Metadata"),
        pytest.param(FETCH, 4, pack(">iiiibi", -1, 0, 0, 1, 0, 2**31 - 1), id="topics of Fetch"),
        pytest.param(
            FETCH, 4, pack(">iiiibi", -1, 0, 0, 1, 0, 1) + string("t") + pack(">i", 2**31 - 1),
            id="partitions of Fetch",
        ),
        pytest.param(PRODUCE, 3, pack(">hhii", -1, 1, 1000, 2**31 - 1), id="topics of Produce"),
        pytest.param(
            PRODUCE, 3,
            pack(">hhii", -1, 1, 1000, 1) + string("t") + pack(">iii", 1, 0, 2**31 - 1),
            id="records of Produce",
        ),
        pytest.param(CREATE_TOPICS, 2, pack(">i", 2**31 - 1), id="topics of CreateTopics"),
        pytest.param(METADATA, 1, pack(">ih", 1, 32767), id="a name longer than the request"),
        pytest.param(METADATA, 9, b"\x00" + b"\xff" * 11, id="a varint without end"),
        pytest.param(METADATA, 9, b"\x00\x02" + b"\xff\xff\xff\xff\x0f", id="a compact name of 4 GiB"),
    ],
)  # fmt: skip
def test_an_impossible_count_closes_the_connection_without_allocating(
    broker: Broker, api: int, version: int, body: bytes
) -> None:
    before = broker.resident_bytes
    with connected(broker.host_and_port) as connection:
        connection.send(request(api, version, body))

        assert connection.is_closed()
    assert broker.resident_bytes < before + 16 * MIB


@pytest.mark.parametrize("api", [9999, -1, 32767])
def test_an_unknown_api_closes_the_connection(broker: Broker, api: int) -> None:
    with connected(broker.host_and_port) as connection:
        connection.send(request(api, 0))

        assert connection.is_closed()


def test_a_future_api_versions_request_gets_the_supported_versions(broker: Broker) -> None:
    with connected(broker.host_and_port) as connection:
        connection.send(request(API_VERSIONS, 99, b"whatever the future holds"))
        error, ranges = parse_api_versions(connection.receive())

        assert error == UNSUPPORTED_VERSION
        assert API_VERSIONS in ranges
        assert connection.api_versions() == ranges


@pytest.mark.parametrize("api", [PRODUCE, FETCH, METADATA, CREATE_TOPICS])
def test_an_unsupported_version_closes_the_connection(broker: Broker, api: int) -> None:
    with connected(broker.host_and_port) as connection:
        connection.send(request(api, 999, b"\x00" * 100))

        assert connection.is_closed()


def test_a_client_that_sends_single_bytes_times_out(broker: Broker) -> None:
    with connected(broker.host_and_port) as connection:
        connection.send(pack(">i", 1000))
        connection.socket.settimeout(PAUSE_S)

        def drip() -> bool:
            try:
                connection.send(b"\x00")
                return connection.socket.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        eventually(drip, what="the broker closes the connection although bytes keep coming")


def test_a_steady_sender_does_not_time_out_wherever_its_packets_end(broker: Broker) -> None:
    """Every packet ends inside a request: the timeout is per request, not per stream."""
    question = request(API_VERSIONS, 0)
    half = len(question) // 2
    asked_from = time.monotonic()
    with connected(broker.host_and_port) as connection:
        connection.send(question[:half])
        while time.monotonic() - asked_from < 3 * FRAME_TIMEOUT_MS / 1000:
            connection.send(question[half:] + question[:half])
            assert parse_api_versions(connection.receive())[0] == 0


def test_silent_connections_do_not_block_other_clients(broker: Broker) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(broker.host_and_port))
        talking = stack.enter_context(connected(broker.host_and_port))

        assert API_VERSIONS in talking.api_versions()


def test_descriptors_of_vanished_clients_are_closed(broker: Broker) -> None:
    before = broker.open_files
    for _ in range(100):
        connection = RawConnection(broker.host_and_port)
        # Zero linger: the broker sees a reset in the middle of a request.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        connection.send(request(METADATA, 1, pack(">i", -1)) + frame(b"half")[:6])
        connection.close()

    eventually(lambda: broker.open_files <= before + 5, what="the descriptors are closed")


def test_a_client_that_never_reads_is_not_read_from(broker: Broker, topic: str) -> None:
    client = Confluent(broker.address)
    client.create_topic(topic)
    client.produce(topic, [Record(value=b"x" * 100_000)] * 40)
    before = broker.resident_bytes
    # A long client id makes each request 30 KB: thousands of them exceed any socket buffer.
    request = fetch_request(topic, [(0, 0)], client="n" * 30_000)
    with connected(broker.host_and_port) as connection:
        connection.socket.settimeout(2)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 5000:
                connection.send(request)
                sent += 1

        assert 0 < sent < 5000, "the broker read every request although its answers are not read"
        assert broker.resident_bytes < before + 64 * MIB


def test_a_client_that_reads_late_gets_every_answer(broker: Broker, topic: str) -> None:
    client = Confluent(broker.address)
    client.create_topic(topic)
    client.produce(topic, [Record(value=b"x" * 100_000)] * 40)
    with connected(broker.host_and_port) as connection:
        for _ in range(50):
            connection.send(fetch_request(topic, [(0, 0)]))

        sizes = {len(connection.receive()) for _ in range(50)}

        assert len(sizes) == 1
        assert sizes.pop() > 4_000_000


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(new_broker: NewBroker) -> None:
    broker = new_broker("idle", config="[kafka]\nidle_timeout_ms = 1000\n").start()
    with connected(broker.host_and_port) as idle, connected(broker.host_and_port) as busy:
        idle.socket.settimeout(PAUSE_S)

        def is_closed_while_the_other_talks() -> bool:
            assert API_VERSIONS in busy.api_versions()
            try:
                return idle.is_closed()
            except TimeoutError:
                return False

        eventually(is_closed_while_the_other_talks, what="the idle connection is closed")
        assert API_VERSIONS in busy.api_versions()
