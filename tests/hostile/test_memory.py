"""Memory follows what has arrived, not what was announced, and is free when the connection ends."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from struct import pack

import pytest

from alpacamq.model.records import Record, write_batch
from tests.brokers import Broker
from tests.integration.raw import connected
from tests.waiting import eventually

from .__main__ import prepare
from .bystander import TOPIC, producing

MIB = 1 << 20
ANNOUNCED_BYTES = 100 * MIB
SENT_BYTES = 60_000
CONNECTIONS = 100


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("memory") / "data")
    try:
        broker.start()
        prepare(broker)
        yield broker
    finally:
        broker.end()


def announce(stack: ExitStack, broker: Broker, size: int, sent: int) -> socket.socket:
    connection = stack.enter_context(socket.create_connection(broker.host_and_port, timeout=20))
    connection.sendall(pack(">i", size) + bytes(sent))
    return connection


def test_a_frame_takes_memory_only_for_bytes_received(broker: Broker) -> None:
    before = broker.resident_bytes
    bystander = producing(broker.host_and_port)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            announce(stack, broker, ANNOUNCED_BYTES, SENT_BYTES)
        bystander.send()  # on a later connection: by then their bytes have been read
        assert broker.resident_bytes < before + CONNECTIONS * 2 * SENT_BYTES + 16 * MIB
    bystander.close()
    eventually(lambda: broker.resident_bytes < before + 8 * MIB, what="their memory is free")


def test_received_bytes_are_freed_when_the_connection_ends(broker: Broker) -> None:
    before = broker.resident_bytes
    for _ in range(10):
        with ExitStack() as stack:
            announce(stack, broker, ANNOUNCED_BYTES, 40 * MIB)
    eventually(lambda: broker.resident_bytes < before + 8 * MIB, what="their memory is free")


def test_frames_that_never_come_keep_no_large_one_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = f"[kafka]\nmax_request_bytes = {4 * MIB}\nin_flight_bytes = {4 * MIB}\n"
    broker = Broker(tmp_path_factory.mktemp("short") / "data", config=config)
    batch = write_batch([Record(0, 0, None, bytes(900_000))])
    try:
        broker.start()
        prepare(broker)
        with ExitStack() as stack:
            # Together they have sent all that there is room for, and wait for each other or for nothing.
            for _ in range(6):
                announce(stack, broker, 4 * MIB, MIB)
            with connected(broker.host_and_port) as honest:
                assert honest.produce(TOPIC, batch).error == 0
            bystander = producing(broker.host_and_port)
            bystander.send()
            bystander.close()
    finally:
        broker.end()
