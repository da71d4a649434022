"""More clients than max_connections: idle connections are evicted, busy ones are not."""

import contextlib
import re
import socket
from contextlib import ExitStack

import httpx
import pytest

from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.waiting import eventually

from .raw import RawConnection, connected, fetch_request

PLACES = 10
CONFIG = f"""
[kafka]
max_connections = {PLACES}
[sqs]
max_connections = {PLACES}
"""
LONG_MS = 600_000


@pytest.fixture
def broker(new_broker: NewBroker) -> Broker:
    return new_broker("limited", config=CONFIG).start()


def is_served(address: tuple[str, int]) -> bool:
    """Return whether a new connection gets an answer."""
    with connected(address) as connection:
        try:
            return bool(connection.api_versions())
        except ConnectionError:
            return False


def waiting_for_messages(broker: Broker, stack: ExitStack, topic: str) -> list[RawConnection]:
    """Open max_connections connections, each with a Fetch that waits."""
    httpx.post(f"http://{broker.http_address}/topics", json={"name": topic, "partitions": 1})
    waiting = [stack.enter_context(connected(broker.host_and_port)) for _ in range(PLACES)]
    for connection in waiting:
        assert connection.api_versions()
        connection.send(fetch_request(topic, [(0, 0)], wait_ms=LONG_MS))
    return waiting


def metric(broker: Broker, name: str, api: str) -> float:
    text = httpx.get(f"http://{broker.http_address}/metrics").text
    found = re.search(rf'^{name}{{door="{api}"}} (\S+)$', text, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("asks", [pytest.param(False, id="silent"), pytest.param(True, id="asked once")])
def test_idle_connections_are_evicted_for_a_new_client(broker: Broker, asks: bool) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(broker.host_and_port)) for _ in range(PLACES)]
        if asks:
            assert all(connection.api_versions() for connection in idle)

        eventually(lambda: is_served(broker.host_and_port), what="a new client is served")

        assert metric(broker, "alpacamq_connections_evicted_total", "kafka") >= 1
        assert broker.errors.has("connections_evicted", within_s=20)


def test_a_connection_with_a_request_in_progress_is_never_evicted(broker: Broker, topic: str) -> None:
    with ExitStack() as stack:
        waiting = waiting_for_messages(broker, stack, topic)
        for _ in range(50):
            assert not is_served(broker.host_and_port)

        answer = httpx.post(
            f"http://{broker.http_address}/topics/{topic}/messages", json={"messages": [{"value": "here"}]}
        )
        assert answer.status_code == 200
        assert all(b"here" in connection.receive() for connection in waiting)


def test_a_closed_connection_makes_room_for_a_new_client(broker: Broker, topic: str) -> None:
    with ExitStack() as stack:
        waiting = waiting_for_messages(broker, stack, topic)
        assert not is_served(broker.host_and_port)

        waiting[0].close()

        eventually(lambda: is_served(broker.host_and_port), what="a new client is served")


def test_refused_connections_are_logged_together(broker: Broker, topic: str) -> None:
    with ExitStack() as stack:
        waiting_for_messages(broker, stack, topic)
        for _ in range(300):
            assert not is_served(broker.host_and_port)

        broker.errors.wait_for("connections_refused", within_s=20)
        assert metric(broker, "alpacamq_connections_refused_total", "kafka") == 300
        lines = [line for line in broker.errors.lines if "refused" in line]
        assert len(lines) < 10


def test_idle_connections_of_the_sqs_listener_are_evicted(broker: Broker) -> None:
    host, port = broker.sqs_address.split(":")
    with ExitStack() as stack:
        for _ in range(PLACES):
            stack.enter_context(socket.create_connection((host, int(port))))

        def is_answered() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://{broker.sqs_address}/").status_code != 503
            return False

        eventually(is_answered, what="a new client is answered")
        assert metric(broker, "alpacamq_connections_evicted_total", "sqs") >= 1
