"""The HTTP and SQS APIs and the registry of a real broker: enabled, disabled, address in use, shutdown."""

import socket

import pytest

from tests.api.http.serving import Client, get
from tests.brokers import Broker
from tests.conftest import NewBroker

APIS = ["http", "sqs", "registry"]


def address_of(broker: Broker, api: str) -> tuple[str, int]:
    addresses = {
        "http": broker.http_address,
        "sqs": broker.sqs_address,
        "registry": broker.registry_address,
    }
    host, _, port = addresses[api].rpartition(":")
    return host, int(port)


def test_every_api_answers_at_the_printed_address(new_broker: NewBroker) -> None:
    broker = new_broker().start()

    for api in APIS:
        with Client(address_of(broker, api)) as client:
            assert client.ask(get("/there/is/nothing/here")).status in range(400, 500)


def test_a_disabled_api_does_not_listen(new_broker: NewBroker) -> None:
    broker = new_broker(config="".join(f"[{api}]\nenabled = false\n" for api in APIS)).start()

    assert not broker.output.find(r"http|sqs|registry")


@pytest.mark.parametrize("api", APIS)
def test_an_address_in_use_fails_the_start_with_a_hint(new_broker: NewBroker, api: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        broker = new_broker(**{api: address})

        broker.spawn()

        assert broker.exit_code() == 1
    [message] = broker.errors.lines
    assert f"cannot listen on {address}" in message
    assert f"{api}.listen (--{api} HOST:PORT)" in message
    assert f"{api}.enabled = false" in message
    assert not list(broker.data_dir.iterdir())


def test_connected_clients_do_not_block_shutdown(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    with Client(address_of(broker, "http")) as idle, Client(address_of(broker, "sqs")) as unfinished:
        idle.ask(get())
        unfinished.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc")

        broker.stop()

        assert idle.is_closed()
        assert unfinished.is_closed()


@pytest.mark.parametrize("api", APIS)
def test_a_request_for_another_host_is_misdirected(new_broker: NewBroker, api: str) -> None:
    config = f'[kafka]\nadvertised = "advertised.example:9092"\n[{api}]\nhosts = ["own.example"]\n'
    broker = new_broker(config=config).start()

    with Client(address_of(broker, api)) as client:
        for host in ("a.example", f"localhost.a.example:{address_of(broker, api)[1]}"):
            answer = client.ask(f"GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert answer.status == 421
            assert f"{api}.hosts".encode() in answer.body
        ours = (
            "127.0.0.1",
            "[::1]:1",
            "localhost",
            "own.example",
            "advertised.example",
            socket.gethostname(),
        )
        for host in ours:
            assert client.ask(f"GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).status != 421
        assert client.ask(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").status != 421
        assert client.ask(b"GET /x HTTP/1.1\r\n\r\n").status == 400
